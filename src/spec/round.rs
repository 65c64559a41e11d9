//! One round's draft in the making: the tree, and what a drafter may know of how the target will choose.

use super::Accept;
use super::rejection::Draws;
use crate::sample::{History, Purpose, Sampler};
use crate::tree::{DraftTree, NodeId, Token};
use anyhow::Result;

/// The tree of a round, filled by one drafter after the other.
///
/// Guesses are of two sorts. Those that are [pushed](Round::push) would be the same whatever the dice say. Those that
/// are [drawn](Round::draw) come from a drafter's own logits, in the way that suits the rule of acceptance.
pub struct Round<'a> {
    context: &'a [Token],
    tree: DraftTree,
    sampler: &'a mut Sampler,
    /// Ordinal of the token after the anchor.
    ordinal: u64,
    accept: Accept,
    drafter: usize,
    /// Who guessed each node first.
    owners: Vec<u8>,
    /// Which nodes were pushed.
    pushed: u64,
    draws: Vec<Draws>,
    /// Tokens from below the anchor to the node being asked about.
    path: Vec<Token>,
    fault: Option<String>,
}

/// What the drafters have made of a round.
pub struct Draft {
    /// The tree.
    pub tree: DraftTree,
    /// For each node the number of the drafter that guessed it first (for the anchor 0).
    pub owners: Vec<u8>,
    /// Bit *i*: node *i* was pushed, not only drawn.
    pub pushed: u64,
    /// What was drawn for the rejection rule, in order.
    pub draws: Vec<Draws>,
    /// Why a drafter's logits could not be drawn from, if that happened.
    pub fault: Option<String>,
}

impl<'a> Round<'a> {
    /// A round on top of `context`, whose last token is the anchor; the tree takes up to `budget` nodes, anchor included.
    /// `ordinal` is that of the token after the anchor.
    pub fn new(context: &'a [Token], budget: usize, sampler: &'a mut Sampler, ordinal: u64, accept: Accept) -> Self {
        let anchor = *context.last().expect("a context has an anchor");
        Round {
            context,
            tree: DraftTree::new(anchor, budget),
            // At temperature 0 there is nothing to draw: all rules are the walk.
            accept: if sampler.params().temp == 0.0 { Accept::Exact } else { accept },
            sampler,
            ordinal,
            drafter: 0,
            owners: vec![0],
            pushed: 1,
            draws: vec![],
            path: vec![],
            fault: None,
        }
    }

    /// Says whose turn it is.
    pub fn turn(&mut self, drafter: usize) {
        self.drafter = drafter;
    }

    /// The context, anchor included.
    pub fn context(&self) -> &'a [Token] {
        self.context
    }

    /// The tree so far.
    pub fn tree(&self) -> &DraftTree {
        &self.tree
    }

    /// Nodes that still fit.
    pub fn room(&self) -> usize {
        self.tree.room()
    }

    /// Guesses that `token` follows `parent`. `score` is the logarithm of the probability that the drafter gives the path.
    /// `None` when the tree is full. Once something was drawn for the rejection rule only that can be found again: what
    /// is pushed is tried first, and whether it is there must not depend on what was drawn.
    pub fn push(&mut self, parent: NodeId, token: Token, score: f32) -> Option<NodeId> {
        if !self.draws.is_empty() {
            return self.tree.child(parent, token);
        }
        let node = self.add(parent, token, score)?;
        self.pushed |= 1 << node;
        Some(node)
    }

    /// Guesses up to `n` tokens after `parent`, best first, given the drafter's `logits` for that place, and appends their
    /// nodes to `nodes`. They pass through all stages of the target's sampler, with the history of the place.
    ///
    /// Under `exact` they are those that the sampler would pick from these logits with the very noise it will pick with
    /// (the first, then the runners-up), so that drafter and target agree as often as can be. Under `rejection` they are
    /// drawn without replacement, with noise of this drafter and node alone. Under `typical` they are the likeliest.
    pub fn draw(&mut self, parent: NodeId, logits: &[f32], n: usize, nodes: &mut Vec<NodeId>) {
        let n = n.min(self.tree.room());
        if n == 0 {
            return;
        }
        self.path.clear();
        let below = self.tree.path(parent).into_iter().skip(1);
        self.path.extend(below.map(|node| self.tree.nodes()[node].token));
        if let Err(error) = self.try_draw(parent, logits, n, nodes) {
            self.fault.get_or_insert_with(|| format!("{error:#}"));
        }
    }

    fn try_draw(&mut self, parent: NodeId, logits: &[f32], n: usize, nodes: &mut Vec<NodeId>) -> Result<()> {
        let history = History { committed: self.context, path: &self.path };
        let ordinal = self.ordinal + u64::from(self.tree.nodes()[parent].depth);
        let above = self.tree.nodes()[parent].score;
        match self.accept {
            Accept::Exact | Accept::Typical => {
                let noisy = self.accept == Accept::Exact;
                for (token, share) in self.sampler.rank(logits, history, ordinal, n, noisy)? {
                    let Some(node) = self.add(parent, token, above + share.ln() as f32) else { break };
                    self.pushed |= 1 << node;
                    nodes.push(node);
                }
            }
            Accept::Rejection => {
                let key = [self.drafter as u64, parent as u64];
                let q = self.sampler.distribution(logits, history, ordinal)?;
                let drawn = self.sampler.noise().draw_some(self.ordinal, Purpose::Draft, key, &q, n);
                let mut draws = Draws { parent, q, nodes: vec![] };
                for token in drawn {
                    let share = draws.q.iter().find(|&&(t, _)| t == token).map_or(0.0, |&(_, share)| share);
                    let Some(node) = self.add(parent, token, above + share.ln() as f32) else { break };
                    draws.nodes.push(node);
                    nodes.push(node);
                }
                self.draws.push(draws);
            }
        }
        Ok(())
    }

    fn add(&mut self, parent: NodeId, token: Token, score: f32) -> Option<NodeId> {
        let node = self.tree.push(parent, token, score)?;
        if node == self.owners.len() {
            self.owners.push(self.drafter as u8);
        }
        Some(node)
    }

    /// What came of it.
    pub fn finish(self) -> Draft {
        let Round { tree, owners, pushed, draws, fault, .. } = self;
        Draft { tree, owners, pushed, draws, fault }
    }
}

/// A drafter's tree of up to `budget` nodes on top of `context`, for tests of drafters that draw nothing.
#[cfg(test)]
pub(super) fn draft_of(drafter: &mut impl super::Drafter, context: &[Token], budget: usize) -> DraftTree {
    let params = crate::sample::SampleParams { temp: 0.0, ..Default::default() };
    let mut sampler = Sampler::new(params, 0, 1, |_| vec![]).unwrap();
    let mut round = Round::new(context, budget, &mut sampler, 0, Accept::Exact);
    drafter.draft(&mut round).unwrap();
    round.finish().tree
}
