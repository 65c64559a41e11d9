//! Medusa: small heads beside the target's own, each of which guesses one of the tokens after the next.
//!
//! With the last token of the context, the anchor, come the target's hidden row of the token before it and, from that row,
//! the guesses: head *k* (from 0) is about the token *k* + 1 places after the anchor. Said once and for all: **the row of
//! token *i* guesses token *i* + 2 + *k***, because the target's own head has made token *i* + 1 of it. Heads do not know of
//! one another, so one pass of all of them gives every level of the tree; which of the combinations are worth a node is
//! in its [plan].
//!
//! Cai, Li, Geng, Peng, Lee, Chen, Dao, <https://arxiv.org/abs/2401.10774>; a chain of arg-maxes is blockwise decoding, Stern,
//! Shazeer, Uszkoreit, <https://arxiv.org/abs/1811.03115>.

mod heads;
pub mod layout;
mod measure;
pub mod plan;

use super::choice::{Choice, Kind, Setting, SettingKind};
use super::sidecar::{Architecture, Sidecar};
use super::{Drafter, Features, Round, Target, Tell};
use crate::backend::Backend;
use crate::model::Model;
use crate::tree::{NodeId, Token};
use anyhow::{Context, Result};
use heads::Heads;
use layout::Layout;
use measure::Measured;
use plan::{Plan, Wish};
use std::sync::Arc;

/// The table's line.
pub const KIND: Kind = Kind {
    name: "medusa",
    help: "Heads on the target's hidden row, one for each of the next tokens",
    path: Some("a Medusa sidecar"),
    settings: &[
        Setting {
            name: "tree",
            help: "auto: the sidecar's, else what its heads' accuracies make of it; static: the sidecar's; chain: best guesses",
            kind: SettingKind::Word("auto", &["auto", "static", "chain"]),
        },
        Setting { name: "max", help: "Longest run of guesses", kind: SettingKind::Count(63, (1, 63)) },
    ],
    rank: 1,
};

/// Least share that is told of a guess: none is hopeless, and what comes after it has a share of its own.
const LEAST: f64 = 1e-9;

/// Which trees it grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// The sidecar's; without one, what the accuracies in the sidecar make of it; without them, what is measured.
    Auto,
    /// The sidecar's, which must have one.
    Static,
    /// The best guess of every head.
    Chain,
}

/// Opens the sidecar and checks that it was made for the target.
pub fn open<B: Backend>(choice: &Choice, target: &Target<'_, B>) -> Result<Box<dyn Drafter<B>>> {
    let sidecar = Sidecar::open(choice.path(), &[Architecture::Medusa])?;
    sidecar.check(target)?;
    (target.admit)(sidecar.gguf().file_bytes())?;
    let shape = match choice.word(0) {
        "static" => Shape::Static,
        "chain" => Shape::Chain,
        _ => Shape::Auto,
    };
    let (medusa, warning) = Medusa::load(&sidecar, target.model, shape, choice.count(1))?;
    warning.into_iter().for_each(|line| (target.tell)(Tell::Warning(line)));
    Ok(Box::new(medusa))
}

/// Where trees come from.
enum Trees {
    Fixed(Plan),
    Measured(Measured),
}

/// The drafter.
pub struct Medusa<B: Backend> {
    backend: Arc<B>,
    heads: Heads<B>,
    trees: Trees,
    /// Size of the target's vocabulary.
    vocab: usize,
    /// Tokens observed.
    observed: usize,
    /// The last row seen `[1, D]`, and its token's place in the context.
    row: B::Mat,
    place: Option<usize>,
    memory: u64,
}

impl<B: Backend> Medusa<B> {
    /// The heads of a sidecar whose sizes fit `model`, with trees of at most `levels` levels; and what is odd about the file.
    pub fn load(
        sidecar: &Sidecar,
        model: &Arc<Model<B>>,
        shape: Shape,
        levels: usize,
    ) -> Result<(Self, Option<String>)> {
        let (backend, config) = (model.backend().clone(), model.config());
        sidecar.need_same("embedding_length", config.width)?;
        let layout = Layout::read(sidecar, config.vocab)?;
        let levels = levels.min(layout.heads);
        let fixed = |paths: &Vec<Vec<usize>>| Trees::Fixed(Plan::fixed(paths, levels, layout.rows()));
        let trees = match (shape, &layout.tree, &layout.accuracy) {
            (Shape::Chain, _, _) => Trees::Fixed(Plan::chain(levels)),
            (Shape::Static, None, _) => {
                anyhow::bail!("{} is missing, tree=static needs it", sidecar.key("tree"))
            }
            (Shape::Static | Shape::Auto, Some(paths), _) => fixed(paths),
            (Shape::Auto, None, Some(accuracy)) => Trees::Fixed(Plan::grown(&accuracy[..levels])),
            (Shape::Auto, None, None) => Trees::Measured(Measured::new(levels)),
        };
        let heads = Heads::load(sidecar, &layout, model)?;
        let warning = sidecar.unused(|name| layout.uses(name));
        let row = backend.mat(1, config.width)?;
        let memory = sidecar.gguf().file_bytes();
        let (vocab, observed, place) = (config.vocab, 0, None);
        Ok((Medusa { backend, heads, trees, vocab, observed, row, place, memory }, warning))
    }

    /// Whether the row that guesses are made of is there: that of the token before the anchor.
    fn is_ready(&self) -> bool {
        self.place.is_some_and(|place| place + 2 == self.observed)
    }

    /// Pushes what a plan wishes for. `row` gives a head's logits.
    fn push(&mut self, round: &mut Round<'_>, plan: &[Wish], logits: &[f32]) {
        let by_path = round.depends_on_paths();
        let mut nodes: Vec<Option<NodeId>> = vec![Some(0)];
        // What is best, by level or by the wish that comes before.
        let mut ranked: Vec<Option<Vec<(Token, f64)>>> = vec![None; plan.len() + 1];
        let slot = |wish: &Wish| if by_path { wish.parent } else { wish.level };
        let least = if matches!(self.trees, Trees::Measured(_)) { plan::TOP } else { 0 };
        for wish in plan {
            let Some(parent) = nodes[wish.parent] else {
                nodes.push(None);
                continue;
            };
            let best = ranked[slot(wish)].get_or_insert_with(|| {
                let alike = plan.iter().filter(|other| slot(other) == slot(wish));
                let most = alike.map(|other| other.rank + 1).fold(least, usize::max);
                let (row, ids) = self.heads.row(logits, wish.level);
                round.rank(parent, row, ids, most)
            });
            let found = best.get(wish.rank).map(|&(token, share)| (token, share.max(LEAST).ln() as f32));
            let above = round.tree().nodes()[parent].score;
            nodes.push(found.and_then(|(token, score)| round.push(parent, token, above + score)));
        }
        if let Trees::Measured(measured) = &mut self.trees {
            // Of each head, what it said at first.
            let first = (0..).map_while(|level| plan.iter().find(|wish| wish.level == level));
            let guesses = first.map_while(|wish| ranked[slot(wish)].take());
            measured.guessed(self.observed, guesses.map(|best| best.into_iter().map(|(token, _)| token).collect()));
        }
    }

    /// Draws as many guesses after a node as a plan wishes for.
    fn draw(&self, round: &mut Round<'_>, plan: &[Wish], logits: &[f32]) {
        let mut nodes: Vec<Option<NodeId>> = vec![None; plan.len() + 1];
        nodes[0] = Some(0);
        let mut room = vec![];
        for above in 0..=plan.len() {
            let wishes: Vec<usize> = (0..plan.len()).filter(|&i| plan[i].parent == above).collect();
            let (Some(parent), Some(&first)) = (nodes[above], wishes.first()) else { continue };
            let row = self.heads.wide_row(logits, plan[first].level, self.vocab, &mut room);
            let mut drawn = vec![];
            round.draw(parent, row, wishes.len(), 0.0, &mut drawn);
            wishes.iter().zip(drawn).for_each(|(&wish, node)| nodes[wish + 1] = Some(node));
        }
    }
}

impl<B: Backend> Drafter<B> for Medusa<B> {
    fn observe(&mut self, tokens: &[Token]) -> Result<()> {
        if let Trees::Measured(measured) = &mut self.trees {
            measured.observe(self.observed, tokens);
        }
        self.observed += tokens.len();
        Ok(())
    }

    fn taps(&self) -> Option<&[usize]> {
        Some(&[])
    }

    fn see(&mut self, features: &Features<'_, B>) -> Result<()> {
        let last = features.rows.last().context("no rows are shown")?;
        self.backend.gather(features.hidden, &[*last], &mut self.row);
        self.place = Some(features.first + features.rows.len() - 1);
        Ok(())
    }

    fn lacks(&self) -> Option<usize> {
        self.observed.checked_sub(2).filter(|_| !self.is_ready())
    }

    fn draft(&mut self, round: &mut Round<'_>) -> Result<()> {
        if !self.is_ready() {
            return Ok(()); // nothing comes before the anchor
        }
        let grown;
        let plan = match &self.trees {
            Trees::Fixed(plan) => plan,
            Trees::Measured(measured) => {
                grown = measured.plan();
                &grown
            }
        };
        let plan: Vec<Wish> = plan.wishes().iter().copied().take(round.room()).collect();
        let Some(levels) = plan.iter().map(|wish| wish.level + 1).max() else { return Ok(()) };
        let logits = self.heads.run(&self.backend, &self.row, levels)?;
        round.guesses_at_once(levels);
        if round.is_random() {
            self.draw(round, &plan, &logits);
        } else {
            self.push(round, &plan, &logits);
        }
        Ok(())
    }

    fn rewind(&mut self, kept: &[Token]) -> Result<()> {
        self.observed = kept.len();
        self.place = self.place.filter(|place| place + 2 <= kept.len());
        if let Trees::Measured(measured) = &mut self.trees {
            measured.forget_guesses();
        }
        Ok(())
    }

    fn memory(&self) -> u64 {
        self.memory
    }
}
