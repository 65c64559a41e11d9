//! What drafters are shown of the target: every row once, paired with the right token, the same bits however the text came to be.

mod common;

use common::drafters::{World, mixture};
use common::zoo;
use foretoken::backend::{KvType, cpu::Cpu};
use foretoken::engine::{Finish, Limits, Plan, Session};
use foretoken::gguf::Gguf;
use foretoken::isa::Isa;
use foretoken::model::{Input, Model, Rows};
use foretoken::sample::{SampleParams, Sampler};
use foretoken::spec::{Accept, Drafter, Features, Nodes, Round};
use foretoken::tree::Token;
use std::ops::ControlFlow::Continue;
use std::sync::{Arc, Mutex};

/// What a drafter has seen: the text, and per token but the last the hidden row and the tapped rows.
#[derive(Default)]
struct Seen {
    text: Vec<Token>,
    rows: Vec<Vec<Vec<f32>>>,
}

/// Guesses nothing, forgets nothing.
struct Recorder {
    taps: Vec<usize>,
    seen: Arc<Mutex<Seen>>,
}

impl Drafter<Cpu> for Recorder {
    fn taps(&self) -> Option<&[usize]> {
        Some(&self.taps)
    }

    fn observe(&mut self, tokens: &[Token]) -> anyhow::Result<()> {
        self.seen.lock().unwrap().text.extend(tokens);
        Ok(())
    }

    fn see(&mut self, features: &Features<'_, Cpu>) -> anyhow::Result<()> {
        let mut seen = self.seen.lock().unwrap();
        assert_eq!(features.first, seen.rows.len(), "in order, each once");
        assert_eq!(features.taps.len(), self.taps.len());
        for &row in features.rows {
            let of = |mat: &&<Cpu as foretoken::backend::Backend>::Mat| mat.row(row).to_vec();
            seen.rows.push([&features.hidden].into_iter().chain(features.taps).map(of).collect());
        }
        assert!(seen.rows.len() < seen.text.len(), "the token after a row is known");
        Ok(())
    }

    fn draft(&mut self, round: &mut Round<'_>) -> anyhow::Result<()> {
        let seen = self.seen.lock().unwrap();
        assert_eq!(seen.text, round.context());
        assert_eq!(seen.rows.len() + 1, seen.text.len(), "all but the anchor's");
        Ok(())
    }

    fn rewind(&mut self, kept: &[Token]) -> anyhow::Result<()> {
        let mut seen = self.seen.lock().unwrap();
        seen.text.truncate(kept.len());
        assert_eq!(seen.text, kept);
        seen.rows.truncate(kept.len().saturating_sub(1));
        Ok(())
    }
}

/// The rows of `text` but its last token, from one pass.
fn reference(model: &Arc<Model<Cpu>>, text: &[Token], taps: &[usize]) -> Vec<Vec<Vec<f32>>> {
    let mut state = model.state(text.len(), text.len(), KvType::F16).unwrap();
    state.tap(model, taps.iter().copied()).unwrap();
    let text = &text[..text.len() - 1];
    model.forward(&mut state, Input::Chain(text), Rows::None).unwrap();
    let mats: Vec<_> = [state.hidden()].into_iter().chain(taps.iter().map(|&t| state.tapped(t).unwrap())).collect();
    (0..text.len()).map(|i| mats.iter().map(|mat| mat.row(i).to_vec()).collect()).collect()
}

fn generate(session: &mut Session<Cpu>, vocab: usize, n: usize, ends: &[Token]) -> Finish {
    let params = SampleParams { temp: 0.0, ..SampleParams::default() };
    let mut sampler = Sampler::new(params, 1, vocab, |_| vec![]).unwrap();
    let limits = Limits { max_tokens: Some(n), ends, begun: 0 };
    session.generate(&mut sampler, limits, || false, |_| Ok(Continue(()))).unwrap().finish
}

fn load(gguf: &Gguf) -> Arc<Model<Cpu>> {
    Arc::new(Model::load(Arc::new(Cpu::new(Isa::best(), 2).unwrap()), gguf, &mut |_, _| ()).unwrap())
}

#[test]
fn every_row_is_shown_once_with_its_token_and_the_same_bits() {
    let other = load(&zoo::open("qwen2"));
    for name in zoo::ARCHITECTURES {
        let model = load(&zoo::open(name));
        let layers = model.config().layers;
        let taps = [0, layers / 2, layers];
        let vocab = model.config().vocab;
        let prompt: Vec<Token> = (0..90).map(|i| (i * i + 3) % vocab as Token).collect();
        let world = |script: &[Token]| World {
            script: Arc::new(script.to_vec()),
            vocab,
            model: model.clone(),
            other: other.clone(),
            context: 400,
        };
        // What will be written.
        let mut plain = Session::new(model.clone(), 400, KvType::F16).unwrap();
        assert!(plain.prefill(&prompt, |_| Continue(())).unwrap().is_continue());
        generate(&mut plain, vocab, 60, &[]);
        let script = plain.tokens().to_vec();
        let want = reference(&model, &script, &taps);

        for (pieces, others) in [(90, &["oracle"][..]), (7, &["liar"]), (33, &["bushy", "stutter"]), (1, &["lookup"])] {
            let seen = Arc::new(Mutex::new(Seen::default()));
            let recorder = || Box::new(Recorder { taps: taps.to_vec(), seen: seen.clone() }) as Box<dyn Drafter<Cpu>>;
            let mut session = Session::new(model.clone(), 400, KvType::F16).unwrap();
            let mut drafters = mixture(others, &world(&script));
            drafters.push(recorder());
            session.set_drafters(drafters, Plan { nodes: Nodes::Fixed(9), accept: Accept::Exact }).unwrap();
            let check = |what: &str| {
                let seen = seen.lock().unwrap();
                assert!(script.starts_with(&seen.text), "{name} {others:?}: {what}");
                assert_eq!(seen.rows.len() + 1, seen.text.len(), "{name} {others:?}: {what}");
                assert!(want.starts_with(&seen.rows), "{name} {others:?}: rows, {what}");
                seen.rows.len()
            };
            for piece in prompt.chunks(pieces) {
                assert!(session.prefill(piece, |_| Continue(())).unwrap().is_continue());
            }
            generate(&mut session, vocab, 21, &[]);
            assert_eq!(check("a text"), 110);
            // An end inside a run of right guesses: what was accepted past it is not shown.
            // The last token that comes for the first time: at the latest, if all texts repeat, the very next.
            let fresh = |&i: &usize| !script[111..i].contains(&script[i]);
            let at = (111..script.len()).rev().find(fresh).unwrap() - 111;
            let end = script[111 + at];
            assert_eq!(generate(&mut session, vocab, 40, &[end]), Finish::End);
            assert_eq!(check("an end"), 110 + at);
            session.rewind(97).unwrap();
            assert_eq!(check("a step back"), 96);
            assert!(session.prefill(&script[97..105], |_| Continue(())).unwrap().is_continue());
            generate(&mut session, vocab, 30, &[]);
            assert_eq!(check("another way"), 134);
            session.clear().unwrap();
            assert!(session.prefill(&script[..100], |_| Continue(())).unwrap().is_continue());
            generate(&mut session, vocab, 9, &[]);
            assert_eq!(check("from the beginning"), 108);
        }
    }
}

#[test]
fn a_layer_that_is_not_there_is_refused() {
    let model = load(&zoo::open("llama"));
    let layers = model.config().layers;
    let mut session = Session::new(model, 100, KvType::F16).unwrap();
    let recorder = Recorder { taps: vec![0, layers + 1], seen: Arc::default() };
    let plan = Plan { nodes: Nodes::Fixed(1), accept: Accept::Exact };
    let error = session.set_drafters(vec![Box::new(recorder)], plan).unwrap_err().to_string();
    assert!(error.contains(&format!("layer {}", layers + 1)) && error.contains(&layers.to_string()), "{error}");
}
