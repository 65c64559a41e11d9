//! How much to guess: a fixed number of nodes, or as many as pay.
//!
//! The controller knows what a pass over so many rows costs here (measured, kept for every width), what a step of each
//! drafter costs, and how often guesses that a drafter was so sure of came true (by drafter, claim and depth). A guess
//! is worth verifying if its chance to be accepted, times the time a token takes at present, exceeds what its row adds
//! to the pass; a drafter's step is worth taking if the same holds with the step's own time added. With the tokens per
//! second at present as the price of time this is the policy that maximises them in the long run (Dinkelbach).
//!
//! Guesses teach even when they are not verified: the text that comes shows whether they were right. So a drafter that
//! costs nothing is never forgotten. One that does not pay rests, and is tried again after ever longer pauses.

use super::round::{Draft, Effort, Sketch};
use super::score::{MEMORY, Mean, PRIOR, Score};
use super::tally::Times;
use crate::tree::{DraftTree, Token};
use std::time::Duration;

/// Samples of a width's cost that are kept; their median counts, so that one slow pass does no harm.
const SAMPLES: usize = 5;
/// Rounds after which the cost of a width is no longer known. Machines change their speed: a width that was measured while all
/// was slow looks too dear when it is fast again, and would never be tried.
const FRESH: u64 = 64;
/// What a further row is taken to add to a pass at least, in units of a pass of one row, until it is measured: little, for
/// what looks too dear is never tried. Where rows are known to add more, half of that.
const HOPE: f64 = 0.04;
/// Rounds that a drafter which does not pay rests, at first and at most.
const REST: (u32, u32) = (8, 512);
/// What is believed of a place before a drafter has guessed there, and the weight of that: little, for a drafter that
/// computes costs as much as it takes to see that it fails.
const HOPED: (f64, f64) = (0.6, 2.0);
/// Upper ends of the classes that claims are put in.
const CLAIMS: [f64; 10] = [0.02, 0.06, 0.15, 0.3, 0.5, 0.7, 0.85, 0.95, 0.99, 1.0];
/// Upper ends of the classes of depths.
const DEPTHS: [usize; 5] = [1, 2, 4, 8, DraftTree::MAX];
/// A drafter whose step takes less than this share of a pass of one row is not worth economising on.
const CHEAP: f64 = 0.02;

/// How many nodes a round may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nodes {
    /// So many, every round, if the drafters have them.
    Fixed(usize),
    /// As many as pay, up to so many.
    Auto(usize),
}

impl Nodes {
    /// So many at most.
    pub fn most(self) -> usize {
        match self {
            Nodes::Fixed(n) | Nodes::Auto(n) => n,
        }
    }

    /// Whether a controller chooses.
    pub fn is_auto(self) -> bool {
        matches!(self, Nodes::Auto(_))
    }
}

/// The controller.
#[derive(Clone, Debug)]
pub struct Budget {
    nodes: Nodes,
    /// Seconds of a pass, by rows - 1, the latest last, and the round of the latest.
    passes: Vec<(Vec<f64>, u64)>,
    rounds: u64,
    /// Rows and seconds of a pass over much of a prompt: what wide ones are taken to cost until they are measured.
    wide: Option<(usize, f64)>,
    /// Seconds of a round beside drafting and the pass.
    rest: Mean,
    drafters: Vec<Record>,
    /// Tokens and seconds of a round at present.
    tokens: Mean,
    seconds: Mean,
}

/// What is known of a drafter.
#[derive(Clone, Debug, Default)]
struct Record {
    /// Seconds and steps of a round in which it guessed.
    seconds: Mean,
    steps: Mean,
    /// Levels that its one step gives; 0 if every level takes a step.
    levels: usize,
    /// Seconds of catching up with one token, as [`Budget::rows`] has them, and tokens that came since its last turn.
    catch_up: Mean,
    backlog: usize,
    /// The sum of its claims, and how many of those guesses were right.
    claimed: Score,
    /// Guesses by class of claim.
    by_claim: [Score; CLAIMS.len()],
    /// The same by class of depth.
    by_depth: [[Score; CLAIMS.len()]; DEPTHS.len()],
    /// Places it guessed at, by class of depth: whether one of its guesses was right. What was right and not thought worth
    /// verifying says neither, but when the drafter is tried.
    places: [Score; DEPTHS.len()],
    /// Rounds it has rested, and is to rest.
    rested: u32,
    pause: u32,
    /// On trial this round; to be tried again in the next, for the last trial went well.
    on_trial: bool,
    again: bool,
}

/// What a drafter is to do in a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Rest.
    Rest,
    /// Guess as far as it pays.
    Guess,
    /// Guess a little whether it pays or not, to see.
    Try,
}

fn class(ends: &[f64], x: f64) -> usize {
    ends.iter().position(|&end| x <= end).unwrap_or(ends.len() - 1)
}

fn depth_class(depth: usize) -> usize {
    DEPTHS.iter().position(|&end| depth <= end).unwrap_or(DEPTHS.len() - 1)
}

impl Budget {
    /// Steps of a drafter that is tried.
    pub const TRIAL: usize = 2;

    /// A controller of so many drafters that knows nothing yet.
    pub fn new(nodes: Nodes, drafters: usize) -> Self {
        let pause = REST.0;
        Budget {
            nodes,
            passes: vec![(vec![], 0); DraftTree::MAX],
            rounds: 0,
            wide: None,
            rest: Mean::default(),
            drafters: vec![Record { pause, ..Record::default() }; drafters],
            tokens: Mean::default(),
            seconds: Mean::default(),
        }
    }

    /// Nodes that a verified tree may have beside the anchor.
    pub fn most(&self) -> usize {
        self.nodes.most()
    }

    /// Whether it chooses.
    pub fn is_auto(&self) -> bool {
        self.nodes.is_auto()
    }

    /// Begins a text. What guesses came to in the text before says little about this one, so no rest goes on: to copy comes
    /// before a chat. Of the prompt there is little to catch up with, for drafters that rest do so now and then.
    pub fn begin(&mut self) {
        for record in &mut self.drafters {
            (record.rested, record.pause, record.again, record.backlog) = (0, REST.0, false, 0);
            let claims = record.by_claim.iter_mut().chain(record.by_depth.iter_mut().flatten());
            claims.chain(&mut record.places).chain([&mut record.claimed]).for_each(|score| score.fade(0.0));
        }
    }

    /// Learns what a pass over `rows` tokens of a prompt takes, their logits included.
    pub fn learn_prompt(&mut self, rows: usize, time: Duration) {
        // All of it is operations: the time of more rows than a tree has says what those of a tree take.
        let (rows, seconds) = match rows.min(DraftTree::MAX) {
            DraftTree::MAX => (DraftTree::MAX, time.as_secs_f64() * DraftTree::MAX as f64 / rows as f64),
            few => (few, time.as_secs_f64()),
        };
        if rows > 1 && self.wide.is_none_or(|(known, _)| rows >= known) {
            self.wide = Some((rows, seconds));
        }
    }

    /// Whether what passes over `rows` rows took still holds. That of one row is what all others are compared with.
    fn is_fresh(&self, rows: usize) -> bool {
        rows == 1 || self.rounds - self.passes[rows - 1].1 <= FRESH
    }

    /// Seconds of a pass over `rows` rows: measured, or between and beyond what was measured.
    fn pass(&self, rows: usize) -> f64 {
        let measured = |rows: usize| {
            let mut samples = if self.is_fresh(rows) { self.passes[rows - 1].0.clone() } else { vec![] };
            samples.sort_by(f64::total_cmp);
            let prompt = || self.wide.filter(|&(known, _)| known == rows).map(|(_, seconds)| seconds);
            samples.get(samples.len() / 2).copied().or_else(prompt)
        };
        let rows = rows.clamp(1, DraftTree::MAX);
        if let Some(seconds) = measured(rows) {
            return seconds;
        }
        let below = (1..rows).rev().find_map(|n| Some((n, measured(n)?)));
        let above = (rows + 1..=DraftTree::MAX).find_map(|n| Some((n, measured(n)?)));
        match (below, above) {
            (None, None) => 0.0,
            (None, Some((n, seconds))) => seconds / (1.0 + HOPE * (n - rows) as f64),
            (Some((n, seconds)), None) => {
                let one = measured(1).unwrap_or(seconds);
                let slope = (seconds - one).max(0.0) / (n.max(2) - 1) as f64 / 2.0;
                seconds + (rows - n) as f64 * slope.max(HOPE * one)
            }
            (Some((a, low)), Some((b, high))) => low + (high - low).max(0.0) * (rows - a) as f64 / (b - a) as f64,
        }
    }

    /// What a batch of so many rows takes in units of one: a drafter's are taken to be like the target's.
    fn rows(&self, rows: usize) -> f64 {
        let batch = rows.clamp(1, DraftTree::MAX);
        (self.pass(batch) / self.pass(1).max(1e-9)).max(1.0) * rows as f64 / batch as f64
    }

    /// Tokens a second at present: what time is worth. Plain decoding is always to be had.
    fn price(&self) -> f64 {
        let plain = 1.0 / (self.pass(1) + self.rest.value).max(1e-9);
        if self.seconds.value > 0.0 { plain.max(self.tokens.value / self.seconds.value) } else { plain }
    }

    /// Chance that a guess is right if its parent is, by what its drafter claims.
    fn chance(&self, drafter: usize, claim: f64, depth: usize) -> f64 {
        let (record, class) = (&self.drafters[drafter], class(&CLAIMS, claim));
        // What holds of some of its boasts holds of those nothing is known of.
        let candour = record.claimed.chance(1.0, PRIOR).min(1.0);
        let by_claim = record.by_claim[class].chance(claim * candour, PRIOR);
        record.by_depth[depth_class(depth)][class].chance(by_claim, PRIOR)
    }

    /// Chance that one of a drafter's guesses at a place is right, before it has made them.
    fn hope(&self, drafter: usize, depth: usize) -> f64 {
        let record = &self.drafters[drafter];
        let class = depth_class(depth);
        let (hoped, weight) = HOPED;
        let nearer = if class == 0 { hoped } else { record.places[class - 1].chance(hoped, weight) };
        record.places[class].chance(nearer, weight)
    }

    /// Seconds of one step of a drafter.
    fn step(&self, drafter: usize) -> f64 {
        let record = &self.drafters[drafter];
        if record.steps.value > 0.0 { record.seconds.value / record.steps.value } else { 0.0 }
    }

    /// Chances that the nodes of a sketch are accepted, their parents' included.
    fn chances(&self, sketch: &Sketch) -> Vec<f64> {
        let nodes = sketch.tree.nodes();
        let mut chances = vec![1.0];
        for (id, node) in nodes.iter().enumerate().skip(1) {
            let claim = f64::from(node.score - nodes[node.parent].score).exp();
            let chance = self.chance(sketch.owners[id].into(), claim.min(1.0), node.depth.into());
            chances.push(chances[node.parent] * chance);
        }
        chances
    }

    /// Decides about a drafter at the beginning of its turn. The first pass of all is one of a single row: what that
    /// costs is what everything is compared with.
    pub fn turn(&mut self, drafter: usize, sketch: &Sketch) -> Turn {
        if !self.is_auto() {
            return Turn::Guess;
        }
        if self.passes[0].0.is_empty() {
            return Turn::Rest;
        }
        if self.drafters[drafter].steps.value == 0.0 {
            // What its steps cost is not known yet.
            return Turn::Try;
        }
        if self.step(drafter) < CHEAP * self.pass(1) {
            return Turn::Guess;
        }
        let (price, step) = (self.price(), self.step(drafter));
        let catch_up = self.drafters[drafter].catch_up.value * self.rows(self.drafters[drafter].backlog);
        let taken: f64 = {
            let chances = self.chances(sketch);
            let nodes = sketch.tree.nodes().iter().zip(&chances).skip(1);
            nodes.filter(|(node, _)| node.depth == 1).map(|(_, chance)| chance).sum()
        };
        // The best it could do: a chain of some length.
        let (mut reach, mut gain, mut best) = ((1.0 - taken).max(0.0), 0.0, 0.0f64);
        let levels = self.drafters[drafter].levels;
        for depth in 1..=self.most().min(if levels > 0 { levels } else { 16 }) {
            reach *= self.hope(drafter, depth);
            gain += reach;
            let steps = if levels > 0 { 1 } else { depth };
            let time = catch_up + step * steps as f64 + self.pass(depth + 1) - self.pass(1);
            best = best.max(gain - price * time);
        }
        let record = &mut self.drafters[drafter];
        if best > 0.0 {
            (record.rested, record.pause, record.again) = (0, REST.0, false);
            return Turn::Guess;
        }
        record.rested += 1;
        if !record.again {
            if record.rested < record.pause {
                return Turn::Rest;
            }
            (record.rested, record.pause) = (0, (record.pause * 4).min(REST.1));
            // What was seen before the rest says less about what comes after it.
            record.places.iter_mut().for_each(|place| place.fade(0.5));
        }
        (record.on_trial, record.again) = (true, false);
        Turn::Try
    }

    /// Whether a drafter has not paid of late.
    pub fn is_resting(&self, drafter: usize) -> bool {
        self.drafters[drafter].pause > REST.0
    }

    /// Whether a further step of a drafter below `parent` pays.
    pub fn wants(&self, drafter: usize, sketch: &Sketch, parent: usize) -> bool {
        if !self.is_auto() {
            return true;
        }
        let nodes = sketch.tree.nodes();
        let chances = self.chances(sketch);
        let open = (chances[parent] - sketch.tree.children(parent).map(|id| chances[id]).sum::<f64>()).max(0.0);
        let gain = open * self.hope(drafter, usize::from(nodes[parent].depth) + 1);
        let rows = nodes.len().min(self.most() + 1);
        gain > self.price() * (self.step(drafter) + self.pass(rows + 1) - self.pass(rows))
    }

    /// Below which of several places a further step of a drafter that guesses below them all at once should guess. A place
    /// is a path of its guesses with their scores, in the tree or not.
    pub fn wants_below(&self, drafter: usize, sketch: &Sketch, places: &[Vec<(Token, f32)>]) -> Vec<bool> {
        if !self.is_auto() {
            return vec![true; places.len()];
        }
        let (chances, price) = (self.chances(sketch), self.price());
        let gain = |path: &Vec<(Token, f32)>| {
            let open = self.open(drafter, sketch, &chances, path);
            // Of the path nothing may be in the tree yet.
            let rows = (sketch.tree.nodes().len() + path.len()).min(self.most() + 1);
            open * self.hope(drafter, path.len() + 1) - price * (self.pass(rows + 1) - self.pass(rows))
        };
        let gains: Vec<f64> = places.iter().map(gain).collect();
        let pays = gains.iter().filter(|&&gain| gain > 0.0).sum::<f64>() > price * self.step(drafter);
        gains.into_iter().map(|gain| pays && gain > 0.0).collect()
    }

    /// The chance that the end of a path of a drafter's guesses is reached and what comes after it is not in the tree.
    fn open(&self, drafter: usize, sketch: &Sketch, chances: &[f64], path: &[(Token, f32)]) -> f64 {
        let (mut node, mut chance, mut above) = (Some(0), 1.0, 0.0);
        for (depth, &(token, score)) in (1..).zip(path) {
            node = node.and_then(|parent| sketch.tree.child(parent, token));
            let claim = f64::from(score - above).exp().min(1.0);
            let claimed = chance * self.chance(drafter, claim, depth);
            chance = node.map_or(claimed, |id| chances[id].max(claimed));
            above = score;
        }
        let taken: f64 = node.map_or(0.0, |parent| sketch.tree.children(parent).map(|id| chances[id]).sum());
        (chance - taken).max(0.0)
    }

    /// The nodes worth verifying, at most `most` beside the anchor: bit *i* for node *i*.
    pub fn worthy(&self, sketch: &Sketch, most: usize) -> u64 {
        let chances = self.chances(sketch);
        let mut order: Vec<usize> = (1..chances.len()).collect();
        // A child is never likelier than its parent; among equals the parent has the lower number.
        order.sort_by(|&a, &b| chances[b].total_cmp(&chances[a]).then(a.cmp(&b)));
        // No leaps: a pass is at most four times as wide as the widest so far, for what lies beyond is guesswork.
        let widest = self.passes.iter().rposition(|(samples, _)| !samples.is_empty()).map_or(0, |i| i + 1);
        order.truncate(most.min(match widest {
            0 => 0,
            rows => 4 * rows - 1,
        }));
        // Before the present rate is known, this round's own best stands in for it: at the rate of plain decoding, the tail
        // of a long run looks cheap and is paid for by the runs to come.
        let (mut price, mut all, doubt) = (self.price(), 1.0, 1.0 - self.tokens.seen / MEMORY);
        for (n, &id) in order.iter().enumerate() {
            all += chances[id];
            price = price.max(doubt * all / (self.pass(n + 2) + self.rest.value));
        }
        let (mut gain, mut best, mut kept) = (0.0, 0.0, 0);
        for (n, &id) in order.iter().enumerate() {
            gain += chances[id];
            let value = gain - price * (self.pass(n + 2) - self.pass(1));
            if value > best {
                (best, kept) = (value, n + 1);
            }
        }
        order[..kept].iter().fold(1, |set, &id| set | 1 << id)
    }

    /// Learns from a round: what was sketched and verified, the tokens that came, and the time it took.
    pub fn learn(&mut self, draft: &Draft, tokens: &[Token], times: Times, whole: Duration) {
        let sketch = draft.shadow.as_ref().unwrap_or(&draft.sketch);
        let nodes = sketch.tree.nodes();
        let (mut node, mut verified) = (Some(0), Some(0));
        for &token in tokens {
            let Some(parent) = node.take() else { break };
            let below = verified;
            verified = below.and_then(|parent| draft.tree().child(parent, token));
            let mut right_at = vec![None; self.drafters.len()];
            for id in sketch.tree.children(parent) {
                let right = nodes[id].token == token;
                let claim = f64::from(nodes[id].score - nodes[parent].score).exp().min(1.0);
                let (owner, depth) = (usize::from(sketch.owners[id]), depth_class(nodes[id].depth.into()));
                let Some(record) = self.drafters.get_mut(owner) else { continue };
                record.claimed.add_claim(claim, right);
                record.by_claim[class(&CLAIMS, claim)].add(right);
                record.by_depth[depth][class(&CLAIMS, claim)].add(right);
                if below.is_some() {
                    let any = right_at[owner].get_or_insert((depth, Some(false)));
                    if right {
                        any.1 = (verified.is_some() || record.on_trial).then_some(true);
                    }
                }
                if right {
                    node = Some(id);
                }
            }
            for (record, place) in self.drafters.iter_mut().zip(right_at) {
                if let Some((depth, Some(right))) = place {
                    record.again |= record.on_trial && depth == 0 && right;
                    record.places[depth].add(right);
                }
            }
        }
        let one = |effort: &Effort| (effort.behind > 0).then(|| effort.caught_up / self.rows(effort.behind));
        let caught_up: Vec<_> = draft.efforts.iter().map(one).collect();
        for ((record, effort), caught_up) in self.drafters.iter_mut().zip(&draft.efforts).zip(caught_up) {
            record.on_trial = false;
            record.backlog += tokens.len();
            if effort.steps > 0 {
                record.seconds.add(effort.seconds);
                record.steps.add(effort.steps as f64);
                record.levels = effort.levels;
                record.backlog = 0;
            }
            if let Some(seconds) = caught_up {
                record.catch_up.add(seconds);
            }
        }
        let rows = draft.tree().nodes().len();
        self.rounds += 1;
        if !self.is_fresh(rows) {
            self.passes[rows - 1].0.clear();
        }
        let (samples, latest) = &mut self.passes[rows - 1];
        *latest = self.rounds;
        samples.push(times.verify.as_secs_f64());
        if samples.len() > SAMPLES {
            samples.remove(0);
        }
        self.rest.add(whole.saturating_sub(times.verify + times.draft).as_secs_f64());
        self.tokens.add(tokens.len() as f64);
        self.seconds.add(whole.as_secs_f64());
    }
}

#[cfg(test)]
#[path = "budget_tests.rs"]
mod tests;
