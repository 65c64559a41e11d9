//! `bench --prompts`: what drafting gains on texts, and that it does not change them.
//!
//! Every prompt is played plainly and with each set of drafters, in turns, the first of which is another one each time.
//! Of several repetitions the one of median decoding time counts, with all that was counted in it. Texts are compared
//! with the plain one by token ids and by how they end: under a rule that promises them to be equal, one that differs is
//! an error that names prompt and set.

mod figures;
mod page;
mod play;
mod prompts;
mod table;

use super::load::{self, Language, Opened};
use super::memory::size;
use super::place::{self, OnPlace, Place};
use super::report::{Report, Unit};
use super::{Interrupted, draft, interrupt::Interrupt, print, sampling, template};
use crate::backend::Backend;
use crate::cli::{BenchArgs, DraftSet};
use crate::sample::{SampleParams, derive_seed};
use crate::spec::Accept;
use crate::text::Message;
use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;
use figures::{Ledger, SetInfo, Setting};
use play::{Contender, Run};
use prompts::Prompt;
use std::fs::File;
use std::io::Write;
use std::path::Path;

/// What plain decoding is called.
const PLAIN: &str = "plain";

/// Characters of a set's name in tables.
const LONGEST_NAME: usize = 40;

/// Tokens of the answers that nobody counts, which warm everything up.
const WARM: usize = 4;

/// Runs the command on the prompts of `file`.
pub fn run(args: &BenchArgs, file: &Path) -> Result<()> {
    place::choose(&args.model, &Report::default(), Prompts { args, file })
}

struct Prompts<'a> {
    args: &'a BenchArgs,
    file: &'a Path,
}

impl OnPlace for Prompts<'_> {
    fn run(self, place: &impl Place) -> Result<()> {
        play(self.args, self.file, place)
    }
}

fn play(args: &BenchArgs, file: &Path, place: &impl Place) -> Result<()> {
    let report = Report::default();
    let interrupt = Interrupt::install()?;
    let mut asked = args.sampling.clone();
    asked.temp = asked.temp.or(Some(0.0));
    let params = sampling::params(&asked)?;
    let template = template::choice(&args.template)?;
    let sets = sets(args)?;
    let mut chosen = prompts::read(file)?;
    if let Some(limit) = args.limit {
        chosen = prompts::limit(chosen, limit as usize);
    }
    let page = args.report.as_ref().map(|path| -> Result<_> {
        let name = format!("--report: {}", path.display());
        Ok((File::create(path).with_context(|| name.clone())?, name))
    });
    let page = page.transpose()?;

    let (opened, mut language) = load::all(&args.model, place, &report)?;
    template.install(&mut language);
    let seed = sampling::seed(&args.sampling);
    sampling::sampler(params.clone(), seed, &language.tokenizer)?;
    let contenders = contenders(args, &sets, &opened, &language, &report)?;
    if matches!(language.template, Ok(None)) {
        report.note("the model has no chat template: it continues the prompts");
    }
    let all = chosen.len();
    let chosen = fitting(chosen, &language, opened.context, &report)?;
    let greedy = params.temp == 0.0;
    let ledger = Ledger::new(prompts::rows(&chosen), contenders.len());
    let max_tokens = usize::try_from(args.n_predict).ok();
    let mut trial = Trial { contenders, language, params, seed, max_tokens, interrupt, ledger, differing: vec![] };
    trial.differing = vec![0; trial.contenders.len()];
    let repetitions = args.repetitions.unwrap_or(1).into();
    let finished = trial.play(&chosen, repetitions, greedy, file, &report)?;

    let setting = Setting {
        model: args.model.model.display().to_string(),
        device: opened.description.device.clone(),
        isa: opened.description.isa.clone(),
        threads: opened.description.threads,
        place: opened.description.to_string(),
        context: opened.context,
        kv_type: opened.kv.to_possible_value().map(|v| v.get_name().to_owned()).unwrap_or_default(),
        file: file.display().to_string(),
        prompts: trial.ledger.prompts(),
        left_out: all - chosen.len(),
        temperature: trial.params.temp,
        seed,
        n_predict: args.n_predict,
        repetitions,
    };
    let infos = trial.contenders.iter().zip(&trial.differing);
    let infos = infos.map(|(contender, &differing)| SetInfo::of(contender, differing, greedy)).collect();
    let summary = trial.ledger.summary(setting, infos);
    print(&summary, args.json, |out| table::print(&summary, out))?;
    if let Some((mut file, name)) = page {
        let html = page::html(&summary, trial.ledger.traces(), &trial.language.tokenizer)?;
        file.write_all(html.as_bytes()).context(name)?;
    }
    if finished { Ok(()) } else { bail!(Interrupted) }
}

/// The sets asked for: that of `--draft`, if any, then the others.
fn sets(args: &BenchArgs) -> Result<Vec<DraftSet>> {
    let drafters = draft::choices(&args.draft)?;
    let first = (!drafters.is_empty()).then_some(DraftSet { drafters, ..DraftSet::default() });
    Ok(first.into_iter().chain(args.draft_set.iter().cloned()).collect())
}

/// Plain decoding, then one contender a set.
fn contenders<B: Backend>(
    args: &BenchArgs,
    sets: &[DraftSet],
    opened: &Opened<B>,
    language: &Language,
    report: &Report,
) -> Result<Vec<Contender<B>>> {
    let more = sets.len() as u64 * opened.model.config().kv_shape(opened.context, opened.kv).bytes() as u64;
    if let Some(free) = opened.free() {
        let n = sets.len() + 1;
        ensure!(
            more <= free,
            "{n} sessions need {} of KV cache beyond the first one's, {} are free: a smaller -c needs less",
            size(more),
            size(free)
        );
    }
    let plain = DraftSet::default();
    let contender = |(i, set): (usize, &DraftSet)| {
        let mut session = opened.session()?;
        let args = set.over(&args.draft);
        let setup = draft::install(&args, &set.drafters, opened, language, report, &mut session)?;
        let name = if i == 0 { PLAIN.into() } else { label(sets, i - 1) };
        Ok(Contender::new(name, setup, session))
    };
    [&plain].into_iter().chain(sets).enumerate().map(contender).collect()
}

/// What a set is called in tables: all that is special about it, or only its kinds of drafters where that is too long.
fn label(sets: &[DraftSet], i: usize) -> String {
    let name = sets[i].name();
    if name.chars().count() <= LONGEST_NAME {
        return name;
    }
    let kinds = |set: &DraftSet| set.drafters.iter().map(|choice| choice.kind().name).collect::<Vec<_>>().join("+");
    let own = kinds(&sets[i]);
    let unique = sets.iter().filter(|set| kinds(set) == own).count() == 1;
    if unique { own } else { format!("{own} ({})", i + 1) }
}

/// The prompts whose first turn leaves room for an answer.
fn fitting(all: Vec<Prompt>, language: &Language, context: usize, report: &Report) -> Result<Vec<Prompt>> {
    let mut fitting = vec![];
    for prompt in all {
        let messages = [Message::new("user", &prompt.turns[0])];
        let tokens = play::tokens(language, &messages).with_context(|| format!("prompt {}", prompt.id))?.len();
        match tokens < context {
            true => fitting.push(prompt),
            false => report.warn(format_args!(
                "prompt {} (line {}) is left out: its {tokens} tokens leave no room in the context of {context}",
                prompt.id, prompt.line
            )),
        }
    }
    ensure!(!fitting.is_empty(), "no prompt fits the context of {context}: a larger -c is needed");
    Ok(fitting)
}

/// All that is needed to play prompts, and what came of it.
struct Trial<B: Backend> {
    contenders: Vec<Contender<B>>,
    language: Language,
    params: SampleParams,
    seed: u64,
    max_tokens: Option<usize>,
    interrupt: Interrupt,
    ledger: Ledger,
    /// For each contender the prompts whose text was not the plain one.
    differing: Vec<usize>,
}

impl<B: Backend> Trial<B> {
    /// Plays all prompts; whether it came to the end.
    fn play(
        &mut self,
        prompts: &[Prompt],
        repetitions: usize,
        greedy: bool,
        file: &Path,
        report: &Report,
    ) -> Result<bool> {
        self.interrupt.watch();
        let n = self.contenders.len();
        for c in 0..n {
            if self.one(c, &prompts[0], Some(WARM))?.is_none() {
                bail!(Interrupted);
            }
        }
        let bar = report.bar("playing", prompts.len() as u64, Unit::Prompts);
        for (i, prompt) in prompts.iter().enumerate() {
            let context = || format!("prompt {} ({}: line {})", prompt.id, file.display(), prompt.line);
            let mut runs: Vec<Vec<Run>> = self.contenders.iter().map(|_| vec![]).collect();
            for c in (0..repetitions).flat_map(|r| (0..n).map(move |k| (k + i + r) % n)) {
                match self.one(c, prompt, self.max_tokens).with_context(context)? {
                    Some(run) => runs[c].push(run),
                    None if i == 0 => bail!(Interrupted),
                    None => return Ok(false),
                }
            }
            for (c, contender) in self.contenders.iter().enumerate() {
                let Some(difference) = runs[c].iter().find_map(|run| run.difference(&runs[0][0])) else { continue };
                if greedy || contender.setup.as_ref().is_none_or(|setup| setup.accept == Accept::Exact) {
                    let name = &contender.name;
                    return Err(anyhow::anyhow!("set {name}: the text is another one: {difference}"))
                        .with_context(context);
                }
                self.differing[c] += 1;
            }
            self.ledger.add(prompt, runs.into_iter().map(median).collect());
            bar.inc(1);
        }
        bar.finish_and_clear();
        Ok(true)
    }

    fn one(&mut self, c: usize, prompt: &Prompt, max_tokens: Option<usize>) -> Result<Option<Run>> {
        let seed = derive_seed(self.seed, prompt.line as u64);
        let mut sampler = sampling::sampler(self.params.clone(), seed, &self.language.tokenizer)?;
        let interrupted = || self.interrupt.asked();
        self.contenders[c].play(&self.language, &prompt.turns, &mut sampler, max_tokens, interrupted)
    }
}

/// The run of median time; of an even number the faster of the middle two.
fn median(mut runs: Vec<Run>) -> Run {
    runs.sort_by_key(Run::time);
    let middle = (runs.len() - 1) / 2;
    runs.swap_remove(middle)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_short_and_different() {
        let long = "model:/far/away/a-model-with-a-long-name.Q4_K_M.gguf,branch=2";
        let sets = ["lookup,width=4", long, &format!("lookup+{long}"), &format!("{long}+draft-max=3")];
        let sets: Vec<DraftSet> = sets.iter().map(|set| DraftSet::parse(set).unwrap()).collect();
        let names: Vec<String> = (0..sets.len()).map(|i| label(&sets, i)).collect();
        assert_eq!(names, ["lookup,width=4", "model (2)", "lookup+model", "model (4)"]);
    }
}
