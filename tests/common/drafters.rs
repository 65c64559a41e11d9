//! Drafters that no one would write: always right, always wrong, and worse. Text must not depend on any of them.

use foretoken::spec::lookup::Lookup;
use foretoken::spec::{Drafter, Round};
use foretoken::tree::{DraftTree, Token};
use std::sync::Arc;

/// What the test drafters know: a prompt and all that follows it.
pub type Script = Arc<Vec<Token>>;

/// Makes a drafter from the script and the size of the vocabulary.
pub type Make = fn(&Script, usize) -> Box<dyn Drafter>;

/// Every lone drafter. Mixtures are made of them.
pub const DRAFTERS: &[(&str, Make)] = &[
    ("oracle", |script, vocab| scripted(script, vocab, oracle)),
    ("liar", |script, vocab| scripted(script, vocab, liar)),
    ("bushy", |script, vocab| scripted(script, vocab, bushy)),
    ("stutter", |script, vocab| scripted(script, vocab, stutter)),
    ("lookup", |_, _| Box::new(Lookup::new(1, 63, 4))),
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
];

/// The drafters of a mixture.
pub fn mixture(names: &[&str], script: &Script, vocab: usize) -> Vec<Box<dyn Drafter>> {
    let make = |name: &&str| DRAFTERS.iter().find(|(known, _)| known == name).unwrap().1;
    names.iter().map(|name| make(name)(script, vocab)).collect()
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

fn scripted(script: &Script, vocab: usize, guess: Guess) -> Box<dyn Drafter> {
    Box::new(Scripted { script: script.clone(), vocab, rounds: 0, told: vec![], guess })
}

impl Drafter for Scripted {
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
