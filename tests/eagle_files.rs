//! EAGLE sidecars as files: those that are no good are refused with one line that names what is wrong; llama.cpp's are
//! taken as they are. From outside: the same bytes with and without them, and from a prompt cache the same drafts.

mod common;

use common::eagles::Head;
use common::gguf_writer::{Tensor, VOCAB, Value, Writer, tiny_llama};
use common::sidecars::made_for;
use common::{cli, models, scratch};
use foretoken::backend::{KvType, cpu::Cpu};
use foretoken::engine::{Limits, Plan, Session};
use foretoken::gguf::Gguf;
use foretoken::isa::Isa;
use foretoken::model::Model;
use foretoken::sample::{SampleParams, Sampler};
use foretoken::spec::eagle::{Eagle, Growth};
use foretoken::spec::sidecar::{Architecture, Sidecar};
use foretoken::spec::{Accept, Nodes};
use foretoken::tree::Token;
use std::ops::ControlFlow::Continue;
use std::path::Path;
use std::sync::{Arc, Mutex};

fn load(file: &Gguf, threads: usize) -> Arc<Model<Cpu>> {
    Arc::new(Model::load(Arc::new(Cpu::new(Isa::best(), threads).unwrap()), file, &mut |_, _| ()).unwrap())
}

fn target() -> Arc<Model<Cpu>> {
    load(&Gguf::from_bytes(cli::tiny().bytes()).unwrap(), 1)
}

/// With everything there can be.
fn full(model: &Model<Cpu>, third: bool) -> Head {
    let ids = Some((0..200).map(|i| (i * 3 % VOCAB) as Token).collect());
    Head { ids, owns: (true, true), biased: true, ..Head::of(model, third, 4) }
}

/// What is wrong with a file.
fn fault(file: &Writer, model: &Arc<Model<Cpu>>) -> String {
    let open = || {
        let sidecar = Sidecar::new(Gguf::from_bytes(file.bytes())?, &[Architecture::Eagle, Architecture::Eagle3])?;
        Eagle::load(&sidecar, model, 256, KvType::F16, Growth { branch: 2, depth: 2 })
    };
    match open() {
        Ok(_) => "nothing".into(),
        Err(error) => format!("{error:#}"),
    }
}

type Change = Box<dyn Fn(Writer) -> Writer>;

fn tensor(name: &str, change: impl Fn(&mut Tensor) + 'static) -> Change {
    let name = name.to_owned();
    Box::new(move |mut w| {
        change(w.tensor_mut(&name));
        w
    })
}

/// One row, or element of a vector, more or less.
fn resize(tensor: &mut Tensor, by: i64) {
    let last = tensor.dims.len() - 1;
    let unit = tensor.bytes.len() / tensor.dims[last] as usize;
    tensor.dims[last] = (tensor.dims[last] as i64 + by) as u64;
    tensor.bytes.resize(tensor.dims[last] as usize * unit, 0);
}

/// What is done to a file, and what the line about it must name.
fn misfits(w: &Writer, third: bool) -> Vec<(String, Change, String)> {
    let (arch, number) = (if third { "eagle3" } else { "eagle" }, Value::U32);
    let mut table: Vec<(String, Change, String)> = vec![];
    let mut add = |what: &str, change: Change, needle: &str| table.push((what.into(), change, needle.into()));
    let key = |name: &str| format!("{arch}.{name}");
    let set = |name: &str, value: Value| -> Change {
        let key = key(name);
        Box::new(move |w| w.set(&key, value.clone()))
    };
    let counts = ["block_count", "embedding_length", "feed_forward_length", "attention.head_count"];
    for name in counts.into_iter().chain(["attention.layer_norm_rms_epsilon"]) {
        let gone = key(name);
        add(name, Box::new(move |w| w.without(&gone)), &format!("{} is", key(name)));
    }
    for name in counts.into_iter().chain(["attention.head_count_kv", "attention.key_length", "rope.dimension_count"]) {
        for value in [number(0), Value::U64(u64::MAX), Value::I32(-1), Value::Str("x".into())] {
            add(&format!("{name} {value:?}"), set(name, value), &key(name));
        }
    }
    add("two blocks", set("block_count", number(2)), "block_count is 2, supported: 1");
    add("heads over groups", set("attention.head_count_kv", number(3)), "head_count is 4, not a multiple of");
    add("an odd head", set("attention.key_length", number(15)), "key_length is 15, must be even");
    add("an odd turn", set("rope.dimension_count", number(18)), "dimension_count is 18, must be even and at most 16");
    for value in [-1.0, 1.0, f32::NAN, f32::INFINITY] {
        let needle = key("attention.layer_norm_rms_epsilon");
        add("an epsilon", set("attention.layer_norm_rms_epsilon", Value::F32(value)), &needle);
    }
    for value in [0.0, -5.0, f32::NAN] {
        add("a base", set("rope.freq_base", Value::F32(value)), &key("rope.freq_base"));
    }
    add(
        "a scaling",
        set("rope.scaling.type", Value::Str("yarn".into())),
        "rope.scaling.type \"yarn\" is not supported",
    );
    let ids = |change: fn(&mut [[u8; 8]])| tensor("d2t", move |t| change(t.bytes.as_chunks_mut().0));
    add("an id twice", ids(|ids| ids[9] = ids[4]), "d2t: ids 4 and 9 are both 12");
    add("an id too large", ids(|ids| ids[9] = 320i64.to_le_bytes()), "d2t: id 9 is 320, the target has 320 tokens");
    if third {
        let list = |taps: &[i32]| set("target_layers", Value::I32s(taps.into()));
        add("no layers", Box::new(|w| w.without("eagle3.target_layers")), "eagle3.target_layers is missing");
        add("two layers", list(&[0, 1]), "eagle3.target_layers has 2 layers, supported: 3");
        add("a layer beyond", list(&[0, 1, 3]), "eagle3.target_layers has layer 3, the target has 2");
        add("a layer below", list(&[-1, 1, 2]), "eagle3.target_layers is [-1, 1, 2]");
        add("another width", set("target_hidden_size", number(65)), "target_hidden_size is 65, the target's is 64");
        for variant in ["norm_before_fc", "norm_output", "fc_norm"] {
            add(variant, set(variant, Value::Bool(true)), &format!("eagle3.{variant} is true, supported: false"));
        }
        let later = |w: Writer| w.tensor("fc_norm.weight", &[192], 0, vec![0; 768]);
        add("a later variant", Box::new(later), "tensor fc_norm.weight is there");
        let lend = |name: &'static str| -> Change {
            Box::new(move |mut w| {
                w.tensors.retain(|t| t.name != name.as_bytes());
                w.set("eagle3.embedding_length", Value::U32(96))
            })
        };
        add("a width that the target does not lend", lend("token_embd.weight"), "token_embd.weight is missing");
        add("a flag that is none", set("norm_before_residual", number(1)), "eagle3.norm_before_residual");
    } else {
        add("another width", set("embedding_length", number(32)), "embedding_length is 32, the target's is 64");
        let normed = |w: Writer| w.tensor("blk.0.attn_norm.weight", &[64], 0, vec![0; 256]);
        add("a norm too many", Box::new(normed), "tensor blk.0.attn_norm.weight is there");
    }
    for t in &w.tensors {
        let name: &'static str = String::from_utf8(t.name.clone()).unwrap().leak();
        let optional = name.ends_with(".bias") || name == "token_embd.weight";
        if !optional {
            let gone: Change = Box::new(move |mut w| {
                w.tensors.retain(|t| t.name != name.as_bytes());
                w
            });
            add("missing", gone, &format!("tensor {name} is missing"));
        }
        for by in [-1, 1] {
            add("resized", tensor(name, move |t| resize(t, by)), if name == "d2t" { "d2t" } else { name });
        }
        if name != "d2t" {
            let as_bytes = tensor(name, |t| (t.ty, t.bytes) = (24, vec![0; t.bytes.len() / 4]));
            add("as bytes", as_bytes, "format I8 is not supported");
        }
    }
    table
}

#[test]
fn what_is_no_good_is_refused_by_name() {
    let model = target();
    for third in [false, true] {
        let good = full(&model, third).file();
        assert_eq!(fault(&good, &model), "nothing");
        for (what, change, needle) in misfits(&good, third) {
            let error = fault(&change(good.clone()), &model);
            println!("{what}: {error}");
            assert!(error.contains(&needle) && !error.contains('\n'), "{what}: {error:?} without {needle:?}");
        }
        // Frequency factors are read, and must be numbers to divide by.
        let factors = |x: f32| good.clone().tensor("rope_freqs.weight", &[8], 0, x.to_le_bytes().repeat(8));
        assert_eq!(fault(&factors(2.0), &model), "nothing");
        assert!(fault(&factors(0.0), &model).contains("tensor rope_freqs.weight holds 0.0"));
        let bytes = good.bytes();
        for n in (0..bytes.len()).step_by(bytes.len() / 100) {
            assert!(Gguf::from_bytes(bytes[..n].to_vec()).is_err());
        }
    }
}

#[test]
fn what_does_not_fit_is_refused_by_the_program() {
    let (model, w) = (target(), cli::tiny());
    let path = cli::save("strict", &w);
    let gguf = Gguf::from_bytes(w.bytes()).unwrap();
    let good = made_for(full(&model, false).file(), &gguf);
    let other = Gguf::from_bytes(tiny_llama(7, "F32").set("general.architecture", Value::Str("x".into())).bytes());
    assert!(other.is_ok());
    let table: [(&str, Writer, &str); 5] = [
        ("no target", full(&model, false).file(), "spec.target.architecture is missing"),
        (
            "another target",
            good.clone().set("spec.target.vocab_hash", Value::Str("00".into())),
            "the sidecar was made for another model",
        ),
        (
            "another feature",
            good.clone().set("spec.feature", Value::Str("residual_in".into())),
            "spec.feature is \"residual_in\"",
        ),
        ("a model", w.clone(), "the file is a model, not a sidecar"),
        (
            "other heads",
            good.clone().set("general.architecture", Value::Str("medusa".into())),
            "give it with --draft medusa:FILE",
        ),
    ];
    for (what, file, needle) in table {
        let file = cli::save("misfit", &file);
        let output = cli::run(&line(&path, &format!("eagle:{}", file.display()), &[]));
        cli::refused(&output, 1, &["--draft eagle:", needle], what);
    }
    let file = cli::save("alone", &good);
    cli::refused(&cli::run(&line(&file, "", &[])), 1, &["--draft eagle:FILE"], "a sidecar as a model");
}

fn line(model: &Path, draft: &str, more: &[&str]) -> Vec<String> {
    let text = format!("run -m {} -c 256 -n 24 -s 3 -q --raw --draft-max 9", model.display());
    let mut args: Vec<String> = text.split_whitespace().map(String::from).collect();
    args.extend(["-p", "in the other one of the"].map(String::from));
    args.extend(more.iter().map(|flag| flag.to_string()));
    if !draft.is_empty() {
        args.extend(["--draft".into(), draft.into()]);
    }
    args
}

#[test]
fn text_is_the_same_with_heads_and_from_a_cache() {
    let (model, w) = (target(), cli::tiny());
    let path = cli::save("fits", &w);
    let gguf = Gguf::from_bytes(w.bytes()).unwrap();
    let cache = scratch("eagle-cache").join("cache");
    // llama.cpp's says nothing of its target.
    let bare = |w: Writer| w.without("spec.feature").without("spec.draft_vocab_size");
    let files = [
        ("eagle", made_for(full(&model, false).file(), &gguf)),
        ("lent", made_for(Head::of(&model, false, 9).file(), &gguf)),
        ("eagle3", made_for(full(&model, true).file(), &gguf)),
        ("bare", bare(full(&model, true).file())),
    ];
    for (name, file) in files {
        let file = cli::save(name, &file);
        for settings in ["", ",branch=1,max=9", ",branch=3,max=2"] {
            for sampling in [&["--temp", "0"][..], &["--temp", "1.2"], &["--repeat-penalty", "1.4", "--temp", "0.7"]] {
                let draft = format!("eagle:{}{settings}", file.display());
                let plain = cli::answer(&line(&path, "", sampling));
                let stats = [sampling, &["--stats", "json"]].concat();
                let cached = [&stats[..], &["--prompt-cache", cache.to_str().unwrap()]].concat();
                let _ = std::fs::remove_file(&cache);
                let runs = [&stats, &cached, &cached].map(|flags| cli::run(&line(&path, &draft, flags)));
                for output in &runs {
                    assert_eq!(String::from_utf8_lossy(&output.stdout), plain, "{draft}: {}", cli::stderr(output));
                }
                let [first, second, third] = runs.map(|output| cli::stats(&output));
                assert!(first["draft"]["drafted"].as_u64().unwrap() > 20, "{draft}");
                for got in [&second, &third] {
                    for key in ["drafted", "accepted", "rejected", "tokens_per_round", "by_depth"] {
                        assert_eq!(got["draft"][key], first["draft"][key], "{draft}: {key}");
                    }
                }
                assert!(third["reused_tokens"].as_u64().unwrap() > 0);
            }
        }
        let mut args = line(&path, &format!("eagle:{}", file.display()), &[]);
        args.retain(|arg| arg != "-q");
        let said = cli::stderr(&cli::run(&args)).contains("does not say what model it was made for");
        assert_eq!(said, name == "bare", "{name}");
    }
}

#[test]
fn inspect_explains_them() {
    let model = target();
    let gguf = Gguf::from_bytes(cli::tiny().bytes()).unwrap();
    let w = made_for(full(&model, true).file(), &gguf);
    let out = cli::answer(&["inspect", cli::save("inspected", &w).to_str().unwrap()]);
    for part in [
        "sidecar     eagle3: drafts for a model with --draft eagle:FILE\n",
        "layer       width 64, 4 heads of 16 over 2, feed-forward 96, reads what enters layers 1 1 2\n",
        "tokens      embedding its own, output its own over 200 tokens\n",
    ] {
        assert!(out.contains(part), "no {part:?} in {out}");
    }
    let w = made_for(Head::of(&model, false, 1).file(), &gguf);
    let out = cli::answer(&["inspect", cli::save("inspected", &w).to_str().unwrap()]);
    assert!(
        out.contains("reads the target's last rows\ntokens      embedding the target's, output the target's\n"),
        "{out}"
    );
    let broken = cli::save("inspected-broken", &w.set("eagle.block_count", Value::U32(2)));
    let out = cli::answer(&["inspect", broken.to_str().unwrap()]);
    assert!(out.contains("runs        no: eagle.block_count is 2"), "{out}");
}

/// What rounds of a head cost beside a step of the target. Run on a quiet machine, with `--ignored --nocapture`.
#[test]
#[ignore = "a measurement"]
fn the_cost_of_a_row() {
    let Some(gguf) = models::open("SmolLM2-135M-Instruct.Q4_1.gguf") else { return };
    let model = load(&gguf, 2);
    let vocab = model.config().vocab;
    let prompt: Vec<Token> = (0..120).map(|i| 1000 + 37 * (i % 11)).collect();
    // Times of drafting and of passes, in microseconds: the middle and the lowest tenth.
    let measure = |head: Option<(bool, Growth, usize)>| {
        let mut session = Session::new(model.clone(), 512, KvType::F16).unwrap();
        if let Some((third, growth, nodes)) = head {
            let ids = Some((0..8192).map(|i| i * 5).collect());
            let sizes =
                Head { width: 576, heads: 9, kv_heads: 3, head_width: 64, ff: 1536, ..Head::of(&model, third, 3) };
            let file = Head { weights: "Q4_0", ids, ..sizes }.file().bytes();
            println!("a file of {:.1} MB", file.len() as f64 / 1e6);
            let drafter = common::eagles::open(file, &model, 512, KvType::F16, growth);
            session.set_drafters(vec![drafter], Plan { nodes: Nodes::Fixed(nodes), accept: Accept::Exact }).unwrap();
        }
        assert!(session.prefill(&prompt, |_| Continue(())).unwrap().is_continue());
        let params = SampleParams { temp: 0.0, ..SampleParams::default() };
        let mut sampler = Sampler::new(params, 1, vocab, |_| vec![]).unwrap();
        let times: Arc<Mutex<[Vec<f64>; 2]>> = Arc::default();
        let seen = times.clone();
        session.watch(Some(Box::new(move |round| {
            let [draft, pass] = &mut *seen.lock().unwrap();
            draft.push(1e6 * round.times.draft.as_secs_f64());
            pass.push(1e6 * round.times.verify.as_secs_f64());
        })));
        let limits = Limits { max_tokens: Some(150), ends: &[], begun: 0 };
        session.generate(&mut sampler, limits, || false, |_| Ok(Continue(()))).unwrap();
        let mut times = times.lock().unwrap().clone();
        times.each_mut().map(|times| {
            times.sort_by(f64::total_cmp);
            [times[times.len() / 2], times[times.len() / 10]]
        })
    };
    let [_, step] = measure(None);
    println!("a step of one row: {step:.0?} us");
    for third in [false, true] {
        for (branch, depth, nodes) in [(1, 1, 1), (4, 4, 20), (8, 4, 40), (10, 7, 59), (1, 8, 8)] {
            let [draft, pass] = measure(Some((third, Growth { branch, depth }, nodes)));
            let share = [0, 1].map(|i| 100.0 * draft[i] / step[i]);
            println!(
                "third {third}, branch {branch}, depth {depth}: {draft:.0?} us, {share:.1?} % of a step; pass {pass:.0?}"
            );
        }
    }
}
