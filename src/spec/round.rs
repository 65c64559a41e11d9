//! One round's draft in the making: the tree, and what a drafter may know of how the target will choose.

use super::Accept;
use super::budget::{Budget, Turn};
use super::rejection::Draws;
use crate::sample::{History, Purpose, Sampler};
use crate::tree::{DraftTree, NodeId, Token};
use anyhow::Result;
use std::time::Instant;

/// Nodes that all drafters but the last leave to the others when the controller chooses among them.
const LEFT: usize = 16;

/// The tree of a round, filled by one drafter after the other.
///
/// Guesses are of two sorts. Those that are [pushed](Round::push) would be the same whatever the dice say. Those that
/// are [drawn](Round::draw) come from a drafter's own logits, in the way that suits the rule of acceptance.
pub struct Round<'a> {
    context: &'a [Token],
    start: usize,
    sampler: &'a mut Sampler,
    budget: &'a mut Budget,
    accept: Accept,
    /// Ordinal of the token after the anchor.
    ordinal: u64,
    /// Nodes that can be verified, anchor included.
    room: usize,
    drafters: usize,
    draft: Draft,
    /// Whose turn it is, of what sort, since when, and nodes the tree may have in it.
    drafter: usize,
    turn: Turn,
    started: Instant,
    limit: usize,
    /// Tokens from below the anchor to the node being asked about.
    path: Vec<Token>,
}

/// What a round is about.
#[derive(Clone, Copy, Debug)]
pub struct Setting<'a> {
    /// The context; its last token is the anchor.
    pub context: &'a [Token],
    /// Where in it the generated part begins, which a grammar is about.
    pub start: usize,
    /// Nodes that can be verified, anchor included.
    pub room: usize,
    /// Ordinal of the token after the anchor.
    pub ordinal: u64,
    /// The rule of acceptance.
    pub accept: Accept,
    /// How many drafters there are.
    pub drafters: usize,
}

/// A tree and who guessed its nodes.
#[derive(Clone, Debug)]
pub struct Sketch {
    /// The tree.
    pub tree: DraftTree,
    /// For each node the number of the drafter that guessed it first (for the anchor 0).
    pub owners: Vec<u8>,
}

/// What a drafter did in a round.
#[derive(Clone, Copy, Debug, Default)]
pub struct Effort {
    /// Seconds of its steps.
    pub seconds: f64,
    /// Its steps; 0 if it had no turn.
    pub steps: usize,
    /// Levels that its one step gave; 0 for a drafter whose steps give one each.
    pub levels: usize,
    /// Seconds of catching up before.
    pub caught_up: f64,
    /// Tokens caught up with.
    pub behind: usize,
}

/// What the drafters have made of a round.
#[derive(Clone, Debug)]
pub struct Draft {
    /// What is to be verified.
    pub sketch: Sketch,
    /// Bit *i*: node *i* was pushed, not only drawn.
    pub pushed: u64,
    /// What was drawn for the rejection rule, in order.
    pub draws: Vec<Draws>,
    /// All that was guessed, where the controller left some of it out.
    pub shadow: Option<Sketch>,
    /// What each drafter did.
    pub efforts: Vec<Effort>,
    /// Why a drafter's logits could not be drawn from, if that happened.
    pub fault: Option<String>,
}

impl Draft {
    /// A draft of pushed guesses by drafter 0.
    pub fn of(tree: DraftTree) -> Draft {
        let owners = vec![0; tree.nodes().len()];
        let sketch = Sketch { tree, owners };
        Draft { sketch, pushed: u64::MAX, draws: vec![], shadow: None, efforts: vec![], fault: None }
    }

    /// The tree to be verified.
    pub fn tree(&self) -> &DraftTree {
        &self.sketch.tree
    }

    /// Leaves out all nodes but those in the set `keep`, which has the parents of all its nodes.
    pub(super) fn prune(&mut self, keep: u64) {
        let (old, all) = (&self.sketch, self.sketch.tree.nodes());
        if keep.count_ones() as usize == all.len() {
            return;
        }
        let mut new = Sketch { tree: DraftTree::new(all[0].token, DraftTree::MAX), owners: vec![0] };
        let (mut renamed, mut pushed) = ([0; DraftTree::MAX], 1);
        for (id, node) in all.iter().enumerate().skip(1).filter(|(id, _)| keep >> id & 1 == 1) {
            renamed[id] =
                new.tree.push(renamed[node.parent], node.token, node.score).expect("no larger than its source");
            new.owners.push(old.owners[id]);
            pushed |= (self.pushed >> id & 1) << renamed[id];
        }
        self.pushed = pushed;
        self.shadow = Some(std::mem::replace(&mut self.sketch, new));
    }
}

impl<'a> Round<'a> {
    /// A round without guesses so far.
    pub fn new(setting: Setting<'a>, sampler: &'a mut Sampler, budget: &'a mut Budget) -> Self {
        let Setting { context, start, room, ordinal, accept, drafters } = setting;
        let room = room.min(budget.most() + 1).clamp(1, DraftTree::MAX);
        // At temperature 0 there is nothing to draw: all rules are the walk.
        let accept = if sampler.params().temp == 0.0 { Accept::Exact } else { accept };
        // What the controller leaves out teaches it, too: the tree may be larger than what is verified. But nothing is left
        // out once something was drawn.
        let can_prune = accept != Accept::Rejection;
        let nodes = if budget.is_auto() && room > 1 && can_prune { DraftTree::MAX } else { room };
        let mut draft = Draft::of(DraftTree::new(*context.last().expect("a context has an anchor"), nodes));
        (draft.pushed, draft.efforts) = (1, vec![Effort::default(); drafters]);
        Round {
            context,
            start,
            accept,
            sampler,
            budget,
            ordinal,
            room,
            drafters,
            draft,
            drafter: 0,
            turn: Turn::Rest,
            started: Instant::now(),
            limit: nodes,
            path: vec![],
        }
    }

    /// Gives drafter number `drafter` its turn; false if it is to rest this time.
    pub fn turn(&mut self, drafter: usize) -> bool {
        self.end_turn();
        if self.room == 1 {
            return false;
        }
        // What is drawn later must not decide on what was pushed before.
        if self.accept == Accept::Rejection {
            self.prune();
        }
        self.turn = self.budget.turn(drafter, &self.draft.sketch);
        self.drafter = drafter;
        self.started = Instant::now();
        let last = drafter + 1 == self.drafters;
        self.limit = if self.budget.is_auto() && !last { DraftTree::MAX - LEFT } else { DraftTree::MAX };
        self.turn != Turn::Rest
    }

    fn end_turn(&mut self) {
        if self.turn != Turn::Rest {
            let effort = &mut self.draft.efforts[self.drafter];
            effort.seconds = self.started.elapsed().as_secs_f64();
            effort.steps = effort.steps.max(1);
            self.turn = Turn::Rest;
        }
    }

    /// Leaves out what does not pay, unless something was drawn.
    fn prune(&mut self) {
        if self.budget.is_auto() && self.draft.draws.is_empty() {
            let worthy = self.budget.worthy(&self.draft.sketch, self.room - 1);
            self.draft.prune(worthy);
        }
    }

    /// Whether to go on guessing below `parent`. Drafters that compute ask before every step of theirs.
    pub fn wants(&mut self, parent: NodeId) -> bool {
        let wanted = self.room() > 0
            && match self.turn {
                Turn::Rest => false,
                Turn::Try => self.draft.efforts[self.drafter].steps < Budget::TRIAL,
                Turn::Guess => self.budget.wants(self.drafter, &self.draft.sketch, parent),
            };
        self.draft.efforts[self.drafter].steps += usize::from(wanted);
        wanted
    }

    /// As [`Round::wants`] before a step that guesses below several places at once: below which of them. A place is a path
    /// of guesses below the anchor with the scores they would be pushed with, in the tree or not.
    pub fn wants_below(&mut self, places: &[Vec<(Token, f32)>]) -> Vec<bool> {
        let wanted = match self.turn {
            Turn::Guess if self.room() > 0 => self.budget.wants_below(self.drafter, &self.draft.sketch, places),
            Turn::Try => {
                vec![self.room() > 0 && self.draft.efforts[self.drafter].steps < Budget::TRIAL; places.len()]
            }
            _ => vec![false; places.len()],
        };
        self.draft.efforts[self.drafter].steps += usize::from(wanted.contains(&true));
        wanted
    }

    /// Says that this drafter guesses so many levels in one step, which it takes without asking whether it is
    /// [wanted](Round::wants).
    pub fn guesses_at_once(&mut self, levels: usize) {
        self.draft.efforts[self.drafter].levels = levels;
    }

    /// Says that this turn so far went into catching up by `tokens`, which is not the price of a step.
    pub fn caught_up(&mut self, tokens: usize) {
        let effort = &mut self.draft.efforts[self.drafter];
        effort.caught_up += self.started.elapsed().as_secs_f64();
        effort.behind += tokens;
        self.started = Instant::now();
    }

    /// The context, anchor included.
    pub fn context(&self) -> &'a [Token] {
        self.context
    }

    /// The tree so far.
    pub fn tree(&self) -> &DraftTree {
        self.draft.tree()
    }

    /// Nodes that still fit.
    pub fn room(&self) -> usize {
        self.tree().room().min(self.limit.saturating_sub(self.tree().nodes().len()))
    }

    /// Guesses that `token` follows `parent`. `score` is the logarithm of the probability that the drafter gives the path.
    /// `None` when the tree is full. Once something was drawn for the rejection rule only that can be found again: what
    /// is pushed is tried first, and whether it is there must not depend on what was drawn.
    pub fn push(&mut self, parent: NodeId, token: Token, score: f32) -> Option<NodeId> {
        if !self.draft.draws.is_empty() {
            return self.tree().child(parent, token);
        }
        let node = self.add(parent, token, score)?;
        self.draft.pushed |= 1 << node;
        Some(node)
    }

    /// Guesses up to `n` tokens after `parent`, best first, given the drafter's `logits` for that place, and appends their
    /// nodes to `nodes`. They pass through all stages of the target's sampler, with the history of the place. Nothing is
    /// guessed that the drafter gives less than the share `least`.
    ///
    /// Under `exact` they are those that the sampler would pick from these logits with the very noise it will pick with
    /// (the first, then the runners-up), so that drafter and target agree as often as can be. Under `rejection` they are
    /// drawn without replacement, with noise of this drafter and node alone. Under `typical` they are the likeliest.
    /// Nothing is guessed after what a grammar forbids, nor after what ends its text.
    pub fn draw(&mut self, parent: NodeId, logits: &[f32], n: usize, least: f64, nodes: &mut Vec<NodeId>) {
        let n = n.min(self.room());
        if n == 0 {
            return;
        }
        self.walk_to(parent);
        if let Err(error) = self.try_draw(parent, logits, n, least, nodes) {
            self.draft.fault.get_or_insert_with(|| format!("{error:#}"));
        }
    }

    /// Whether guesses are [drawn](Round::draw) by chance; else they can be [ranked](Round::rank) and pushed as well.
    pub fn is_random(&self) -> bool {
        self.accept == Accept::Rejection
    }

    /// Whether what logits come to depends on the path to the place they are for. If not, the same logits give the same
    /// guesses after all nodes of a depth.
    pub fn depends_on_paths(&self) -> bool {
        self.sampler.reads_history()
    }

    /// The `n` tokens that [`Round::draw`] would guess after `parent` were the tree large enough, each with its share, best
    /// first; for drafters that push some of them, and of no use when guesses are [random](Round::is_random). With `ids`,
    /// logit *i* is that of token `ids[i]`, and others are not guessed.
    pub fn rank(&mut self, parent: NodeId, logits: &[f32], ids: Option<&[Token]>, n: usize) -> Vec<(Token, f64)> {
        self.walk_to(parent);
        let path = std::mem::take(&mut self.path);
        let ranked = self.rank_beyond(&path, logits, ids, n);
        self.path = path;
        ranked
    }

    /// As [`Round::rank`] after a path of guesses below the anchor that need not be in the tree. Under `rejection` they are
    /// the likeliest, whatever the dice say, and so can be pushed.
    pub fn rank_beyond(
        &mut self,
        path: &[Token],
        logits: &[f32],
        ids: Option<&[Token]>,
        n: usize,
    ) -> Vec<(Token, f64)> {
        let history = History { committed: self.context, path, start: self.start };
        if n == 0 || !self.sampler.goes_on(history) {
            return vec![];
        }
        let ordinal = self.ordinal + path.len() as u64;
        self.sampler.rank(logits, ids, history, ordinal, (n, self.accept == Accept::Exact)).unwrap_or_else(|error| {
            self.draft.fault.get_or_insert_with(|| format!("{error:#}"));
            vec![]
        })
    }

    /// Makes the path that of `parent`.
    fn walk_to(&mut self, parent: NodeId) {
        let tree = self.draft.tree();
        self.path.clear();
        self.path.extend(tree.path(parent).into_iter().skip(1).map(|node| tree.nodes()[node].token));
    }

    fn try_draw(
        &mut self,
        parent: NodeId,
        logits: &[f32],
        n: usize,
        least: f64,
        nodes: &mut Vec<NodeId>,
    ) -> Result<()> {
        let history = History { committed: self.context, path: &self.path, start: self.start };
        if !self.sampler.goes_on(history) {
            return Ok(());
        }
        let above = self.tree().nodes()[parent];
        let ordinal = self.ordinal + u64::from(above.depth);
        if self.accept != Accept::Rejection {
            for (token, share) in
                self.sampler.rank(logits, None, history, ordinal, (n, self.accept == Accept::Exact))?
            {
                if share < least {
                    break;
                }
                let Some(node) = self.add(parent, token, above.score + share.ln() as f32) else { break };
                self.draft.pushed |= 1 << node;
                nodes.push(node);
            }
            return Ok(());
        }
        let key = [self.drafter as u64, parent as u64];
        let q = self.sampler.distribution(logits, history, ordinal)?;
        // Whether anything is drawn here may depend on the distribution, but not on what would be drawn.
        if q.iter().all(|&(_, share)| share < least) {
            return Ok(());
        }
        let drawn = self.sampler.noise().draw_some(self.ordinal, Purpose::Draft, key, &q, n);
        let mut draws = Draws { parent, q, nodes: vec![] };
        for token in drawn {
            let share = draws.q.iter().find(|&&(t, _)| t == token).map_or(0.0, |&(_, share)| share);
            let Some(node) = self.add(parent, token, above.score + share.ln() as f32) else { break };
            draws.nodes.push(node);
            nodes.push(node);
        }
        self.draft.draws.push(draws);
        Ok(())
    }

    fn add(&mut self, parent: NodeId, token: Token, score: f32) -> Option<NodeId> {
        if self.room() == 0 {
            return self.tree().child(parent, token);
        }
        let Sketch { tree, owners } = &mut self.draft.sketch;
        let node = tree.push(parent, token, score)?;
        if node == owners.len() {
            owners.push(self.drafter as u8);
        }
        Some(node)
    }

    /// What came of it, without what does not pay.
    pub fn finish(mut self) -> Draft {
        self.end_turn();
        self.prune();
        self.draft
    }
}

/// A drafter's tree of up to `budget` nodes on top of `context`, for tests of drafters that draw nothing.
#[cfg(test)]
pub(super) fn draft_of(
    drafter: &mut impl super::Drafter<crate::backend::cpu::Cpu>,
    context: &[Token],
    budget: usize,
) -> DraftTree {
    let params = crate::sample::SampleParams { temp: 0.0, ..Default::default() };
    let mut sampler = Sampler::new(params, 0, 1, |_| vec![]).unwrap();
    let mut fixed = Budget::new(super::budget::Nodes::Fixed(budget - 1), 1);
    let setting = Setting { context, start: 0, room: budget, ordinal: 0, accept: Accept::Exact, drafters: 1 };
    let mut round = Round::new(setting, &mut sampler, &mut fixed);
    assert!(round.turn(0) || budget == 1);
    drafter.draft(&mut round).unwrap();
    round.finish().sketch.tree
}

#[cfg(test)]
#[path = "round_tests.rs"]
mod tests;
