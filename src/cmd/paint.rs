//! Colours for text that came from guesses: one a drafter; what the model had to say itself stays plain.
//!
//! The engine tells a witness who guessed the tokens of a round before it emits them, so the owners of tokens wait in a
//! queue. Text comes later than its tokens, a [`TextStream`](crate::text::TextStream) holds some of it back; what it
//! decoded from each token waits in another queue until it is written.

use super::draft::Setup;
use super::report::Report;
use super::terminal;
use crate::backend::Backend;
use crate::engine::{Session, Witness, Witnessed};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

/// Escapes of the colours, and their names.
const COLOURS: [(&str, &str); 6] = [
    ("\x1b[32m", "green"),
    ("\x1b[36m", "cyan"),
    ("\x1b[35m", "magenta"),
    ("\x1b[33m", "yellow"),
    ("\x1b[34m", "blue"),
    ("\x1b[31m", "red"),
];
/// Back to the terminal's own colour; dim or bold text stays so.
const PLAIN: &str = "\x1b[39m";

/// Number of the drafter that guessed a token, if one did.
type Owner = Option<u8>;

/// Colours the text of a session.
#[derive(Default)]
pub struct Paint {
    owners: Rc<RefCell<VecDeque<Owner>>>,
    /// Text that was decoded and not written yet: whose it is and its bytes.
    spans: VecDeque<(Owner, usize)>,
    /// The sum of these bytes.
    waiting: usize,
}

impl Paint {
    /// What the session must [tell](crate::engine::Session::watch) its rounds to.
    pub fn witness(&self) -> Witness {
        let owners = self.owners.clone();
        Box::new(move |round| owners.borrow_mut().extend(owners_of(round)))
    }

    /// Forgets what an earlier text has left.
    pub fn begin(&mut self) {
        self.owners.borrow_mut().clear();
        (self.spans, self.waiting) = (VecDeque::new(), 0);
    }

    /// Colours the text that came of one more token. `held` are the bytes of text that wait for a later one.
    pub fn token(&mut self, text: &str, held: usize) -> String {
        let owner = self.owners.borrow_mut().pop_front().flatten();
        let decoded = (text.len() + held).saturating_sub(self.waiting);
        self.spans.push_back((owner, decoded));
        self.waiting += decoded;
        self.text(text)
    }

    /// Colours the text that comes after the last token.
    pub fn text(&mut self, mut text: &str) -> String {
        let mut painted = String::new();
        let mut current = None;
        while !text.is_empty() {
            // Text beyond all spans is a character that was never completed.
            let (owner, bytes) = self.spans.pop_front().unwrap_or((None, text.len()));
            let now = bytes.min(text.len());
            self.waiting = self.waiting.saturating_sub(now);
            if bytes > now {
                self.spans.push_front((owner, bytes - now));
            }
            let (head, tail) = text.split_at_checked(now).unwrap_or((text, ""));
            if now > 0 && owner != current {
                painted += escape(owner);
                current = owner;
            }
            painted += head;
            text = tail;
        }
        if current.is_some() {
            painted += PLAIN;
        }
        painted
    }
}

/// Who guessed the tokens of a round: those of the accepted nodes, and nobody the last.
fn owners_of<'a>(round: &'a Witnessed<'_>) -> impl Iterator<Item = Owner> + 'a {
    let guessed = round.verdict.path[1..].iter().map(|&node| Some(round.draft.sketch.owners[node]));
    guessed.chain([None])
}

fn escape(owner: Owner) -> &'static str {
    owner.map_or(PLAIN, |drafter| COLOURS[usize::from(drafter) % COLOURS.len()].0)
}

/// Colours for the texts of a session, if they can be seen; says on stderr what they mean, or why there are none.
pub fn start<B: Backend>(drafting: Option<&Setup>, session: &mut Session<B>, report: &Report) -> Option<Paint> {
    if !terminal::has_colours() {
        report.note("--show-draft: stdout is no terminal that shows colours, the text stays plain");
        return None;
    }
    report.note(legend(drafting.map_or(&[], |setup| &setup.drafters)));
    let paint = Paint::default();
    session.watch(Some(paint.witness()));
    Some(paint)
}

/// The colour of each drafter, in a line.
fn legend(drafters: &[String]) -> String {
    let named = drafters.iter().enumerate().map(|(i, name)| {
        let colour = COLOURS[i % COLOURS.len()].1;
        format!("{colour} {name}")
    });
    format!("colours {}, plain what the model said itself", named.collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::Verdict;
    use crate::spec::round::Draft;
    use crate::spec::tally::Times;
    use crate::tree::DraftTree;

    fn paint(owners: &[Owner]) -> Paint {
        let paint = Paint::default();
        paint.owners.borrow_mut().extend(owners);
        paint
    }

    #[test]
    fn text_is_coloured_by_the_tokens_it_came_from() {
        let (one, two) = (Some(0), Some(1));
        // For each token the text that came and what was held back, then what came at the end. [ is green, { cyan.
        type Case<'a> = (&'a [Owner], &'a [(&'a str, usize)], &'a str, &'a str);
        let cases: &[Case<'_>] = &[
            (&[None, one, None], &[("a", 0), ("b", 0), ("c", 0)], "", "a[b]c"),
            (&[one, None, two], &[("", 2), ("ab", 3), ("cdefg", 0)], "", "[ab]cde{fg]"),
            (&[one, two, None], &[("", 1), ("", 2), ("", 3)], "xyz", "[x{y]z"),
            (&[one, one], &[("a", 0), ("b", 0)], "", "[a][b]"),
            // A stop string: text that was held is gone. A character that was never completed belongs to nobody.
            (&[None, one], &[("", 4), ("ab", 0)], "", "ab"),
            (&[one], &[("", 0)], "\u{FFFD}", "\u{FFFD}"),
            // More tokens than owners, and text whose spans are off by a byte.
            (&[], &[("a", 0)], "", "a"),
            (&[one, None], &[("", 1), ("\u{e9}", 0)], "", "[\u{e9}]"),
        ];
        for &(owners, pushed, end, want) in cases {
            let mut paint = paint(owners);
            let mut got: String = pushed.iter().map(|&(text, held)| paint.token(text, held)).collect();
            got += &paint.text(end);
            let got = got.replace("\x1b[32m", "[").replace("\x1b[36m", "{").replace(PLAIN, "]");
            assert_eq!(got, want, "{pushed:?}");
        }
    }

    #[test]
    fn a_round_tells_whose_its_tokens_are() {
        let mut tree = DraftTree::new(1, 8);
        let a = tree.push(0, 2, 0.0).unwrap();
        let wrong = tree.push(0, 3, 0.0).unwrap();
        let b = tree.push(a, 4, 0.0).unwrap();
        let mut draft = Draft::of(tree);
        draft.sketch.owners = vec![0, 1, 1, 0];
        assert_eq!((wrong, b), (2, 3));
        let paint = Paint::default();
        let mut witness = paint.witness();
        for (path, tokens) in [(vec![0, a, b], vec![2, 4, 9]), (vec![0], vec![7])] {
            let verdict = Verdict { path, tokens };
            witness(&Witnessed { draft: &draft, verdict: &verdict, times: Times::default() });
        }
        assert_eq!(*paint.owners.borrow(), [Some(1), Some(0), None, None]);
    }
}
