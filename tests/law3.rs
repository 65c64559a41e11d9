//! Law 3: drafting never changes the text. Every architecture of the zoo (and SmolLM2 where it is at hand), drafters of
//! every temper, ways of sampling and of ending; ids, text and reason must be those of plain decoding. Then the same from
//! outside, byte for byte.

mod common;

use common::drafters::{MIXTURES, Script, World, mixture};
use common::eagles::Head;
use common::sidecars::{Medusa, Outputs, deep_tree, made_for};
use common::{cli, models, zoo};
use foretoken::backend::{KvType, cpu::Cpu};
use foretoken::engine::{Finish, Limits, Outcome, Plan, Session};
use foretoken::gguf::Gguf;
use foretoken::isa::Isa;
use foretoken::model::Model;
use foretoken::sample::{LogitBias, SampleParams, Sampler};
use foretoken::spec::{Accept, Drafter, Nodes};
use foretoken::text::{TextStream, Tokenizer};
use foretoken::tree::{DraftTree, Token};
use serde_json::{Value, json};
use std::ops::ControlFlow::{Break, Continue};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Tokens of the longest text.
const LONG: usize = 24;

/// Ways of sampling.
fn samplings() -> Vec<(&'static str, SampleParams)> {
    let d = SampleParams::default;
    let bias = LogitBias(vec![(70, 3.0), (71, -2.0), (72, f32::NEG_INFINITY)]);
    vec![
        ("greedy", SampleParams { temp: 0.0, ..d() }),
        ("usual", SampleParams { temp: 0.8, top_k: 40, top_p: 0.95, ..d() }),
        ("hot", SampleParams { temp: 1.5, top_k: 0, top_p: 1.0, min_p: 0.0, xtc_probability: 0.3, ..d() }),
        (
            "penalised",
            SampleParams {
                repeat_penalty: 1.3,
                frequency_penalty: 0.2,
                presence_penalty: 0.1,
                dry_multiplier: 0.8,
                dry_allowed_length: 1,
                logit_bias: bias,
                ..d()
            },
        ),
    ]
}

/// What ends a text beside its own end.
#[derive(Clone, Default)]
struct Ending {
    name: String,
    max_tokens: Option<usize>,
    context: Option<usize>,
    stop: Option<String>,
    end: Option<Token>,
}

/// What must be the same with any drafter.
#[derive(Clone, Debug, PartialEq)]
struct Answer {
    ids: Vec<Token>,
    text: String,
    finish: Finish,
}

struct Subject {
    name: String,
    models: Vec<Arc<Model<Cpu>>>,
    other: Arc<Model<Cpu>>,
    tokenizer: Tokenizer,
    prompts: Vec<Vec<Token>>,
}

impl Subject {
    /// The model with one thread and with two, and another model.
    fn load(name: &str, gguf: &Gguf, prompts: Vec<Vec<Token>>) -> Self {
        let load = |gguf: &Gguf, threads| {
            let cpu = Arc::new(Cpu::new(Isa::best(), threads).unwrap());
            Arc::new(Model::load(cpu, gguf, &mut |_, _| ()).unwrap())
        };
        let tokenizer = Tokenizer::from_gguf(gguf.meta()).unwrap();
        let other = load(&zoo::open(if name == "qwen2" { "llama" } else { "qwen2" }), 1);
        Self { name: name.into(), models: vec![load(gguf, 1), load(gguf, 2)], other, tokenizer, prompts }
    }

    fn world(&self, script: &Script, threads: usize, context: usize) -> World {
        let (model, other) = (self.models[threads - 1].clone(), self.other.clone());
        World { script: script.clone(), vocab: self.tokenizer.vocab_size(), model, other, context }
    }

    fn context(ask: &Ask) -> usize {
        ask.ending.context.unwrap_or(ask.prompt.len() + 2 * LONG)
    }

    /// Generates in a new session and, where an end token ends the text, once more: a cleared session is as good as new.
    fn answer(&self, threads: usize, ask: &Ask, drafters: Vec<Box<dyn Drafter<Cpu>>>, plan: Plan) -> (Answer, Outcome) {
        let mut session = Session::new(self.models[threads - 1].clone(), Self::context(ask), KvType::F16).unwrap();
        session.set_drafters(drafters, plan).unwrap();
        let first = self.generate(ask, &mut session);
        if ask.ending.end.is_some() {
            session.clear().unwrap();
            let again = self.generate(ask, &mut session);
            assert_eq!(first.0, again.0, "{}: after a clear", self.name);
            if matches!(plan.nodes, Nodes::Fixed(_)) {
                assert_eq!(first.1.tally.drafted, again.1.tally.drafted, "{}: drafts after a clear", self.name);
            }
        }
        first
    }

    fn generate(&self, ask: &Ask, session: &mut Session<Cpu>) -> (Answer, Outcome) {
        let vocab = self.tokenizer.vocab_size();
        let piece = |token| self.tokenizer.piece(token).to_vec();
        let mut sampler = Sampler::new(ask.params.clone(), ask.seed, vocab, piece).unwrap();
        assert!(session.prefill(&ask.prompt, |_| Continue(())).unwrap().is_continue());
        let stops: Vec<String> = ask.ending.stop.iter().cloned().collect();
        let mut stream = TextStream::new(&self.tokenizer, &stops, true);
        let (mut ids, mut text) = (vec![], String::new());
        let ends: Vec<Token> = ask.ending.end.into_iter().collect();
        let limits = Limits { max_tokens: ask.ending.max_tokens, ends: &ends, begun: 0 };
        let outcome = session.generate(
            &mut sampler,
            limits,
            || false,
            |token| {
                ids.push(token);
                text += &stream.push(token);
                Ok(if stream.stopped() { Break(()) } else { Continue(()) })
            },
        );
        let outcome = outcome.unwrap();
        text += &stream.finish();
        assert_eq!(outcome.tokens, ids.len());
        assert!(session.tokens().ends_with(&[&ask.prompt[..], &ids].concat()));
        assert_eq!(session.cached() + 1, session.tokens().len(), "{}: {}", self.name, ask.ending.name);
        (Answer { ids, text, finish: outcome.finish }, outcome)
    }
}

#[derive(Clone)]
struct Ask {
    prompt: Vec<Token>,
    params: SampleParams,
    seed: u64,
    ending: Ending,
}

/// Endings whose places follow from the long text `ids`.
fn endings(prompt: usize, ids: &[Token], tokenizer: &Tokenizer) -> Vec<Ending> {
    let after = |n| Ending { name: format!("-n {n}"), max_tokens: Some(n), ..Ending::default() };
    let mut all: Vec<Ending> = (0..=9).chain([LONG]).map(after).collect();
    for left in [1, 2, 7] {
        all.push(Ending { name: format!("context, {left} left"), context: Some(prompt + left), ..Ending::default() });
    }
    let most = Some(LONG);
    for at in [0, 5, 11] {
        all.push(Ending { name: format!("end at {at}"), max_tokens: most, end: Some(ids[at]), ..Ending::default() });
        let words = tokenizer.decode(&ids[at..at + 2]);
        // The first and last bytes may be pieces of characters, which no stop string can hold.
        let stop = words.trim_matches('\u{FFFD}');
        if !stop.is_empty() {
            let stop = Some(stop.to_owned());
            all.push(Ending { name: format!("stop at {at}"), max_tokens: most, stop, ..Ending::default() });
        }
    }
    all
}

/// All mixtures of drafters against plain decoding. Gives the tokens that were accepted and those discarded.
fn check(subject: &Subject, params: &[(&str, SampleParams)], sizes: &[Nodes]) -> (usize, usize) {
    let (mut accepted, mut discarded, mut asked) = (0, 0, 0);
    let exact = |nodes| Plan { nodes, accept: Accept::Exact };
    for (i, prompt) in subject.prompts.iter().enumerate() {
        // Prompts share the samplings out among them.
        for (j, (sampling, params)) in params.iter().enumerate().skip(i).step_by(subject.prompts.len()) {
            let seed = (10 * i + j) as u64;
            let long = Ending { max_tokens: Some(LONG + 20), ..Ending::default() };
            let mut ask = Ask { prompt: prompt.clone(), params: params.clone(), seed, ending: long };
            let (plain, _) = subject.answer(1, &ask, vec![], exact(Nodes::Fixed(0)));
            let script: Script = Arc::new([&prompt[..], &plain.ids].concat());
            for ending in endings(prompt.len(), &plain.ids, &subject.tokenizer) {
                ask.ending = ending;
                let (want, outcome) = subject.answer(1, &ask, vec![], exact(Nodes::Fixed(0)));
                assert_eq!(outcome.rounds, outcome.tokens + usize::from(want.finish == Finish::End));
                assert_eq!(outcome.tally.drafted, 0);
                for names in MIXTURES {
                    let (size, threads) = (sizes[asked % sizes.len()], 1 + asked / sizes.len() % 2);
                    asked += 1;
                    let drafters = mixture(names, &subject.world(&script, threads, Subject::context(&ask)));
                    let (got, outcome) = subject.answer(threads, &ask, drafters, exact(size));
                    let (Nodes::Fixed(nodes) | Nodes::Auto(nodes)) = size;
                    let what = format!(
                        "{} prompt {i}, {sampling}, {}, {names:?}, {size:?}, {threads} threads",
                        subject.name, ask.ending.name
                    );
                    assert_eq!(got, want, "{what}");
                    sums_are_right(&outcome, want.finish, nodes, &what);
                    // A model is as right about itself as the oracle is.
                    if *names == ["oracle"] || *names == ["self"] {
                        assert_eq!(outcome.tally.rejected, 0, "{what}: right in every round");
                        let all = want.ids.len() + usize::from(want.finish == Finish::End);
                        if size == Nodes::Fixed(nodes) {
                            assert_eq!(outcome.rounds, all.div_ceil(nodes + 1), "{what}: no round is wasted");
                        }
                    }
                    if *names == ["liar"] {
                        assert_eq!((outcome.tally.accepted, outcome.tally.discarded), (0, 0), "{what}");
                        assert_eq!(outcome.rounds, want.ids.len() + usize::from(want.finish == Finish::End), "{what}");
                    }
                    accepted += outcome.tally.accepted;
                    discarded += outcome.tally.discarded;
                }
            }
        }
    }
    (accepted, discarded)
}

fn sums_are_right(outcome: &Outcome, finish: Finish, nodes: usize, what: &str) {
    let tally = &outcome.tally;
    assert_eq!(tally.drafted, tally.accepted + tally.rejected + tally.discarded, "{what}");
    assert!(tally.drafted <= outcome.rounds * nodes, "{what}: more guesses than allowed");
    let rounds: usize = tally.tokens_per_round.iter().sum();
    let tokens: usize = tally.tokens_per_round.iter().enumerate().map(|(n, rounds)| n * rounds).sum();
    assert_eq!(rounds, outcome.rounds, "{what}");
    assert_eq!(tokens, outcome.tokens + usize::from(finish == Finish::End), "{what}");
    let agreed: usize = tally.depths.iter().map(|d| d.accepted).sum();
    assert_eq!(agreed, tally.accepted + tally.discarded, "{what}");
}

#[test]
fn text_does_not_depend_on_drafters() {
    let most = DraftTree::MAX - 1;
    let sizes = [1, 4, 16, most].map(Nodes::Fixed).into_iter().chain([5, most, most].map(Nodes::Auto));
    let sizes: Vec<Nodes> = sizes.collect();
    for name in zoo::ARCHITECTURES {
        // One short prompt, and one longer than a block of attention.
        let prompts: Vec<_> = zoo::prompts().into_iter().skip(1).step_by(2).take(2).collect();
        let subject = Subject::load(name, &zoo::open(name), prompts);
        let (accepted, discarded) = check(&subject, &samplings(), &sizes);
        println!("{name}: {accepted} accepted, {discarded} discarded");
        assert!(accepted > 500 && discarded > 60, "{name}: {accepted} accepted, {discarded} discarded");
    }
}

/// Turns in one session, the second of which the model ends: drafters are told about all of it, and the noise goes on.
#[test]
fn a_session_goes_on() {
    let prompts = zoo::prompts();
    for name in ["llama", "gemma3"] {
        let subject = Subject::load(name, &zoo::open(name), vec![]);
        let turns = |names: &[&str], script: &Script, end: Option<Token>| {
            let mut session = Session::new(subject.models[0].clone(), 300, KvType::F16).unwrap();
            let plan = Plan { nodes: Nodes::Fixed(5), accept: Accept::Exact };
            session.set_drafters(mixture(names, &subject.world(script, 1, 300)), plan).unwrap();
            let turn = |(prompt, end): (&Vec<Token>, _)| {
                let ending = Ending { max_tokens: Some(20), end, ..Ending::default() };
                let params = SampleParams { temp: 1.0, ..SampleParams::default() };
                subject.generate(&Ask { prompt: prompt.clone(), params, seed: 9, ending }, &mut session).0
            };
            let answers: Vec<Answer> =
                [(&prompts[2], None), (&prompts[1], end), (&prompts[3], None)].into_iter().map(turn).collect();
            (Script::new(session.tokens().to_vec()), answers)
        };
        let (_, endless) = turns(&[], &Script::default(), None);
        let end = Some(endless[1].ids[9]);
        let (script, plain) = turns(&[], &Script::default(), end);
        assert_eq!(plain[1].finish, Finish::End);
        for names in MIXTURES {
            assert_eq!(turns(names, &script, end), (script.clone(), plain.clone()), "{name} {names:?}");
        }
    }
}

const SMOLLM2: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";

#[test]
fn text_does_not_depend_on_drafters_on_a_real_model() {
    let Some(gguf) = models::open(SMOLLM2) else { return };
    let tokenizer = Tokenizer::from_gguf(gguf.meta()).unwrap();
    let prompt = tokenizer.encode("One two three four. One two three four. One two", false).unwrap();
    let subject = Subject::load("SmolLM2", &gguf, vec![prompt]);
    let (accepted, _) = check(&subject, &samplings()[1..2], &[Nodes::Fixed(3), Nodes::Fixed(20), Nodes::Auto(8)]);
    assert!(accepted > 100, "{accepted}");
}

fn flags(model: &Path, command: &str, line: &str) -> Vec<std::ffi::OsString> {
    let start = [command.into(), "-m".into(), model.into(), "-t".into(), "1".into()];
    let line = line.replace("MODEL", model.to_str().unwrap());
    start.into_iter().chain(line.split_whitespace().map(Into::into)).collect()
}

/// `MODEL` stands for the model itself, `CORPUS` for a file, `HEAD` for a folder of sidecars.
const DRAFTS: [&str; 13] = [
    "--draft none",
    "--draft lookup",
    "--draft lookup,min=1,width=4 --draft-max 63",
    "--draft lookup,max=2 --draft lookup,min=1 --draft-max 5",
    "--draft model:MODEL",
    "--draft model:MODEL,branch=2,pmin=0.1 --draft lookup --draft-max auto:9",
    "--draft lookup,min=1,width=3,corpus=CORPUS --draft-max 9",
    "--draft lookup,corpus=CORPUS,corpus=CORPUS --draft lookup,min=2",
    "--draft medusa:HEAD/medusa.gguf --draft-max 24",
    "--draft medusa:HEAD/medusa.gguf,tree=chain --draft lookup",
    "--draft eagle:HEAD/eagle.gguf,branch=3 --draft-max 12",
    "--draft eagle:HEAD/eagle3.gguf --draft-max 24",
    "--draft lookup --draft eagle:HEAD/eagle3.gguf,branch=1 --draft medusa:HEAD/medusa.gguf --draft eagle:HEAD/eagle.gguf",
];

/// `draft` with files: a corpus that has `texts` in it, among others, and heads.
fn with_files(test: &str, texts: &[&str], heads: &Path, draft: &str) -> String {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("law3-{test}.txt"));
    let other = texts.iter().map(|text| text.replace(' ', " the "));
    let lines: Vec<String> = texts.iter().map(|text| text.to_string()).chain(other).collect();
    std::fs::write(&path, lines.join("\n") + "\nzürich €uro 你好\n").unwrap();
    draft.replace("CORPUS", path.to_str().unwrap()).replace("HEAD", heads.to_str().unwrap())
}

const PROMPTS: [&str; 2] = ["Say this again: one, two, three, one, two, three.", "the the the the"];

/// A tiny model, and SmolLM2 where it is at hand; with each a folder of random heads for it.
fn files(test: &str) -> Vec<(PathBuf, PathBuf)> {
    let tiny = cli::save(test, &cli::chatty());
    let files = [Some(tiny), models::find(SMOLLM2)].into_iter().flatten().enumerate();
    files.map(|(i, model)| (model.clone(), heads(&model, &format!("law3-{test}-{i}")))).collect()
}

/// A sidecar of each kind, of reduced heads where a whole one would be large.
fn heads(model: &Path, folder: &str) -> PathBuf {
    let folder = common::scratch(folder);
    let gguf = Gguf::open(model).unwrap();
    let loaded = Model::load(Arc::new(Cpu::new(Isa::best(), 1).unwrap()), &gguf, &mut |_, _| ()).unwrap();
    let (width, vocab) = (loaded.config().width, loaded.config().vocab);
    let ids = || Some((0..vocab as Token).step_by(vocab / 300 + 1).collect());
    let medusa = Medusa { outputs: Outputs::Target, tree: Some(deep_tree()), ..Medusa::default() };
    let eagle = |third| Head { ids: ids(), ..Head::of(&loaded, third, 3) }.file();
    for (name, file) in [("medusa", medusa.random(width, vocab, 4)), ("eagle", eagle(false)), ("eagle3", eagle(true))] {
        std::fs::write(folder.join(format!("{name}.gguf")), made_for(file, &gguf).bytes()).unwrap();
    }
    folder
}

#[test]
fn run_writes_the_same_bytes() {
    for (model, heads) in files("run") {
        for prompt in PROMPTS {
            for sampling in [
                "-n 40 --temp 0",
                "-n 40 -s 1",
                "-n 40 -s 2 --temp 1.2 --repeat-penalty 1.1",
                "-n 7 -s 3",
                "-n 40 --temp 0 --stop e",
            ] {
                let say = |draft: &str| {
                    let mut line = flags(&model, "run", &format!("-c 256 -q {sampling} {draft}"));
                    line.extend(["-p".into(), prompt.into()]);
                    cli::answer(&line)
                };
                let plain = say("");
                for draft in DRAFTS {
                    let draft = &with_files("run", &[&plain, PROMPTS[0], PROMPTS[1]], &heads, draft);
                    assert_eq!(say(draft), plain, "{} {prompt:?} {sampling} {draft}", model.display());
                }
            }
        }
    }
}

#[test]
fn batch_writes_the_same_answers() {
    let request = |prompt: &str, t: f64| format!("{}\n", json!({"prompt": prompt, "temperature": t, "max_tokens": 24}));
    let requests: String = PROMPTS.iter().flat_map(|p| [0.0, 0.9].map(|t| request(p, t))).collect();
    for (model, heads) in files("batch") {
        let answers = |draft: &str| -> Vec<Value> {
            let output =
                cli::run_with(&flags(&model, "batch", &format!("-q -c 256 -s 4 {draft}")), requests.as_bytes());
            assert_eq!(output.status.code(), Some(0), "{}", cli::stderr(&output));
            let lines = String::from_utf8(output.stdout).unwrap();
            let mut answers: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
            answers.iter_mut().for_each(|answer| _ = answer.as_object_mut().unwrap().remove("timings"));
            answers
        };
        let plain = answers("");
        assert!(plain.len() == 4 && plain.iter().all(|answer| answer["finish_reason"] != "error"), "{plain:?}");
        for draft in DRAFTS {
            let draft = &with_files("batch", &PROMPTS, &heads, draft);
            assert_eq!(answers(draft), plain, "{} {draft}", model.display());
        }
    }
}

#[test]
fn statistics_tell_what_became_of_drafts() {
    let model = cli::save("stats", &cli::tiny());
    let line = |draft: &str| {
        flags(&model, "run", &format!("-p aaaaaaaaaaaa --raw -n 30 -s 1 -l 97+1000 {draft} --stats json"))
    };
    let plain = cli::run(&line(""));
    assert!(cli::stats(&plain).get("draft").is_none());
    assert!(!cli::stderr(&plain).contains("draft "));
    let output = cli::run(&line("--draft lookup --draft-max 4"));
    let (text, stats) = (cli::stderr(&output), cli::stats(&output));
    let draft = &stats["draft"];
    // Thirty tokens, five a round, all of them guessed.
    assert_eq!((&stats["rounds"], &draft["rounds"]), (&6.into(), &6.into()), "{text}");
    for (key, value) in [("drafted", 24), ("accepted", 24), ("rejected", 0), ("discarded", 0), ("draft_max", 4)] {
        assert_eq!(draft[key], value, "{key}: {draft}");
    }
    assert_eq!(draft["tokens_per_round"], json!([0, 0, 0, 0, 0, 6]));
    assert_eq!(draft["by_depth"], json!(vec![json!({"offered": 6, "accepted": 6}); 4]));
    assert_eq!(draft["drafters"], json!(["lookup,min=1,max=63,width=2"]));
    let seconds: f64 = ["draft_s", "verify_s", "sample_s"].iter().map(|key| draft[key].as_f64().unwrap()).sum();
    assert!(seconds > 0.0 && seconds <= stats["decode_s"].as_f64().unwrap(), "{stats}");
    assert!(text.contains("draft   6 rounds, 5.00 tokens a round, 24 of 24 guesses accepted (100.0 %)"), "{text}");
}

#[test]
fn wrong_drafts_are_usage_errors_and_help_is_none() {
    for (line, needle) in [
        ("--draft lookop", "--draft: found kind 'lookop', supported: none, lookup"),
        ("--draft lookup,foo=1", "--draft: lookup: found option 'foo', supported: min, max, width, corpus"),
        ("--draft lookup,width=0", "--draft: lookup: width: found '0', supported a number from 1 to 16"),
        ("--draft none --draft lookup", "--draft: found none beside another drafter"),
        ("--draft-max auto:64", "--draft-max: found 'auto:64', supported 1 to 63, auto, auto:1 to auto:63"),
        ("--draft-max auto8", "--draft-max: found 'auto8', supported 1 to 63"),
        ("--draft-max 64", "--draft-max: found '64', supported 1 to 63"),
        ("--draft-max 0", "--draft-max: found '0', supported 1 to 63"),
        ("--draft model", "--draft: model: found no file, supported model:FILE, a GGUF model"),
        ("--draft model:x,pmin=2", "--draft: model: pmin: found '2', supported a number from 0 to 1"),
    ] {
        for command in ["run", "batch"] {
            let output = cli::run(&flags(Path::new("missing.gguf"), command, line));
            cli::refused(&output, 2, &[needle], line);
        }
    }
    for command in ["run", "batch"] {
        let help = cli::answer(&[command, "--draft", "help"]);
        for part in ["none", "lookup", "model:FILE", "width=N", "corpus=FILE", "pmin=X", "[default: "] {
            assert!(help.contains(part), "{help}");
        }
    }
}
