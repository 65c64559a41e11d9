//! The three laws, to the bit, on models of real widths with made-up weights.

use super::shapes::{Mix, Shape};
use super::{Random, Scratch};
use crate::backend::KvType;
use crate::backend::cuda::Cuda;
use crate::engine::{Limits, Plan, Session};
use crate::model::{Input, Model, Rows, State};
use crate::sample::{SampleParams, Sampler};
use crate::spec::eagle::{Eagle, Growth};
use crate::spec::lookup::Lookup;
use crate::spec::medusa::{self, Medusa};
use crate::spec::sidecar::{Architecture, Sidecar};
use crate::spec::standalone::{self, Standalone};
use crate::spec::{Accept, Drafter, Nodes};
use crate::tree::{DraftTree, Token};
use anyhow::{Result, bail, ensure};
use std::ops::ControlFlow::Continue;
use std::sync::Arc;

/// Most rows of a pass.
const ROWS: usize = 128;

type Drafters = Vec<Box<dyn Drafter<Cuda>>>;

/// How much is tried.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// Positions of a chain.
    pub chain: usize,
    /// Positions before a tree.
    pub context: usize,
    /// Nodes of a tree.
    pub nodes: usize,
    /// Tokens of a text.
    pub text: usize,
}

struct Subject<'a> {
    model: Arc<Model<Cuda>>,
    kv: KvType,
    size: &'a Size,
    random: Random,
    checked: usize,
}

/// Tries all three on a shape; gives how many values were compared, for people.
pub fn check(device: &Cuda, shape: &Shape, mix: Mix, kv: KvType, size: &Size, scratch: &Scratch) -> Result<String> {
    let model = Arc::new(scratch.load(device, &shape.file(mix, 4096))?);
    let mut subject = Subject { model, kv, size, random: Random(7), checked: 0 };
    subject.rows()?;
    subject.trees()?;
    let accepted = subject.text(shape, mix, scratch)?;
    let Subject { checked, .. } = subject;
    Ok(format!("{checked} values bit for bit; texts of every drafter are the plain one, {accepted} guesses accepted"))
}

fn same(got: &[f32], want: &[f32], what: &str) -> Result<usize> {
    ensure!(want.iter().all(|x| x.is_finite()), "{what}: values are not finite");
    ensure!(want.iter().any(|x| *x != want[0]), "{what}: all values are {}", want[0]);
    match got.iter().zip(want).position(|(a, b)| a.to_bits() != b.to_bits()) {
        _ if got.len() != want.len() => bail!("{what}: {} values, not {}", got.len(), want.len()),
        Some(at) => bail!("{what}: value {at} is {}, not {}", got[at], want[at]),
        None => Ok(got.len()),
    }
}

impl Subject<'_> {
    fn state(&self) -> Result<State<Cuda>> {
        self.model.state(self.size.chain.max(self.size.context) + 2 * DraftTree::MAX, ROWS, self.kv)
    }

    fn tokens(&mut self, n: usize) -> Vec<Token> {
        (0..n).map(|_| self.random.below(self.model.config().vocab) as Token).collect()
    }

    /// Law 1.
    fn rows(&mut self) -> Result<()> {
        let tokens = self.tokens(self.size.chain);
        let run = |chunk: usize| -> Result<(Vec<f32>, Vec<u8>)> {
            let (mut state, mut all) = (self.state()?, vec![]);
            for part in tokens.chunks(chunk) {
                all.append(&mut self.model.forward(&mut state, Input::Chain(part), Rows::All)?);
            }
            Ok((all, state.kv_bytes(0..tokens.len())?))
        };
        let (want, cache) = run(1)?;
        let mut checked = 0;
        for chunk in [2, 3, 4, 5, 8, 13, 32, 64, ROWS].into_iter().filter(|&chunk| chunk <= tokens.len()) {
            let (got, written) = run(chunk)?;
            let what = format!("law 1, chunks of {chunk}");
            checked += same(&got, &want, &what)?;
            ensure!(written == cache, "{what}: the caches differ");
        }
        self.checked += checked;
        Ok(())
    }

    /// Law 2.
    fn trees(&mut self) -> Result<()> {
        let vocab = self.model.config().vocab;
        let (context, nodes) = (self.size.context, self.size.nodes);
        let prefix = self.tokens(context);
        let names = self.tokens(nodes);
        let mut tree = DraftTree::new(names[0], nodes);
        for &token in &names[1..] {
            let last = tree.nodes().len() - 1;
            let parent = if self.random.below(2) == 0 { last } else { self.random.below(last + 1) };
            tree.push(parent, token, 0.0);
        }
        let nodes = tree.nodes().len();
        let (mut on_tree, mut on_chain) = (self.state()?, self.state()?);
        for part in prefix.chunks(ROWS) {
            self.model.forward(&mut on_tree, Input::Chain(part), Rows::None)?;
            self.model.forward(&mut on_chain, Input::Chain(part), Rows::None)?;
        }
        let logits = self.model.forward(&mut on_tree, Input::Tree(&tree), Rows::All)?;
        let leaves = (0..nodes).filter(|&node| tree.nodes()[node + 1..].iter().all(|n| n.parent != node));
        let mut deepest = vec![];
        for leaf in leaves {
            let path = tree.path(leaf);
            let tokens: Vec<Token> = path.iter().map(|&node| tree.nodes()[node].token).collect();
            on_chain.truncate(context);
            let chain = self.model.forward(&mut on_chain, Input::Chain(&tokens), Rows::All)?;
            for (&node, chain) in path.iter().zip(chain.chunks_exact(vocab)) {
                let row = &logits[node * vocab..(node + 1) * vocab];
                self.checked += same(row, chain, &format!("law 2, node {node}"))?;
            }
            if path.len() > deepest.len() {
                deepest = path;
            }
        }
        let tokens: Vec<Token> = deepest.iter().map(|&node| tree.nodes()[node].token).collect();
        on_tree.commit(&deepest)?;
        on_chain.truncate(context);
        self.model.forward(&mut on_chain, Input::Chain(&tokens), Rows::None)?;
        let end = 0..context + deepest.len();
        let committed = on_tree.kv_bytes(end.clone())? == on_chain.kv_bytes(end)?;
        ensure!(committed, "law 2: the committed cache differs");
        Ok(())
    }

    /// Law 3, with every drafter; gives the guesses that came true.
    fn text(&mut self, shape: &Shape, mix: Mix, scratch: &Scratch) -> Result<usize> {
        let motif = self.tokens(7);
        let prompt = motif.repeat(4);
        let context = prompt.len() + self.size.text + 2 * DraftTree::MAX;
        let (model, kv, vocab) = (&self.model, self.kv, self.model.config().vocab);
        let alone = |branch| -> Result<Box<dyn Drafter<Cuda>>> {
            let shape = standalone::Shape { branch, depth: 7, least: 0.0 };
            Ok(Box::new(Standalone::new(model.clone(), context, kv, vocab, shape)?))
        };
        let open = |file: &super::file::Hollow, kind| -> Result<Sidecar> {
            scratch.with(file, |path| Sidecar::open(path, &[kind]))
        };
        let medusa = |shape_of| -> Result<Box<dyn Drafter<Cuda>>> {
            let sidecar = open(&shape.medusa(mix), Architecture::Medusa)?;
            Ok(Box::new(Medusa::load(&sidecar, model, shape_of, 4)?.0))
        };
        let eagle = |third| -> Result<Box<dyn Drafter<Cuda>>> {
            let kind = if third { Architecture::Eagle3 } else { Architecture::Eagle };
            let sidecar = open(&shape.eagle(mix, third), kind)?;
            Ok(Box::new(Eagle::load(&sidecar, model, context, kv, Growth { branch: 4, depth: 4 })?))
        };
        let mut accepted = 0;
        // The largest logit, the 40 largest, and all: each picked by a kernel of its own.
        for (temp, top_k) in [(0.0, 40), (0.8, 40), (0.8, 0)] {
            let params = &SampleParams { temp, top_k, top_p: 1.0, min_p: 0.0, ..SampleParams::default() };
            let (plain, _) = self.generate(&prompt, context, vec![], params)?;
            let sets: [(&str, Drafters); 6] = [
                ("lookup", vec![Box::new(Lookup::new(1, 63, 4))]),
                ("the model itself", vec![alone(1)?]),
                ("the model itself and lookup", vec![Box::new(Lookup::new(1, 63, 4)), alone(3)?]),
                ("medusa", vec![medusa(medusa::Shape::Chain)?]),
                ("eagle", vec![eagle(false)?]),
                ("eagle3", vec![eagle(true)?]),
            ];
            for (name, drafters) in sets {
                let (text, right) = self.generate(&prompt, context, drafters, params)?;
                ensure!(
                    text == plain,
                    "law 3: at temperature {temp}, top-k {top_k} {name} gives {text:?}, plain decoding {plain:?}"
                );
                self.checked += text.len();
                accepted += right;
            }
        }
        ensure!(accepted > 0, "law 3: no guess was accepted");
        Ok(accepted)
    }

    fn generate(
        &self,
        prompt: &[Token],
        context: usize,
        drafters: Drafters,
        params: &SampleParams,
    ) -> Result<(Vec<Token>, usize)> {
        let mut session = Session::new(self.model.clone(), context, self.kv)?;
        session.set_drafters(drafters, Plan { nodes: Nodes::Fixed(15), accept: Accept::Exact })?;
        ensure!(session.prefill(prompt, |_| Continue(()))?.is_continue());
        let mut sampler = Sampler::new(params.clone(), 11, self.model.config().vocab, |_| vec![])?;
        let mut ids = vec![];
        let limits = Limits { max_tokens: Some(self.size.text), ends: &[], begun: 0 };
        let emit = |token| {
            ids.push(token);
            Ok(Continue(()))
        };
        let outcome = session.generate(&mut sampler, limits, || false, emit)?;
        Ok((ids, outcome.tally.accepted))
    }
}
