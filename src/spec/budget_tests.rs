//! The controller in simulated worlds: costs and chances are known, so the best fixed number of nodes is, too.

use super::super::round::{Draft, Effort};
use super::*;
use crate::sample::Noise;
use crate::sample::Purpose;

/// What a world is like: one drafter of chains.
struct World {
    name: &'static str,
    /// Milliseconds of a pass by rows.
    pass: fn(usize) -> f64,
    /// Milliseconds of a step of the drafter.
    step: f64,
    /// What a guess claims, and the chance that it is right, by round.
    guess: fn(usize) -> (f64, f64),
}

/// A machine on which memory rules up to a few rows.
fn flat(rows: usize) -> f64 {
    27.0 * (1.0 + 0.07 * (rows - 1) as f64)
}

/// A machine on which a row costs nearly a pass.
fn steep(rows: usize) -> f64 {
    10.0 * (1.0 + 0.8 * (rows - 1) as f64)
}

/// Passes in tiles of eight rows.
fn stairs(rows: usize) -> f64 {
    20.0 * (1.0 + 0.6 * rows.div_ceil(8) as f64)
}

const WORLDS: &[World] = &[
    World { name: "copying", pass: flat, step: 0.0, guess: |_| (0.95, 0.97) },
    World { name: "copying on stairs", pass: stairs, step: 0.0, guess: |_| (0.95, 0.9) },
    World { name: "boasting", pass: flat, step: 0.0, guess: |_| (0.95, 0.03) },
    World { name: "modest", pass: flat, step: 0.0, guess: |_| (0.3, 0.8) },
    World { name: "even", pass: flat, step: 0.0, guess: |_| (0.6, 0.6) },
    World { name: "steep", pass: steep, step: 0.0, guess: |_| (0.9, 0.7) },
    World { name: "a good model", pass: flat, step: 10.0, guess: |_| (0.9, 0.9) },
    World { name: "a poor model", pass: flat, step: 10.0, guess: |_| (0.9, 0.15) },
    World { name: "a fair model", pass: flat, step: 10.0, guess: |_| (0.7, 0.6) },
    World { name: "a useless model", pass: flat, step: 10.0, guess: |_| (0.5, 0.02) },
    World { name: "a boasting model", pass: flat, step: 10.0, guess: |_| (0.97, 0.3) },
    World { name: "a good head", pass: flat, step: 1.7, guess: |_| (0.7, 0.75) },
    World { name: "a fair head", pass: flat, step: 1.7, guess: |_| (0.5, 0.5) },
    World { name: "a poor head", pass: flat, step: 1.7, guess: |_| (0.3, 0.1) },
    World { name: "a useless head", pass: flat, step: 1.7, guess: |_| (0.1, 0.005) },
    World { name: "a boasting head", pass: flat, step: 1.7, guess: |_| (0.9, 0.005) },
    World { name: "a steep head", pass: steep, step: 0.6, guess: |_| (0.9, 0.02) },
    World {
        name: "a model by turns",
        pass: flat,
        step: 10.0,
        guess: |i| if i / 100 % 2 == 0 { (0.9, 0.9) } else { (0.7, 0.1) },
    },
    World {
        name: "by turns",
        pass: flat,
        step: 0.0,
        guess: |i| if i / 100 % 2 == 0 { (0.95, 0.95) } else { (0.5, 0.05) },
    },
];

/// Tokens a second of so many rounds under a policy, after a prompt.
fn simulate(world: &World, nodes: Nodes, rounds: usize) -> f64 {
    let mut budget = Budget::new(nodes, 1);
    budget.learn_prompt(256, Duration::from_secs_f64((world.pass)(DraftTree::MAX) * 4e-3));
    go_on(world, &mut budget, rounds)
}

/// The same of a further text.
fn go_on(world: &World, budget: &mut Budget, rounds: usize) -> f64 {
    budget.begin();
    let noise = Noise::new(7);
    let mut dice = (0..).map(|i| noise.coin(i, 0, Purpose::Seed));
    let (mut tokens, mut time) = (0.0, 0.0);
    for round in 0..rounds {
        let (claim, chance) = (world.guess)(round);
        let mut draft = Draft::of(DraftTree::new(0, DraftTree::MAX));
        draft.efforts = vec![Effort::default()];
        let turn = budget.turn(0, &draft.sketch);
        let most = if budget.is_auto() { DraftTree::MAX - 1 } else { budget.most() };
        while turn != Turn::Rest && draft.tree().nodes().len() <= most {
            let last = draft.tree().nodes().len() - 1;
            let goes_on = match turn {
                Turn::Try if world.step > 0.0 => draft.efforts[0].steps < Budget::TRIAL,
                _ => world.step == 0.0 || budget.wants(0, &draft.sketch, last),
            };
            if !goes_on {
                break;
            }
            let score = draft.tree().nodes()[last].score + claim.ln() as f32;
            draft.sketch.tree.push(last, 1, score).unwrap();
            draft.sketch.owners.push(0);
            draft.efforts[0].steps += 1;
        }
        let guessed = draft.tree().nodes().len() - 1;
        if budget.is_auto() {
            draft.prune(budget.worthy(&draft.sketch, budget.most()));
        }
        let verified = draft.tree().nodes().len() - 1;
        let right = dice.by_ref().take(guessed).take_while(|&u| u < chance).count();
        let mut text = vec![1; right.min(verified)];
        // What comes where no guess was verified may still be what was guessed.
        text.push(if right > verified { 1 } else { 2 });
        let milliseconds = |ms: f64| Duration::from_secs_f64(ms * 1e-3);
        let drafting = world.step * draft.efforts[0].steps as f64;
        draft.efforts[0].seconds = drafting * 1e-3;
        let verify = (world.pass)(verified + 1);
        let times = Times { draft: milliseconds(drafting), verify: milliseconds(verify), sample: Duration::ZERO };
        let whole = drafting + verify + 0.1;
        budget.learn(&draft, &text, times, milliseconds(whole));
        tokens += text.len() as f64;
        time += whole * 1e-3;
    }
    tokens / time
}

#[test]
fn the_controller_is_near_the_best_fixed_number() {
    for world in WORLDS {
        let rounds = 600;
        let auto = simulate(world, Nodes::Auto(63), rounds);
        let plain = simulate(world, Nodes::Fixed(0), rounds);
        let fixed = [0, 1, 2, 3, 4, 6, 7, 8, 12, 15, 16, 24, 32, 48, 63];
        let (best, at) = fixed
            .iter()
            .map(|&n| (simulate(world, Nodes::Fixed(n), rounds), n))
            .max_by(|a, b| a.0.total_cmp(&b.0))
            .unwrap();
        println!(
            "{:>18}: plain {plain:6.1}, best {best:6.1} at {at:2}, auto {auto:6.1} ({:.2})",
            world.name,
            auto / best
        );
        assert!(auto > 0.93 * best, "{}: {auto} of {best}", world.name);
        assert!(auto > 0.97 * plain, "{}: {auto}, plain {plain}", world.name);
    }
}

/// What was copied before a chat does not make the chat slow, nor the other way round.
#[test]
fn another_text_is_another_matter() {
    fn often(round: usize, share: f64) -> bool {
        (round as f64 * 0.618_034).fract() < share
    }
    fn pass(rows: usize) -> f64 {
        22.0 + 3.5 * rows.saturating_sub(4) as f64
    }
    let copy =
        World { name: "copy", pass, step: 0.0, guess: |i| if often(i, 0.8) { (0.95, 0.97) } else { (0.4, 0.5) } };
    let chat =
        World { name: "chat", pass, step: 0.0, guess: |i| if often(i, 0.5) { (0.95, 0.1) } else { (0.3, 0.05) } };
    let mut budget = Budget::new(Nodes::Auto(63), 1);
    budget.learn_prompt(256, Duration::from_secs_f64(pass(DraftTree::MAX) * 4e-3));
    for (world, rounds, least) in [(&copy, 120, 3.0), (&chat, 200, 0.97), (&copy, 20, 3.0), (&chat, 60, 0.93)] {
        let ratio = go_on(world, &mut budget, rounds) / simulate(world, Nodes::Fixed(0), rounds);
        println!("{}, {rounds} rounds: {ratio:.2}", world.name);
        assert!(ratio > least, "{}, {rounds} rounds: {ratio}", world.name);
    }
}

/// Text that nothing is gained on costs little more than plain decoding (P15).
#[test]
fn short_answers_lose_little() {
    for world in WORLDS {
        for (rounds, least) in [(16, 0.83), (128, 0.965)] {
            let (auto, plain) = (simulate(world, Nodes::Auto(63), rounds), simulate(world, Nodes::Fixed(0), rounds));
            println!("{:>18}, {rounds} rounds: {:.2}", world.name, auto / plain);
            assert!(auto > least * plain, "{}, {rounds} rounds: {auto}, plain {plain}", world.name);
        }
    }
}

#[test]
fn a_prompt_tells_what_wide_passes_cost() {
    let mut budget = Budget::new(Nodes::Auto(63), 0);
    let seconds = Duration::from_secs;
    budget.passes[0] = (vec![10.0], 0);
    for (rows, time, wide) in [(1, 8, 0.0), (22, 40, 0.0), (9, 7, 0.0), (256, 400, 100.0), (30, 7, 100.0)] {
        budget.learn_prompt(rows, seconds(time));
        if wide > 0.0 {
            assert_eq!(budget.pass(64), wide, "{rows}");
        } else if rows == 22 {
            assert_eq!(budget.pass(22), 40.0);
        }
    }
    assert!((budget.pass(8) - 20.0).abs() < 1e-9, "between one row and many");
    budget.passes[63] = (vec![70.0], 0);
    assert_eq!(budget.pass(64), 70.0, "what was measured counts more");
}

#[test]
fn costs_between_and_beyond_what_was_measured_are_plausible() {
    let mut budget = Budget::new(Nodes::Auto(63), 0);
    assert_eq!(budget.pass(5), 0.0);
    budget.passes[0] = (vec![10.0], 0);
    assert!(budget.pass(64) > 10.0 && budget.pass(64) < 64.0 * 10.0);
    budget.passes[7] = (vec![30.0, 18.0, 900.0], 0);
    assert_eq!(budget.pass(8), 30.0, "one slow pass does no harm");
    assert_eq!(budget.pass(1), 10.0);
    let middle = budget.pass(4);
    assert!(middle > 10.0 && middle < 30.0);
    for rows in 1..64 {
        assert!(budget.pass(rows) <= budget.pass(rows + 1), "{rows}");
    }
}

#[test]
fn a_drafter_that_does_not_pay_rests_ever_longer() {
    let mut budget = Budget::new(Nodes::Auto(63), 1);
    let sketch = Draft::of(DraftTree::new(0, 9)).sketch;
    assert_eq!(budget.turn(0, &sketch), Turn::Rest, "a plain pass comes first");
    budget.passes[0] = (vec![1.0], 0);
    assert_eq!(budget.turn(0, &sketch), Turn::Try, "what it costs is not known");
    budget.passes[1] = (vec![1.1], 0);
    (budget.drafters[0].seconds.value, budget.drafters[0].steps.value) = (0.4, 1.0);
    assert_eq!(budget.turn(0, &sketch), Turn::Guess, "how good it is is not known");
    (0..200).for_each(|_| budget.drafters[0].places[0].add(false));
    let turns: Vec<Turn> = (0..700).map(|_| budget.turn(0, &sketch)).collect();
    let tries: Vec<usize> = (0..700).filter(|&i| turns[i] == Turn::Try).collect();
    assert_eq!(tries, [7, 39, 167, 679]);
    assert!(turns.iter().all(|&turn| turn != Turn::Guess) && budget.is_resting(0));
    (0..200).for_each(|_| budget.drafters[0].places.iter_mut().for_each(|place| place.add(true)));
    assert_eq!(budget.turn(0, &sketch), Turn::Guess);
    assert!(!budget.is_resting(0));
    (0..200).for_each(|_| budget.drafters[0].places[0].add(false));
    (0..100).for_each(|_| _ = budget.turn(0, &sketch));
    assert!(budget.is_resting(0));
    budget.begin();
    assert_eq!((0..100).find(|_| budget.turn(0, &sketch) == Turn::Try), Some(7), "another text, another try");
}

/// What was right and not worth its row is no reason to ask for more of it, nor against it.
#[test]
fn what_was_right_and_pruned_says_nothing() {
    for (tried, keep, token, counted) in [
        (false, 0b001, 1, None),
        (false, 0b001, 9, Some(0.0)),
        (false, 0b011, 1, Some(1.0)),
        (false, 0b101, 1, None),
        (true, 0b001, 1, Some(1.0)),
    ] {
        let mut budget = Budget::new(Nodes::Auto(63), 1);
        budget.drafters[0].on_trial = tried;
        let mut draft = Draft::of(DraftTree::new(0, 64));
        for guess in [1, 2] {
            draft.sketch.tree.push(0, guess, -1.0).unwrap();
            draft.sketch.owners.push(0);
        }
        draft.efforts = vec![Effort { steps: 1, ..Effort::default() }];
        draft.prune(keep);
        budget.learn(&draft, &[token], Times::default(), Duration::from_millis(1));
        let place = budget.drafters[0].places[0];
        assert_eq!((place.seen, place.right), counted.map_or((0.0, 0.0), |right| (1.0, right)), "{keep:b} {token}");
    }
}

/// Heads that cost most of a pass together pay if all their levels do, though the first alone would not.
#[test]
fn what_guesses_all_levels_at_once_is_paid_once() {
    for (levels, share, pays) in [(4, 0.7, true), (1, 0.7, false), (4, 0.2, false)] {
        let mut budget = Budget::new(Nodes::Auto(63), 1);
        let noise = Noise::new(3);
        let mut dice = (0..).map(|i| noise.coin(i, 0, Purpose::Seed));
        let mut turns = 0;
        for round in 0..300 {
            let mut draft = Draft::of(DraftTree::new(0, DraftTree::MAX));
            draft.efforts = vec![Effort::default()];
            let turn = budget.turn(0, &draft.sketch);
            let mut drafting = 0.0;
            if turn != Turn::Rest {
                turns += usize::from(round >= 100);
                for node in 0..levels {
                    draft.sketch.tree.push(node, 1, (share as f32).ln() * (node + 1) as f32).unwrap();
                    draft.sketch.owners.push(0);
                }
                drafting = 22e-3;
                draft.efforts[0] = Effort { seconds: drafting, steps: 1, levels, ..Effort::default() };
                draft.prune(budget.worthy(&draft.sketch, 63));
            }
            let verified = draft.tree().nodes().len() - 1;
            let right = dice.by_ref().take(levels).take_while(|&u| u < share).count();
            let mut text = vec![1; right.min(verified)];
            text.push(if right > verified { 1 } else { 2 });
            let verify = flat(verified + 1) * 1e-3;
            let seconds = Duration::from_secs_f64;
            let times = Times { draft: seconds(drafting), verify: seconds(verify), sample: Duration::ZERO };
            budget.learn(&draft, &text, times, seconds(drafting + verify + 1e-4));
        }
        assert_eq!(turns > 150, pays, "{levels} levels of {share}: {turns} turns of 200");
        assert!(pays || turns < 40, "{levels} levels of {share}: {turns} turns of 200");
    }
}

/// Of places that one step guesses below, those are wanted whose next guess pays its row, if together they pay the step.
#[test]
fn a_step_below_several_places_is_paid_by_all_of_them() {
    for (step, scores, wanted) in [
        (0.05, [-0.1f32, -0.3, -4.0], [true, true, false]),
        (0.7, [-0.1, -0.3, -4.0], [true, true, false]),
        (0.7, [-0.1, -4.0, -4.0], [false; 3]),
        (9.0, [-0.1, -0.3, -4.0], [false; 3]),
    ] {
        let mut budget = Budget::new(Nodes::Auto(63), 1);
        budget.passes[0] = (vec![1.0], 0);
        budget.passes[63] = (vec![7.3], 0);
        (budget.drafters[0].seconds.value, budget.drafters[0].steps.value) = (step, 1.0);
        let sketch = Draft::of(DraftTree::new(0, 64)).sketch;
        let places: Vec<_> = (1..).zip(scores).map(|(token, score)| vec![(token, score)]).collect();
        assert_eq!(budget.wants_below(0, &sketch, &places), wanted, "{step} {scores:?}");
        let mut fixed = Budget::new(Nodes::Fixed(4), 1);
        fixed.passes = budget.passes.clone();
        assert_eq!(fixed.wants_below(0, &sketch, &places), [true; 3]);
        // What others have guessed there is not to be gained again.
        let mut tree = DraftTree::new(0, 64);
        let node = tree.push(0, 1, -0.1).unwrap();
        tree.push(node, 5, -0.1).unwrap();
        assert!(!budget.wants_below(0, &Draft::of(tree).sketch, &places)[0]);
    }
}

#[test]
fn a_width_that_was_dear_while_the_machine_was_slow_is_tried_again() {
    let mut world = Budget::new(Nodes::Auto(8), 1);
    world.passes[0] = (vec![1.0], 0);
    world.passes[1] = (vec![2.5; SAMPLES], 0);
    assert_eq!(world.pass(2), 2.5);
    world.rounds = FRESH;
    assert_eq!(world.pass(2), 2.5);
    world.rounds += 1;
    assert!(world.pass(2) < 1.1, "{}", world.pass(2));
}
