//! Typical acceptance: a guess is accepted if it is likely enough in the target's eyes. **Lossy.**
//!
//! A guess x is accepted iff `p(x) > min(DELTA, EPSILON * exp(-H(p)))`, H being the entropy of the target's distribution p: the
//! flatter p, the less is asked. Of the accepted paths the longest is taken, of equally long ones the likeliest, and
//! one more token is drawn from the target. Medusa, <https://arxiv.org/abs/2401.10774>, section 2.3.1.

use super::verify::{Chance, Distribution, Verdict};
use crate::sample::Purpose;
use crate::tree::{DraftTree, NodeId};
use anyhow::Result;

/// The most that is ever asked of a probability.
pub const DELTA: f64 = 0.09;
/// What is asked in units of exp(-entropy).
pub const EPSILON: f64 = 0.3;

/// Verifies a tree. `target` gives the distribution after a node, all stages of the sampler applied; it is asked about
/// accepted nodes, parents first. An error below the anchor counts as nothing being acceptable there.
pub fn typical(
    tree: &DraftTree,
    mut target: impl FnMut(NodeId) -> Result<Distribution>,
    chance: &mut impl Chance,
) -> Result<Verdict> {
    let nodes = tree.nodes();
    let mut accepted: Vec<Option<(f64, Distribution)>> = vec![Some((0.0, target(0)?))];
    let mut best = 0;
    for (id, node) in nodes.iter().enumerate().skip(1) {
        let likelihood = accepted[node.parent].as_ref().and_then(|(above, p)| {
            let share = p.iter().find(|&&(token, _)| token == node.token)?.1;
            (share > threshold(p)).then(|| above + share.ln())
        });
        let entry = likelihood.and_then(|likelihood| Some((likelihood, target(id).ok()?)));
        if let Some((likelihood, _)) = &entry {
            let rank = |id: NodeId, likelihood: f64| (nodes[id].depth, likelihood);
            let so_far = accepted[best].as_ref().map_or(f64::NEG_INFINITY, |&(likelihood, _)| likelihood);
            if rank(id, *likelihood) > rank(best, so_far) {
                best = id;
            }
        }
        accepted.push(entry);
    }
    let path = tree.path(best);
    let mut tokens: Vec<_> = path[1..].iter().map(|&id| nodes[id].token).collect();
    let p = accepted[best].take().map(|(_, p)| p).unwrap_or_default();
    tokens.push(chance.draw(nodes[best].depth as usize, Purpose::Bonus, &p));
    Ok(Verdict { path, tokens })
}

/// What a guess must exceed.
fn threshold(p: &[(u32, f64)]) -> f64 {
    let entropy: f64 = p.iter().map(|&(_, x)| -x * x.ln()).sum();
    DELTA.min(EPSILON * (-entropy).exp())
}
