//! The table of a trial, for people.

use super::figures::{Figures, Row, Summary};
use crate::cmd::memory::size;
use std::io::{self, Write};

/// Prints it.
pub fn print(summary: &Summary, out: &mut impl Write) -> io::Result<()> {
    let s = &summary.setting;
    let choice = match s.temperature {
        0.0 => "greedy".into(),
        temp => format!("temperature {temp}, seed {}", s.seed),
    };
    let most = if s.n_predict < 0 { "no limit of tokens".into() } else { format!("at most {} tokens", s.n_predict) };
    writeln!(out, "{}: {}, KV cache {}", s.model, s.place, s.kv_type)?;
    let left_out = if s.left_out > 0 { format!(" ({} left out)", s.left_out) } else { String::new() };
    let times = if s.repetitions == 1 { "once".into() } else { format!("{} times", s.repetitions) };
    writeln!(out, "{}: {} prompts{left_out}, {choice}, {most} a turn, {times} each", s.file, s.prompts)?;
    for set in summary.sets.iter().skip(1) {
        let texts = match (set.same_text, set.differing) {
            (true, _) => "all texts equal plain ones".into(),
            (false, n) => format!("{n} of {} texts are not the plain ones", s.prompts),
        };
        if set.drafters.is_empty() {
            writeln!(out, "{}: plain decoding again, which tells how much speed varies here; {texts}", set.name)?;
            continue;
        }
        let memory = match set.memory_bytes {
            0 => String::new(),
            bytes => format!(", {} of memory", size(bytes)),
        };
        let (drafters, most, accept) = (set.drafters.join(" + "), set.draft_max, set.accept);
        let guesses = if set.auto { "as many guesses as pay, up to" } else { "guesses a round, up to" };
        writeln!(out, "{}: {drafters}; {guesses} {most}; {accept}{memory}; {texts}", set.name)?;
    }
    let category = |row: &Row| row.category.chars().count();
    let first = summary.rows.iter().map(category).max().unwrap_or(0).max("category".len());
    let second = summary.sets.iter().map(|set| set.name.chars().count()).max().unwrap_or(0).max("set".len());
    writeln!(
        out,
        "\n{:first$}  {:second$} {:>8} {:>8} {:>9} {:>9} {:>8} {:>7} {:>7} {:>9}",
        "category", "set", "prompts", "tokens", "tok/round", "accepted", "tok/s", "ratio", "median", "drafting"
    )?;
    let overall = (summary.rows.len() > 1).then_some(&summary.overall);
    for row in summary.rows.iter().chain(overall) {
        for (i, (set, f)) in summary.sets.iter().zip(&row.sets).enumerate() {
            let category = if i == 0 { row.category.as_str() } else { "" };
            let [per_round, accepted, tok_s, ratio, median, drafting] = cells(f);
            writeln!(
                out,
                "{category:first$}  {:second$} {:>8} {:>8} {per_round:>9} {accepted:>9} {tok_s:>8} {ratio:>7} {median:>7} {drafting:>9}",
                set.name, row.prompts, f.tokens
            )?;
        }
    }
    for (set, f) in summary.sets.iter().zip(&summary.overall.sets) {
        if let Some(fault) = &f.account.fault {
            writeln!(out, "\n{}: guesses were lost: {fault}", set.name)?;
        }
    }
    Ok(())
}

/// Tokens a round, share accepted, rate, ratio, median ratio, share of drafting.
fn cells(f: &Figures) -> [String; 6] {
    let number = |x: Option<f64>, digits: usize| x.map_or("-".into(), |x| format!("{x:.digits$}"));
    let percent = |x: Option<f64>, digits: usize| x.map_or("-".into(), |x| format!("{:.digits$} %", 100.0 * x));
    let drafting = f.draft_share.filter(|_| f.account.drafted > 0);
    [
        number(f.account.tokens_per_round_mean, 2),
        percent(f.acceptance, 1),
        number(f.tok_s, 1),
        number(f.ratio_total, 2),
        number(f.ratio_median, 2),
        percent(drafting, 2),
    ]
}
