//! The other rules of acceptance in the engine: at temperature 0 they are the walk; above it rejection gives the target's
//! distribution, and a model is never refused by itself.

mod common;

use common::drafters::{MIXTURES, World, mixture};
use common::zoo;
use foretoken::backend::{KvType, cpu::Cpu};
use foretoken::engine::{Limits, Outcome, Plan, Session};
use foretoken::isa::Isa;
use foretoken::model::{Input, Model, Rows};
use foretoken::sample::{History, SampleParams, Sampler};
use foretoken::spec::{Accept, Nodes};
use foretoken::tree::Token;
use std::collections::BTreeMap;
use std::ops::ControlFlow::Continue;
use std::sync::Arc;

const CONTEXT: usize = 96;

struct Subject {
    model: Arc<Model<Cpu>>,
    other: Arc<Model<Cpu>>,
    prompt: Vec<Token>,
}

impl Subject {
    fn load(name: &str) -> Self {
        let load = |name| {
            let cpu = Arc::new(Cpu::new(Isa::best(), 1).unwrap());
            Arc::new(Model::load(cpu, &zoo::open(name), &mut |_, _| ()).unwrap())
        };
        Self { model: load(name), other: load("qwen3"), prompt: zoo::prompts()[1].clone() }
    }

    fn sampler(&self, params: &SampleParams, seed: u64) -> Sampler {
        Sampler::new(params.clone(), seed, self.model.config().vocab, |_| vec![]).unwrap()
    }

    /// Generates `n` tokens.
    fn text(
        &self,
        names: &[&str],
        plan: Plan,
        params: &SampleParams,
        seed: u64,
        n: usize,
        script: &[Token],
    ) -> (Vec<Token>, Outcome) {
        let mut session = Session::new(self.model.clone(), CONTEXT, KvType::F16).unwrap();
        let (vocab, script) = (self.model.config().vocab, Arc::new(script.to_vec()));
        let (model, other) = (self.model.clone(), self.other.clone());
        session.set_drafters(mixture(names, &World { script, vocab, model, other, context: CONTEXT }), plan).unwrap();
        assert!(session.prefill(&self.prompt, |_| Continue(())).unwrap().is_continue());
        let mut ids = vec![];
        let emit = |token| {
            ids.push(token);
            Ok(Continue(()))
        };
        let limits = Limits { max_tokens: Some(n), ends: &[], begun: 0 };
        let outcome = session.generate(&mut self.sampler(params, seed), limits, || false, emit).unwrap();
        (ids, outcome)
    }
}

const RULES: [Accept; 3] = [Accept::Exact, Accept::Rejection, Accept::Typical];

/// Those that need no script: under the other rules the text depends on the drafters.
fn unscripted() -> impl Iterator<Item = &'static &'static [&'static str]> {
    let scripted = ["oracle", "liar", "bushy", "stutter"];
    MIXTURES.iter().filter(move |names| names.iter().all(|name| !scripted.contains(name)))
}

#[test]
fn at_temperature_0_all_rules_are_the_walk() {
    let greedy = SampleParams { temp: 0.0, repeat_penalty: 1.1, ..SampleParams::default() };
    for name in ["llama", "gemma3"] {
        let subject = Subject::load(name);
        let plain = Plan { nodes: Nodes::Fixed(0), accept: Accept::Exact };
        let (want, _) = subject.text(&[], plain, &greedy, 0, 30, &[]);
        let script = [&subject.prompt[..], &want].concat();
        for accept in RULES {
            for names in MIXTURES {
                for nodes in [Nodes::Fixed(7), Nodes::Auto(63)] {
                    let (got, _) = subject.text(names, Plan { nodes, accept }, &greedy, 0, 30, &script);
                    assert_eq!(got, want, "{name} {accept:?} {names:?} {nodes:?}");
                }
            }
        }
    }
}

#[test]
fn counts_add_up_and_a_seed_gives_one_text() {
    let params = SampleParams { temp: 1.0, repeat_penalty: 1.2, ..SampleParams::default() };
    let subject = Subject::load("llama");
    for accept in RULES {
        for names in unscripted() {
            let plan = Plan { nodes: Nodes::Fixed(9), accept };
            let (text, outcome) = subject.text(names, plan, &params, 5, 40, &[]);
            let tally = &outcome.tally;
            assert_eq!(tally.drafted, tally.accepted + tally.rejected + tally.discarded);
            assert_eq!(tally.tokens_per_round.iter().enumerate().map(|(n, r)| n * r).sum::<usize>(), 40);
            assert_eq!(subject.text(names, plan, &params, 5, 40, &[]).0, text, "{accept:?} {names:?}");
            assert_ne!(subject.text(names, plan, &params, 6, 40, &[]).0, text, "{accept:?} {names:?}");
            if *names == ["self"] && accept != Accept::Typical {
                assert_eq!(tally.rejected, 0, "{accept:?}: a model is never refused by itself");
            }
            let auto = Plan { nodes: Nodes::Auto(20), accept };
            assert_eq!(subject.text(names, auto, &params, 5, 40, &[]).0.len(), 40, "{accept:?} {names:?}");
        }
    }
}

/// Pairs of tokens after the prompt, over many seeds, against the exact distribution.
#[test]
fn rejection_in_the_engine_keeps_the_distribution() {
    let params = SampleParams { temp: 1.3, top_k: 5, top_p: 1.0, min_p: 0.0, ..SampleParams::default() };
    let subject = Subject::load("llama");
    let mut law: BTreeMap<[Token; 2], f64> = BTreeMap::new();
    let mut sampler = subject.sampler(&params, 0);
    let mut after = |text: &[Token]| {
        let mut state = subject.model.state(CONTEXT, CONTEXT, KvType::F16).unwrap();
        let logits = subject.model.forward(&mut state, Input::Chain(text), Rows::Last).unwrap();
        sampler.distribution(&logits, History { committed: text, path: &[], start: 0 }, 0).unwrap()
    };
    for (a, p) in after(&subject.prompt) {
        for (b, q) in after(&[&subject.prompt[..], &[a]].concat()) {
            law.insert([a, b], p * q);
        }
    }
    let runs = 3000;
    for names in
        [&["other"][..], &["short", "other"], &["lookup", "other"], &["medusa-3", "other"], &["eagle3", "other"]]
    {
        let plan = Plan { nodes: Nodes::Fixed(6), accept: Accept::Rejection };
        let mut seen: BTreeMap<[Token; 2], f64> = BTreeMap::new();
        for seed in 0..runs {
            // The third token keeps the round from ending at what is counted.
            let (text, _) = subject.text(names, plan, &params, seed, 3, &[]);
            *seen.entry([text[0], text[1]]).or_default() += 1.0;
        }
        assert!(seen.keys().all(|pair| law.contains_key(pair)), "{names:?}: a token that was cut away");
        let chi: f64 = law
            .iter()
            .map(|(pair, p)| (seen.get(pair).unwrap_or(&0.0) - p * runs as f64).powi(2) / (p * runs as f64))
            .sum();
        let freedom = (law.len() - 1) as f64;
        let v = 2.0 / (9.0 * freedom);
        // Exceeded once in 30,000.
        let limit = freedom * (1.0 - v + 4.0 * v.sqrt()).powi(3);
        println!("{names:?}: {chi:.1} of {limit:.1}");
        assert!(chi < limit, "{names:?}: {chi} of {limit}");
    }
}
