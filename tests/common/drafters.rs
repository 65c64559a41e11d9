//! Drafters that no one would write: always right, always wrong, and worse. Text must not depend on any of them.

use super::eagles::{self, Head};
use super::sidecars::{self, Outputs, deep_tree};
use foretoken::backend::{KvType, cpu::Cpu};
use foretoken::gguf::Gguf;
use foretoken::model::Model;
use foretoken::spec::corpus::Corpus;
use foretoken::spec::eagle::Growth;
use foretoken::spec::lookup::Lookup;
use foretoken::spec::medusa::{Medusa, Shape as Trees};
use foretoken::spec::sidecar::{Architecture, Sidecar};
use foretoken::spec::standalone::{Shape, Standalone};
use foretoken::spec::{Drafter, Round};
use foretoken::tree::{DraftTree, Token};
use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex};

/// What the test drafters know: a prompt and all that follows it.
pub type Script = Arc<Vec<Token>>;

/// What drafters are made of.
pub struct World {
    /// What will be written.
    pub script: Script,
    /// Size of the vocabulary.
    pub vocab: usize,
    /// The target.
    pub model: Arc<Model<Cpu>>,
    /// Another model.
    pub other: Arc<Model<Cpu>>,
    /// Positions of a session.
    pub context: usize,
}

/// Makes a drafter.
pub type Make = fn(&World) -> Box<dyn Drafter<Cpu>>;

/// Every lone drafter. Mixtures are made of them.
pub const DRAFTERS: &[(&str, Make)] = &[
    ("oracle", |world| scripted(world, oracle)),
    ("liar", |world| scripted(world, liar)),
    ("bushy", |world| scripted(world, bushy)),
    ("stutter", |world| scripted(world, stutter)),
    ("lookup", |_| Box::new(Lookup::new(1, 63, 4))),
    ("self", |world| standalone(world, &world.model, world.context, Shape { branch: 1, depth: 63, least: 0.0 })),
    ("other", |world| standalone(world, &world.other, world.context, Shape { branch: 3, depth: 9, least: 0.01 })),
    // Its context is soon full.
    ("short", |world| standalone(world, &world.model, 20, Shape { branch: 2, depth: 5, least: 0.0 })),
    ("medusa-1", |world| medusa(world, 1, Trees::Chain)),
    ("medusa-2", |world| medusa(world, 2, Trees::Auto)),
    ("medusa-3", |world| medusa(world, 3, Trees::Static)),
    ("medusa-4", |world| medusa(world, 4, Trees::Chain)),
    ("medusa-5", |world| medusa(world, 5, Trees::Auto)),
    ("eagle", |world| eagle(world, 0)),
    ("eagle-chain", |world| eagle(world, 1)),
    ("eagle3", |world| eagle(world, 2)),
    ("eagle3-wide", |world| eagle(world, 3)),
    ("corpus", |world| Box::new(Lookup::new(1, 63, 3).with_corpus(copies(&world.script, world.vocab)))),
];

/// Which of [`DRAFTERS`] fill one tree together.
pub const MIXTURES: &[&[&str]] = &[
    &["oracle"],
    &["liar"],
    &["bushy"],
    &["stutter"],
    &["lookup"],
    &["liar", "oracle"],
    &["lookup", "stutter", "bushy"],
    &["self"],
    &["other"],
    &["lookup", "short", "other"],
    &["corpus"],
    &["corpus", "bushy", "lookup"],
    &["medusa-1"],
    &["medusa-2"],
    &["medusa-3", "other"],
    &["lookup", "medusa-4"],
    &["medusa-5"],
    &["eagle"],
    &["lookup", "eagle-chain"],
    &["eagle3", "liar"],
    &["medusa-2", "eagle3-wide", "other"],
];

/// The drafters of a mixture.
pub fn mixture(names: &[&str], world: &World) -> Vec<Box<dyn Drafter<Cpu>>> {
    let make = |name: &&str| DRAFTERS.iter().find(|(known, _)| known == name).unwrap().1;
    names.iter().map(|name| make(name)(world)).collect()
}

/// The script, and copies of it in which now and then a token is another.
fn copies(script: &Script, vocab: usize) -> Corpus {
    let copy = |n: usize| -> Vec<Token> {
        let other = |i, token| if i % (3 * n + 4) == n { (token as usize + n + 1) % vocab } else { token as usize };
        script.iter().enumerate().map(|(i, &token)| other(i, token) as Token).collect()
    };
    let copies: Vec<Vec<Token>> = (0..4).map(copy).collect();
    let mut documents: Vec<&[Token]> = copies.iter().map(Vec::as_slice).collect();
    documents.push(&script[..script.len() - script.len() / 4]);
    Corpus::of(&documents, vocab)
}

/// What a drafter of a script does in a round: the tokens that will follow, the round's number, the vocabulary.
type Guess = fn(&[Token], usize, usize, &mut Round<'_>);

struct Scripted {
    script: Script,
    vocab: usize,
    rounds: usize,
    told: Vec<Token>,
    guess: Guess,
}

fn scripted(world: &World, guess: Guess) -> Box<dyn Drafter<Cpu>> {
    Box::new(Scripted { script: world.script.clone(), vocab: world.vocab, rounds: 0, told: vec![], guess })
}

fn standalone(world: &World, model: &Arc<Model<Cpu>>, context: usize, shape: Shape) -> Box<dyn Drafter<Cpu>> {
    let context = context.min(world.context);
    Box::new(Standalone::new(model.clone(), context, KvType::F16, world.vocab, shape).unwrap())
}

/// Random heads, so many: with outputs of every kind, over all tokens or some, in trees of every kind.
fn medusa(world: &World, heads: usize, trees: Trees) -> Box<dyn Drafter<Cpu>> {
    type Key = (usize, usize, usize);
    static FILES: LazyLock<Mutex<HashMap<Key, Vec<u8>>>> = LazyLock::new(Mutex::default);
    let (width, vocab) = (world.model.config().width, world.vocab);
    let write = || {
        // Every third token, the last first.
        let ids = || Some((0..vocab as Token).rev().step_by(3).collect());
        let d = || sidecars::Medusa { heads, ..Default::default() };
        let medusa = match heads {
            1 => sidecars::Medusa { outputs: Outputs::Target, bias: false, ..d() },
            2 => sidecars::Medusa { blocks: 2, ids: ids(), accuracy: Some(vec![0.5, 0.2, 0.3, 0.1]), ..d() },
            3 => sidecars::Medusa { tree: Some(deep_tree()), ..d() },
            4 => sidecars::Medusa { outputs: Outputs::Shared, ..d() },
            _ => sidecars::Medusa { outputs: Outputs::Shared, ids: ids(), tree: Some(deep_tree()), ..d() },
        };
        medusa.random(width, vocab, heads as u64).bytes()
    };
    let bytes = FILES.lock().unwrap().entry((heads, width, vocab)).or_insert_with(write).clone();
    let sidecar = Sidecar::new(Gguf::from_bytes(bytes).unwrap(), &[Architecture::Medusa]).unwrap();
    Box::new(Medusa::load(&sidecar, &world.model, trees, 63).unwrap().0)
}

/// Random layers of every kind, in trees and chains.
fn eagle(world: &World, which: usize) -> Box<dyn Drafter<Cpu>> {
    type Key = (usize, usize, usize, usize);
    static FILES: LazyLock<Mutex<HashMap<Key, Vec<u8>>>> = LazyLock::new(Mutex::default);
    let (config, vocab) = (world.model.config(), world.vocab);
    let ids = |step| Some((0..vocab as Token).rev().step_by(step).collect());
    let write = || {
        let head = Head::of(&world.model, which >= 2, which as u64);
        let head = match which {
            0 => Head { biased: true, ..head },
            1 => Head { ids: ids(3), ..head },
            2 => Head { owns: (false, true), ..head },
            _ => Head { width: 96, owns: (true, true), ids: ids(2), ..head },
        };
        head.file().bytes()
    };
    let key = (which, config.width, config.layers, vocab);
    let bytes = FILES.lock().unwrap().entry(key).or_insert_with(write).clone();
    let growth = if which == 1 { Growth { branch: 1, depth: 63 } } else { Growth { branch: 4, depth: 6 } };
    eagles::open(bytes, &world.model, world.context, KvType::F16, growth)
}

impl Drafter<Cpu> for Scripted {
    fn observe(&mut self, tokens: &[Token]) -> anyhow::Result<()> {
        self.told.extend_from_slice(tokens);
        Ok(())
    }

    fn draft(&mut self, round: &mut Round<'_>) -> anyhow::Result<()> {
        let context = round.context();
        assert_eq!(self.told, context, "told once, in order, about every token");
        assert_eq!(round.tree().nodes()[0].token, *context.last().unwrap());
        assert!(self.script.starts_with(context), "the text has left the script");
        (self.guess)(&self.script[context.len()..], self.rounds, self.vocab, round);
        self.rounds += 1;
        Ok(())
    }

    fn rewind(&mut self, kept: &[Token]) -> anyhow::Result<()> {
        assert!(self.told.starts_with(kept), "cut to what was there");
        self.told.truncate(kept.len());
        self.rounds = 0;
        Ok(())
    }
}

/// What comes, as far as it is known and fits.
fn oracle(next: &[Token], _: usize, _: usize, round: &mut Round<'_>) {
    let _leaf = next.iter().try_fold(0, |node, &token| round.push(node, token, 0.0));
}

/// A chain of anything but what comes.
fn liar(next: &[Token], count: usize, vocab: usize, round: &mut Round<'_>) {
    let mut node = 0;
    for i in 0..DraftTree::MAX {
        let truth = next.get(i).map_or(0, |&token| token as usize);
        let lie = (truth + 1 + (count + i) % (vocab - 1)) % vocab;
        match round.push(node, lie as Token, 0.0) {
            Some(id) => node = id,
            None => return,
        }
    }
}

/// As many nodes as fit, one of them right at each depth and never the first among its siblings.
fn bushy(next: &[Token], count: usize, vocab: usize, round: &mut Round<'_>) {
    let mut node = 0;
    for (i, &truth) in next.iter().enumerate() {
        for wrong in 1..4 {
            let token = (truth as usize + count + i + wrong) % vocab;
            let Some(_) = round.push(node, token as Token, 0.0) else { return };
        }
        match round.push(node, truth, 0.0) {
            Some(id) => node = id,
            None => return,
        }
    }
}

/// Right, but silent every other round.
fn stutter(next: &[Token], count: usize, vocab: usize, round: &mut Round<'_>) {
    if count % 2 == 1 {
        oracle(next, count, vocab, round);
    }
}
