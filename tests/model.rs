//! What a session promises: chunks, trees and commits give the bits that one chain gives; a caller's mistakes are errors.

mod common;

use common::gguf_writer::Rng;
use common::{naive::Naive, zoo};
use foretoken::backend::{Backend, KvType};
use foretoken::model::{Input, Model, Rows, State};
use foretoken::tree::{DraftTree, Token};
use std::sync::Arc;

/// One of every kind of attention and position encoding.
const NAMES: &[&str] =
    &["llama", "llama-yarn", "llama-gqa7", "qwen2", "qwen3", "gemma2", "gemma3", "phi3", "llama.Q4_0"];

const VOCAB: usize = 320;

fn load<B: Backend>(backend: &Arc<B>, name: &str) -> Model<B> {
    Model::load(backend.clone(), &zoo::open(name), &mut |_, _| ()).unwrap_or_else(|e| panic!("{name}: {e:#}"))
}

fn random_tokens(rng: &mut Rng, n: usize) -> Vec<Token> {
    (0..n).map(|_| rng.below(VOCAB) as Token).collect()
}

fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|v| v.to_bits()).collect()
}

/// Feeds `tokens` in chunks of at most `chunk`.
fn feed<B: Backend>(model: &Model<B>, state: &mut State<B>, tokens: &[Token], chunk: usize) -> Vec<f32> {
    tokens.chunks(chunk).flat_map(|c| model.forward(state, Input::Chain(c), Rows::All).unwrap()).collect()
}

/// Prefill in chunks of any size: the same logits and the same bytes in the cache.
fn check_chunks<B: Backend>(model: &Model<B>, name: &str, kv: KvType) {
    let tokens = random_tokens(&mut Rng(1), 150);
    let run = |chunk| {
        let mut state = model.state(200, 150, kv).unwrap();
        let logits = feed(model, &mut state, &tokens, chunk);
        (bits(&logits), state.kv_bytes(0..tokens.len()).unwrap())
    };
    let whole = run(150);
    for chunk in [1, 7, 64] {
        assert!(run(chunk) == whole, "{name} {kv:?}: chunks of {chunk}");
    }
}

fn random_tree(rng: &mut Rng, anchor: Token, nodes: usize) -> DraftTree {
    let mut tree = DraftTree::new(anchor, nodes);
    while tree.nodes().len() < nodes {
        // Three in four hang below the newest node, so that there are deep paths and bushy ones.
        let parent = if rng.below(4) > 0 { tree.nodes().len() - 1 } else { rng.below(tree.nodes().len()) };
        tree.push(parent, rng.below(VOCAB) as Token, 0.0);
    }
    tree
}

/// Every node of a random tree against the chain that ends in it; then one path is committed and the session goes on.
fn check_trees<B: Backend>(model: &Model<B>, name: &str, kv: KvType, contexts: &[usize], nodes: usize) {
    for &base in contexts {
        let mut rng = Rng(base as u64 + 2);
        let context = random_tokens(&mut rng, base);
        let start = || {
            let mut state = model.state(400, 400, kv).unwrap();
            if base > 0 {
                model.forward(&mut state, Input::Chain(&context), Rows::None).unwrap();
            }
            state
        };
        let anchor = rng.below(VOCAB) as Token;
        let tree = random_tree(&mut rng, anchor, nodes);
        let mut state = start();
        let logits = model.forward(&mut state, Input::Tree(&tree), Rows::All).unwrap();
        assert_eq!(state.len(), base, "{name}: a tree commits nothing");

        let mut chain = start();
        for node in 0..nodes {
            let tokens: Vec<Token> = tree.path(node).iter().map(|&n| tree.nodes()[n].token).collect();
            chain.truncate(base);
            let alone = model.forward(&mut chain, Input::Chain(&tokens), Rows::Last).unwrap();
            let row = &logits[node * VOCAB..(node + 1) * VOCAB];
            assert!(bits(row) == bits(&alone), "{name} {kv:?}: node {node} of {:?} at {base}", tree.nodes());
        }

        let path = tree.path(rng.below(nodes));
        let tokens: Vec<Token> = path.iter().map(|&n| tree.nodes()[n].token).collect();
        state.commit(&path).unwrap();
        chain.truncate(base);
        model.forward(&mut chain, Input::Chain(&tokens), Rows::None).unwrap();
        assert_eq!((state.len(), chain.len()), (base + path.len(), base + path.len()));
        assert!(state.kv_bytes(0..state.len()).unwrap() == chain.kv_bytes(0..chain.len()).unwrap(), "{name}: commit");
        let next = |state: &mut State<B>| bits(&model.forward(state, Input::Chain(&[5, 6]), Rows::All).unwrap());
        assert!(next(&mut state) == next(&mut chain), "{name}: after a commit at {base}");
    }
}

#[test]
fn plain_backend_obeys_the_laws() {
    for name in NAMES {
        let model = load(&Arc::new(Naive::default()), name);
        check_chunks(&model, name, KvType::F16);
        check_trees(&model, name, KvType::F16, &[0, 1, 65], 12);
    }
    let model = load(&Arc::new(Naive::default()), "llama");
    for kv in [KvType::F32, KvType::Q8_0] {
        check_chunks(&model, "llama", kv);
        check_trees(&model, "llama", kv, &[63], 12);
    }
}

#[test]
fn rows_select_logits() {
    let model = load(&Arc::new(Naive::default()), "gemma2");
    let tokens = random_tokens(&mut Rng(3), 70);
    let run = |rows| {
        let mut state = model.state(100, 100, KvType::F16).unwrap();
        model.forward(&mut state, Input::Chain(&tokens), rows).unwrap()
    };
    let all = run(Rows::All);
    assert_eq!(all.len(), 70 * VOCAB);
    assert_eq!(bits(&run(Rows::Last)), bits(&all[69 * VOCAB..]));
    assert!(run(Rows::None).is_empty());
}

/// A caller's mistake and what the message must say.
type Mistake = (&'static str, fn(&Model<Naive>, &mut State<Naive>) -> anyhow::Result<()>, &'static [&'static str]);

const MISTAKES: &[Mistake] = &[
    (
        "a full context",
        |m, s| m.forward(s, Input::Chain(&[1; 61]), Rows::Last).map(|_| ()),
        &["101 positions", "context of 100"],
    ),
    (
        "a tree that reaches beyond the context",
        |m, s| {
            m.forward(s, Input::Chain(&[1; 59]), Rows::None)?;
            let mut tree = DraftTree::new(1, 64);
            tree.push(0, 2, 0.0);
            m.forward(s, Input::Tree(&tree), Rows::All).map(|_| ())
        },
        &["101 positions", "context of 100"],
    ),
    (
        "more rows than there is room for",
        |m, s| m.forward(s, Input::Chain(&[1; 90]), Rows::None).map(|_| ()),
        &["90", "64"],
    ),
    ("no rows", |m, s| m.forward(s, Input::Chain(&[]), Rows::None).map(|_| ()), &["at least one token"]),
    (
        "an unknown token",
        |m, s| m.forward(s, Input::Chain(&[1, 320]), Rows::None).map(|_| ()),
        &["token 320", "of 320"],
    ),
    ("a commit without a tree", |_, s| s.commit(&[0]), &["node 0", "0 nodes"]),
    (
        "a commit of no path",
        |m, s| {
            let mut tree = DraftTree::new(1, 64);
            tree.push(0, 2, 0.0);
            tree.push(0, 3, 0.0);
            m.forward(s, Input::Tree(&tree), Rows::None)?;
            s.commit(&[0, 1, 2])
        },
        &["[0, 1, 2] is not a path"],
    ),
];

#[test]
fn mistakes_are_errors() {
    let model = load(&Arc::new(Naive::default()), "llama");
    for (what, make, parts) in MISTAKES {
        let mut state = model.state(100, 64, KvType::F16).unwrap();
        model.forward(&mut state, Input::Chain(&[7; 40]), Rows::None).unwrap();
        let message = format!("{:#}", make(&model, &mut state).expect_err(what));
        for part in *parts {
            assert!(message.contains(part), "{what}: {message:?} does not say {part:?}");
        }
    }
    assert!(model.state(0, 64, KvType::F16).is_err());
    assert!(model.state(usize::MAX, 64, KvType::F16).is_err());
}
