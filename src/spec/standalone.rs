//! A standalone draft model: a smaller model of the same vocabulary runs ahead.
//!
//! It keeps its own cache. In a round it is caught up with the context, then guesses level by level: its logits go through
//! the target's sampler ([`Round::draw`]), the best few guesses of a level are run to give the next. Its nodes stay in
//! the scratch slots of its cache, so of what is accepted nothing has to be run again.
//!
//! Leviathan, Kalman, Matias, <https://arxiv.org/abs/2211.17192>; Chen et al., <https://arxiv.org/abs/2302.01318>; several of
//! them in one tree: SpecInfer, <https://arxiv.org/abs/2305.09781>.

use super::choice::{Choice, Kind, Setting, SettingKind};
use super::{Drafter, Round, Target};
use crate::backend::{Backend, KvType};
use crate::gguf::Gguf;
use crate::model::{Config, Input, Model, Rows, State};
use crate::text::Tokenizer;
use crate::tree::{DraftTree, NodeId, Token};
use anyhow::{Context, Result, bail, ensure};
use std::sync::Arc;

/// The table's line.
pub const KIND: Kind = Kind {
    name: "model",
    help: "A smaller model of the same vocabulary",
    path: Some("a GGUF model"),
    settings: &[
        Setting { name: "branch", help: "Guesses after a guess: 1 is a chain", kind: SettingKind::Count(1, (1, 8)) },
        Setting { name: "max", help: "Longest run of guesses", kind: SettingKind::Count(63, (1, 63)) },
        Setting {
            name: "pmin",
            help: "Share that it must give a token to guess it",
            kind: SettingKind::Real(0.0, (0.0, 1.0)),
        },
    ],
    rank: 2,
};

/// Tokens it is caught up by at a time.
const CHUNK: usize = 256;
/// Tokens that may go before the anchor in the pass that gives the first logits. They count as nodes of its tree.
const TAIL: usize = 4;
/// Tokens that vocabularies may differ by at their ends, where models are padded.
const PADDING: usize = 1024;

/// Opens the model and checks that it speaks the target's language.
pub fn open<B: Backend>(choice: &Choice, target: &Target<'_, B>) -> Result<Box<dyn Drafter<B>>> {
    let gguf = Gguf::open(choice.path())?;
    let config = Config::read(&gguf)?;
    let tokenizer = Tokenizer::from_gguf(gguf.meta())?;
    same_vocabulary(target.tokenizer, &tokenizer)?;
    let context = target.context.min(config.context);
    config.check_session(context, target.kv)?;
    let cache = config.kv_shape(context, target.kv).bytes() as u64;
    (target.admit)(gguf.file_bytes() + cache)?;
    let model = Arc::new(Model::load(target.model.backend().clone(), &gguf, &mut |_, _| ())?);
    let shape = Shape { branch: choice.count(0), depth: choice.count(1), least: choice.real(2) };
    Ok(Box::new(Standalone::new(model, context, target.kv, target.model.config().vocab, shape)?))
}

/// Refuses a vocabulary that gives an id another text or another meaning. Padding at the end may differ.
fn same_vocabulary(target: &Tokenizer, draft: &Tokenizer) -> Result<()> {
    let (sizes, shown) = ([target.vocab_size(), draft.vocab_size()], String::from_utf8_lossy);
    for id in 0..sizes[0].min(sizes[1]) as Token {
        let (theirs, ours) = (target.piece(id), draft.piece(id));
        if theirs != ours {
            bail!(
                "its token {id} is {:?}, the target's is {:?}: supported is the same vocabulary",
                shown(ours),
                shown(theirs)
            );
        }
        if target.is_control(id) != draft.is_control(id) {
            let which = if draft.is_control(id) { "its" } else { "the target's" };
            bail!("token {id}, {:?}, is a control token in {which} vocabulary only", shown(ours));
        }
    }
    let difference = sizes[0].abs_diff(sizes[1]);
    ensure!(
        difference <= PADDING,
        "it has {} tokens, the target {}: supported are up to {PADDING} more or fewer, as padding",
        sizes[1],
        sizes[0]
    );
    Ok(())
}

/// The shape of its trees.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Guesses after a guess.
    pub branch: usize,
    /// Levels, at most.
    pub depth: usize,
    /// Share that a token must have to be guessed.
    pub least: f64,
}

/// The drafter.
pub struct Standalone<B: Backend> {
    model: Arc<Model<B>>,
    state: State<B>,
    /// What was observed.
    text: Vec<Token>,
    /// The tokens in the cache, scratch slots aside.
    fed: Vec<Token>,
    /// What is in the scratch slots, behind `fed`: a tree and how many of its nodes were run.
    grown: Option<(DraftTree, usize)>,
    /// Size of the target's vocabulary.
    vocab: usize,
    shape: Shape,
    memory: u64,
}

/// A guess: its node in the round's tree, and in the one in the scratch slots (its parent's there until it is run).
#[derive(Clone, Copy, Debug)]
struct Guess {
    round: NodeId,
    own: NodeId,
}

impl<B: Backend> Standalone<B> {
    /// A drafter for a target with a vocabulary of `vocab` tokens, with a cache of `context` positions.
    pub fn new(model: Arc<Model<B>>, context: usize, kv: KvType, vocab: usize, shape: Shape) -> Result<Self> {
        let state = model.state(context, CHUNK, kv)?;
        let memory = model.weight_bytes() + model.config().kv_shape(context, kv).bytes() as u64;
        Ok(Self { model, state, text: vec![], fed: vec![], grown: None, vocab, shape, memory })
    }

    /// Makes the cache a prefix of the text without its last token: keeps what was guessed right, drops the rest.
    fn settle(&mut self) -> Result<()> {
        if let Some((tree, ran)) = self.grown.take() {
            let (mut path, mut rest) = (vec![], self.text.get(self.fed.len()..).unwrap_or_default().iter());
            let mut next = rest.next().filter(|&&token| tree.nodes()[0].token == token).map(|_| 0);
            while let Some(node) = next.filter(|&node| node < ran) {
                path.push(node);
                next = rest.next().and_then(|&token| tree.child(node, token));
            }
            self.state.commit(&path)?;
            self.fed.extend(path.iter().map(|&node| tree.nodes()[node].token));
        }
        let most = self.text.len().saturating_sub(1);
        let same = self.fed.iter().zip(&self.text[..most]).take_while(|(a, b)| a == b).count();
        self.fed.truncate(same);
        self.state.truncate(same);
        Ok(())
    }

    /// Runs the text up to token number `end`.
    fn catch_up(&mut self, end: usize) -> Result<()> {
        while self.fed.len() < end {
            let chunk = &self.text[self.fed.len()..end.min(self.fed.len() + CHUNK)];
            self.model.forward(&mut self.state, Input::Chain(chunk), Rows::None)?;
            self.fed.extend_from_slice(chunk);
        }
        Ok(())
    }

    /// Runs the nodes of `tree` from number `first` on. Gives logits `[n, V]` of the wanted rows, V being the target's.
    fn run(&mut self, tree: &DraftTree, first: usize, rows: Rows) -> Result<Vec<f32>> {
        let logits = self.model.forward(&mut self.state, Input::Grown(tree, first), rows)?;
        let own = self.model.config().vocab;
        if own == self.vocab {
            return Ok(logits);
        }
        let common = own.min(self.vocab);
        let rows = logits.chunks_exact(own);
        let padded = rows.flat_map(|row| {
            let rest = std::iter::repeat_n(f32::NEG_INFINITY, self.vocab - common);
            row[..common].iter().copied().chain(rest)
        });
        Ok(padded.collect())
    }

    /// Positions that are left for a tree of so many levels.
    fn fits(&self, levels: usize) -> bool {
        self.fed.len() + levels <= self.state.context()
    }
}

impl<B: Backend> Drafter<B> for Standalone<B> {
    fn observe(&mut self, tokens: &[Token]) -> Result<()> {
        // What it does not know it reads as the last token that it knows: it only guesses.
        let last = self.model.config().vocab as Token - 1;
        self.text.extend(tokens.iter().map(|&token| token.min(last)));
        Ok(())
    }

    fn prepare(&mut self) -> Result<()> {
        self.settle()?;
        self.catch_up(self.text.len().saturating_sub(1).min(self.state.context()))
    }

    fn draft(&mut self, round: &mut Round<'_>) -> Result<()> {
        self.settle()?;
        // A context that is full ends the drafting, not the text.
        if self.text.len() > self.state.context() || !round.wants(0) {
            return Ok(());
        }
        let behind = self.text.len() - self.fed.len();
        self.catch_up(self.text.len() - behind.min(TAIL))?;
        if behind > TAIL {
            round.caught_up(behind - TAIL);
        }
        let pending = &self.text[self.fed.len()..];
        let mut own = DraftTree::new(pending[0], DraftTree::MAX);
        let anchor = pending[1..].iter().try_fold(0, |node, &token| own.push(node, token, 0.0));
        let anchor = anchor.context("more pending tokens than a tree has nodes")?;
        let mut logits = self.run(&own, 0, Rows::Last)?;
        let mut ran = own.nodes().len();
        let mut frontier = vec![Guess { round: 0, own: anchor }];
        for depth in 1..=self.shape.depth {
            let mut next = vec![];
            for (guess, row) in frontier.iter().zip(logits.chunks_exact(self.vocab)) {
                let mut nodes = vec![];
                round.draw(guess.round, row, self.shape.branch, self.shape.least, &mut nodes);
                next.extend(nodes.into_iter().map(|round| Guess { round, own: guess.own }));
            }
            // The most promising guesses are followed.
            let score = |guess: &Guess| round.tree().nodes()[guess.round].score;
            next.sort_by(|a, b| score(b).total_cmp(&score(a)));
            next.truncate(self.shape.branch);
            let levels = own.nodes()[anchor].depth as usize + depth + 1;
            let Some(&best) = next.first() else { break };
            if depth == self.shape.depth || !self.fits(levels) || own.room() < next.len() || !round.wants(best.round) {
                break;
            }
            for guess in &mut next {
                let token = round.tree().nodes()[guess.round].token;
                guess.own = own.push(guess.own, token, 0.0).context("a tree has no room for its next level")?;
            }
            logits = self.run(&own, ran, Rows::All)?;
            (ran, frontier) = (own.nodes().len(), next);
        }
        self.grown = Some((own, ran));
        Ok(())
    }

    fn rewind(&mut self, kept: &[Token]) -> Result<()> {
        self.text.truncate(kept.len());
        Ok(())
    }

    fn memory(&self) -> u64 {
        self.memory
    }
}
