//! Opens what most commands need: backend, model, tokenizer, context size.
//!
//! The tokenizer is built beside the packing of weights: each takes about half of the time until the first token.

use super::Usage;
use super::memory::{self, Need, size};
use super::place::Place;
use super::report::{Report, Unit};
use crate::backend::cpu::team;
use crate::backend::{Backend, Description, KvType};
use crate::cli::ModelArgs;
use crate::engine::Session;
use crate::gguf::Gguf;
use crate::isa::Isa;
use crate::model::{Config, Model};
use crate::text::{ChatTemplate, Tokenizer};
use anyhow::{Context, Result, bail, ensure};
use serde_json::{Map, Value};
use std::convert::identity;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// The context when none is asked for is the model's own, but no more than this: those for which caches are huge are
/// rarely wanted.
pub const DEFAULT_CONTEXT: usize = 4096;

/// A model, ready to run.
pub struct Opened<B: Backend> {
    /// The weights on their backend.
    pub model: Arc<Model<B>>,
    /// Positions of a session.
    pub context: usize,
    /// Type of its cache.
    pub kv: KvType,
    /// Size of the file or files.
    pub file_bytes: u64,
    /// Time it took.
    pub time: Duration,
    /// What the backend runs on.
    pub description: Description,
    /// Why that is no GPU, where one was looked for.
    pub why: Option<String>,
}

/// What a file says about text.
pub struct Language {
    /// Its tokenizer.
    pub tokenizer: Tokenizer,
    /// Its chat template, if it has one; an error if that is unfit, which matters only to those who need it.
    pub template: Result<Option<ChatTemplate>>,
    /// What the template is told in every prompt.
    pub variables: Map<String, Value>,
    /// Where notices go.
    pub report: Report,
    /// Whether was said what becomes of system messages.
    pub told: AtomicBool,
}

impl<B: Backend> Opened<B> {
    /// An empty session.
    pub fn session(&self) -> Result<Session<B>> {
        Session::new(self.model.clone(), self.context, self.kv)
    }

    /// The backend.
    pub fn backend(&self) -> &B {
        self.model.backend()
    }

    /// Bytes of memory that the backend may still take, where that is known.
    pub fn free(&self) -> Option<u64> {
        free(self.backend()).unwrap_or_default()
    }
}

/// Bytes that are free where `backend` works.
fn free(backend: &impl Backend) -> Result<Option<u64>> {
    Ok(backend.own_memory()?.or_else(memory::free))
}

impl Language {
    /// Reads it from a file's metadata.
    pub fn of(gguf: &Gguf, report: &Report) -> Result<Language> {
        let tokenizer = Tokenizer::from_gguf(gguf.meta())?;
        let template = ChatTemplate::from_gguf(gguf.meta());
        let template = template.map(|found| found.map(|template| template.for_tokenizer(&tokenizer)));
        let (variables, report, told) = (Map::new(), *report, AtomicBool::new(false));
        Ok(Language { tokenizer, template, variables, report, told })
    }
}

/// Opens the model that `args` name, without its tokenizer.
pub fn model<P: Place>(args: &ModelArgs, place: &P, report: &Report) -> Result<Opened<P::Backend>> {
    model_on(args, place, report, identity)
}

/// As [`model`], on what `wrap` makes of the backend.
pub fn model_on<P: Place, B: Backend>(
    args: &ModelArgs,
    place: &P,
    report: &Report,
    wrap: impl FnOnce(P::Backend) -> B,
) -> Result<Opened<B>> {
    let started = Instant::now();
    let gguf = Gguf::open(&args.model)?;
    let (model, context) = weights(args, &gguf, report, || place.open(args).map(wrap))?;
    Ok(opened(args, &gguf, model, context, started, place.why()))
}

/// Opens the model that `args` name, with its tokenizer and chat template.
pub fn all<P: Place>(args: &ModelArgs, place: &P, report: &Report) -> Result<(Opened<P::Backend>, Language)> {
    let started = Instant::now();
    let gguf = Gguf::open(&args.model)?;
    let (model, language) = std::thread::scope(|scope| {
        let language = scope.spawn(|| Language::of(&gguf, report));
        let model = weights(args, &gguf, report, || place.open(args));
        (model, language.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    });
    let (model, context) = model?;
    let name = || args.model.display().to_string();
    let language = language.with_context(name)?;
    let (tokens, rows) = (language.tokenizer.vocab_size(), model.config().vocab);
    ensure!(tokens == rows, "{}: the tokenizer has {tokens} tokens, the model {rows}", name());
    language.tokenizer.warnings().iter().for_each(|warning| report.warn(warning));
    Ok((opened(args, &gguf, model, context, started, place.why()), language))
}

fn opened<B: Backend>(
    args: &ModelArgs,
    gguf: &Gguf,
    model: Model<B>,
    context: usize,
    started: Instant,
    why: Option<&str>,
) -> Opened<B> {
    let (description, why) = (model.backend().describe(), why.map(str::to_owned));
    let (model, file_bytes) = (Arc::new(model), gguf.file_bytes());
    Opened { model, context, kv: args.kv_type, file_bytes, time: started.elapsed(), description, why }
}

/// The context that is used when `asked` for one and the model's own is `own`.
pub fn context_size(asked: Option<usize>, own: usize) -> usize {
    match asked {
        None => own.min(DEFAULT_CONTEXT),
        Some(0) => own,
        Some(n) => n,
    }
}

/// The instruction set asked for, if this CPU has it, or the best.
pub fn isa(asked: Option<Isa>) -> Result<Isa> {
    let isa = asked.unwrap_or_else(Isa::best);
    if !isa.is_available() {
        let here: Vec<_> = Isa::available().map(Isa::name).collect();
        bail!(Usage(format!("--isa {}: this CPU does not have it, it has: {}", isa.name(), here.join(" "))));
    }
    Ok(isa)
}

/// Threads of the CPU that may work.
pub fn threads(args: &ModelArgs) -> usize {
    args.threads.map_or_else(team::default_threads, usize::from)
}

/// Checks that all will fit, then packs the weights. Gives the context size too.
fn weights<B: Backend>(
    args: &ModelArgs,
    gguf: &Gguf,
    report: &Report,
    open: impl FnOnce() -> Result<B>,
) -> Result<(Model<B>, usize)> {
    let name = || args.model.display().to_string();
    let config = Config::read(gguf).with_context(name)?;
    let context = context_size(args.ctx_size, config.context);
    config.check_session(context, args.kv_type)?;
    let backend = open()?;
    let need = Need::of(gguf, &config, context, args.kv_type, |tensor| backend.packed_bytes(tensor));
    let description = backend.describe();
    let place = description.name.map_or(String::new(), |_| format!(" on {}", description.device));
    need.check(context, free(&backend)?, &place)?;
    if context > config.context {
        report.warn(format_args!("a context of {context} is more than the {} of the model", config.context));
    }
    report.detail(1, format_args!("context {context}, KV cache {}, weights {}", size(need.kv), size(need.weights)));

    let bar = report.bar("loading", gguf.file_bytes(), Unit::Bytes);
    let model = Model::load(Arc::new(backend), gguf, &mut |done, total| {
        bar.set_length(total);
        bar.set_position(done);
    });
    bar.finish_and_clear();
    let model = model.with_context(name)?;
    model.warnings().iter().for_each(|warning| report.warn(warning));
    Ok((model, context))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contexts_are_modest_unless_asked_for() {
        for (asked, own, want) in [
            (None, 131_072, 4096),
            (None, 512, 512),
            (Some(0), 131_072, 131_072),
            (Some(7), 512, 7),
            (Some(1000), 512, 1000),
        ] {
            assert_eq!(context_size(asked, own), want);
        }
    }

    #[test]
    fn only_instruction_sets_of_this_cpu_are_taken() {
        for set in Isa::ALL {
            match isa(Some(set)) {
                Ok(found) => assert!(found == set && set.is_available()),
                Err(error) => assert!(error.is::<Usage>() && !set.is_available()),
            }
        }
        assert_eq!(isa(None).unwrap(), Isa::best());
    }
}
