//! Verification: what of a tree becomes text.
//!
//! The rule of the house is the walk: ask for the target's token, emit it, follow the child that carries it. Nothing is
//! proposed to the sampler, so nothing has to be taken back: every token it picks is emitted, and the emitted tokens
//! are those of decoding one at a time, whatever the tree holds. [`super::rejection`] and [`super::typical`] are the others.

use crate::sample::{Noise, Purpose};
use crate::tree::{DraftTree, NodeId, Token};
use anyhow::Result;

/// Which guesses are accepted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Accept {
    /// Those that the target would have picked itself: the text does not depend on drafters.
    #[default]
    Exact,
    /// By chance, so that tokens have the target's distribution; accepts more of what drafters draw.
    Rejection,
    /// What is likely enough in the target's eyes (Medusa's rule). Lossy: the distribution is another one.
    Typical,
}

impl Accept {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Accept::Exact => "exact",
            Accept::Rejection => "rejection",
            Accept::Typical => "typical",
        }
    }
}

/// Tokens and their probabilities, ascending by id, summing to one.
pub type Distribution = Vec<(Token, f64)>;

/// The dice of a verification. The engine throws them by keyed noise; proofs go through all their outcomes.
pub trait Chance {
    /// True with the given probability. `trial` numbers the questions asked about the children of a node at `depth`.
    fn accept(&mut self, depth: usize, trial: usize, probability: f64) -> bool;
    /// A token to follow a node at `depth`.
    fn draw(&mut self, depth: usize, purpose: Purpose, distribution: &[(Token, f64)]) -> Token;
}

/// Dice of a round: everything asked about has a key of its own.
pub struct Keyed {
    /// The session's noise.
    pub noise: Noise,
    /// Ordinal of the token after the anchor.
    pub ordinal: u64,
}

impl Chance for Keyed {
    fn accept(&mut self, depth: usize, trial: usize, probability: f64) -> bool {
        self.noise.coin(self.ordinal + depth as u64, trial as u32, Purpose::Coin) < probability
    }

    fn draw(&mut self, depth: usize, purpose: Purpose, distribution: &[(Token, f64)]) -> Token {
        self.noise.draw(self.ordinal + depth as u64, purpose, distribution)
    }
}

/// What one step kept of a tree. `path` and `tokens` have the same length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The anchor and the accepted nodes below it, top down: their keys and values become context.
    pub path: Vec<NodeId>,
    /// The target's token after each of them: the accepted tokens and one more, the next anchor.
    pub tokens: Vec<Token>,
}

/// Walks from the anchor as long as the tree carries what `pick` says. `pick` sees each node of the path once, in
/// order, and gives the token that follows it. An error below the anchor ends the walk in front of its node: what was
/// picked before is text, and the next round, which begins there, meets the error again.
pub fn walk(tree: &DraftTree, mut pick: impl FnMut(NodeId) -> Result<Token>) -> Result<Verdict> {
    let mut verdict = Verdict { path: Vec::new(), tokens: Vec::new() };
    let mut next = Some(0);
    while let Some(node) = next {
        let token = match pick(node) {
            Err(error) if node == 0 => return Err(error),
            Err(_) => break,
            Ok(token) => token,
        };
        verdict.path.push(node);
        verdict.tokens.push(token);
        next = tree.child(node, token);
    }
    Ok(verdict)
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::bail;

    /// A target whose next token is a function of its whole text.
    fn target(text: &[Token]) -> Token {
        text.iter().fold(17, |h: Token, &t| h.wrapping_mul(31).wrapping_add(t) ^ h >> 3) % 5
    }

    fn text_to(tree: &DraftTree, context: &[Token], node: NodeId) -> Vec<Token> {
        let path = tree.path(node);
        let below = path[1..].iter().map(|&n| tree.nodes()[n].token);
        context.iter().copied().chain(below).collect()
    }

    /// Trees from empty to full: a chain of right guesses, wrong ones, all children everywhere, random ones.
    fn trees(anchor: Token, context: &[Token]) -> Vec<DraftTree> {
        let mut trees = vec![DraftTree::new(anchor, 1)];
        for wrong_at in [0, 1, 3, 99] {
            let mut tree = DraftTree::new(anchor, 9);
            let (mut node, mut text) = (0, context.to_vec());
            for depth in 0..8 {
                let right = target(&text);
                text.push(if depth == wrong_at { (right + 1) % 5 } else { right });
                node = tree.push(node, *text.last().unwrap(), 0.0).unwrap();
            }
            trees.push(tree);
        }
        let (mut bushy, mut random) = (DraftTree::new(anchor, 64), DraftTree::new(anchor, 40));
        for i in 0..64 {
            let _full = bushy.push(i / 5, i as Token % 5, 0.0);
            let _full = random.push(i * 7 % random.nodes().len(), (i * i % 5) as Token, 0.0);
        }
        trees.extend([bushy, random]);
        trees
    }

    #[test]
    fn any_tree_gives_the_same_text_and_consistent_paths() {
        for start in 0..50 {
            let context = [3, start % 5, start / 5];
            let trees = trees(context[2], &context);
            let mut accepted = Vec::new();
            for tree in &trees {
                let mut asked = Vec::new();
                let verdict = walk(tree, |node| {
                    asked.push(node);
                    Ok(target(&text_to(tree, &context, node)))
                })
                .unwrap();
                assert_eq!(asked, verdict.path, "each node once, in order");
                assert_eq!(verdict.path.len(), verdict.tokens.len());
                let last = *verdict.path.last().unwrap();
                assert_eq!(tree.path(last), verdict.path);
                assert_eq!(tree.child(last, *verdict.tokens.last().unwrap()), None, "stopped too early");
                let mut text = context.to_vec();
                for &token in &verdict.tokens {
                    assert_eq!(token, target(&text));
                    text.push(token);
                }
                accepted.push(verdict.tokens.len() - 1);
            }
            assert_eq!(accepted[..5], [0, 0, 1, 3, 8]);
            assert!(accepted[5] >= 2, "all children of the first levels are there");
        }
    }

    #[test]
    fn an_error_of_the_sampler_comes_after_the_tokens_before_it() {
        let mut tree = DraftTree::new(0, 3);
        tree.push(0, 1, 0.0).unwrap();
        let fails_at = |bad| walk(&tree, |node| if node == bad { bail!("logits: found NaN") } else { Ok(1) });
        assert_eq!(fails_at(1).unwrap(), Verdict { path: vec![0], tokens: vec![1] });
        assert_eq!(fails_at(0).unwrap_err().to_string(), "logits: found NaN");
    }
}
