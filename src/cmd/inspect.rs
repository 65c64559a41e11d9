//! `inspect`: what is in a model file, what runs it and what that takes.
//!
//! A file that cannot be run (an unknown architecture, a format or tokenizer that is not supported, a vocabulary alone) is
//! shown all the same, with a line that says why not. Only a file that cannot be read is an error.

use super::load::context_size;
use super::memory::{Need, size};
use super::report::one_line;
use crate::backend::cpu::Kv;
use crate::backend::{KvShape, KvType};
use crate::cli::InspectArgs;
use crate::gguf::{Gguf, Metadata, TensorView};
use crate::isa::Isa;
use crate::model::Config;
use crate::model::tensors::{self, Fused, Shape};
use crate::quant::{self, Format, ROWS};
use crate::spec::describe::describe;
use crate::spec::sidecar::{Architecture, Sidecar};
use crate::text::{ChatTemplate, Tokenizer};
use anyhow::Result;
use clap::ValueEnum;
use std::collections::{BTreeMap, HashMap};
use std::io::{self, Write};

/// Runs the command.
pub fn run(args: &InspectArgs) -> Result<()> {
    let gguf = Gguf::open(&args.file)?;
    let isa = args.isa.unwrap_or_else(Isa::best);
    let mut out = io::BufWriter::new(io::stdout().lock());
    Inspection::of(&gguf, args).print(&mut out, args.verbose, isa)?;
    out.flush()?;
    Ok(())
}

/// A file and what could be made of it.
struct Inspection<'a> {
    gguf: &'a Gguf,
    config: Option<Config>,
    /// Tensors that the model uses, when it is known what model it is.
    used: HashMap<String, Shape>,
    /// Context and type of a cache that the model can have.
    session: Option<(usize, KvType)>,
    tokenizer: Option<Tokenizer>,
    /// What it is, if it drafts for another model.
    sidecar: Option<Vec<(&'static str, String)>>,
    /// Why it does not run.
    problems: Vec<String>,
    /// What is odd but harmless.
    warnings: Vec<String>,
}

impl<'a> Inspection<'a> {
    fn of(gguf: &'a Gguf, args: &InspectArgs) -> Self {
        let mut it = Self {
            gguf,
            config: None,
            used: HashMap::new(),
            session: None,
            tokenizer: None,
            sidecar: None,
            problems: vec![],
            warnings: vec![],
        };
        if let Ok(sidecar) = Sidecar::open(gguf.path(), &Architecture::ALL) {
            it.sidecar = Some(describe(&sidecar).unwrap_or_else(|error| {
                it.problems.push(one_line(&format!("{error:#}")));
                vec![]
            }));
            return it;
        }
        match Config::read(gguf) {
            Ok(config) => {
                match tensors::check(gguf, &config) {
                    Ok(unused) => it.warnings.extend(unused),
                    Err(e) => it.problems.push(one_line(&format!("{e:#}"))),
                }
                let context = context_size(args.ctx_size, config.context);
                // The cache has a say on head widths; one slot takes next to no memory.
                let cache = |()| Kv::new(KvShape { slots: 1, ..config.kv_shape(context, args.kv_type) });
                match config.check_session(context, args.kv_type).and_then(cache) {
                    Ok(_) => it.session = Some((context, args.kv_type)),
                    Err(e) => it.problems.push(one_line(&format!("{e:#}"))),
                }
                it.used = used(gguf, &config);
                it.config = Some(config);
            }
            Err(e) => it.problems.push(one_line(&format!("{e:#}"))),
        }
        match Tokenizer::from_gguf(gguf.meta()) {
            Ok(tokenizer) => {
                it.warnings.extend(tokenizer.warnings().iter().cloned());
                it.tokenizer = Some(tokenizer);
            }
            Err(e) => it.problems.push(one_line(&format!("{e:#}"))),
        }
        it
    }

    fn print(&self, out: &mut impl Write, verbose: bool, isa: Isa) -> io::Result<()> {
        self.print_summary(out)?;
        writeln!(out, "\nmetadata")?;
        let keys: Vec<(&str, String)> = self.gguf.meta().iter().collect();
        let width = keys.iter().map(|(key, _)| key.len()).max().unwrap_or(0).min(48);
        for (key, short) in keys {
            let value = if verbose { in_full(self.gguf.meta(), key).unwrap_or(short) } else { short };
            writeln!(out, "  {:width$}  {value}", key.escape_debug().to_string())?;
        }
        if self.gguf.tensor_count() > 0 {
            self.print_tensors(out, isa)?;
            self.print_formats(out)?;
        }
        match (&self.config, self.session) {
            (Some(config), Some((context, kv_type))) => self.print_memory(out, config, context, kv_type),
            _ => Ok(()),
        }
    }

    fn print_summary(&self, out: &mut impl Write) -> io::Result<()> {
        let g = self.gguf;
        writeln!(out, "file        {}", one_line(&g.path().display().to_string()))?;
        let (version, tensors, keys) = (g.version(), g.tensor_count(), g.meta().len());
        writeln!(out, "gguf        version {version}, {}, {tensors} tensors, {keys} keys", size(g.file_bytes()))?;
        if g.shard_count() > 1 {
            writeln!(out, "shards      {}: {}", g.shard_count(), one_line(&shard_names(g).join(" ")))?;
        }
        match self.problems.as_slice() {
            [] if self.sidecar.is_some() => {}
            [] => writeln!(out, "runs        yes")?,
            problems => problems.iter().try_for_each(|p| writeln!(out, "runs        no: {p}"))?,
        }
        for warning in &self.warnings {
            writeln!(out, "warning     {}", one_line(warning))?;
        }
        if let Some(lines) = &self.sidecar {
            return lines.iter().try_for_each(|(word, line)| writeln!(out, "{word:11} {line}"));
        }
        match &self.config {
            Some(c) => {
                let (name, heads, kv) = (c.arch.name, c.heads, c.kv_heads);
                let window = c.window.map(|w| format!(", window {w}")).unwrap_or_default();
                writeln!(
                    out,
                    "model       {name}: {} layers, width {}, {heads} heads on {kv} KV heads of {}, feed-forward {}, vocabulary {}, context {}{window}",
                    c.layers, c.width, c.head_width, c.ffn_width, c.vocab, c.context,
                )?;
            }
            None => {
                let name = g.meta().str("general.architecture").ok().flatten().unwrap_or("of an unknown architecture");
                writeln!(out, "model       {}", name.escape_debug())?;
            }
        }
        if let Some(t) = &self.tokenizer {
            let text = |key: &str| g.meta().str(key).ok().flatten().unwrap_or("none").escape_debug().to_string();
            let (model, pre) = (text("tokenizer.ggml.model"), text("tokenizer.ggml.pre"));
            let bos = match t.bos() {
                Some(id) if t.add_bos() => format!("BOS {id} (put in front)"),
                Some(id) => format!("BOS {id} (not put in front)"),
                None => "no BOS".into(),
            };
            let ends: Vec<String> = t.end_tokens().iter().map(u32::to_string).collect();
            let (n, ends) = (t.vocab_size(), ends.join(" "));
            writeln!(out, "tokenizer   {model}, words {pre}: {n} tokens, {bos}, ends {ends}")?;
        }
        match ChatTemplate::from_gguf(g.meta()) {
            Ok(Some(_)) => writeln!(out, "template    yes"),
            Ok(None) => writeln!(out, "template    none"),
            Err(e) => writeln!(out, "template    not usable: {}", one_line(&format!("{e:#}"))),
        }
    }

    fn print_tensors(&self, out: &mut impl Write, isa: Isa) -> io::Result<()> {
        let name = |t: &TensorView<'_>| t.name.escape_debug().to_string();
        let width = self.gguf.tensors().map(|t| name(&t).len()).max().unwrap_or(0).max(4);
        writeln!(out, "\n  {:width$}  {:8} {:>16} {:>12}  kernel", "tensor", "format", "shape", "bytes")?;
        for t in self.gguf.tensors() {
            let dims: Vec<String> = t.dims.iter().map(u64::to_string).collect();
            let (ty, shape, kernel) = (t.type_name(), dims.join(" x "), self.kernel(&t, isa));
            writeln!(out, "  {:width$}  {ty:8} {shape:>16} {:>12}  {kernel}", name(&t), t.bytes.len())?;
        }
        Ok(())
    }

    /// What works on a tensor.
    fn kernel(&self, t: &TensorView<'_>, isa: Isa) -> String {
        if self.are_ids(t) {
            return "ids of the target".into();
        }
        let Some(format) = quant::format(t.ggml_type) else { return "not supported".into() };
        let product = || {
            let input = if format.int8 { "int8" } else { "f32" };
            format!("{} x {input}, {}", format.name.to_lowercase(), isa.name())
        };
        let shape = self.used.get(t.name);
        match shape {
            None if self.config.is_some() => "not used".into(),
            Some(Shape::Vector(_)) => "widened to f32".into(),
            None if t.dims.len() == 1 => "widened to f32".into(),
            _ if t.name == EMBEDDING && self.is_tied() => format!("look-up; head {}", product()),
            _ if t.name == EMBEDDING => "look-up".into(),
            _ => product(),
        }
    }

    /// Whether a tensor says which tokens a sidecar's head is about.
    fn are_ids(&self, t: &TensorView<'_>) -> bool {
        self.sidecar.is_some() && t.name == "d2t"
    }

    /// Whether the embedding is the head too.
    fn is_tied(&self) -> bool {
        self.gguf.tensor("output.weight").is_none()
    }

    fn print_formats(&self, out: &mut impl Write) -> io::Result<()> {
        let mut totals: BTreeMap<u32, [u64; 3]> = BTreeMap::new();
        for t in self.gguf.tensors() {
            let [tensors, bytes, weights] = totals.entry(t.ggml_type).or_default();
            *tensors += 1;
            *bytes += t.bytes.len() as u64;
            *weights += t.dims.iter().product::<u64>();
        }
        writeln!(out, "\n  {:8} {:>8} {:>16} {:>14} {:>12}", "format", "tensors", "weights", "bytes", "bits/weight")?;
        let mut row = |name: &str, [tensors, bytes, weights]: [u64; 3], note: &str| {
            let bits = bytes as f64 * 8.0 / weights as f64;
            writeln!(out, "  {name:8} {tensors:>8} {weights:>16} {bytes:>14} {bits:>12.2}{note}")
        };
        let ids = self.gguf.tensors().filter(|t| self.are_ids(t)).map(|t| t.ggml_type).next();
        for (&id, &total) in &totals {
            let note = if quant::format(id).is_some() || ids == Some(id) { "" } else { "  not supported" };
            row(&crate::gguf::type_name(id), total, note)?;
        }
        let all = totals.values().fold([0; 3], |a, b| std::array::from_fn(|i| a[i] + b[i]));
        row("all", all, "")
    }

    fn print_memory(&self, out: &mut impl Write, c: &Config, context: usize, kv_type: KvType) -> io::Result<()> {
        let need = Need { weights: self.packed_bytes(), ..Need::of(self.gguf, c, context, kv_type, |_| 0) };
        let kv = kv_type.to_possible_value();
        let cache = format!("KV cache, {}", kv.as_ref().map_or("", |v| v.get_name()));
        writeln!(out, "\nmemory at -c {context}")?;
        let rows = [
            ("weights, packed", need.weights),
            (cache.as_str(), need.kv),
            ("activations", need.activations),
            ("all", need.total()),
        ];
        rows.iter().try_for_each(|&(name, bytes)| writeln!(out, "  {name:16} {:>10}", size(bytes)))
    }

    /// Memory that the weights take once they are loaded: what is multiplied with is packed in panels; what is only looked
    /// up stays in the file's map.
    fn packed_bytes(&self) -> u64 {
        let panels = |t: &TensorView<'_>, format: &Format| {
            (t.rows().div_ceil(ROWS) as u64).saturating_mul((format.panel_bytes)(t.cols()) as u64)
        };
        let bytes = |t: TensorView<'_>| {
            let (Some(format), Some(shape)) = (quant::format(t.ggml_type), self.used.get(t.name)) else { return 0 };
            match shape {
                Shape::Vector(n) => 4 * *n as u64,
                Shape::Matrix(..) if t.name != EMBEDDING || self.is_tied() => panels(&t, format),
                Shape::Matrix(..) => 0,
            }
        };
        self.gguf.tensors().map(bytes).sum()
    }
}

/// The tensor that tokens are looked up in.
const EMBEDDING: &str = "token_embd.weight";

/// Tensors of the file that its architecture uses, by name.
fn used(gguf: &Gguf, c: &Config) -> HashMap<String, Shape> {
    let global = tensors::global_rows(c).into_iter().map(|(name, shape, _)| (name.to_string(), shape));
    let rows = tensors::layer_rows(c, Fused::of(gguf, c));
    let layers =
        (0..c.layers).flat_map(|i| rows.iter().map(move |(name, shape, _)| (format!("blk.{i}.{name}"), *shape)));
    global.chain(layers).filter(|(name, _)| gguf.tensor(name).is_some()).collect()
}

/// Names of all files of a split model, which are numbered alike: `NAME-00002-of-00003.gguf`.
fn shard_names(gguf: &Gguf) -> Vec<String> {
    let name = gguf.path().file_name().unwrap_or_default().to_string_lossy();
    let count = gguf.shard_count();
    let stem = &name[..name.len().saturating_sub("-00002-of-00003.gguf".len())];
    (1..=count).map(|i| format!("{stem}-{i:05}-of-{count:05}.gguf")).collect()
}

/// A string or array in full, still on one line and quoted; `None` for numbers, which are never shortened, and for arrays of arrays.
fn in_full(meta: &Metadata, key: &str) -> Option<String> {
    if let Ok(Some(text)) = meta.str(key) {
        return Some(format!("{text:?}"));
    }
    if let Ok(Some(all)) = meta.strings(key) {
        return Some(format!("{:?}", all.collect::<Vec<_>>()));
    }
    if let Ok(Some(all)) = meta.ints(key) {
        return Some(format!("{all:?}"));
    }
    meta.floats(key).ok().flatten().map(|all| format!("{all:?}"))
}
