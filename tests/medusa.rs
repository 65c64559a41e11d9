//! Medusa heads whose guesses are known by construction: always right, always wrong, however the text came to be; and that
//! nothing but the text so far decides on what is guessed.

mod common;

use common::gguf_writer::VOCAB;
use common::sidecars::{self, Medusa, Outputs, deep_tree, live, next};
use foretoken::backend::{KvType, cpu::Cpu};
use foretoken::engine::{Limits, Outcome, Plan, Session};
use foretoken::gguf::Gguf;
use foretoken::isa::Isa;
use foretoken::model::Model;
use foretoken::sample::{SampleParams, Sampler};
use foretoken::spec::medusa::{self, Shape};
use foretoken::spec::sidecar::{Architecture, Sidecar};
use foretoken::spec::{Accept, Drafter, Nodes};
use foretoken::tree::Token;
use std::ops::ControlFlow::{Break, Continue};
use std::sync::{Arc, Mutex};

const CONTEXT: usize = 512;

fn target() -> Arc<Model<Cpu>> {
    let gguf = Gguf::from_bytes(sidecars::cyclic().bytes()).unwrap();
    Arc::new(Model::load(Arc::new(Cpu::new(Isa::best(), 1).unwrap()), &gguf, &mut |_, _| ()).unwrap())
}

fn load(file: Vec<u8>, model: &Arc<Model<Cpu>>, shape: Shape) -> Box<dyn Drafter<Cpu>> {
    let sidecar = Sidecar::new(Gguf::from_bytes(file).unwrap(), &[Architecture::Medusa]).unwrap();
    let (medusa, warning) = medusa::Medusa::load(&sidecar, model, shape, 63).unwrap();
    assert_eq!(warning, None);
    Box::new(medusa)
}

/// A session that tells what was guessed and how much of it was right: tokens and parents of each tree, length of each path.
type Rounds = Arc<Mutex<Vec<(Vec<(Token, usize)>, usize)>>>;

fn session(model: &Arc<Model<Cpu>>, drafters: Vec<Box<dyn Drafter<Cpu>>>, nodes: Nodes) -> (Session<Cpu>, Rounds) {
    let mut session = Session::new(model.clone(), CONTEXT, KvType::F16).unwrap();
    session.set_drafters(drafters, Plan { nodes, accept: Accept::Exact }).unwrap();
    let rounds = Rounds::default();
    let told = rounds.clone();
    session.watch(Some(Box::new(move |round| {
        let nodes = round.draft.tree().nodes().iter().map(|node| (node.token, node.parent)).collect();
        told.lock().unwrap().push((nodes, round.verdict.path.len()));
    })));
    (session, rounds)
}

fn generate(session: &mut Session<Cpu>, temp: f32, n: usize) -> Outcome {
    let mut sampler = Sampler::new(SampleParams { temp, ..SampleParams::default() }, 4, VOCAB, |_| vec![]).unwrap();
    // Stopped rather than limited, so that every round has room for all guesses.
    let (limits, mut left) = (Limits { max_tokens: None, ends: &[], begun: 0 }, n);
    let emit = |_| {
        left -= 1;
        Ok(if left == 0 { Break(()) } else { Continue(()) })
    };
    session.generate(&mut sampler, limits, || false, emit).unwrap()
}

fn read(session: &mut Session<Cpu>, tokens: &[Token]) {
    assert!(session.prefill(tokens, |_| Continue(())).unwrap().is_continue());
}

/// Tokens as the target would write them: heads read the row of the last but one, and cannot know of another last one.
fn cycle(n: usize) -> Vec<Token> {
    std::iter::successors(Some(live(17)), |&token| Some(next(token))).take(n).collect()
}

/// Any tokens.
fn prompt(n: usize) -> Vec<Token> {
    (0..n).map(|i| (i * i * 7 + 5) as Token % VOCAB as Token).collect()
}

/// Sidecars of every kind with so many heads.
fn kinds(heads: usize) -> Vec<(Medusa, Shape)> {
    let mut reduced: Vec<Token> = (0..64).map(|t| live(t * 11 % 64)).collect();
    reduced.splice(5..5, [0, 319, 2]);
    let mut kinds = vec![];
    for outputs in [Outputs::Own, Outputs::Shared, Outputs::Target] {
        for ids in [None, Some(reduced.clone())].into_iter().take(if outputs == Outputs::Target { 1 } else { 2 }) {
            let plain = Medusa { heads, outputs, ids, ..Medusa::default() };
            // Small enough for two of them.
            let accuracy = Some([0.9, 0.03][..if heads < 5 { 2 } else { 1 }].repeat(heads));
            kinds.push((plain.clone(), Shape::Chain));
            kinds.push((Medusa { blocks: 2, tree: Some(deep_tree()), ..plain.clone() }, Shape::Static));
            kinds.push((Medusa { bias: false, accuracy, ..plain }, Shape::Auto));
        }
    }
    kinds
}

#[test]
fn heads_that_are_right_are_always_accepted() {
    let model = target();
    let mut all = 0;
    for heads in 1..=5 {
        for (i, (medusa, shape)) in kinds(heads).into_iter().enumerate() {
            let what = format!("{medusa:?}, {shape:?}");
            let right = || load(medusa.cyclic(0).bytes(), &model, shape);
            let wrong = || load(medusa.cyclic(1).bytes(), &model, shape);
            // Alone, and beside one that is always wrong; the prompt in one piece and in many.
            let beside: [Vec<Box<dyn Drafter<Cpu>>>; 3] =
                [vec![right()], vec![wrong(), right()], vec![right(), wrong()]];
            for (j, drafters) in beside.into_iter().enumerate() {
                let (mut session, rounds) = session(&model, drafters, Nodes::Fixed(63));
                let check = |session: &mut Session<Cpu>, temp, n: usize| -> usize {
                    let before = session.tokens().len();
                    let outcome = generate(session, temp, n);
                    assert!(session.tokens()[before - 1..].windows(2).all(|w| next(w[0]) == w[1]), "{what}");
                    assert_eq!(outcome.rounds, n.div_ceil(heads + 1), "{what} {j}: every round is full");
                    let mut rounds = rounds.lock().unwrap();
                    assert!(rounds.iter().all(|(_, path)| *path == heads + 1), "{what} {j}: {rounds:?}");
                    if shape == Shape::Chain && j == 0 {
                        assert!(rounds.iter().all(|(tree, _)| tree.len() == heads + 1), "{what}");
                    }
                    rounds.clear();
                    outcome.tally.accepted
                };
                let text = cycle(300);
                text.chunks([300, 1, 7, 100][(i + j) % 4]).for_each(|piece| read(&mut session, piece));
                all += check(&mut session, 0.0, 40);
                // Back to somewhere, and on at once; then by another way.
                session.rewind(150).unwrap();
                all += check(&mut session, 0.0, 30);
                session.rewind(151).unwrap();
                read(&mut session, &text[..9]);
                all += check(&mut session, 0.8, 30);
                // As from a cache: nothing but tokens, keys and values.
                let (tokens, kv) = (session.tokens().to_vec(), session.kv_bytes().unwrap());
                session.restore(tokens.clone(), &kv).unwrap();
                all += check(&mut session, 0.0, 30);
                session.restore(tokens, &kv).unwrap();
                assert_eq!(session.keep_common(&text[..33]).unwrap(), 33);
                all += check(&mut session, 0.0, 30);
                session.clear().unwrap();
                read(&mut session, &text[..2]);
                all += check(&mut session, 0.0, 20);
            }
        }
    }
    assert!(all > 25_000, "{all}");
}

#[test]
fn heads_that_are_wrong_are_never_accepted() {
    let model = target();
    for heads in 1..=5 {
        // Far down the ranks, where heads say nothing, chance may be right.
        for (medusa, shape) in kinds(heads).into_iter().filter(|(_, shape)| *shape != Shape::Static) {
            let wrong = load(medusa.cyclic(1).bytes(), &model, shape);
            let (mut session, _) = session(&model, vec![wrong], Nodes::Fixed(5));
            read(&mut session, &cycle(20));
            let outcome = generate(&mut session, 0.0, 30);
            assert!(outcome.tally.drafted >= 30, "{medusa:?} {shape:?}");
            assert_eq!(outcome.tally.accepted, 0, "{medusa:?} {shape:?}");
        }
    }
}

#[test]
fn a_tree_is_grown_from_what_is_measured() {
    let model = target();
    for (late, best) in [(0, 6), (1, 1)] {
        let medusa = Medusa { heads: 5, outputs: Outputs::Shared, ..Medusa::default() };
        let drafter = load(medusa.cyclic(late).bytes(), &model, Shape::Auto);
        let (mut session, rounds) = session(&model, vec![drafter], Nodes::Fixed(12));
        read(&mut session, &cycle(20));
        generate(&mut session, 0.0, 200);
        let rounds = rounds.lock().unwrap();
        // At first it thinks little of its last head.
        assert!(rounds[0].1 < 6 && rounds[0].0.len() == 13);
        let (_, path) = rounds[rounds.len() - 1];
        assert_eq!(path, best);
    }
}

/// Trees of heads that know nothing, which shows more than those of heads that are sure.
#[test]
fn drafts_depend_on_the_text_alone() {
    let gguf = Gguf::from_bytes(common::gguf_writer::tiny_llama(5, "Q8_0").bytes()).unwrap();
    let model = Arc::new(Model::load(Arc::new(Cpu::new(Isa::best(), 2).unwrap()), &gguf, &mut |_, _| ()).unwrap());
    let ids: Vec<Token> = (0..VOCAB as Token).step_by(2).collect();
    let medusa = Medusa { heads: 4, ids: Some(ids), tree: Some(deep_tree()), encoding: "Q4_0", ..Medusa::default() };
    let file = medusa.random(64, VOCAB, 8).bytes();
    let text = prompt(290);
    let start = |nodes| session(&model, vec![load(file.clone(), &model, Shape::Auto)], nodes);
    let go = |session: &mut Session<Cpu>, rounds: &Rounds, temp| {
        rounds.lock().unwrap().clear();
        generate(session, temp, 25);
        (session.tokens().to_vec(), rounds.lock().unwrap().clone())
    };
    for temp in [0.0, 1.0] {
        let (mut plain, rounds) = start(Nodes::Fixed(9));
        read(&mut plain, &text);
        let want = go(&mut plain, &rounds, temp);
        // Far down the ranks nothing is left at this temperature.
        let least = if temp == 0.0 { 10 } else { 2 };
        assert!(want.1[..15].iter().all(|(tree, _)| tree.len() >= least));
        for pieces in [1, 3, 100, 256] {
            let (mut session, rounds) = start(Nodes::Fixed(9));
            text.chunks(pieces).for_each(|piece| read(&mut session, piece));
            assert_eq!(go(&mut session, &rounds, temp), want, "in pieces of {pieces}");
            session.clear().unwrap();
            read(&mut session, &text);
            assert_eq!(go(&mut session, &rounds, temp), want, "again");
            // The noise goes on after a rewind; without noise the same comes.
            if temp == 0.0 {
                session.rewind(text.len()).unwrap();
                assert_eq!(go(&mut session, &rounds, temp), want, "rewound");
            }
        }
        // From a cache: all of the prompt, more than it, less.
        let (mut long, _) = start(Nodes::Fixed(9));
        read(&mut long, &[&text[..], &[9; 40]].concat());
        for known in [text.len() + 40, text.len(), text.len() - 1, 100, 2, 1] {
            long.rewind(known).unwrap();
            let (mut session, rounds) = start(Nodes::Fixed(9));
            session.restore(long.tokens().to_vec(), &long.kv_bytes().unwrap()).unwrap();
            let kept = session.restart(&text).unwrap();
            assert_eq!(kept, known.min(text.len()));
            read(&mut session, &text[kept..]);
            assert_eq!(go(&mut session, &rounds, temp), want, "{known} from a cache");
        }
    }
}

#[test]
fn a_text_of_one_token_has_no_row_yet() {
    let model = target();
    let medusa = Medusa::default();
    let (mut session, rounds) =
        session(&model, vec![load(medusa.cyclic(0).bytes(), &model, Shape::Chain)], Nodes::Fixed(3));
    read(&mut session, &[7]);
    generate(&mut session, 0.0, 9);
    let rounds = rounds.lock().unwrap();
    assert_eq!(rounds.iter().map(|(_, path)| *path).collect::<Vec<_>>(), [1, 4, 4]);
}
