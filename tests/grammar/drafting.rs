//! Law 3 under a grammar: ids and reason are those of plain decoding, whatever is drafted (P12).

use crate::common::drafters::{MIXTURES, World, mixture};
use crate::common::gguf_writer::{Rng, tiny_llama};
use crate::common::{cli, models};
use crate::words::{Words, samples};
use foretoken::backend::{KvType, cpu::Cpu};
use foretoken::engine::{Finish, Limits, Outcome, Plan, Session};
use foretoken::gguf::Gguf;
use foretoken::grammar::Spec;
use foretoken::isa::Isa;
use foretoken::model::Model;
use foretoken::sample::{SampleParams, Sampler};
use foretoken::spec::{Accept, Drafter, Nodes, Round};
use foretoken::text::Tokenizer;
use foretoken::tree::Token;
use std::ops::ControlFlow::Continue;
use std::sync::Arc;

/// A model to generate with.
pub struct Speaker {
    pub words: Words,
    model: Arc<Model<Cpu>>,
}

impl Speaker {
    pub fn load(gguf: &Gguf, threads: usize) -> Self {
        let cpu = Arc::new(Cpu::new(Isa::best(), threads).unwrap());
        let model = Arc::new(Model::load(cpu, gguf, &mut |_, _| ()).unwrap());
        Self { words: Words::new(Tokenizer::from_gguf(gguf.meta()).unwrap()), model }
    }

    pub fn session(&self, context: usize) -> Session<Cpu> {
        Session::new(self.model.clone(), context, KvType::F16).unwrap()
    }

    pub fn sampler(&self, params: &SampleParams, seed: u64, spec: &Spec) -> Sampler {
        let tokenizer = &self.words.tokenizer;
        let piece = |token| tokenizer.piece(token).to_vec();
        let mut sampler = Sampler::new(params.clone(), seed, tokenizer.vocab_size(), piece).unwrap();
        sampler.constrain(Some(self.words.constraint(spec).unwrap()));
        sampler
    }

    /// Generates after `prompt` in a session that is cleared first.
    pub fn say(
        &self,
        session: &mut Session<Cpu>,
        sampler: &mut Sampler,
        prompt: &[Token],
        most: usize,
    ) -> (Vec<Token>, Outcome) {
        session.clear().unwrap();
        assert!(session.prefill(prompt, |_| Continue(())).unwrap().is_continue());
        let mut ids = vec![];
        let limits = Limits { max_tokens: Some(most), ends: self.words.tokenizer.end_tokens(), begun: 0 };
        let outcome = session.generate(
            sampler,
            limits,
            || false,
            |token| {
                ids.push(token);
                Ok(Continue(()))
            },
        );
        (ids, outcome.unwrap())
    }
}

/// Draws two guesses after each node from logits that follow from the node's token, ends and illegal tokens included.
struct Sketcher {
    vocab: usize,
}

impl Drafter<Cpu> for Sketcher {
    fn observe(&mut self, _: &[Token]) -> anyhow::Result<()> {
        Ok(())
    }

    fn draft(&mut self, round: &mut Round<'_>) -> anyhow::Result<()> {
        let mut nodes = vec![0];
        while let Some(node) = nodes.pop()
            && round.room() > 0
        {
            let seed = u64::from(round.tree().nodes()[node].token) + 100 * node as u64;
            let mut rng = Rng(seed);
            let logits: Vec<f32> = (0..self.vocab).map(|_| 2.0 * rng.normal()).collect();
            if node % 3 == 0 {
                round.push(node, rng.below(self.vocab) as Token, 0.0).into_iter().for_each(|node| nodes.push(node));
            }
            round.draw(node, &logits, 2, 0.0, &mut nodes);
        }
        Ok(())
    }

    fn rewind(&mut self, _: &[Token]) -> anyhow::Result<()> {
        Ok(())
    }
}

fn check(speaker: &Speaker, other: &Speaker, specs: &[(String, Spec)], prompt: &[Token], most: usize) {
    let vocab = speaker.words.tokenizer.vocab_size();
    let context = prompt.len() + most + 8;
    let (mut accepted, mut ended) = (0, 0);
    for (i, (name, spec)) in specs.iter().enumerate() {
        for temp in [0.0, 0.8] {
            let params = SampleParams { temp, repeat_penalty: 1.1, ..Default::default() };
            let answer = |drafters: Vec<Box<dyn Drafter<Cpu>>>, nodes, accept| {
                let mut session = speaker.session(context);
                session.set_drafters(drafters, Plan { nodes: Nodes::Fixed(nodes), accept }).unwrap();
                let mut sampler = speaker.sampler(&params, 3 + i as u64, spec);
                let (ids, outcome) = speaker.say(&mut session, &mut sampler, prompt, most);
                // Every token was legal, and the end came where it was.
                let mut constraint = speaker.words.constraint(spec).unwrap();
                for (at, &token) in ids.iter().enumerate() {
                    assert!(constraint.allows(&ids[..at], &[], token).unwrap(), "{name}: {ids:?}");
                }
                let is_complete = constraint.allows(&ids, &[], speaker.words.end()).unwrap();
                assert!(is_complete || outcome.finish == Finish::Length, "{name}: {:?} {ids:?}", outcome.finish);
                assert_eq!(outcome.tally.fault, None, "{name}");
                (ids, outcome.finish, outcome.tally.accepted)
            };
            let (plain, finish, _) = answer(vec![], 0, Accept::Exact);
            ended += usize::from(finish == Finish::End);
            let world = World {
                script: Arc::new([prompt, &plain].concat()),
                vocab,
                model: speaker.model.clone(),
                other: other.model.clone(),
                context,
            };
            for names in MIXTURES {
                for nodes in [1, 7, 24] {
                    let (got, end, count) = answer(mixture(names, &world), nodes, Accept::Exact);
                    assert_eq!((&got, end), (&plain, finish), "{name} at {temp}, {names:?}, {nodes} nodes");
                    accepted += count;
                }
            }
            for accept in [Accept::Exact, Accept::Rejection, Accept::Typical] {
                let (got, end, _) = answer(vec![Box::new(Sketcher { vocab })], 24, accept);
                // The other rules give other texts, legal ones.
                if accept == Accept::Exact || temp == 0.0 {
                    assert_eq!((&got, end), (&plain, finish), "{name} at {temp}, sketcher, {accept:?}");
                }
            }
        }
    }
    println!("{accepted} accepted, {ended} ended of themselves");
    assert!(accepted > 100 && ended > 0, "{accepted} accepted, {ended} ended");
}

fn specs() -> Vec<(String, Spec)> {
    let named = samples().into_iter().map(|(name, text)| (name, Spec::Gbnf(text)));
    let more = [
        ("short", Spec::Gbnf("root ::= \"the \" [a-e]{1,6} <[266]>? \"!\"".into())),
        ("schema", Spec::JsonSchema(r#"{"type": "array", "items": {"type": "integer"}, "maxItems": 3}"#.into())),
        ("regex", Spec::Regex("(the|then){1,5} ?[0-9]{0,3}".into())),
    ];
    named.chain(more.map(|(name, spec)| (name.into(), spec))).collect()
}

#[test]
fn text_under_a_grammar_does_not_depend_on_drafters() {
    let gguf = Gguf::from_bytes(cli::chatty().bytes()).unwrap();
    let speaker = Speaker::load(&gguf, 1);
    let prompt = speaker.words.tokenizer.encode("the theory of the other", false).unwrap();
    let other = Speaker::load(&Gguf::from_bytes(tiny_llama(8, "F32").bytes()).unwrap(), 1);
    check(&speaker, &other, &specs(), &prompt, 24);
}

#[test]
fn nor_does_that_of_a_real_model() {
    let Some(gguf) = models::open("SmolLM2-135M-Instruct.Q4_1.gguf") else { return };
    let speaker = Speaker::load(&gguf, 2);
    let prompt = speaker.words.tokenizer.encode("A list: [1, 2, 3]. A list: ", false).unwrap();
    let few: Vec<_> = specs().into_iter().filter(|(name, _)| name == "json" || name == "schema").collect();
    check(&speaker, &speaker, &few, &prompt, 16);
}
