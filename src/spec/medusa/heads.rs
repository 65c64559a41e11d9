//! The heads: residual blocks, then an output. All of them in one batch.

use super::layout::{Layout, part};
use crate::backend::{Activation, Backend, Product};
use crate::model::Model;
use crate::spec::output::Output;
use crate::spec::sidecar::Sidecar;
use crate::tree::Token;
use anyhow::Result;
use std::sync::Arc;

/// One block of one head: `y + SiLU(W y + b)`.
struct Block<B: Backend> {
    weight: B::Weight,
    bias: Option<B::Vector>,
}

/// All heads and the room they work in.
pub(super) struct Heads<B: Backend> {
    /// Block by block, head by head.
    blocks: Vec<Vec<Block<B>>>,
    /// One for all heads, or one each.
    outputs: Vec<Output<B>>,
    /// Each head's row `[1, D]`, and what a block adds to it.
    rows: Vec<B::Mat>,
    more: B::Mat,
    /// The rows of heads that share their output `[K, D]`, and logits `[K, N]` or `[1, N]`.
    all: B::Mat,
    logits: B::Mat,
}

impl<B: Backend> Heads<B> {
    pub(super) fn load(sidecar: &Sidecar, layout: &Layout, model: &Arc<Model<B>>) -> Result<Self> {
        let (b, width, heads) = (&**model.backend(), model.config().width, layout.heads);
        layout.check(sidecar, width)?;
        let block = |head, j| -> Result<Block<B>> {
            let name = |rest| part(head, &format!("res.{j}.{rest}"));
            let weight = sidecar.weight(b, &name("weight"), width, width)?;
            Ok(Block { weight, bias: sidecar.vector_if(b, &name("bias"), width)? })
        };
        let blocks = (0..layout.blocks).map(|j| (0..heads).map(|head| block(head, j)).collect());
        let blocks = blocks.collect::<Result<_>>()?;
        let outputs = if layout.shares_output {
            vec![Output::open(sidecar, "output.weight", layout.ids.clone(), model)?]
        } else {
            let own = |head| Output::open(sidecar, &part(head, "output.weight"), layout.ids.clone(), model);
            (0..heads).map(own).collect::<Result<_>>()?
        };
        let together = if layout.shares_output { heads } else { 1 };
        Ok(Heads {
            blocks,
            outputs,
            rows: (0..heads).map(|_| b.mat(1, width)).collect::<Result<_>>()?,
            more: b.mat(1, width)?,
            all: b.mat(heads, width)?,
            logits: b.mat(together, layout.rows())?,
        })
    }

    /// Logits `[n, N]` of the first `n` heads, given the hidden row `[1, D]`.
    pub(super) fn run(&mut self, backend: &B, hidden: &B::Mat, n: usize) -> Result<Vec<f32>> {
        let rows = &mut self.rows[..n];
        for (j, blocks) in self.blocks.iter().enumerate() {
            if j == 0 {
                // All heads read the same row: one product for all.
                let both = blocks.iter().zip(rows.iter_mut());
                let mut products: Vec<_> = both.map(|(block, out)| block.product(out)).collect();
                backend.linear(hidden, &mut products);
                for row in &mut *rows {
                    backend.activate(row, Activation::Silu);
                    backend.add(row, hidden);
                }
            } else {
                for (block, row) in blocks.iter().zip(rows.iter_mut()) {
                    backend.linear(row, &mut [block.product(&mut self.more)]);
                    backend.activate(&mut self.more, Activation::Silu);
                    backend.add(row, &self.more);
                }
            }
        }
        let mut read = |output: &Output<B>, rows: &B::Mat| {
            output.run(backend, rows, &mut self.logits);
            backend.read(&self.logits)
        };
        match &self.outputs[..] {
            [shared] if self.blocks[0].len() == 1 => read(shared, &rows[0]),
            [shared] => {
                backend.stack(&rows.iter().collect::<Vec<_>>(), &mut self.all);
                read(shared, &self.all)
            }
            own => {
                let mut logits = vec![];
                for (output, row) in own.iter().zip(&*rows) {
                    logits.append(&mut read(output, row)?);
                }
                Ok(logits)
            }
        }
    }

    fn output(&self, head: usize) -> &Output<B> {
        &self.outputs[head.min(self.outputs.len() - 1)]
    }

    /// The logits `[N]` of head `head` among those that [`Heads::run`] gave, and which tokens they are about if not all.
    pub(super) fn row<'a>(&'a self, logits: &'a [f32], head: usize) -> (&'a [f32], Option<&'a [Token]>) {
        let output = self.output(head);
        (&logits[head * output.size()..(head + 1) * output.size()], output.ids())
    }

    /// The same over the target's vocabulary `[V]`.
    pub(super) fn wide_row<'a>(
        &'a self,
        logits: &'a [f32],
        head: usize,
        vocab: usize,
        room: &'a mut Vec<f32>,
    ) -> &'a [f32] {
        self.output(head).widen(self.row(logits, head).0, vocab, room)
    }
}

impl<B: Backend> Block<B> {
    fn product<'a>(&'a self, out: &'a mut B::Mat) -> Product<'a, B> {
        Product { weight: &self.weight, bias: self.bias.as_ref(), out }
    }
}
