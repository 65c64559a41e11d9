//! What a user can ask of the sampler. Names and defaults are llama.cpp's.

use crate::tree::Token;
use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Deserializer, de::Error};
use serde_json::Value;

/// The longest sequence breaker, in bytes, and the most of them: they are looked up in every token's text.
const MAX_BREAKER: usize = 64;

/// The sampling options, in the order they apply (see [`crate::sample`]).
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default)]
pub struct SampleParams {
    /// Added to the logits of these tokens, `-inf` bans one.
    pub logit_bias: LogitBias,
    /// Divides positive and multiplies negative logits of tokens among the last [`Self::repeat_last_n`]; 1 is off.
    pub repeat_penalty: f32,
    /// Tokens of history the three penalties look at; 0 is off, -1 all of it.
    pub repeat_last_n: i32,
    /// Subtracted once for every occurrence; 0 is off.
    pub frequency_penalty: f32,
    /// Subtracted once if there is any occurrence; 0 is off.
    pub presence_penalty: f32,
    /// DRY: penalty of a token that makes a repetition longer than allowed; 0 is off.
    pub dry_multiplier: f32,
    /// DRY: factor on the penalty for every further token of the repetition.
    pub dry_base: f32,
    /// DRY: the longest repetition that is not penalised.
    pub dry_allowed_length: u32,
    /// DRY: tokens of history looked at; 0 is off, -1 all of it.
    pub dry_penalty_last_n: i32,
    /// DRY: a repetition never extends back over one of these strings.
    pub dry_sequence_breakers: Vec<String>,
    /// Keeps logits within this many standard deviations of the largest; -1 or 0 is off.
    pub top_n_sigma: f32,
    /// Keeps the k largest; 0 is off.
    pub top_k: i32,
    /// Locally typical sampling: keeps this much mass nearest to the expected surprise; 1 is off.
    #[serde(alias = "typical_p")]
    pub typical: f32,
    /// Keeps the fewest tokens that hold this much mass; 1 is off.
    pub top_p: f32,
    /// Keeps tokens at least this likely relative to the likeliest; 0 is off.
    pub min_p: f32,
    /// XTC: chance that it applies to a token; 0 is off.
    pub xtc_probability: f32,
    /// XTC: of all tokens at least this likely only the least likely stays; above 0.5 is off.
    pub xtc_threshold: f32,
    /// Divides the logits; 0 is arg-max.
    #[serde(rename = "temperature", alias = "temp")]
    pub temp: f32,
    /// Key of all randomness; drawn from the system when not given.
    pub seed: Option<u64>,
}

impl Default for SampleParams {
    fn default() -> Self {
        Self {
            logit_bias: LogitBias::default(),
            repeat_penalty: 1.0,
            repeat_last_n: 64,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            dry_multiplier: 0.0,
            dry_base: 1.75,
            dry_allowed_length: 2,
            dry_penalty_last_n: -1,
            dry_sequence_breakers: ["\n", ":", "\"", "*"].map(String::from).to_vec(),
            top_n_sigma: -1.0,
            top_k: 40,
            typical: 1.0,
            top_p: 0.95,
            min_p: 0.05,
            xtc_probability: 0.0,
            xtc_threshold: 0.1,
            temp: 0.8,
            seed: None,
        }
    }
}

impl SampleParams {
    /// Refuses what has no meaning, naming the flag; `vocab_size` bounds the ids of [`Self::logit_bias`].
    pub fn validate(&self, vocab_size: usize) -> Result<()> {
        let (zero_to_one, positive, any) = ((0.0, 1.0), (0.0, f32::MAX), (f32::MIN, f32::MAX));
        for (flag, value, (low, high)) in [
            ("--temp", self.temp, positive),
            ("--top-p", self.top_p, zero_to_one),
            ("--min-p", self.min_p, zero_to_one),
            ("--typical", self.typical, zero_to_one),
            ("--xtc-probability", self.xtc_probability, zero_to_one),
            ("--xtc-threshold", self.xtc_threshold, zero_to_one),
            ("--repeat-penalty", self.repeat_penalty, (f32::MIN_POSITIVE, f32::MAX)),
            ("--frequency-penalty", self.frequency_penalty, any),
            ("--presence-penalty", self.presence_penalty, any),
            ("--dry-multiplier", self.dry_multiplier, positive),
            ("--dry-base", self.dry_base, (1.0, f32::MAX)),
            ("--top-n-sigma", if self.top_n_sigma == -1.0 { 0.0 } else { self.top_n_sigma }, positive),
        ] {
            // NaN lies in no range.
            ensure!((low..=high).contains(&value), "{flag}: found {value}, supported {}", range(low, high));
        }
        for (flag, value, low) in [
            ("--top-k", self.top_k, 0),
            ("--repeat-last-n", self.repeat_last_n, -1),
            ("--dry-penalty-last-n", self.dry_penalty_last_n, -1),
        ] {
            ensure!(value >= low, "{flag}: found {value}, supported {low} and up");
        }
        let breakers = &self.dry_sequence_breakers;
        ensure!(
            breakers.len() <= MAX_BREAKER && breakers.iter().all(|b| (1..=MAX_BREAKER).contains(&b.len())),
            "--dry-sequence-breaker: supported up to {MAX_BREAKER} strings of 1 to {MAX_BREAKER} bytes"
        );
        for &(token, value) in &self.logit_bias.0 {
            ensure!(
                (token as usize) < vocab_size,
                "--logit-bias: found token id {token}, the vocabulary has {vocab_size} tokens"
            );
            ensure!(value < f32::INFINITY, "--logit-bias: found {value} for token {token}, supported a number or -inf");
        }
        Ok(())
    }
}

fn range(low: f32, high: f32) -> String {
    match (low, high) {
        (f32::MIN, _) => "any finite number".into(),
        (f32::MIN_POSITIVE, _) => "finite numbers above 0".into(),
        (_, f32::MAX) => format!("finite numbers from {low}"),
        _ => format!("{low} to {high}"),
    }
}

/// Additions to single logits. In JSON `{"15043": 1.5}` or `[[15043, 1.5]]`, with `false` or `"-inf"` to ban a token.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LogitBias(pub Vec<(Token, f32)>);

impl<'de> Deserialize<'de> for LogitBias {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let found = Value::deserialize(deserializer)?;
        let pairs: Option<Vec<(Token, f32)>> = match &found {
            Value::Null => Some(Vec::new()),
            Value::Object(map) => map.iter().map(|(id, value)| Some((id.parse().ok()?, bias(value)?))).collect(),
            Value::Array(list) => list
                .iter()
                .map(|pair| match pair.as_array()?.as_slice() {
                    [id, value] => Some((id.as_u64()?.try_into().ok()?, bias(value)?)),
                    _ => None,
                })
                .collect(),
            _ => None,
        };
        let unfit = "logit_bias: supported {\"ID\": NUMBER} or [[ID, NUMBER]], false or \"-inf\" for NUMBER";
        pairs.map(LogitBias).ok_or_else(|| D::Error::custom(unfit))
    }
}

fn bias(value: &Value) -> Option<f32> {
    match value {
        Value::Bool(false) => Some(f32::NEG_INFINITY),
        Value::String(s) if s == "-inf" => Some(f32::NEG_INFINITY),
        Value::Number(n) => n.as_f64().map(|v| v as f32).filter(|v| v.is_finite()),
        _ => None,
    }
}

/// Reads the command line's form of a bias: `ID+VALUE`, `ID-VALUE` or `ID-inf`.
pub fn parse_bias(text: &str) -> Result<(Token, f32)> {
    let unfit = || format!("--logit-bias: found '{}', supported ID+VALUE, ID-VALUE and ID-inf", text.escape_debug());
    let sign = text.find(['+', '-']).with_context(unfit)?;
    let (id, value) = text.split_at(sign);
    let digits = |s: &str| s.bytes().all(|b| b.is_ascii_digit());
    // The standard library's parser would take further signs and other spellings of infinity.
    let number = value[1..].starts_with(|c: char| c.is_ascii_digit() || c == '.');
    if !digits(id) || !(number || value == "-inf") {
        bail!(unfit());
    }
    let value: f32 = value.parse().ok().with_context(unfit)?;
    ensure!(value.is_finite() || text.ends_with("-inf"), unfit());
    Ok((id.parse().ok().with_context(unfit)?, value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bias_of_the_command_line() {
        let good = [
            ("15043+1", (15043, 1.0)),
            ("15043-1.5", (15043, -1.5)),
            ("0-inf", (0, f32::NEG_INFINITY)),
            ("7-100", (7, -100.0)),
            ("7+.5e1", (7, 5.0)),
        ];
        for (text, want) in good {
            assert_eq!(parse_bias(text).unwrap(), want, "{text}");
        }
        let bad =
            "|15043|+1|-inf|1+|1-|1+inf|1-nan|1+-1|1--inf|a+1|1 +1|1+1x|1-infinity|4294967296+1|1+1e99|1,5+1|\n+1";
        for text in bad.split('|') {
            let error = format!("{:#}", parse_bias(text).unwrap_err());
            assert!(error.starts_with("--logit-bias: found") && !error.contains('\n'), "{text}: {error}");
        }
    }

    #[test]
    fn bias_in_json() {
        let inf = f32::NEG_INFINITY;
        for (json, want) in [
            (r#"{"5": 1.5, "7": false}"#, vec![(5, 1.5), (7, inf)]),
            (r#"[[5, -1], [5, "-inf"]]"#, vec![(5, -1.0), (5, inf)]),
            ("null", vec![]),
        ] {
            assert_eq!(serde_json::from_str::<LogitBias>(json).unwrap().0, want, "{json}");
        }
        for json in [r#"{"a": 1}"#, r#"{"5": true}"#, "[[5]]", "[5, 1]", "[[-1, 1]]", "5", r#"{"5": 1e99}"#] {
            let error = serde_json::from_str::<LogitBias>(json).unwrap_err().to_string();
            assert!(error.starts_with("logit_bias: supported"), "{json}: {error}");
        }
    }

    #[test]
    fn defaults_are_valid_and_partial_json_fills_up() {
        SampleParams::default().validate(1).unwrap();
        assert_eq!(serde_json::from_str::<SampleParams>("{}").unwrap(), SampleParams::default());
        let some = serde_json::from_str::<SampleParams>(r#"{"temperature": 0, "top_k": 7, "seed": 9}"#).unwrap();
        assert_eq!(some, SampleParams { temp: 0.0, top_k: 7, seed: Some(9), ..Default::default() });
    }

    /// A flag and a way to set it.
    type Flag<T> = (&'static str, fn(&mut SampleParams, T));

    #[test]
    fn senseless_values_are_refused_by_name() {
        let floats: [Flag<f32>; 12] = [
            ("--temp", |p, v| p.temp = v),
            ("--top-p", |p, v| p.top_p = v),
            ("--min-p", |p, v| p.min_p = v),
            ("--typical", |p, v| p.typical = v),
            ("--top-n-sigma", |p, v| p.top_n_sigma = v),
            ("--xtc-probability", |p, v| p.xtc_probability = v),
            ("--xtc-threshold", |p, v| p.xtc_threshold = v),
            ("--repeat-penalty", |p, v| p.repeat_penalty = v),
            ("--dry-multiplier", |p, v| p.dry_multiplier = v),
            ("--dry-base", |p, v| p.dry_base = v),
            ("--frequency-penalty", |p, v| p.frequency_penalty = v),
            ("--presence-penalty", |p, v| p.presence_penalty = v),
        ];
        for (i, (flag, set)) in floats.into_iter().enumerate() {
            for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -0.5] {
                let mut params = SampleParams::default();
                set(&mut params, value);
                let outcome = params.validate(10);
                if i >= 10 && value == -0.5 {
                    outcome.unwrap(); // rewarding repetition is allowed
                } else {
                    let error = outcome.unwrap_err().to_string();
                    assert!(error.starts_with(&format!("{flag}: found {value}, supported")), "{error}");
                }
            }
        }
        let counts: [Flag<i32>; 3] = [
            ("--top-k", |p, v| p.top_k = v),
            ("--repeat-last-n", |p, v| p.repeat_last_n = v),
            ("--dry-penalty-last-n", |p, v| p.dry_penalty_last_n = v),
        ];
        for (flag, set) in counts {
            let mut params = SampleParams::default();
            set(&mut params, -2);
            assert!(params.validate(10).unwrap_err().to_string().starts_with(flag));
        }
        for breakers in [vec![String::new()], vec!["x".repeat(65)], vec!["x".into(); 65]] {
            let params = SampleParams { dry_sequence_breakers: breakers, ..Default::default() };
            assert!(params.validate(10).unwrap_err().to_string().starts_with("--dry-sequence-breaker"));
        }
    }

    #[test]
    fn bias_must_fit_the_vocabulary() {
        let with = |bias| SampleParams { logit_bias: LogitBias(vec![bias]), ..Default::default() }.validate(10);
        with((9, f32::NEG_INFINITY)).unwrap();
        for bad in [(10, 1.0), (9, f32::INFINITY), (9, f32::NAN)] {
            assert!(with(bad).unwrap_err().to_string().starts_with("--logit-bias: found"));
        }
    }
}
