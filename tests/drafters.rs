//! What is asked of every drafter: one that cannot be had is an error (P19), and a session that is cleared drafts as a new
//! one does, also where there is little to draft from (P11).

mod common;

use common::drafters::{DRAFTERS, MIXTURES, World, mixture};
use common::{cli, scratch, zoo};
use foretoken::backend::{KvType, cpu::Cpu};
use foretoken::engine::{Limits, Plan, Session};
use foretoken::gguf::Gguf;
use foretoken::isa::Isa;
use foretoken::model::Model;
use foretoken::sample::{SampleParams, Sampler};
use foretoken::spec::choice::KINDS;
use foretoken::spec::{Accept, Choice, Drafter, Nodes, Target};
use foretoken::text::Tokenizer;
use foretoken::tree::Token;
use std::ops::ControlFlow::Continue;
use std::sync::{Arc, Mutex};

fn load(name: &str) -> Arc<Model<Cpu>> {
    Arc::new(Model::load(Arc::new(Cpu::new(Isa::best(), 1).unwrap()), &zoo::open(name), &mut |_, _| ()).unwrap())
}

#[test]
fn one_that_cannot_be_had_is_an_error() {
    let model = cli::save("had", &cli::chatty());
    let folder = scratch("cannot-be-had");
    std::fs::write(folder.join("empty"), "").unwrap();
    std::fs::write(folder.join("text"), "no model at all\n".repeat(99)).unwrap();
    std::fs::write(folder.join("cut"), &std::fs::read(&model).unwrap()[..2000]).unwrap();
    std::fs::create_dir(folder.join("folder")).unwrap();
    let mut tried = 0;
    for kind in KINDS {
        for file in ["missing", "empty", "cut", "folder", "text"] {
            let path = folder.join(file);
            let draft = match (kind.path, kind.settings.iter().any(|setting| setting.name == "corpus")) {
                (Some(_), _) => format!("{}:{}", kind.name, path.display()),
                // Any text is a corpus.
                (None, true) if file == "missing" || file == "folder" => {
                    format!("{},corpus={}", kind.name, path.display())
                }
                _ => continue,
            };
            tried += 1;
            for command in ["run", "batch", "chat"] {
                let mut line = vec![command, "-m", model.to_str().unwrap(), "--draft", &draft];
                line.extend(["-p", "the"].iter().filter(|_| command == "run"));
                let name = format!("--draft {}", kind.name);
                cli::refused(&cli::run_with(&line, b"the\n"), 1, &[&name, path.to_str().unwrap()], &draft);
            }
        }
    }
    assert!(tried > 3 * KINDS.len(), "{tried}");
}

#[test]
fn one_that_memory_has_no_room_for_is_an_error() {
    let file = cli::save("room", &cli::tiny());
    let gguf = Gguf::open(&file).unwrap();
    let model = Model::load(Arc::new(Cpu::new(Isa::best(), 1).unwrap()), &gguf, &mut |_, _| ()).unwrap();
    let (model, tokenizer) = (Arc::new(model), Tokenizer::from_gguf(gguf.meta()).unwrap());
    let asked = Mutex::new(0);
    let admit = |bytes| {
        *asked.lock().unwrap() = bytes;
        anyhow::bail!("no room")
    };
    let target =
        Target { model: &model, tokenizer: &tokenizer, context: 64, kv: KvType::F16, admit: &admit, tell: &|_| () };
    let choice = Choice::parse(&format!("model:{}", file.display())).unwrap();
    let error = format!("{:#}", choice.open(&target).err().unwrap());
    assert!(error.starts_with("--draft model:") && error.ends_with("no room"), "{error}");
    assert!(*asked.lock().unwrap() > std::fs::metadata(&file).unwrap().len(), "the file and a cache");
}

/// Trees of a text's rounds.
type Trees = Vec<Vec<(Token, usize, u32)>>;

/// Goes on from `prompt` in a session, and tells the trees of all rounds.
fn trees(session: &mut Session<Cpu>, prompt: &[Token], vocab: usize) -> (Trees, Vec<Token>) {
    let told = Arc::<Mutex<Trees>>::default();
    let tell = told.clone();
    session.watch(Some(Box::new(move |round| {
        let nodes = round.draft.tree().nodes().iter();
        tell.lock().unwrap().push(nodes.map(|node| (node.token, node.parent, node.score.to_bits())).collect());
    })));
    assert!(session.prefill(prompt, |_| Continue(())).unwrap().is_continue());
    let limits = Limits { max_tokens: Some(30), ends: &[], begun: 0 };
    let params = SampleParams { temp: 0.8, ..SampleParams::default() };
    let mut sampler = Sampler::new(params, 5, vocab, |_| vec![]).unwrap();
    session.generate(&mut sampler, limits, || false, |_| Ok(Continue(()))).unwrap();
    let rounds = std::mem::take(&mut *told.lock().unwrap());
    (rounds, session.tokens().to_vec())
}

#[test]
fn what_another_text_had_is_forgotten() {
    let prompts = zoo::prompts();
    let (model, other) = (load("llama"), load("qwen2"));
    let vocab = model.config().vocab;
    let session = |drafters: Vec<Box<dyn Drafter<Cpu>>>| {
        let mut session = Session::new(model.clone(), 300, KvType::F16).unwrap();
        session.set_drafters(drafters, Plan { nodes: Nodes::Fixed(7), accept: Accept::Exact }).unwrap();
        session
    };
    // A prompt of one token gives nothing to look up, and no pair of a row and the token after it.
    for (first, second) in
        [(&prompts[2][..], &prompts[3][..]), (&prompts[3], &prompts[2][..1]), (&prompts[2][..1], &prompts[2])]
    {
        let plain = trees(&mut session(vec![]), second, vocab).1;
        let lone = DRAFTERS.iter().map(|&(name, _)| vec![name]);
        for names in lone.chain(MIXTURES.iter().map(|names| names.to_vec())) {
            // Those that know what comes know it of one text.
            if ["oracle", "liar", "bushy", "stutter", "corpus"].iter().any(|name| names.contains(name)) {
                continue;
            }
            let world =
                World { script: plain.clone().into(), vocab, model: model.clone(), other: other.clone(), context: 300 };
            let new = trees(&mut session(mixture(&names, &world)), second, vocab);
            assert_eq!(new.1, plain, "{names:?}");
            let mut used = session(mixture(&names, &world));
            trees(&mut used, first, vocab);
            used.clear().unwrap();
            assert!(trees(&mut used, second, vocab) == new, "{names:?}: other drafts in a cleared session");
        }
    }
}
