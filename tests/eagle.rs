//! EAGLE heads: against a plain reference, whose guesses are known by construction, and that nothing but the text so far
//! decides on what is guessed.

mod common;

use common::eagles::{self, Head, Knows};
use common::gguf_writer::{VOCAB, Value, tiny_llama};
use common::plain_eagle::Plain;
use common::sidecars::{self, live, next};
use foretoken::backend::{KvType, cpu::Cpu};
use foretoken::engine::{Limits, Outcome, Plan, Session};
use foretoken::gguf::Gguf;
use foretoken::isa::Isa;
use foretoken::model::{Input, Model, Rows};
use foretoken::sample::{SampleParams, Sampler};
use foretoken::spec::eagle::Growth;
use foretoken::spec::round::Setting;
use foretoken::spec::{Accept, Budget, Drafter, Features, Nodes, Round};
use foretoken::tree::Token;
use std::ops::ControlFlow::Continue;
use std::sync::{Arc, Mutex};

const CONTEXT: usize = 512;

fn load(file: Vec<u8>, threads: usize) -> Arc<Model<Cpu>> {
    let gguf = Gguf::from_bytes(file).unwrap();
    Arc::new(Model::load(Arc::new(Cpu::new(Isa::best(), threads).unwrap()), &gguf, &mut |_, _| ()).unwrap())
}

fn text(n: usize, vocab: usize) -> Vec<Token> {
    (0..n).map(|i| ((i * i + 7 * i + 3) % vocab) as Token).collect()
}

fn sampler(temp: f32, vocab: usize) -> Sampler {
    Sampler::new(SampleParams { temp, ..SampleParams::default() }, 4, vocab, |_| vec![]).unwrap()
}

/// Tokens, parents and scores of a tree.
type Tree = Vec<(Token, usize, u32)>;

/// Has a drafter read `text`, in passes of `pieces` tokens, and draft after it.
fn drafted(
    drafter: &mut Box<dyn Drafter<Cpu>>,
    model: &Arc<Model<Cpu>>,
    text: &[Token],
    pieces: &[usize],
    prepared: bool,
    (nodes, temp): (usize, f32),
) -> Tree {
    let vocab = model.config().vocab;
    let mut state = model.state(text.len() + 1, 256, KvType::F32).unwrap();
    state.tap(model, drafter.taps().unwrap().iter().copied()).unwrap();
    drafter.rewind(&[]).unwrap();
    let (mut at, mut pieces) = (0, pieces.iter().cycle());
    while at + 1 < text.len() {
        let to = (at + pieces.next().unwrap()).min(text.len() - 1);
        model.forward(&mut state, Input::Chain(&text[at..to]), Rows::None).unwrap();
        drafter.observe(&text[if at == 0 { 0 } else { at + 1 }..=to]).unwrap();
        let taps: Vec<_> = drafter.taps().unwrap().iter().map(|&tap| state.tapped(tap).unwrap()).collect();
        let rows: Vec<usize> = (0..to - at).collect();
        drafter.see(&Features { first: at, rows: &rows, hidden: state.hidden(), taps: &taps }).unwrap();
        if prepared {
            drafter.prepare().unwrap();
        }
        at = to;
    }
    let (mut sampler, mut budget) = (sampler(temp, vocab), Budget::new(Nodes::Fixed(nodes), 1));
    let setting = Setting { context: text, start: 0, room: nodes + 1, ordinal: 0, accept: Accept::Exact, drafters: 1 };
    let mut round = Round::new(setting, &mut sampler, &mut budget);
    assert!(round.turn(0));
    drafter.draft(&mut round).unwrap();
    let draft = round.finish();
    assert_eq!(draft.fault, None);
    draft.tree().nodes().iter().map(|node| (node.token, node.parent, node.score.to_bits())).collect()
}

/// Heads of all sorts for a target of 64 wide, and whether each normed feature is added to.
fn sorts(model: &Model<Cpu>) -> Vec<(&'static str, Head, bool)> {
    let ids = || Some((0..VOCAB as Token).rev().step_by(3).collect());
    let of = |third, seed| Head::of(model, third, seed);
    vec![
        ("eagle", of(false, 1), false),
        ("eagle, biased, its own output", Head { biased: true, owns: (false, true), ..of(false, 2) }, false),
        ("eagle, reduced, its own embedding", Head { ids: ids(), owns: (true, true), ..of(false, 3) }, false),
        ("eagle3", of(true, 4), false),
        ("eagle3, norm before residual", Head { biased: true, ..of(true, 5) }, true),
        ("eagle3, reduced", Head { ids: ids(), ..of(true, 6) }, false),
        ("eagle3, wider", Head { width: 96, owns: (true, true), ids: ids(), ..of(true, 7) }, true),
    ]
}

#[test]
fn trees_are_those_of_the_plain_reference() {
    let target = tiny_llama(5, "F32");
    let model = load(target.bytes(), 1);
    for (name, head, normed) in sorts(&model) {
        let mut file = head.file();
        if normed {
            file = file.key("eagle3.norm_before_residual", Value::Bool(true));
        }
        let text = text(40, VOCAB);
        for (branch, depth, nodes) in [(4, 4, 20), (1, 6, 20), (8, 3, 60), (3, 5, 7)] {
            let growth = Growth { branch, depth };
            let mut drafter = eagles::open(file.bytes(), &model, CONTEXT, KvType::F32, growth);
            let got = drafted(&mut drafter, &model, &text, &[15], true, (nodes, 0.0));
            let plain = Plain::new(&file, &target);
            let want = plain.tree(&model, &text, growth, nodes);
            let mut paths: Vec<(Vec<Token>, f32)> = vec![(vec![], 0.0)];
            for &(token, parent, score) in &got[1..] {
                paths.push(([&paths[parent].0[..], &[token]].concat(), f32::from_bits(score)));
            }
            assert_eq!(paths.len(), want.len() + 1, "{name} {growth:?}");
            for (path, score) in &paths[1..] {
                let (_, right) = want.iter().find(|(right, _)| right == path).unwrap_or_else(|| {
                    panic!("{name} {growth:?}: {path:?} of {score} is not among {want:?}");
                });
                assert!((score - right).abs() < 2e-3, "{name} {growth:?}: {path:?} is {score}, not {right}");
            }
        }
    }
}

/// Quantised weights, so that sums are taken in the order of the kernels; every bit counts.
#[test]
fn pairs_can_be_run_in_any_pieces() {
    let model = load(tiny_llama(5, "Q8_0").bytes(), 2);
    for (name, head, _) in sorts(&model) {
        let file = Head { weights: "Q4_0", ..head }.file().bytes();
        let text = text(700, VOCAB);
        for (growth, most) in [(Growth { branch: 10, depth: 7 }, 63), (Growth { branch: 1, depth: 63 }, 63)] {
            let open = || eagles::open(file.clone(), &model, 1024, KvType::F16, growth);
            let one = drafted(&mut open(), &model, &text, &[1], true, (most, 0.0));
            assert_eq!(one.len(), most + 1, "{name}");
            let mut again = open();
            for (pieces, prepared) in [(&[256][..], true), (&[256], false), (&[1], false), (&[3, 100, 7, 1], true)] {
                let got = drafted(&mut again, &model, &text, pieces, prepared, (most, 0.0));
                assert_eq!(got, one, "{name}: in pieces of {pieces:?}, prepared: {prepared}");
            }
        }
    }
}

/// Trees of each round, as far as verified, and lengths of the accepted paths.
type Told = Arc<Mutex<Vec<(Tree, usize)>>>;

fn session(model: &Arc<Model<Cpu>>, drafters: Vec<Box<dyn Drafter<Cpu>>>, nodes: usize) -> (Session<Cpu>, Told) {
    let mut session = Session::new(model.clone(), CONTEXT, KvType::F16).unwrap();
    session.set_drafters(drafters, Plan { nodes: Nodes::Fixed(nodes), accept: Accept::Exact }).unwrap();
    let told = Told::default();
    let tell = told.clone();
    session.watch(Some(Box::new(move |round| {
        let nodes = round.draft.tree().nodes().iter();
        let tree = nodes.map(|node| (node.token, node.parent, node.score.to_bits())).collect();
        tell.lock().unwrap().push((tree, round.verdict.path.len()));
    })));
    (session, told)
}

fn read(session: &mut Session<Cpu>, tokens: &[Token]) {
    assert!(session.prefill(tokens, |_| Continue(())).unwrap().is_continue());
}

fn generate(session: &mut Session<Cpu>, temp: f32, n: usize) -> Outcome {
    let limits = Limits { max_tokens: Some(n), ends: &[], begun: 0 };
    session.generate(&mut sampler(temp, VOCAB), limits, || false, |_| Ok(Continue(()))).unwrap()
}

/// A text that the cyclic target would go on with as it is.
fn cycle(n: usize) -> Vec<Token> {
    std::iter::successors(Some(live(0)), |&token| Some(next(token))).take(n).collect()
}

#[test]
fn heads_that_are_right_are_accepted_in_every_round() {
    let model = load(sidecars::cyclic().bytes(), 1);
    let mut all = 0;
    for (third, knows, growth) in [
        (false, Knows::Feature, Growth { branch: 10, depth: 7 }),
        (false, Knows::Feature, Growth { branch: 1, depth: 30 }),
        (false, Knows::Token, Growth { branch: 3, depth: 5 }),
        (true, Knows::Feature, Growth { branch: 10, depth: 7 }),
        (true, Knows::Feature, Growth { branch: 1, depth: 12 }),
        (true, Knows::Token, Growth { branch: 4, depth: 1 }),
    ] {
        for (normed, spelling) in [(false, 0), (third, 1)] {
            let file = |late| {
                let mut w = Head::cyclic(&model, third, knows, late);
                if spelling == 1 && third {
                    w.tensor_mut("blk.0.attn_norm_2.weight").name = b"blk.0.hidden_norm.weight".to_vec();
                    w.keys.iter_mut().filter(|(key, _)| key == b"eagle3.target_layers").for_each(|(key, _)| {
                        *key = b"eagle3.extract_layers".to_vec();
                    });
                }
                if normed {
                    // What is added to is then 8 times as large.
                    w = w.key("eagle3.norm_before_residual", Value::Bool(true));
                    let down = w.tensor_mut("blk.0.ffn_down.weight");
                    let values: Vec<f32> =
                        down.bytes.as_chunks().0.iter().map(|x| 8.0 * f32::from_le_bytes(*x)).collect();
                    down.bytes = values.iter().flat_map(|x| x.to_le_bytes()).collect();
                }
                // One that is wrong leaves some room.
                let growth = if late == 0 { growth } else { Growth { branch: 1, depth: 6 } };
                eagles::open(w.bytes(), &model, CONTEXT, KvType::F16, growth)
            };
            let what = format!("third {third}, {knows:?}, {growth:?}, normed {normed}");
            // Alone, and beside one that is always wrong; the prompt in one piece and in many.
            let beside = [vec![file(0)], vec![file(1), file(0)], vec![file(0), file(1)]];
            for (j, drafters) in beside.into_iter().enumerate() {
                let (mut session, told) = session(&model, drafters, if j == 1 { 63 } else { 40 });
                let check = |session: &mut Session<Cpu>, temp, n: usize| -> usize {
                    let before = session.tokens().len();
                    let outcome = generate(session, temp, n);
                    assert!(session.tokens()[before - 1..].windows(2).all(|w| next(w[0]) == w[1]), "{what}");
                    let paths: Vec<usize> = told.lock().unwrap().drain(..).map(|(_, path)| path).collect();
                    let full = growth.depth + 1;
                    let mut left = n;
                    for path in &paths {
                        // One that is wrong takes what room there is at the end.
                        let room = if j == 1 && left < full + 6 { 1 } else { full.min(left) };
                        assert!(*path >= room, "{what}, {j}: every round is full: {paths:?}");
                        left -= path;
                    }
                    outcome.tally.accepted
                };
                let text = cycle(300);
                text.chunks([300, 1, 7, 100][(j + usize::from(normed)) % 4])
                    .for_each(|piece| read(&mut session, piece));
                all += check(&mut session, 0.0, 64);
                // Back to somewhere, and on at once; then by another way.
                session.rewind(150).unwrap();
                all += check(&mut session, 0.0, 40);
                session.rewind(151).unwrap();
                read(&mut session, &text[151 % 64..][..9]);
                all += check(&mut session, 0.8, 40);
                // From a cache, with what drafters kept and without.
                let (tokens, kv) = (session.tokens().to_vec(), session.kv_bytes().unwrap());
                let kept = session.drafter_bytes().unwrap();
                session.restore(tokens.clone(), &kv).unwrap();
                let kept: Vec<&[u8]> = kept.iter().map(Vec::as_slice).collect();
                assert_eq!(session.restore_drafters(&kept).unwrap(), kept.len());
                all += check(&mut session, 0.0, 33);
                session.restore(tokens.clone(), &kv).unwrap();
                all += check(&mut session, 0.0, 33);
                session.restore(tokens, &kv).unwrap();
                assert_eq!(session.keep_common(&text[..33]).unwrap(), 33);
                all += check(&mut session, 0.0, 33);
                session.clear().unwrap();
                read(&mut session, &text[..2]);
                all += check(&mut session, 0.0, 20);
            }
        }
    }
    assert!(all > 6000, "{all}");
}

#[test]
fn heads_that_are_wrong_are_never_accepted() {
    let model = load(sidecars::cyclic().bytes(), 1);
    for (third, knows) in [(false, Knows::Feature), (false, Knows::Token), (true, Knows::Feature)] {
        let file = Head::cyclic(&model, third, knows, 1).bytes();
        let wrong = eagles::open(file, &model, CONTEXT, KvType::F16, Growth { branch: 1, depth: 5 });
        let (mut session, _) = session(&model, vec![wrong], 5);
        read(&mut session, &cycle(20));
        let outcome = generate(&mut session, 0.0, 30);
        assert!(outcome.tally.drafted >= 100, "{third} {knows:?}: {}", outcome.tally.drafted);
        assert_eq!(outcome.tally.accepted, 0, "{third} {knows:?}");
    }
}

/// Trees of heads that know nothing, which shows more than those of heads that are sure.
#[test]
fn drafts_depend_on_the_text_alone() {
    let model = load(tiny_llama(5, "Q8_0").bytes(), 2);
    for third in [false, true] {
        let ids: Vec<Token> = (0..VOCAB as Token).step_by(2).collect();
        let file = Head { weights: "Q4_0", ids: Some(ids), ..Head::of(&model, third, 8) }.file().bytes();
        let text = text(290, VOCAB);
        let growth = Growth { branch: 5, depth: 5 };
        let start = || session(&model, vec![eagles::open(file.clone(), &model, CONTEXT, KvType::F16, growth)], 20);
        let go = |session: &mut Session<Cpu>, told: &Told, temp| {
            told.lock().unwrap().clear();
            generate(session, temp, 25);
            (session.tokens().to_vec(), told.lock().unwrap().clone())
        };
        for temp in [0.0, 1.0] {
            let (mut plain, told) = start();
            read(&mut plain, &text);
            let want = go(&mut plain, &told, temp);
            // Far down the ranks nothing is left at this temperature.
            let least = if temp == 0.0 { 20 } else { 2 };
            assert!(want.1[..5].iter().all(|(tree, _)| tree.len() >= least));
            for pieces in [1, 3, 100, 256] {
                let (mut session, told) = start();
                text.chunks(pieces).for_each(|piece| read(&mut session, piece));
                assert_eq!(go(&mut session, &told, temp), want, "in pieces of {pieces}");
                session.clear().unwrap();
                read(&mut session, &text);
                assert_eq!(go(&mut session, &told, temp), want, "again");
                // The noise goes on after a rewind; without noise the same comes.
                if temp == 0.0 {
                    session.rewind(text.len()).unwrap();
                    assert_eq!(go(&mut session, &told, temp), want, "rewound");
                }
            }
            // From a cache, with what the head kept and without: all of the prompt, more than it, less.
            let (mut long, _) = start();
            read(&mut long, &[&text[..], &[9; 40]].concat());
            for known in [text.len() + 40, text.len(), text.len() - 1, 100, 2, 1] {
                long.rewind(known).unwrap();
                for keeps in [true, false] {
                    let (mut session, told) = start();
                    session.restore(long.tokens().to_vec(), &long.kv_bytes().unwrap()).unwrap();
                    let kept = long.drafter_bytes().unwrap();
                    if keeps {
                        let taken = session.restore_drafters(&[&kept[0], b"eagle  1".as_slice()]).unwrap();
                        assert_eq!(taken, 1);
                    }
                    let common = session.restart(&text).unwrap();
                    assert_eq!(common, known.min(text.len()));
                    read(&mut session, &text[common..]);
                    assert_eq!(go(&mut session, &told, temp), want, "{known} from a cache, {keeps}");
                }
            }
        }
    }
}

#[test]
fn what_was_kept_is_taken_whole_or_not_at_all() {
    let model = load(tiny_llama(5, "F32").bytes(), 1);
    let growth = Growth { branch: 2, depth: 3 };
    let open = |seed| eagles::open(Head::of(&model, true, seed).file().bytes(), &model, CONTEXT, KvType::F16, growth);
    let (mut first, _) = session(&model, vec![open(1)], 5);
    read(&mut first, &text(30, VOCAB));
    let kept = first.drafter_bytes().unwrap().remove(0);
    let (mut second, _) = session(&model, vec![open(1)], 5);
    second.restore(first.tokens().to_vec(), &first.kv_bytes().unwrap()).unwrap();
    for n in 0..kept.len() {
        let taken = second.restore_drafters(&[&kept[..n]]);
        assert!(if n < 40 { taken.unwrap() == 0 } else { taken.is_err() }, "{n} bytes");
    }
    // Numbers that are out of order, too large, of another head.
    for at in (16..40).step_by(8) {
        for value in [1u64, 29, 31, u64::MAX] {
            let mut bad = kept.clone();
            bad[at..at + 8].copy_from_slice(&value.to_le_bytes());
            assert!(bad == kept || second.restore_drafters(&[&bad]).is_err(), "{value} at {at}");
        }
    }
    assert_eq!(second.restore_drafters(&[&kept]).unwrap(), 1);
    let (mut other, _) = session(&model, vec![open(2)], 5);
    other.restore(first.tokens().to_vec(), &first.kv_bytes().unwrap()).unwrap();
    assert_eq!(other.restore_drafters(&[&kept]).unwrap(), 0, "another head's");
}

#[test]
fn a_text_of_one_token_has_no_pair_yet() {
    let model = load(sidecars::cyclic().bytes(), 1);
    let head = eagles::open(
        Head::cyclic(&model, false, Knows::Feature, 0).bytes(),
        &model,
        CONTEXT,
        KvType::F16,
        Growth { branch: 1, depth: 3 },
    );
    let (mut session, told) = session(&model, vec![head], 3);
    read(&mut session, &[live(7)]);
    generate(&mut session, 0.0, 9);
    assert_eq!(told.lock().unwrap().iter().map(|(_, path)| *path).collect::<Vec<_>>(), [1, 4, 4]);
}
