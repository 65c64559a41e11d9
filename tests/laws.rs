//! Laws 1 and 2 on whole models, to the bit: every file of the zoo (and SmolLM2 where it is at hand), every instruction
//! set, several thread counts and KV types. What is compared is the logits and the bytes of the KV cache.

mod common;

use common::blocks::Random;
use common::laws::{assert_same_bits, random_tree};
use common::{models, zoo};
use foretoken::backend::{KvType, cpu::Cpu};
use foretoken::gguf::Gguf;
use foretoken::isa::Isa;
use foretoken::model::{Input, Model, Rows, State};
use foretoken::tree::{DraftTree, Token};
use std::sync::Arc;

struct Subject {
    name: String,
    model: Model<Cpu>,
    kv: KvType,
}

impl Subject {
    fn state(&self) -> State<Cpu> {
        self.model.state(512, 512, self.kv).unwrap()
    }

    fn tokens(&self, n: usize, random: &mut Random) -> Vec<Token> {
        (0..n).map(|_| random.below(self.model.config().vocab) as Token).collect()
    }

    /// Logits of all of `tokens` and the cache they leave, evaluated `chunk` at a time.
    fn chain(&self, tokens: &[Token], chunk: usize) -> (Vec<f32>, Vec<u8>) {
        let mut state = self.state();
        let logits =
            tokens.chunks(chunk).flat_map(|c| self.model.forward(&mut state, Input::Chain(c), Rows::All).unwrap());
        let logits = logits.collect();
        (logits, state.kv_bytes(0..tokens.len()).unwrap())
    }
}

/// Chunks of any size and any thread count give what one token at a time gives.
fn law_1(gguf: &Gguf, name: &str, isa: Isa, kv: KvType, tokens: usize, threads: &[usize]) {
    let subject = |threads| {
        let model = Model::load(Arc::new(Cpu::new(isa, threads).unwrap()), gguf, &mut |_, _| {}).unwrap();
        Subject { name: format!("{name} on {} with {kv:?}", isa.name()), model, kv }
    };
    let first = subject(threads[0]);
    let tokens = first.tokens(tokens, &mut Random(3));
    let (logits, cache) = first.chain(&tokens, 1);
    for &threads in threads {
        let subject = subject(threads);
        for chunk in [7, 64, 512] {
            let (chunked, chunked_cache) = subject.chain(&tokens, chunk);
            assert_same_bits(&logits, &chunked, format_args!("{}, {threads} threads, chunks of {chunk}", subject.name));
            assert!(cache == chunked_cache, "{}, {threads} threads, chunks of {chunk}: caches differ", subject.name);
        }
    }
}

/// A node's logits are those of its token at the end of its own chain, and so is the cache once its path is committed.
fn law_2(subject: &Subject, contexts: &[usize], nodes: usize) {
    let mut random = Random(4);
    let vocab = subject.model.config().vocab;
    for &context in contexts {
        let prefix = subject.tokens(context, &mut random);
        let (mut tree_state, mut chain_state) = (subject.state(), subject.state());
        for state in [&mut tree_state, &mut chain_state] {
            if context > 0 {
                subject.model.forward(state, Input::Chain(&prefix), Rows::None).unwrap();
            }
        }
        let tree = random_tree(random.below(vocab) as Token, nodes, vocab, &mut random);
        let logits = subject.model.forward(&mut tree_state, Input::Tree(&tree), Rows::All).unwrap();
        // Grown in steps, as drafters do, it is the same tree.
        let mut grown = vec![];
        for first in (0..nodes).step_by(7) {
            let mut part = DraftTree::new(tree.nodes()[0].token, nodes);
            tree.nodes()[1..nodes.min(first + 7)].iter().for_each(|n| _ = part.push(n.parent, n.token, 0.0));
            grown.extend(subject.model.forward(&mut tree_state, Input::Grown(&part, first), Rows::All).unwrap());
        }
        assert_same_bits(&logits, &grown, format_args!("{}, context {context}, grown", subject.name));
        let mut deepest = 0;
        let row = |node: usize| &logits[node * vocab..(node + 1) * vocab];
        let is_leaf = |&node: &usize| tree.nodes()[node + 1..].iter().all(|n| n.parent != node);
        // The chain to a leaf holds the chains of all nodes above it (law 1).
        for leaf in (0..nodes).filter(is_leaf) {
            let path = tree.path(leaf);
            let tokens: Vec<Token> = path.iter().map(|&n| tree.nodes()[n].token).collect();
            chain_state.truncate(context);
            let chain = subject.model.forward(&mut chain_state, Input::Chain(&tokens), Rows::All).unwrap();
            for (depth, (&node, chain)) in path.iter().zip(chain.chunks_exact(vocab)).enumerate() {
                let what = format_args!("{}, context {context}, node {node} at depth {depth}", subject.name);
                assert_same_bits(chain, row(node), what);
            }
            if path.len() > tree.path(deepest).len() {
                deepest = leaf;
            }
        }
        let path = tree.path(deepest);
        let tokens: Vec<Token> = path.iter().map(|&n| tree.nodes()[n].token).collect();
        tree_state.commit(&path).unwrap();
        chain_state.truncate(context);
        subject.model.forward(&mut chain_state, Input::Chain(&tokens), Rows::None).unwrap();
        let end = context + path.len();
        assert_eq!(tree_state.len(), end);
        let same = tree_state.kv_bytes(0..end).unwrap() == chain_state.kv_bytes(0..end).unwrap();
        assert!(same, "{}, context {context}: the committed cache differs", subject.name);
    }
}

fn all_files() -> impl Iterator<Item = &'static str> {
    zoo::ARCHITECTURES.iter().copied().chain(zoo::FORMATS.iter().map(|(name, _)| *name))
}

#[test]
fn rows_in_chunks_equal_rows_alone() {
    for name in all_files() {
        let gguf = zoo::open(name);
        for isa in Isa::available() {
            law_1(&gguf, name, isa, KvType::F16, 150, &[1, 2, 3]);
        }
    }
    for name in ["llama", "gemma3", "qwen3"] {
        for kv in [KvType::F32, KvType::Q8_0] {
            law_1(&zoo::open(name), name, Isa::best(), kv, 130, &[1, 3]);
        }
    }
}

#[test]
fn tree_nodes_equal_their_own_chains() {
    for name in all_files() {
        let gguf = zoo::open(name);
        for isa in Isa::available() {
            let model =
                |threads| Model::load(Arc::new(Cpu::new(isa, threads).unwrap()), &gguf, &mut |_, _| {}).unwrap();
            let mut subject = Subject { name: format!("{name} on {}", isa.name()), model: model(2), kv: KvType::F16 };
            law_2(&subject, &[0, 1, 63, 64, 65, 300], 40);
            for kv in [KvType::F32, KvType::Q8_0] {
                subject.kv = kv;
                subject.name = format!("{name} on {} with {kv:?}", isa.name());
                law_2(&subject, &[1, 64], 20);
            }
        }
    }
}

#[test]
fn the_laws_hold_on_a_real_model() {
    let Some(gguf) = models::open("SmolLM2-135M-Instruct.Q4_1.gguf") else { return };
    for isa in Isa::available().filter(|&isa| isa != Isa::Scalar) {
        law_1(&gguf, "SmolLM2", isa, KvType::F16, 100, &[1, 2, 3]);
        let model = Model::load(Arc::new(Cpu::new(isa, 2).unwrap()), &gguf, &mut |_, _| {}).unwrap();
        let subject = Subject { name: format!("SmolLM2 on {}", isa.name()), model, kv: KvType::F16 };
        law_2(&subject, &[0, 1, 63, 64, 65, 300], 24);
    }
}
