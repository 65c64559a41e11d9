//! What can be typed about features.

use super::{ModelArgs, TemplateArgs};
use clap::Args;
use std::path::PathBuf;
use std::str::FromStr;

/// `features`.
#[derive(Args, Debug, Clone)]
#[command(mut_arg("ctx_size", |arg| arg.help("Tokens of a text at most, longer ones are cut; 0 is the model's own context [default: the model's own, at most 4096]")))]
pub struct FeaturesArgs {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub model: ModelArgs,
    /// The texts, JSON lines; - is stdin
    #[arg(long, value_name = "FILE")]
    pub input: PathBuf,
    /// Folder that gets the shards; it is made if it is not there
    #[arg(short, long, value_name = "DIR")]
    pub output: PathBuf,
    /// Layers whose input is kept: those EAGLE-3 reads (2, half, all but 3), none, or a list of numbers
    #[arg(long, value_name = "auto|none|N,N,..", default_value = "auto")]
    pub taps: Taps,
    /// Tokens in a shard at most, but for a text that is longer
    #[arg(long, value_name = "N", default_value_t = 65_536, value_parser = clap::value_parser!(u64).range(1..))]
    pub shard_tokens: u64,
    /// End with the text that reaches this many tokens, those of shards that are there included
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub limit_tokens: Option<u64>,
    /// Print nothing on stderr but errors
    #[arg(short, long)]
    pub quiet: bool,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub template: TemplateArgs,
}

/// Layers to read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Taps {
    /// Those of EAGLE-3.
    Auto,
    /// These, perhaps none.
    Layers(Vec<usize>),
}

impl FromStr for Taps {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => return Ok(Taps::Auto),
            "none" => return Ok(Taps::Layers(vec![])),
            _ => {}
        }
        let mut layers = vec![];
        for part in text.split(',') {
            let layer = part.parse().map_err(|_| format!("'{part}' is not a layer, supported: auto, none, 2,15,27"))?;
            if layers.contains(&layer) {
                return Err(format!("layer {layer} is there twice"));
            }
            layers.push(layer);
        }
        Ok(Taps::Layers(layers))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn taps_are_words_or_numbers() {
        for (text, want) in [
            ("auto", Some(Taps::Auto)),
            ("none", Some(Taps::Layers(vec![]))),
            ("0", Some(Taps::Layers(vec![0]))),
            ("27,2,15", Some(Taps::Layers(vec![27, 2, 15]))),
            ("", None),
            ("2,", None),
            ("2,2", None),
            ("-1", None),
            ("2, 3", None),
            ("none,2", None),
            ("99999999999999999999", None),
        ] {
            assert_eq!(text.parse().ok(), want, "{text:?}");
        }
    }
}
