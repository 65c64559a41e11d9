//! What `bench` takes.

use super::draft::{draft_max, one_line};
use super::{Draft, DraftArgs, ModelArgs, SamplingArgs, TemplateArgs, at_least_minus_one};
use crate::spec::{Accept, Choice, Nodes};
use anyhow::{Context, Result, ensure};
use clap::builder::TypedValueParser;
use clap::{Arg, Args, ValueEnum};
use std::ffi::OsStr;
use std::path::PathBuf;

/// `bench`.
#[derive(Args, Debug, Clone)]
#[command(mut_arg("temp", |arg| arg.help("Temperature; 0 takes the most likely token [default: 0]")))]
#[command(mut_args(|arg| match arg.get_help_heading() {
    Some("Sampling" | "Drafting" | "Chat template") => arg.requires("prompts"),
    _ => arg,
}))]
pub struct BenchArgs {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub model: ModelArgs,
    /// Prompt lengths to evaluate
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "512", conflicts_with = "prompts")]
    pub prefill: Vec<usize>,
    /// Tokens to decode, one by one [default: 128, 32 at depths over 1024]
    #[arg(long, value_name = "N", conflicts_with = "prompts")]
    pub decode: Option<usize>,
    /// Context depths to decode at [default: those of 0,512,4096 that fit]
    #[arg(long, value_name = "N,...", value_delimiter = ',', conflicts_with = "prompts")]
    pub depth: Option<Vec<usize>>,
    /// Batch widths to time
    #[arg(
        long,
        value_name = "N,...",
        value_delimiter = ',',
        default_value = "1,2,3,4,6,8,12,16,24,32,48,64",
        conflicts_with = "prompts"
    )]
    pub widths: Vec<usize>,
    /// Repetitions, with --against rounds; the median counts [default: 3, with --prompts 1]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub repetitions: Option<u16>,
    /// Milliseconds to measure each rate of the machine for [default: 80]
    #[arg(long, value_name = "MS", conflicts_with = "prompts", value_parser = clap::value_parser!(u16).range(1..=10_000))]
    pub rate_time: Option<u16>,
    /// Also profile steps over so many rows, op by op [default: 1,8]
    #[arg(
        long,
        value_name = "N,...",
        value_delimiter = ',',
        num_args = 0..=1,
        default_missing_values = ["1", "8"],
        conflicts_with_all = ["prompts", "against"]
    )]
    pub profile: Vec<usize>,
    /// Measure in turns with another binary: its path, or a command of the shell that prints the JSON of foretoken bench or
    /// of llama-bench
    #[arg(long, value_name = "CMD", conflicts_with = "prompts")]
    pub against: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    /// Answer the prompts of this file, plainly and with each set of drafters
    #[arg(long, value_name = "FILE", help_heading = "Prompts")]
    pub prompts: Option<PathBuf>,
    /// Take so many prompts of each row of the table, spread evenly over the file
    #[arg(long, value_name = "N", requires = "prompts", value_parser = clap::value_parser!(u32).range(1..), help_heading = "Prompts")]
    pub limit: Option<u32>,
    /// Tokens to generate at most, each turn; -1 until the model ends or the context is full
    #[arg(short = 'n', long, value_name = "N", default_value_t = 256, requires = "prompts", allow_negative_numbers = true, value_parser = at_least_minus_one(), help_heading = "Prompts")]
    pub n_predict: i64,
    /// Write a page with plots and the trees of all rounds
    #[arg(long, value_name = "FILE.html", requires = "prompts", help_heading = "Prompts")]
    pub report: Option<PathBuf>,
    /// One more set of drafters, joined by "+", with "draft-max=..." and "accept=..." of its own if need be; "none" is plain
    /// decoding again (repeatable)
    #[arg(long, value_name = "KIND[...]+...", requires = "prompts", value_parser = DraftSetParser, help_heading = "Prompts")]
    pub draft_set: Vec<DraftSet>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub draft: DraftArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub template: TemplateArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub sampling: SamplingArgs,
}

/// A set of drafters, `none` if empty.
#[derive(Clone, Debug, Default)]
pub struct DraftSet {
    /// The drafters.
    pub drafters: Vec<Choice>,
    /// Guesses a round, when the set says.
    pub draft_max: Option<Nodes>,
    /// The rule of acceptance, when the set says.
    pub accept: Option<Accept>,
}

impl DraftSet {
    /// Reads drafters joined by `+`.
    pub fn parse(text: &str) -> Result<Self> {
        let (mut set, mut none) = (Self::default(), false);
        for part in text.split('+') {
            match part.split_once('=') {
                Some(("draft-max", nodes)) => set.draft_max = Some(draft_max(nodes).context("draft-max")?),
                Some(("accept", rule)) => {
                    let rules = "exact, rejection, typical";
                    let found = Accept::from_str(rule, false).ok();
                    set.accept = Some(found.with_context(|| format!("accept: found '{rule}', supported {rules}"))?);
                }
                _ if part == "none" => none = true,
                _ => set.drafters.push(Choice::parse(part)?),
            }
        }
        ensure!(!none || set.drafters.is_empty(), "found none beside another drafter, supported alone");
        ensure!(none || !set.drafters.is_empty(), "found no drafter in '{text}'");
        Ok(set)
    }

    /// As if `args` had asked for it.
    pub fn over(&self, args: &DraftArgs) -> DraftArgs {
        let mut args = args.clone();
        args.draft = self.drafters.iter().map(|choice| Draft(Some(choice.clone()))).collect();
        args.draft_max = self.draft_max.unwrap_or(args.draft_max);
        args.accept = self.accept.unwrap_or(args.accept);
        args
    }

    /// What it is called in tables: options that are not the default ones, and files without their folders.
    pub fn name(&self) -> String {
        let drafters = self.drafters.iter().map(short);
        let nodes = self.draft_max.map(|nodes| match nodes {
            Nodes::Fixed(n) => format!("draft-max={n}"),
            Nodes::Auto(n) => format!("draft-max=auto:{n}"),
        });
        let accept = self.accept.map(|rule| format!("accept={}", rule.name()));
        let name: Vec<String> = drafters.chain(nodes).chain(accept).collect();
        if self.drafters.is_empty() { "none".into() } else { name.join("+") }
    }
}

fn short(choice: &Choice) -> String {
    let mut head = choice.kind().name.to_owned();
    let path = choice.path();
    let default = match path.file_name() {
        None => Choice::parse(&head),
        Some(_) => Choice::parse(&format!("{head}:{}", path.display())),
    };
    let default = default.map_or(String::new(), |choice| choice.to_string());
    if let Some(file) = path.file_name() {
        head = format!("{head}:{}", file.to_string_lossy());
    }
    let own = choice.to_string();
    let options = own.split(',').skip(1).filter(|&option| default.split(',').all(|usual| usual != option));
    [head.as_str()].into_iter().chain(options).collect::<Vec<_>>().join(",")
}

#[derive(Clone)]
struct DraftSetParser;

impl TypedValueParser for DraftSetParser {
    type Value = DraftSet;

    fn parse_ref(&self, _: &clap::Command, _: Option<&Arg>, value: &OsStr) -> Result<DraftSet, clap::Error> {
        DraftSet::parse(&value.to_string_lossy()).map_err(|e| one_line("--draft-set", &e))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_are_read_and_named() {
        for (text, name, most) in [
            ("lookup", "lookup", None),
            ("lookup,min=1,width=4", "lookup,width=4", None),
            ("lookup,max=5+lookup,min=2", "lookup,max=5+lookup,min=2", None),
            ("draft-max=4+lookup", "lookup+draft-max=4", Some(Nodes::Fixed(4))),
            ("lookup+draft-max=auto:9+accept=typical", "lookup+draft-max=auto:9+accept=typical", Some(Nodes::Auto(9))),
            ("model:/a/b.gguf,branch=2+lookup", "model:b.gguf,branch=2+lookup", None),
            ("none", "none", None),
        ] {
            let set = DraftSet::parse(text).unwrap();
            assert_eq!((set.name().as_str(), set.draft_max), (name, most), "{text}");
        }
        for (text, parts) in [
            ("", &["kind ''"][..]),
            ("lookup+", &["kind ''"]),
            ("lookup+none", &["none beside"]),
            ("draft-max=4", &["no drafter"]),
            ("lookup+draft-max=0", &["draft-max", "'0'"]),
            ("lookup,min=0", &["lookup: min", "'0'"]),
            ("lookup+accept=all", &["accept", "'all'", "typical"]),
            ("nonsense+lookup", &["'nonsense'", "lookup"]),
        ] {
            let error = format!("{:#}", DraftSet::parse(text).unwrap_err());
            parts.iter().for_each(|part| assert!(error.contains(part), "{text}: {error}"));
        }
    }
}
