//! What a sidecar is, for people: `inspect` prints these lines.

use super::medusa::layout::Layout;
use super::sidecar::{Architecture, Sidecar};
use anyhow::{Context, Result};

/// Paths of a tree that are shown.
const PATHS: usize = 8;

/// Lines, each with a word in front. An error says why the file is no good, whatever the target.
pub fn describe(sidecar: &Sidecar) -> Result<Vec<(&'static str, String)>> {
    let (name, drafter) = (sidecar.architecture().name(), sidecar.architecture().drafter());
    let mut lines = vec![("sidecar", format!("{name}: drafts for a model with --draft {drafter}:FILE"))];
    let made_for = sidecar.made_for()?;
    lines.push(match &made_for {
        Some(target) => {
            let (arch, model) = (target.architecture.escape_debug(), target.tokenizer.escape_debug());
            let hash: String = target.vocab_hash.chars().take(12).collect();
            let (width, vocab, hash) = (target.width, target.vocab, hash.escape_debug().to_string());
            ("target", format!("{arch}: width {width}, vocabulary {vocab} ({model}, hash {hash}..)"))
        }
        None => ("target", "not said".into()),
    });
    if sidecar.architecture() == Architecture::Medusa {
        let target = made_for.context("the target is missing")?;
        sidecar.need_same("embedding_length", target.width)?;
        let layout = Layout::read(sidecar, target.vocab)?;
        layout.check(sidecar, target.width)?;
        medusa(&layout, &mut lines);
    }
    if sidecar.architecture() != Architecture::Medusa {
        lines.append(&mut super::eagle::describe(sidecar)?);
    }
    training(sidecar, &mut lines)?;
    Ok(lines)
}

fn medusa(layout: &Layout, lines: &mut Vec<(&'static str, String)>) {
    let (heads, blocks, rows) = (layout.heads, layout.blocks, layout.rows());
    let output = if layout.shares_output { "one output for all" } else { "an output each" };
    let blocks = if blocks == 1 { "1 residual block".into() } else { format!("{blocks} residual blocks") };
    lines.push(("heads", format!("{heads} of {blocks}, {output}, over {rows} of {} tokens", layout.vocab)));
    if let Some(tree) = &layout.tree {
        let levels = tree.iter().map(Vec::len).max().unwrap_or_default();
        let shown: Vec<String> = tree.iter().take(PATHS).map(|path| format!("{path:?}")).collect();
        let dots = if tree.len() > PATHS { " .." } else { "" };
        lines.push(("tree", format!("{} nodes, {levels} levels: {}{dots}", tree.len(), shown.join(" "))));
    } else {
        let made = if layout.accuracy.is_some() { "grown from the heads' accuracies" } else { "grown as it runs" };
        lines.push(("tree", format!("none: {made}")));
    }
    if let Some(accuracy) = &layout.accuracy {
        let first = accuracy.iter().map(|ranks| ranks.first().map_or("-".into(), |share| format!("{share:.3}")));
        lines.push(("accuracy", format!("of each head's best guess: {}", first.collect::<Vec<_>>().join(" "))));
    }
}

fn training(sidecar: &Sidecar, lines: &mut Vec<(&'static str, String)>) -> Result<()> {
    let meta = sidecar.meta();
    let mut notes = vec![];
    if let Some(data) = meta.str("spec.training.data")? {
        notes.push(format!("on {data:?}"));
    }
    if let Some(tokens) = meta.uint("spec.training.tokens")? {
        notes.push(format!("{tokens} tokens"));
    }
    if let Some(loss) = meta.float("spec.training.loss")? {
        notes.push(format!("loss {loss:.4}"));
    }
    if let Some(shares) = sidecar.shares("spec.training.accuracy")? {
        let shares: Vec<String> = shares.iter().take(DEPTHS).map(|share| format!("{share:.3}")).collect();
        notes.push(format!("held-out accuracy {}", shares.join(" ")));
    }
    if !notes.is_empty() {
        lines.push(("training", notes.join(", ")));
    }
    Ok(())
}

/// Accuracies that are shown.
const DEPTHS: usize = 16;
