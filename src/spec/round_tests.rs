//! What drafters draw: under the exact rule what the target would pick, under the rejection rule what they say they do.

use super::super::budget::Nodes;
use super::*;
use crate::sample::SampleParams;

const VOCAB: usize = 50;

fn logits(seed: u64) -> Vec<f32> {
    let noise = crate::sample::Noise::new(seed);
    (0..VOCAB as Token).map(|i| 6.0 * noise.coin(i.into(), 0, Purpose::Seed) as f32).collect()
}

/// Runs `act` in a round on a context of three tokens.
fn in_round<T>(params: &SampleParams, seed: u64, accept: Accept, act: impl FnOnce(&mut Round<'_>) -> T) -> (T, Draft) {
    let mut sampler = Sampler::new(params.clone(), seed, VOCAB, |_| vec![]).unwrap();
    let mut budget = Budget::new(Nodes::Fixed(63), 2);
    let setting = Setting { context: &[1, 2, 3], start: 0, room: 64, ordinal: 5, accept, drafters: 2 };
    let mut round = Round::new(setting, &mut sampler, &mut budget);
    assert!(round.turn(0));
    let result = act(&mut round);
    (result, round.finish())
}

fn samplings() -> Vec<SampleParams> {
    let d = SampleParams::default;
    vec![
        SampleParams { temp: 0.0, ..d() },
        SampleParams { temp: 0.0, repeat_penalty: 1.5, ..d() },
        SampleParams { temp: 0.8, top_k: 40, top_p: 0.95, ..d() },
        SampleParams { temp: 1.5, top_k: 0, top_p: 1.0, min_p: 0.0, xtc_probability: 0.5, ..d() },
        SampleParams { temp: 1.0, repeat_penalty: 1.3, presence_penalty: 0.5, dry_multiplier: 0.8, ..d() },
    ]
}

#[test]
fn under_exact_the_first_guess_is_the_pick() {
    for params in samplings() {
        for seed in 0..200 {
            let row = logits(seed);
            let (nodes, draft) = in_round(&params, seed, Accept::Exact, |round| {
                let parent = round.push(0, 9, -0.5).unwrap();
                let mut nodes = vec![];
                round.draw(parent, &row, 4, 0.0, &mut nodes);
                nodes
            });
            let mut sampler = Sampler::new(params.clone(), seed, VOCAB, |_| vec![]).unwrap();
            let history = History { committed: &[1, 2, 3], path: &[9], start: 0 };
            let pick = sampler.pick(&row, history, 6).unwrap();
            let guesses: Vec<&crate::tree::Node> = nodes.iter().map(|&node| &draft.tree().nodes()[node]).collect();
            assert_eq!(guesses[0].token, pick, "{params:?} {seed}");
            assert!(guesses.is_sorted_by(|a, b| a.score >= b.score), "best first: {guesses:?}");
            assert!(guesses.iter().all(|g| g.score <= -0.5 && g.depth == 2));
            assert!(draft.draws.is_empty() && draft.fault.is_none());
        }
    }
}

/// What is verified fits what is left of the text, whatever the rule and whoever chooses how much to guess.
#[test]
fn trees_fit_the_room() {
    for params in samplings() {
        for accept in [Accept::Exact, Accept::Rejection, Accept::Typical] {
            for (nodes, room) in [Nodes::Auto(63), Nodes::Fixed(63)].into_iter().flat_map(|n| [(n, 2), (n, 3), (n, 40)])
            {
                let mut sampler = Sampler::new(params.clone(), 1, VOCAB, |_| vec![]).unwrap();
                let mut budget = Budget::new(nodes, 2);
                let plain = Draft::of(DraftTree::new(3, 1));
                let second = std::time::Duration::from_secs(1);
                let times = crate::spec::tally::Times { verify: second, ..Default::default() };
                budget.learn(&plain, &[4], times, second);
                let setting = Setting { context: &[1, 2, 3], start: 0, room, ordinal: 5, accept, drafters: 2 };
                let mut round = Round::new(setting, &mut sampler, &mut budget);
                for drafter in 0..2 {
                    let mut node = Some(0);
                    let turn = round.turn(drafter);
                    while let Some(parent) = node.take().filter(|_| turn) {
                        let mut drawn = vec![];
                        round.draw(parent, &logits(parent as u64), 2, 0.0, &mut drawn);
                        node = drawn.first().copied().filter(|&node| node != parent);
                    }
                }
                let draft = round.finish();
                let what = format!("{accept:?} {nodes:?} {room} {params:?}");
                assert!(draft.tree().nodes().len() <= room, "{what}: {}", draft.tree().nodes().len());
            }
        }
    }
}

#[test]
fn under_rejection_guesses_have_the_distribution_they_claim() {
    let params = SampleParams { temp: 1.0, top_k: 6, top_p: 1.0, min_p: 0.0, ..SampleParams::default() };
    let row = logits(3);
    let runs = 20_000;
    let (mut first, mut second) = (vec![0.0; VOCAB], vec![0.0; VOCAB]);
    let (mut expected_second, mut q) = (vec![0.0; VOCAB], vec![]);
    let mut same_for_drafters = 0;
    for seed in 0..runs {
        let ((), draft) = in_round(&params, seed, Accept::Rejection, |round| {
            round.draw(0, &row, 2, 0.0, &mut vec![]);
            round.turn(1);
            round.draw(0, &row, 1, 0.0, &mut vec![]);
        });
        let tokens: Vec<usize> = draft.draws[0].nodes.iter().map(|&n| draft.tree().nodes()[n].token as usize).collect();
        first[tokens[0]] += 1.0;
        second[tokens[1]] += 1.0;
        same_for_drafters += usize::from(draft.tree().nodes()[draft.draws[1].nodes[0]].token as usize == tokens[0]);
        q.clone_from(&draft.draws[0].q);
        let without = 1.0 - q.iter().find(|&&(t, _)| t as usize == tokens[0]).unwrap().1;
        for &(t, share) in q.iter().filter(|&&(t, _)| t as usize != tokens[0]) {
            expected_second[t as usize] += share / without;
        }
    }
    let chi = |seen: &[f64], expected: &dyn Fn(usize) -> f64| -> f64 {
        q.iter().map(|&(t, _)| (seen[t as usize] - expected(t as usize)).powi(2) / expected(t as usize)).sum()
    };
    let share = |t: usize| q.iter().find(|&&(token, _)| token as usize == t).unwrap().1;
    assert_eq!(q.len(), 6);
    // Five degrees of freedom: 30 is exceeded once in 70,000.
    assert!(chi(&first, &|t| runs as f64 * share(t)) < 30.0);
    assert!(chi(&second, &|t| expected_second[t]) < 30.0);
    // Two drafters draw independently: they agree as often as chance has it.
    let agree: f64 = q.iter().map(|&(_, p)| p * p).sum();
    let deviation = (same_for_drafters as f64 / runs as f64 - agree).abs();
    assert!(deviation < 5.0 * (agree * (1.0 - agree) / runs as f64).sqrt(), "{deviation}");
}

/// Draft, coin, residual and bonus have keys of their own: knowing one says nothing about another.
#[test]
fn dice_of_rejection_are_independent() {
    let n = 20_000u64;
    let noise = crate::sample::Noise::new(4);
    let fair: Vec<(Token, f64)> = vec![(0, 0.5), (1, 0.5)];
    type Die<'a> = Box<dyn Fn(u64) -> bool + 'a>;
    let draws = |key: [u64; 2]| noise_draw(&noise, &fair, key);
    let dice: Vec<(&str, Die<'_>)> = vec![
        ("drafter 0, node 0", draws([0, 0])),
        ("drafter 1, node 0", draws([1, 0])),
        ("drafter 0, node 1", draws([0, 1])),
        ("first coin", Box::new(|i| noise.coin(i, 0, Purpose::Coin) < 0.5)),
        ("second coin", Box::new(|i| noise.coin(i, 1, Purpose::Coin) < 0.5)),
        ("residual", Box::new(|i| noise.draw(i, Purpose::Residual, &fair) == 0)),
        ("bonus", Box::new(|i| noise.draw(i, Purpose::Bonus, &fair) == 0)),
        ("pick", Box::new(|i| noise.draw(i, Purpose::Draw, &fair) == 0)),
    ];
    for (i, (a, die_a)) in dice.iter().enumerate() {
        for (b, die_b) in &dice[..i] {
            let equal = (0..n).filter(|&k| die_a(k) == die_b(k)).count() as f64;
            let deviation = (equal - n as f64 / 2.0).abs();
            assert!(deviation < 5.0 * (n as f64 / 4.0).sqrt(), "{a} and {b} agree {equal} times of {n}");
        }
    }
}

fn noise_draw<'a>(
    noise: &'a crate::sample::Noise,
    fair: &'a [(Token, f64)],
    key: [u64; 2],
) -> Box<dyn Fn(u64) -> bool + 'a> {
    Box::new(move |i| noise.draw_some(i, Purpose::Draft, key, fair, 1)[0] == 0)
}

#[test]
fn once_something_is_drawn_nothing_new_is_pushed() {
    let params = SampleParams { temp: 1.0, ..SampleParams::default() };
    let ((), draft) = in_round(&params, 1, Accept::Rejection, |round| {
        let mut nodes = vec![];
        let early = round.push(0, 7, -1.0).unwrap();
        round.draw(0, &logits(1), 1, 0.0, &mut nodes);
        assert_eq!(round.push(0, 7, -1.0), Some(early));
        let drawn = round.tree().nodes()[nodes[0]].token;
        assert_eq!(round.push(0, drawn, 0.0), Some(nodes[0]));
        assert_eq!(round.push(0, (drawn + 1) % 7, 0.0), None);
    });
    assert_eq!(draft.pushed & 0b11, 0b11);
    assert!(draft.tree().nodes().len() <= 3);
}

#[test]
fn logits_that_are_none_are_a_fault_not_an_end() {
    let ((), draft) = in_round(&SampleParams::default(), 1, Accept::Exact, |round| {
        round.draw(0, &[f32::NAN; VOCAB], 1, 0.0, &mut vec![]);
    });
    assert_eq!(draft.tree().nodes().len(), 1);
    assert!(draft.fault.unwrap().contains("NaN"));
}
