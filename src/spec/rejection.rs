//! The rejection rule: guesses are accepted by chance, so that what is emitted has the target's distribution.
//!
//! At a node with target distribution P the children are tried one after the other. A guess `c` that was there anyway
//! (pushed) is accepted with probability P(c); if not, P loses it. A guess `x` drawn from q is accepted with probability
//! `min(1, P(x) / q(x))`; if not, P becomes the normalised positive part of P - q, and q loses `x`, for the next one was
//! drawn without it. If none is accepted the token is drawn from what is left of P. Leviathan, Kalman, Matias,
//! <https://arxiv.org/abs/2211.17192>; for several candidates SpecInfer, <https://arxiv.org/abs/2305.09781>, and Sequoia,
//! <https://arxiv.org/abs/2402.12374>.
//!
//! Pushed guesses come first: whether they are there must not depend on what was drawn. A token both pushed and drawn
//! is one node, tried in both ways.

use super::round::Draft;
use super::verify::{Chance, Distribution, Verdict};
use crate::sample::Purpose;
use crate::tree::{NodeId, Token};
use anyhow::Result;

/// What one drafter drew after one node: `nodes` carry the tokens, in the order drawn, without replacement.
#[derive(Clone, Debug)]
pub struct Draws {
    /// The node.
    pub parent: NodeId,
    /// What the first was drawn from.
    pub q: Distribution,
    /// The children.
    pub nodes: Vec<NodeId>,
}

/// Verifies a draft. `target` gives the distribution after a node, all stages of the sampler applied; it is asked about
/// each node of the path once, in order. Errors as in [`super::walk`].
pub fn rejection(
    draft: &Draft,
    mut target: impl FnMut(NodeId) -> Result<Distribution>,
    chance: &mut impl Chance,
) -> Result<Verdict> {
    let mut verdict = Verdict { path: Vec::new(), tokens: Vec::new() };
    let mut next = Some(0);
    while let Some(node) = next {
        let p = match target(node) {
            Err(error) if node == 0 => return Err(error),
            Err(_) => break,
            Ok(p) => p,
        };
        let (token, child) = choose(draft, node, p, chance);
        verdict.path.push(node);
        verdict.tokens.push(token);
        next = child;
    }
    Ok(verdict)
}

/// The token after `node`, and the child that carries it if one was accepted.
fn choose(draft: &Draft, node: NodeId, mut p: Distribution, chance: &mut impl Chance) -> (Token, Option<NodeId>) {
    let nodes = draft.tree().nodes();
    let depth = nodes[node].depth as usize;
    let mut trials = 0;
    let mut accepts = |probability: f64| {
        trials += 1;
        chance.accept(depth, trials - 1, probability)
    };
    let pushed = draft.tree().children(node).filter(|&id| draft.pushed >> id & 1 == 1);
    for child in pushed {
        let token = nodes[child].token;
        if accepts(share(&p, token)) {
            return (token, Some(child));
        }
        remove(&mut p, token);
    }
    for draws in draft.draws.iter().filter(|draws| draws.parent == node) {
        let mut q = draws.q.clone();
        for &child in &draws.nodes {
            let token = nodes[child].token;
            if accepts(share(&p, token) / share(&q, token)) {
                return (token, Some(child));
            }
            subtract(&mut p, &q);
            remove(&mut q, token);
        }
    }
    let purpose = if trials == 0 { Purpose::Bonus } else { Purpose::Residual };
    (chance.draw(depth, purpose, &p), None)
}

/// The probability of a token.
fn share(p: &[(Token, f64)], token: Token) -> f64 {
    p.binary_search_by_key(&token, |&(t, _)| t).map_or(0.0, |at| p[at].1)
}

/// Takes a token out. What is certain is never refused, so something is left but for rounding; then `p` stays.
fn remove(p: &mut Distribution, token: Token) {
    normalise(p, |t, share| if t == token { 0.0 } else { share });
}

/// The normalised positive part of `p - q`. A guess is refused only where q exceeds p, so something is left but for
/// rounding; then `p` stays.
fn subtract(p: &mut Distribution, q: &[(Token, f64)]) {
    normalise(p, |t, x| x - share(q, t));
}

fn normalise(p: &mut Distribution, change: impl Fn(Token, f64) -> f64) {
    let changed: Distribution = p.iter().map(|&(t, x)| (t, change(t, x))).filter(|&(_, x)| x > 0.0).collect();
    let total: f64 = changed.iter().map(|&(_, x)| x).sum();
    if total > 0.0 {
        *p = changed.into_iter().map(|(t, x)| (t, x / total)).collect();
    }
}
