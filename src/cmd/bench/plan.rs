//! What is to be measured, and whether the context has room for it.

use super::WIDTH_DEPTH;
use crate::cli::BenchArgs;
use crate::cmd::report::Report;
use anyhow::{Result, ensure};

/// Depths when none are asked for.
const DEPTHS: [usize; 3] = [0, 512, 4096];
/// Tokens to decode when nothing is said.
const TOKENS: usize = 128;
/// As many on top of more than [`FAR`] positions, where they take longer and differ less.
const FAR_TOKENS: usize = 32;
const FAR: usize = 1024;

/// Decoding `tokens` on top of `depth` positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decoding {
    pub depth: usize,
    pub tokens: usize,
}

impl Decoding {
    /// Positions it needs, if that is a number at all.
    fn positions(&self) -> Option<usize> {
        self.depth.checked_add(self.tokens)
    }
}

/// The measurements of a run.
#[derive(Debug)]
pub struct Plan {
    /// Prompt lengths.
    pub prefill: Vec<usize>,
    /// Decoding.
    pub decode: Vec<Decoding>,
    /// Batch widths.
    pub widths: Vec<usize>,
    /// Rows of steps to look into.
    pub profile: Vec<usize>,
    /// Nobody asked for these depths.
    default_depths: bool,
}

impl Plan {
    /// What `args` ask for.
    pub fn of(args: &BenchArgs) -> Self {
        let depths = args.depth.as_deref().unwrap_or(&DEPTHS).iter();
        let decode = depths.map(|&depth| {
            let tokens = args.decode.unwrap_or(if depth > FAR { FAR_TOKENS } else { TOKENS });
            Decoding { depth, tokens }
        });
        Self {
            prefill: args.prefill.clone(),
            decode: decode.collect(),
            widths: args.widths.clone(),
            profile: args.profile.clone(),
            default_depths: args.depth.is_none(),
        }
    }

    /// What is measured, and the positions that it needs.
    fn needs(&self) -> impl Iterator<Item = (String, Option<usize>)> {
        let prefill = self.prefill.iter().map(|&n| (format!("--prefill {n}"), Some(n)));
        let decode = self.decode.iter().map(|d| (format!("--depth {} --decode {}", d.depth, d.tokens), d.positions()));
        let rows = [("--widths", &self.widths), ("--profile", &self.profile)].into_iter();
        let rows =
            rows.flat_map(|(flag, all)| all.iter().map(move |&n| (format!("{flag} {n}"), Some(WIDTH_DEPTH + n))));
        prefill.chain(decode).chain(rows)
    }

    /// The positions that all of it needs.
    pub fn positions(&self) -> usize {
        self.needs().map(|(_, need)| need.unwrap_or(usize::MAX)).fold(1, usize::max)
    }

    /// Leaves out default depths that a context of `context` has no room for, but the first, and says so; an error when there is
    /// no room for what was asked for.
    pub fn fit(&mut self, context: usize, report: &Report) -> Result<()> {
        let fits = |d: &Decoding| !self.default_depths || d.depth == 0 || d.positions().is_some_and(|n| n <= context);
        let (kept, out): (Vec<_>, Vec<_>) = self.decode.iter().partition(|d| fits(d));
        self.decode = kept;
        for (what, need) in self.needs() {
            let fits = need.is_some_and(|n| n <= context);
            let need = need.map_or("too many".into(), |n| n.to_string());
            ensure!(fits, "{what} needs {need} positions, the context has {context}: see -c");
        }
        for Decoding { depth, tokens } in out {
            report.note(format_args!(
                "no decoding at depth {depth}: with {tokens} tokens more than a context of {context} holds"
            ));
        }
        Ok(())
    }
}
