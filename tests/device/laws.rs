//! The three laws on the device, to the bit.

use crate::common::blocks::Random;
use crate::common::emulator;
use crate::common::laws::{assert_same_bits, random_tree};
use crate::{device, open};
use foretoken::backend::cuda::Cuda;
use foretoken::backend::{Backend, KvType};
use foretoken::engine::{Limits, Plan, Session};
use foretoken::model::{Input, Logits, Model, Rows, State};
use foretoken::sample::{History, Needs, SampleParams, Sampler};
use foretoken::spec::lookup::Lookup;
use foretoken::spec::standalone::{Shape, Standalone};
use foretoken::spec::{Accept, Drafter, Nodes};
use foretoken::tree::Token;
use std::ops::ControlFlow::Continue;
use std::sync::Arc;

/// Slots of a cache: more than a block of attention.
const CONTEXT: usize = 200;

fn state(model: &Model<Cuda>, kv: KvType) -> State<Cuda> {
    model.state(CONTEXT, 64, kv).unwrap()
}

fn tokens(model: &Model<Cuda>, n: usize, random: &mut Random) -> Vec<Token> {
    (0..n).map(|_| random.below(model.config().vocab) as Token).collect()
}

/// Logits and cache of `tokens`, evaluated `chunk` at a time.
fn chain(model: &Model<Cuda>, tokens: &[Token], chunk: usize, kv: KvType) -> (Vec<f32>, Vec<u8>) {
    let mut state = state(model, kv);
    let logits = tokens.chunks(chunk).flat_map(|c| model.forward(&mut state, Input::Chain(c), Rows::All).unwrap());
    let logits = logits.collect();
    (logits, state.kv_bytes(0..tokens.len()).unwrap())
}

fn law_1(model: &Model<Cuda>, name: &str, kv: KvType) {
    let tokens = tokens(model, 40, &mut Random(3));
    let (logits, cache) = chain(model, &tokens, 1, kv);
    for chunk in [2, 7, 40] {
        let what = format!("{name} with {kv:?}, chunks of {chunk}");
        let (chunked, chunked_cache) = chain(model, &tokens, chunk, kv);
        assert_same_bits(&logits, &chunked, &what);
        assert!(cache == chunked_cache, "{what}: caches differ");
    }
}

fn law_2(model: &Model<Cuda>, name: &str, kv: KvType, context: usize, nodes: usize) {
    let mut random = Random(4);
    let vocab = model.config().vocab;
    let prefix = tokens(model, context, &mut random);
    let (mut tree_state, mut chain_state) = (state(model, kv), state(model, kv));
    for state in [&mut tree_state, &mut chain_state] {
        for chunk in prefix.chunks(64) {
            model.forward(state, Input::Chain(chunk), Rows::None).unwrap();
        }
    }
    let tree = random_tree(random.below(vocab) as Token, nodes, vocab, &mut random);
    let logits = model.forward(&mut tree_state, Input::Tree(&tree), Rows::All).unwrap();
    let mut deepest = 0;
    let is_leaf = |&node: &usize| tree.nodes()[node + 1..].iter().all(|n| n.parent != node);
    for leaf in (0..nodes).filter(is_leaf) {
        let path = tree.path(leaf);
        let tokens: Vec<Token> = path.iter().map(|&n| tree.nodes()[n].token).collect();
        chain_state.truncate(context);
        let chain = model.forward(&mut chain_state, Input::Chain(&tokens), Rows::All).unwrap();
        for (&node, chain) in path.iter().zip(chain.chunks_exact(vocab)) {
            let row = &logits[node * vocab..(node + 1) * vocab];
            assert_same_bits(chain, row, format!("{name} with {kv:?}, context {context}, node {node}"));
        }
        if path.len() > tree.path(deepest).len() {
            deepest = leaf;
        }
    }
    let path = tree.path(deepest);
    let tokens: Vec<Token> = path.iter().map(|&n| tree.nodes()[n].token).collect();
    tree_state.commit(&path).unwrap();
    chain_state.truncate(context);
    model.forward(&mut chain_state, Input::Chain(&tokens), Rows::None).unwrap();
    let end = context + path.len();
    let same = tree_state.kv_bytes(0..end).unwrap() == chain_state.kv_bytes(0..end).unwrap();
    assert!(same, "{name} with {kv:?}, context {context}: the committed cache differs");
    // What was read can be stored again.
    let bytes = tree_state.kv_bytes(0..end).unwrap();
    let mut restored = state(model, kv);
    restored.restore(end, &bytes).unwrap();
    assert!(restored.kv_bytes(0..end).unwrap() == bytes);
    let next = [tokens[0]];
    let one = model.forward(&mut tree_state, Input::Chain(&next), Rows::All).unwrap();
    let other = model.forward(&mut restored, Input::Chain(&next), Rows::All).unwrap();
    assert_same_bits(&one, &other, format!("{name} with {kv:?}: a restored cache"));
}

type Drafters = Vec<Box<dyn Drafter<Cuda>>>;

/// A text, and how many of its tokens were guessed.
fn text(session: &mut Session<Cuda>, prompt: &[Token], params: &SampleParams, vocab: usize) -> (Vec<Token>, u64) {
    session.clear().unwrap();
    assert!(session.prefill(prompt, |_| Continue(())).unwrap().is_continue());
    let mut sampler = Sampler::new(params.clone(), 5, vocab, |_| vec![]).unwrap();
    let mut ids = vec![];
    let limits = Limits { max_tokens: Some(16), ends: &[], begun: 0 };
    let emit = |token| {
        ids.push(token);
        Ok(Continue(()))
    };
    let outcome = session.generate(&mut sampler, limits, || false, emit).unwrap();
    (ids, outcome.tally.accepted as u64)
}

fn law_3(device: &Cuda, name: &str) {
    let (model, other) = (open(device, name), open(device, "qwen2"));
    let prompt: Vec<Token> = [1, 5, 9, 5, 9, 5, 9, 12].to_vec();
    let vocab = model.config().vocab;
    let drafter = |model: &Arc<Model<Cuda>>, branch| -> Box<dyn Drafter<Cuda>> {
        let shape = Shape { branch, depth: 6, least: 0.0 };
        Box::new(Standalone::new(model.clone(), CONTEXT, KvType::F16, vocab, shape).unwrap())
    };
    let mut accepted = 0;
    let ways = [
        SampleParams { temp: 0.0, ..SampleParams::default() },
        SampleParams { temp: 0.9, ..SampleParams::default() },
        SampleParams { temp: 0.4, top_k: 0, top_p: 1.0, min_p: 0.0, ..SampleParams::default() },
    ];
    for params in ways {
        let temp = params.temp;
        let mut session = Session::new(model.clone(), CONTEXT, KvType::F16).unwrap();
        let (plain, _) = text(&mut session, &prompt, &params, vocab);
        let sets: [(&str, Drafters); 3] = [
            ("lookup", vec![Box::new(Lookup::new(1, 63, 4))]),
            ("itself", vec![drafter(&model, 1)]),
            ("another", vec![Box::new(Lookup::new(1, 63, 4)), drafter(&other, 3)]),
        ];
        for (set, drafters) in sets {
            let mut session = Session::new(model.clone(), CONTEXT, KvType::F16).unwrap();
            session.set_drafters(drafters, Plan { nodes: Nodes::Fixed(12), accept: Accept::Exact }).unwrap();
            let (drafted, right) = text(&mut session, &prompt, &params, vocab);
            assert_eq!(drafted, plain, "{name} at {temp} with {set}");
            accepted += right;
        }
    }
    assert!(accepted > 10, "{name}: nothing was drafted");
}

/// What is picked on the device is what would be picked from all logits.
fn picks(device: &Cuda) {
    let model = open(device, "llama.Q8_0");
    let vocab = model.config().vocab;
    let tree = random_tree(3, 9, vocab, &mut Random(6));
    for k in [1, 40] {
        let (mut state, mut other) = (state(&model, KvType::F16), state(&model, KvType::F16));
        let all = model.forward(&mut state, Input::Tree(&tree), Rows::All).unwrap();
        let few =
            model.forward_for(&mut other, Input::Tree(&tree), Some(&|b, m| b.largest(m, k)), &mut || true).unwrap();
        let Some(Logits::Few(few)) = few else { panic!("all logits were read") };
        assert_eq!(few.len(), 9);
        for (row, mut few) in all.chunks(vocab).zip(few) {
            let mut want: Vec<(Token, f32)> = (0..).zip(row.iter().copied()).collect();
            want.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
            few.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
            assert_eq!(few, want[..k]);
        }
    }
    let params = SampleParams { temp: 1.5, top_k: 0, top_p: 1.0, min_p: 0.0, ..SampleParams::default() };
    let mut sampler = Sampler::new(params, 77 << 32, vocab, |_| vec![]).unwrap();
    let Some(Needs::Drawn { temp, seed }) = sampler.needs() else { panic!("draws need all logits") };
    let ordinals: Vec<u64> = (0..9).map(|i| 3 * i).collect();
    let (mut state, mut other) = (state(&model, KvType::F16), state(&model, KvType::F16));
    let all = model.forward(&mut state, Input::Tree(&tree), Rows::All).unwrap();
    let draw = |b: &Cuda, m: &_| b.drawn(m, temp, seed, &ordinals);
    let few = model.forward_for(&mut other, Input::Tree(&tree), Some(&draw), &mut || true).unwrap();
    let Some(Logits::Few(few)) = few else { panic!("all logits were read") };
    for ((row, few), &ordinal) in all.chunks(vocab).zip(few).zip(&ordinals) {
        let want = sampler.pick(row, History::default(), ordinal).unwrap();
        assert_eq!(sampler.pick_among(&few, ordinal).unwrap(), want);
    }
}

#[test]
fn rows_in_chunks_equal_rows_alone() {
    if emulator::within("laws::rows_in_chunks_equal_rows_alone", &[]) {
        let device = device();
        for (name, kv) in [
            ("llama", KvType::F16),
            ("gemma3", KvType::F16),
            ("qwen3", KvType::Q8_0),
            ("llama.Q4_K_S", KvType::F32),
            ("llama.Q6_K", KvType::F16),
            ("llama.Q8_0", KvType::F16),
        ] {
            law_1(&open(&device, name), name, kv);
        }
        let (made, launched) = device.graphs();
        assert!(made > 0 && launched > made, "{made} graphs made, {launched} launched");
        println!("{made} graphs made, {launched} launched");
    }
}

#[test]
fn tree_nodes_equal_their_own_chains() {
    if emulator::within("laws::tree_nodes_equal_their_own_chains", &[("EMULATED_ORDER", "11")]) {
        let device = device();
        for (name, kv, context) in [
            ("llama", KvType::F16, 0),
            ("llama.Q4_K_S", KvType::F16, 1),
            ("gemma2", KvType::F16, 127),
            ("qwen3", KvType::Q8_0, 120),
        ] {
            law_2(&open(&device, name), name, kv, context, 20);
        }
    }
}

#[test]
fn drafters_change_no_text() {
    if emulator::within("laws::drafters_change_no_text", &[]) {
        let device = device();
        ["llama.Q8_0", "gemma3"].into_iter().for_each(|name| law_3(&device, name));
        assert!(device.own_memory().unwrap().is_some());
        picks(&device);
    }
}
