//! `bench --against`: this binary and another in turns.
//!
//! Machines drift by more than what is to be told apart, so each round runs this binary and then the other, both as
//! processes of their own that load and warm up alike, and the ratio that counts is the median of the rounds' own ratios.

use super::{REPETITIONS, median};
use crate::backend::Device;
use crate::cli::{BenchArgs, ModelArgs};
use crate::cmd::print;
use crate::cmd::report::{Report, Unit, one_line};
use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;
use serde::Serialize;
use serde_json::Value;
use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::path::Path;
use std::process::{Command, Stdio};

/// What is compared, and in what unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Prefill(u64),
    Decode(u64),
    Width(u64),
}

impl What {
    fn name(self) -> String {
        match self {
            What::Prefill(n) => format!("prefill {n}"),
            What::Decode(n) => format!("decode at {n}"),
            What::Width(1) => "1 row".into(),
            What::Width(n) => format!("{n} rows"),
        }
    }

    fn unit(self) -> &'static str {
        match self {
            What::Prefill(_) | What::Decode(_) => "tok/s",
            What::Width(_) => "ms",
        }
    }

    /// How many times as fast `this` is as `other`.
    fn ratio(self, this: f64, other: f64) -> f64 {
        match self {
            What::Prefill(_) | What::Decode(_) => this / other,
            What::Width(_) => other / this,
        }
    }
}

/// One run's figures.
#[derive(Debug)]
struct Measured {
    figures: Vec<(What, f64)>,
    /// By llama-bench, which has no batch widths.
    llama: bool,
}

impl Measured {
    fn get(&self, what: What) -> Option<f64> {
        self.figures.iter().find(|(found, _)| *found == what).map(|&(_, value)| value)
    }
}

#[derive(Serialize)]
struct Comparison<'a> {
    model: String,
    against: &'a str,
    rounds: usize,
    figures: Vec<Compared>,
}

#[derive(Serialize)]
struct Compared {
    figure: String,
    unit: &'static str,
    this: Spread,
    other: Spread,
    /// Times as fast.
    ratio: Spread,
}

#[derive(Debug, PartialEq, Serialize)]
struct Spread {
    median: f64,
    min: f64,
    max: f64,
}

impl Spread {
    fn of(mut values: Vec<f64>) -> Self {
        let median = median(&mut values);
        Self { median, min: values[0], max: values[values.len() - 1] }
    }
}

/// Runs the command.
pub fn run(args: &BenchArgs, command: &str, report: &Report) -> Result<()> {
    let own = std::env::current_exe().context("finding this binary")?;
    let arguments = arguments(args);
    let name = format!("--against {command}");
    let rounds = usize::from(args.repetitions.unwrap_or(REPETITIONS));
    let bar = report.bar("measuring", 2 * rounds as u64, Unit::Runs);
    let (mut this, mut other, mut chosen) = (vec![], vec![], vec![]);
    for round in 0..rounds {
        let (measured, said) = measure(Command::new(&own).args(&arguments)).map_err(|fault| match fault {
            // The same line, whoever says it.
            Fault::Failed { said: Some(said), .. } => anyhow::anyhow!(said),
            fault => fault.error("this binary"),
        })?;
        bar.inc(1);
        if round == 0 {
            said.iter().for_each(|line| report.note(line));
        }
        this.push(measured);
        let (measured, _) = measure(&mut command_of(command, &arguments)).map_err(|fault| fault.error(&name))?;
        bar.inc(1);
        other.push(measured);
        // Now rather than after the last round.
        if round == 0 {
            chosen = comparable(&this[0], &other[0]).context(name.clone())?;
        }
    }
    bar.finish_and_clear();
    if let (true, some) = (other[0].llama, chosen.len())
        && some < this[0].figures.len()
    {
        let left = this[0].figures.iter().map(|&(what, _)| what).filter(|what| !chosen.contains(what));
        let left: Vec<String> = left.map(What::name).collect();
        report.note(format_args!("{name} does not measure: {}", left.join(", ")));
    }
    let figures = chosen.into_iter().map(|what| {
        let values = |runs: &[Measured]| runs.iter().map(|run| run.get(what)).collect::<Option<Vec<f64>>>();
        let this = values(&this).context("this binary measured something else each time")?;
        let other = values(&other).with_context(|| format!("{name} measured something else each time"))?;
        let ratio = this.iter().zip(&other).map(|(&this, &other)| what.ratio(this, other)).collect();
        let (this, other, ratio) = (Spread::of(this), Spread::of(other), Spread::of(ratio));
        Ok(Compared { figure: what.name(), unit: what.unit(), this, other, ratio })
    });
    let figures = figures.collect::<Result<_>>()?;
    let comparison = Comparison { model: args.model.model.display().to_string(), against: command, rounds, figures };
    print(&comparison, args.json, |out| comparison.print(out))
}

/// This command's own arguments for one run of `foretoken bench`.
fn arguments(args: &BenchArgs) -> Vec<OsString> {
    let ModelArgs { model, ctx_size, device, threads, isa, kv_type, activations } = &args.model;
    let mut list: Vec<OsString> = vec!["bench".into()];
    let mut flag = |name: &str, value: &OsStr| list.extend([name.into(), value.into()]);
    let value = |value: &dyn ToString| OsString::from(value.to_string());
    let named = |value: Option<clap::builder::PossibleValue>| value.map(|v| OsString::from(v.get_name()));
    let numbers = |list: &[usize]| value(&list.iter().map(usize::to_string).collect::<Vec<_>>().join(","));
    flag("--model", model.as_os_str());
    let set = [
        ("--ctx-size", ctx_size.as_ref().map(|n| value(n))),
        ("--device", Some(device).filter(|device| **device != Device::Auto).map(|device| value(device))),
        ("--threads", threads.as_ref().map(|n| value(n))),
        ("--isa", isa.and_then(|isa| named(isa.to_possible_value()))),
        (
            "--kv-type",
            Some(kv_type).filter(|ty| **ty != Default::default()).and_then(|ty| named(ty.to_possible_value())),
        ),
        ("--activations", (*activations == crate::cli::Activations::F32).then(|| "f32".into())),
        ("--prefill", Some(numbers(&args.prefill))),
        ("--decode", args.decode.as_ref().map(|n| value(n))),
        ("--depth", args.depth.as_deref().map(numbers)),
        ("--widths", Some(numbers(&args.widths))),
        ("--rate-time", args.rate_time.as_ref().map(|n| value(n))),
        ("--repetitions", Some("1".into())),
    ];
    for (name, value) in set {
        if let Some(value) = value {
            flag(name, &value);
        }
    }
    list.push("--json".into());
    list
}

/// A file is a binary that takes the same arguments, everything else is the shell's.
fn command_of(command: &str, arguments: &[OsString]) -> Command {
    if Path::new(command).is_file() {
        let mut binary = Command::new(command);
        binary.args(arguments);
        return binary;
    }
    let mut shell = Command::new("sh");
    shell.args(["-c", command]);
    shell
}

/// Why a run gave nothing.
enum Fault {
    Start(io::Error),
    /// With the last line on stderr.
    Failed {
        status: String,
        said: Option<String>,
    },
    Output(anyhow::Error),
}

impl Fault {
    fn error(self, name: &str) -> anyhow::Error {
        match self {
            Fault::Start(error) => anyhow::Error::new(error).context(name.to_owned()),
            Fault::Failed { status, said: None } => anyhow::anyhow!("{name} failed ({status})"),
            Fault::Failed { status, said: Some(said) } => anyhow::anyhow!("{name} failed ({status}): {said}"),
            Fault::Output(error) => error.context(name.to_owned()),
        }
    }
}

/// Runs a command to its end: what it measured, and the lines that it said on stderr.
fn measure(command: &mut Command) -> Result<(Measured, Vec<String>), Fault> {
    let output = command.stdin(Stdio::null()).output().map_err(Fault::Start)?;
    let said = String::from_utf8_lossy(&output.stderr);
    let said: Vec<String> = said.lines().map(one_line).collect();
    if !output.status.success() {
        let last = said.iter().rev().find(|line| !line.trim().is_empty());
        let said = last.map(|line| line.strip_prefix("error: ").unwrap_or(line).to_owned());
        return Err(Fault::Failed { status: output.status.to_string(), said });
    }
    Ok((figures(&String::from_utf8_lossy(&output.stdout)).map_err(Fault::Output)?, said))
}

/// The figures of the first JSON object or array that begins a line of `text`.
fn figures(text: &str) -> Result<Measured> {
    let begins = |(at, line): (usize, &str)| line.starts_with(['{', '[']).then_some(at);
    let mut at = 0;
    let lines = text.split_inclusive('\n').map(|line| {
        at += line.len();
        (at - line.len(), line)
    });
    let value = lines
        .filter_map(begins)
        .find_map(|at| serde_json::Deserializer::from_str(&text[at..]).into_iter::<Value>().next()?.ok());
    let value = value.context("prints no JSON: a foretoken needs --json, llama-bench -o json")?;
    let number = |row: &Value, key: &str| row[key].as_f64().filter(|x| *x > 0.0 && x.is_finite());
    let mut found = vec![];
    if let Some(rows) = value.as_array() {
        for row in rows {
            let count = |key: &str| row[key].as_u64().unwrap_or(0);
            let what = match (count("n_prompt"), count("n_gen"), count("n_depth")) {
                (prompt @ 1.., 0, 0) => What::Prefill(prompt),
                (0, 1.., depth) => What::Decode(depth),
                _ => continue,
            };
            found.extend(number(row, "avg_ts").map(|value| (what, value)));
        }
    } else {
        let lists = [
            ("prefill", "tokens", "tok_s", What::Prefill as fn(u64) -> What),
            ("decode", "depth", "tok_s", What::Decode),
            ("widths", "rows", "ms", What::Width),
        ];
        for (list, key, figure, what) in lists {
            for row in value[list].as_array().into_iter().flatten() {
                found.extend(row[key].as_u64().zip(number(row, figure)).map(|(n, value)| (what(n), value)));
            }
        }
    }
    ensure!(!found.is_empty(), "prints JSON without figures of a bench");
    Ok(Measured { figures: found, llama: value.is_array() })
}

/// What both have: all that this one measured, or of llama-bench what it can.
fn comparable(this: &Measured, other: &Measured) -> Result<Vec<What>> {
    let mut chosen = vec![];
    for &(what, _) in &this.figures {
        match other.get(what) {
            Some(_) => chosen.push(what),
            None if other.llama => {}
            None => bail!("lacks {}", what.name()),
        }
    }
    let mine = || this.figures.iter().map(|(what, _)| what.name()).collect::<Vec<_>>().join(", ");
    ensure!(!chosen.is_empty(), "measures nothing of what is measured here: {}", mine());
    Ok(chosen)
}

impl Comparison<'_> {
    fn print(&self, out: &mut impl Write) -> io::Result<()> {
        let rounds = if self.rounds == 1 { "1 round".into() } else { format!("{} rounds", self.rounds) };
        writeln!(out, "{}: against {}, median (min .. max) of {rounds}\n", self.model, self.against)?;
        writeln!(out, "{:>14} {:>6} {:>32} {:>32} {:>20}", "", "", "this", "other", "times as fast")?;
        for f in &self.figures {
            let cell = |s: &Spread| format!("{:.2} ({:.2} .. {:.2})", s.median, s.min, s.max);
            let (this, other, ratio) = (cell(&f.this), cell(&f.other), cell(&f.ratio));
            writeln!(out, "{:>14} {:>6} {this:>32} {other:>32} {ratio:>20}", f.figure, f.unit)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_found_in_what_benches_print() {
        let llama = r#"[{"n_prompt": 512, "n_gen": 0, "n_depth": 0, "avg_ts": 1000.5}, {"n_prompt": 0, "n_gen": 128, "avg_ts": 50},
            {"n_prompt": 0, "n_gen": 128, "n_depth": 512, "avg_ts": 40}, {"n_prompt": 512, "n_gen": 128, "avg_ts": 7},
            {"n_prompt": 512, "n_gen": 0, "n_depth": 9, "avg_ts": 8}]"#;
        let wanted = [(What::Prefill(512), 1000.5), (What::Decode(0), 50.0), (What::Decode(512), 40.0)];
        for before in ["", "loading [1]\n{ no\n"] {
            let measured = figures(&format!("{before}{llama}\nbye\n")).unwrap();
            assert!(measured.llama && measured.figures == wanted, "{measured:?}");
        }
        let own = r#"{"prefill": [{"tokens": 5, "tok_s": 2.0, "percent": 3}], "decode": [], "widths": [{"rows": 4, "ms": 1.5}]}"#;
        let measured = figures(own).unwrap();
        assert!(
            !measured.llama && measured.figures == [(What::Prefill(5), 2.0), (What::Width(4), 1.5)],
            "{measured:?}"
        );
        for (text, part) in [
            ("", "no JSON"),
            ("hello\n", "no JSON"),
            ("{\"prefill\":", "no JSON"),
            ("{}", "without figures"),
            ("[]", "without figures"),
            ("[3, null]", "without figures"),
            (r#"{"prefill": 3, "widths": [{"rows": 1, "ms": 0}]}"#, "without figures"),
        ] {
            let error = figures(text).unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn everything_measured_here_is_compared_save_what_llama_bench_cannot() {
        let measured = |llama, whats: &[What]| Measured { figures: whats.iter().map(|&w| (w, 1.0)).collect(), llama };
        let (a, b, c) = (What::Prefill(5), What::Decode(0), What::Width(1));
        let this = measured(false, &[a, b, c]);
        assert_eq!(comparable(&this, &measured(false, &[c, b, What::Width(2), a])).unwrap(), [a, b, c]);
        assert_eq!(comparable(&this, &measured(true, &[b])).unwrap(), [b]);
        for (other, part) in
            [(measured(false, &[a, b]), "lacks 1 row"), (measured(true, &[What::Decode(9)]), "prefill 5, decode at 0")]
        {
            let error = comparable(&this, &other).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn ratios_are_times_as_fast() {
        assert_eq!((What::Decode(0).ratio(6.0, 3.0), What::Width(4).ratio(6.0, 3.0)), (2.0, 0.5));
        assert_eq!(Spread::of(vec![3.0, 1.0, 8.0, 2.0]), Spread { median: 2.5, min: 1.0, max: 8.0 });
    }
}
