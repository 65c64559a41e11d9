//! EAGLE: one layer that continues the target's own features.
//!
//! # Which row goes with which token
//!
//! The target's row of token *i* and the token *after* it are one **pair**: pair *i* is (x\[i + 1\], h\[i\]). It sits at
//! position *i* and in slot *i* of the head's cache, and what the layer makes of it stands in for h\[i + 1\], the row the
//! target has not computed yet; the head's logits of it are about x\[i + 2\].
//!
//! ```text
//! context        x0    x1    x2    ..  x[n-1], the anchor         guesses   y0        y1
//! target's rows  h0    h1    h2    ..                                       (none)    (none)
//! pairs          x1,h0 x2,h1 x3,h2 ..  x[n-1],h[n-2]                        y0,f      y1,f'
//!                                      gives f and logits of y0   give      f' and logits of y1, and so on
//! ```
//!
//! So of a context of *n* tokens there are *n* - 1 pairs, all with rows of the target's own, and only they stay in the
//! cache. Pairs of guesses have the layer's own results for rows; their keys and values lie behind and are written over.
//! Once guesses are accepted, their pairs are run again with the rows that the target made of them.
//!
//! The target's row is h\[i\] after the output norm (EAGLE-1 and EAGLE-2, whose weights are alike), or what enters three
//! of its layers (EAGLE-3).
//!
//! Li et al., <https://arxiv.org/abs/2401.15077>, <https://arxiv.org/abs/2406.16858>, <https://arxiv.org/abs/2503.01840>.

mod file;
mod grow;
mod layer;
mod saved;

use super::choice::{Choice, Kind, Setting, SettingKind};
use super::sidecar::{Architecture, Sidecar};
use super::{Drafter, Features, Round, Target, Tell};
use crate::backend::{Backend, KvType, Span};
use crate::model::Model;
use crate::tree::Token;
use anyhow::{Result, ensure};
use std::sync::Arc;

pub use file::describe;
pub use grow::Growth;
use layer::{CHUNK, Layer, Source};

/// The table's line.
pub const KIND: Kind = Kind {
    name: "eagle",
    help: "A layer that continues the target's hidden rows (EAGLE-1, EAGLE-2, EAGLE-3)",
    path: Some("a GGUF sidecar of architecture eagle or eagle3"),
    settings: &[
        Setting {
            name: "branch",
            help: "Guesses after a guess, and guesses followed at a time: 1 is a chain",
            kind: SettingKind::Count(10, (1, 16)),
        },
        Setting { name: "max", help: "Longest run of guesses", kind: SettingKind::Count(7, (1, 63)) },
    ],
    rank: 1,
};

/// Pairs that may be run together with the anchor's: more are caught up with first.
const TAIL: usize = 8;

/// Opens the sidecar and checks that it was made for the target.
pub fn open<B: Backend>(choice: &Choice, target: &Target<'_, B>) -> Result<Box<dyn Drafter<B>>> {
    let sidecar = Sidecar::open(choice.path(), &[Architecture::Eagle, Architecture::Eagle3])?;
    sidecar.check(target)?;
    let growth = Growth { branch: choice.count(0), depth: choice.count(1) };
    let cache = file::read(&sidecar)?.shape.cache(target.context, target.kv).bytes() as u64;
    (target.admit)(sidecar.gguf().file_bytes() + cache)?;
    let eagle = Eagle::load(&sidecar, target.model, target.context, target.kv, growth)?;
    if let Some(unused) = sidecar.unused(file::uses) {
        (target.tell)(Tell::Warning(unused));
    }
    Ok(Box::new(eagle))
}

/// The drafter.
pub struct Eagle<B: Backend> {
    layer: Layer<B>,
    growth: Growth,
    taps: Vec<usize>,
    /// Room for rows of the target's on their way.
    passing: B::Mat,
    /// What was observed.
    text: Vec<Token>,
    /// The target's rows of tokens `kept..seen`, `[n, shown]`: those of pairs that are not in the cache yet, and of the
    /// last that is.
    rows: Vec<f32>,
    kept: usize,
    /// Tokens whose rows were shown.
    seen: usize,
    /// Pairs in the cache.
    cached: usize,
    fingerprint: u64,
    memory: u64,
}

impl<B: Backend> Eagle<B> {
    /// The head of a sidecar whose sizes fit `model`, for sessions of `context` positions with caches of type `kv`.
    pub fn load(sidecar: &Sidecar, model: &Arc<Model<B>>, context: usize, kv: KvType, growth: Growth) -> Result<Self> {
        let layout = file::read(sidecar)?;
        let weights = file::load(sidecar, &layout, model, context)?;
        let memory = sidecar.gguf().file_bytes() + layout.shape.cache(context, kv).bytes() as u64;
        Ok(Self {
            passing: model.backend().mat(CHUNK, model.config().width)?,
            layer: Layer::new(model.clone(), weights, context, kv)?,
            growth,
            taps: layout.taps,
            text: vec![],
            rows: vec![],
            kept: 0,
            seen: 0,
            cached: 0,
            fingerprint: sidecar.fingerprint(),
            memory,
        })
    }

    /// Pairs there are of what was observed.
    fn pairs(&self) -> usize {
        self.text.len().saturating_sub(1)
    }

    /// Forgets the rows of tokens from number `end` on.
    fn forget(&mut self, end: usize) {
        self.seen = self.seen.min(end);
        (self.kept, self.cached) = (self.kept.min(self.seen), self.cached.min(self.seen));
        self.rows.truncate((self.seen - self.kept) * self.layer.shape().shown);
    }

    /// Runs the pairs up to number `end`, all of them seen.
    fn catch_up(&mut self, end: usize) {
        while self.cached < end {
            self.run(end.min(self.cached + CHUNK));
        }
    }

    /// Runs the pairs that are not in the cache up to number `end` in one pass.
    fn run(&mut self, end: usize) {
        let (from, width) = (self.cached, self.layer.shape().shown);
        let rows = &self.rows[(from - self.kept) * width..(end - self.kept) * width];
        self.layer.run(&self.text[from + 1..=end], Source::Target(rows), Span::Chain { base: from }, from);
        self.cached = end;
        self.rows.drain(..(end - 1 - self.kept) * width);
        self.kept = end - 1;
    }
}

impl<B: Backend> Drafter<B> for Eagle<B> {
    fn taps(&self) -> Option<&[usize]> {
        Some(&self.taps)
    }

    fn observe(&mut self, tokens: &[Token]) -> Result<()> {
        self.text.extend_from_slice(tokens);
        Ok(())
    }

    fn see(&mut self, features: &Features<'_, B>) -> Result<()> {
        // What comes after rows that it lacks is of no use before they are there.
        if features.first > self.seen {
            return Ok(());
        }
        self.forget(features.first);
        ensure!(features.first + features.rows.len() < self.text.len(), "rows of tokens that nothing follows");
        let backend = &**self.layer.backend();
        for rows in features.rows.chunks(CHUNK) {
            let mut read = |rows_of: &B::Mat| {
                backend.gather(rows_of, rows, &mut self.passing);
                backend.read(&self.passing)
            };
            if features.taps.is_empty() {
                self.rows.append(&mut read(features.hidden)?);
                continue;
            }
            let taps = features.taps.iter().map(|tap| read(tap)).collect::<Result<Vec<_>>>()?;
            let width = self.layer.shape().shown / taps.len();
            for row in 0..rows.len() {
                taps.iter().for_each(|tap| self.rows.extend_from_slice(&tap[row * width..(row + 1) * width]));
            }
        }
        self.seen += features.rows.len();
        // A drafter that rests catches up now and then, so that what it has yet to do is never more than a pass.
        if self.seen - self.cached > CHUNK {
            self.catch_up(self.seen - 1);
        }
        Ok(())
    }

    fn prepare(&mut self) -> Result<()> {
        self.catch_up(self.seen.saturating_sub(1));
        Ok(())
    }

    fn draft(&mut self, round: &mut Round<'_>) -> Result<()> {
        // A context of one token has no pair.
        if self.pairs() == 0 || self.lacks().is_some() || !round.wants(0) {
            return Ok(());
        }
        let behind = self.seen - self.cached;
        if behind > TAIL {
            self.catch_up(self.seen - 1);
            round.caught_up(behind - 1);
        }
        // The anchor's pair is run in any case, for what it gives.
        self.cached = self.cached.min(self.seen - 1);
        let last = self.seen - 1 - self.cached;
        self.run(self.seen);
        grow::grow(&mut self.layer, round, self.growth, self.cached, last)
    }

    fn rewind(&mut self, kept: &[Token]) -> Result<()> {
        self.text.truncate(kept.len());
        self.forget(self.pairs());
        Ok(())
    }

    fn lacks(&self) -> Option<usize> {
        let pairs = self.pairs();
        // The row of the anchor's pair is needed even where its keys and values are there.
        let missing = if self.seen == pairs && self.kept == pairs { pairs.checked_sub(1)? } else { self.seen };
        Some(missing).filter(|&missing| missing < pairs)
    }

    fn save(&self) -> Result<Vec<u8>> {
        self.to_bytes()
    }

    fn restore(&mut self, bytes: &[u8]) -> Result<bool> {
        self.take_bytes(bytes)
    }

    fn memory(&self) -> u64 {
        self.memory
    }
}
