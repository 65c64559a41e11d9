//! What a Medusa sidecar says it holds: numbers of heads and blocks, which output they have, its tree, its accuracies.

use super::plan::{self, TOP};
use crate::model::tensors::Shape;
use crate::spec::sidecar::Sidecar;
use crate::tree::{DraftTree, Token};
use anyhow::{Context, Result, ensure};
use std::sync::Arc;

/// Most heads: no tree is deeper.
const MAX_HEADS: usize = DraftTree::MAX - 1;
/// Most residual blocks of a head; trained ones have one or two.
const MAX_BLOCKS: usize = 16;

/// The numbers of a sidecar.
#[derive(Clone, Debug)]
pub struct Layout {
    /// Heads `K`.
    pub heads: usize,
    /// Residual blocks of each.
    pub blocks: usize,
    /// Whether all heads have one output matrix.
    pub shares_output: bool,
    /// The target's tokens that reduced outputs are about.
    pub ids: Option<Arc<[Token]>>,
    /// The target's vocabulary `V`.
    pub vocab: usize,
    /// Paths of ranks.
    pub tree: Option<Vec<Vec<usize>>>,
    /// How often the best guesses of each head are right, best first.
    pub accuracy: Option<Vec<Vec<f32>>>,
}

/// Name of a head's part.
pub fn part(head: usize, rest: &str) -> String {
    format!("medusa.{head}.{rest}")
}

impl Layout {
    /// Reads and checks the keys and the names of tensors, for a target of `vocab` tokens.
    pub fn read(sidecar: &Sidecar, vocab: usize) -> Result<Layout> {
        let heads = sidecar.need("head_count", 1..=MAX_HEADS)?;
        let blocks = sidecar.need("layer_count", 1..=MAX_BLOCKS)?;
        let numbers = sidecar.gguf().tensors().filter_map(|tensor| number(tensor.name));
        let found = numbers.max().map_or(0, |last| last.saturating_add(1));
        ensure!(found == heads, "{} is {heads}, the file has tensors of {found} heads", sidecar.key("head_count"));
        let shares_output = sidecar.flag("shares_output")?.unwrap_or(false);
        let ids = sidecar.draft_ids(vocab)?.map(Arc::from);
        let key = sidecar.key("tree");
        let tree = sidecar.meta().ints(&key)?.map(|ints| plan::parse(&ints)).transpose().context(key)?;
        let accuracy = accuracy(sidecar, heads)?;
        Ok(Layout { heads, blocks, shares_output, ids, vocab, tree, accuracy })
    }

    /// Guesses there are to choose from.
    pub fn rows(&self) -> usize {
        self.ids.as_ref().map_or(self.vocab, |ids| ids.len())
    }

    /// Checks all tensors against a target of width `width`, without reading them.
    pub fn check(&self, sidecar: &Sidecar, width: usize) -> Result<()> {
        let output = Shape::Matrix(self.rows(), width);
        for head in 0..self.heads {
            for block in 0..self.blocks {
                sidecar.tensor(&part(head, &format!("res.{block}.weight")), Shape::Matrix(width, width))?;
                let bias = part(head, &format!("res.{block}.bias"));
                if sidecar.has(&bias) {
                    sidecar.tensor(&bias, Shape::Vector(width))?;
                }
            }
            if !self.shares_output {
                sidecar.tensor(&part(head, "output.weight"), output)?;
            }
        }
        if self.shares_output && (self.ids.is_some() || sidecar.has("output.weight")) {
            sidecar.tensor("output.weight", output)?;
        }
        Ok(())
    }

    /// Whether a tensor of this name is part of the heads.
    pub fn uses(&self, name: &str) -> bool {
        if matches!(name, "d2t" | "output.weight") {
            return name == "d2t" || self.shares_output;
        }
        let Some(head) = number(name) else { return false };
        let block =
            |j| [format!("res.{j}.weight"), format!("res.{j}.bias")].iter().any(|rest| part(head, rest) == name);
        (0..self.blocks).any(block) || !self.shares_output && part(head, "output.weight") == name
    }
}

/// The head that a tensor is part of, by its name.
fn number(name: &str) -> Option<usize> {
    name.strip_prefix("medusa.")?.split_once('.')?.0.parse().ok()
}

/// Accuracies by rank; of heads whose first guess alone is known, what the others may be worth.
fn accuracy(sidecar: &Sidecar, heads: usize) -> Result<Option<Vec<Vec<f32>>>> {
    let key = sidecar.key("accuracy");
    if let Some(all) = sidecar.shares(&key)? {
        let whole = !all.is_empty() && all.len().is_multiple_of(heads);
        ensure!(whole, "{key} has {} shares, must be as many for each of {heads} heads", all.len());
        return Ok(Some(all.chunks(all.len() / heads).map(|ranks| ranks[..ranks.len().min(TOP)].to_vec()).collect()));
    }
    const FIRST: &str = "spec.training.accuracy";
    let Some(all) = sidecar.shares(FIRST)? else { return Ok(None) };
    ensure!(all.len() == heads, "{FIRST} has {} shares, medusa.head_count is {heads}", all.len());
    Ok(Some(all.into_iter().map(|first| plan::ranks(first.into()).map(|share| share as f32).collect()).collect()))
}
