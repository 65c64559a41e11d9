//! From flags to sampling options.

use super::Usage;
use super::report::Report;
use crate::cli::SamplingArgs;
use crate::sample::{LogitBias, SampleParams, Sampler, parse_bias, random_seed};
use crate::text::Tokenizer;
use anyhow::Result;

/// The options that flags ask for. All are checked but the ids of biases, for which the vocabulary must be known.
pub fn params(args: &SamplingArgs) -> Result<SampleParams> {
    let d = SampleParams::default();
    let bias = args.logit_bias.iter().map(|text| parse_bias(text)).collect::<Result<_>>().map_err(usage)?;
    let breakers = match &args.dry_sequence_breaker[..] {
        [] => d.dry_sequence_breakers,
        [none] if none == "none" => vec![],
        some => some.to_vec(),
    };
    let params = SampleParams {
        logit_bias: LogitBias(bias),
        repeat_penalty: args.repeat_penalty.unwrap_or(d.repeat_penalty),
        repeat_last_n: narrow("--repeat-last-n", args.repeat_last_n, d.repeat_last_n)?,
        frequency_penalty: args.frequency_penalty.unwrap_or(d.frequency_penalty),
        presence_penalty: args.presence_penalty.unwrap_or(d.presence_penalty),
        dry_multiplier: args.dry_multiplier.unwrap_or(d.dry_multiplier),
        dry_base: args.dry_base.unwrap_or(d.dry_base),
        dry_allowed_length: narrow("--dry-allowed-length", args.dry_allowed_length, d.dry_allowed_length)?,
        dry_penalty_last_n: narrow("--dry-penalty-last-n", args.dry_penalty_last_n, d.dry_penalty_last_n)?,
        dry_sequence_breakers: breakers,
        top_n_sigma: args.top_n_sigma.unwrap_or(d.top_n_sigma),
        top_k: narrow("--top-k", args.top_k, d.top_k)?,
        typical: args.typical.unwrap_or(d.typical),
        top_p: args.top_p.unwrap_or(d.top_p),
        min_p: args.min_p.unwrap_or(d.min_p),
        xtc_probability: args.xtc_probability.unwrap_or(d.xtc_probability),
        xtc_threshold: args.xtc_threshold.unwrap_or(d.xtc_threshold),
        temp: args.temp.unwrap_or(d.temp),
        seed: None,
    };
    let ids_unknown = SampleParams { logit_bias: LogitBias::default(), ..params.clone() };
    ids_unknown.validate(0).map_err(usage)?;
    Ok(params)
}

/// The seed asked for, or one that is drawn; short enough to be typed again.
pub fn seed(args: &SamplingArgs) -> u64 {
    u64::try_from(args.seed).unwrap_or_else(|_| random_seed() >> 32)
}

/// Says the seed that was drawn, so that the run can be repeated.
pub fn tell_seed(args: &SamplingArgs, seed: u64, report: &Report) {
    if args.seed < 0 {
        report.note(format_args!("seed: {seed}"));
    }
}

/// A sampler over the vocabulary of `tokenizer`.
pub fn sampler(params: SampleParams, seed: u64, tokenizer: &Tokenizer) -> Result<Sampler> {
    let piece = |token| tokenizer.piece(token).to_vec();
    Sampler::new(params, seed, tokenizer.vocab_size(), piece).map_err(usage)
}

fn usage(error: anyhow::Error) -> anyhow::Error {
    Usage(format!("{error:#}")).into()
}

/// A count in the width the sampler keeps it in.
fn narrow<T: TryFrom<i64>>(flag: &str, value: Option<i64>, default: T) -> Result<T> {
    let Some(value) = value else { return Ok(default) };
    T::try_from(value).map_err(|_| Usage(format!("{flag}: found {value}, out of range")).into())
}
