//! The sampler under a constraint: what it may pick from is what a row with all else masked would give.

use crate::common::gguf_writer::Rng;
use crate::words::Words;
use foretoken::sample::{History, LogitBias, SampleParams, Sampler};
use foretoken::tree::Token;

const GRAMMAR: &str = r#"root ::= "[" ([a-z]{1,9} | [0-9]+) ("," [a-z ]*){0,4} "]""#;

fn sampler(words: &Words, params: &SampleParams, seed: u64) -> Sampler {
    Sampler::new(params.clone(), seed, words.tokenizer.vocab_size(), |t| words.tokenizer.piece(t).to_vec()).unwrap()
}

fn settings() -> Vec<SampleParams> {
    let d = SampleParams::default;
    let bias = LogitBias(vec![(58, f32::NEG_INFINITY), (60, 5.0), (64, -3.0)]);
    vec![
        SampleParams { temp: 0.0, ..d() },
        SampleParams { temp: 0.0, repeat_penalty: 1.5, frequency_penalty: 0.3, dry_multiplier: 0.8, ..d() },
        SampleParams { temp: 0.0, logit_bias: bias.clone(), ..d() },
        d(),
        SampleParams { temp: 1.2, top_k: 1, ..d() },
        SampleParams { temp: 1.5, top_k: 3, top_p: 0.5, ..d() },
        SampleParams { temp: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0, typical: 0.7, ..d() },
        SampleParams { temp: 1.0, top_k: 0, top_n_sigma: 1.0, xtc_probability: 0.5, ..d() },
        SampleParams {
            temp: 0.9,
            repeat_penalty: 1.3,
            presence_penalty: 0.4,
            dry_multiplier: 0.8,
            logit_bias: bias,
            ..d()
        },
    ]
}

/// The mask comes before every other stage, and the short way at temperature 0 leads to the same place (P13).
#[test]
fn picks_are_those_of_a_masked_row() {
    let words = Words::real("gpt-2");
    let n = words.tokenizer.vocab_size();
    let mut rng = Rng(5);
    for (i, params) in settings().iter().enumerate() {
        let mut constraint = words.gbnf(GRAMMAR);
        let mut constrained = sampler(&words, params, 7);
        constrained.constrain(Some(words.gbnf(GRAMMAR)));
        let mut plain = sampler(&words, params, 7);
        for round in 0..6 {
            // A prompt that the grammar says nothing of.
            let mut committed: Vec<Token> = (0..5).map(|_| rng.below(n) as Token).collect();
            let start = committed.len();
            for ordinal in 0..8 {
                let mut row: Vec<f32> = (0..n).map(|_| 3.0 * rng.normal()).collect();
                let generated = committed[start..].to_vec();
                let mask = constraint.mask(&generated, &[]).unwrap();
                if round % 2 == 0 {
                    // The best is legal for once.
                    let some = (0..n).cycle().skip(rng.below(n)).find(|&t| mask.contains(t as Token)).unwrap();
                    row[some] = 30.0;
                }
                let split = start + rng.below(generated.len() + 1);
                let history = History { committed: &committed[..split], path: &committed[split..], start };
                let got = constrained.pick(&row, history, ordinal);
                let shares = constrained.distribution(&row, history, ordinal);
                mask.apply(&mut row);
                let (want, wanted) = (plain.pick(&row, history, ordinal), plain.distribution(&row, history, ordinal));
                match want {
                    Ok(want) => {
                        assert_eq!(got.unwrap(), want, "{i}: {params:?}");
                        assert_eq!(shares.unwrap(), wanted.unwrap(), "{i}: {params:?}");
                        assert!(mask.contains(want));
                        if words.tokenizer.end_tokens().contains(&want) {
                            break;
                        }
                        committed.push(want);
                    }
                    // A bias may ban all that the grammar leaves.
                    Err(want) => {
                        assert_eq!(got.unwrap_err().to_string(), want.to_string(), "{i}: {params:?}");
                        break;
                    }
                }
            }
        }
    }
}

/// S7, S13: nothing legal is an error, not a token; an unfit number is one under a grammar too.
#[test]
fn nothing_left_is_an_error() {
    let words = Words::real("gpt-2");
    let n = words.tokenizer.vocab_size();
    let mask = words.gbnf("root ::= \"[\" \"]\"").mask(&[], &[]).unwrap();
    let legal: Vec<Token> = (0..n as Token).filter(|&token| mask.contains(token)).collect();
    assert!(!legal.is_empty());
    for temp in [0.0, 1.0] {
        let all_of_it = SampleParams {
            temp,
            logit_bias: LogitBias(legal.iter().map(|&token| (token, f32::NEG_INFINITY)).collect()),
            ..Default::default()
        };
        let mut sampler = sampler(&words, &all_of_it, 1);
        sampler.constrain(Some(words.gbnf("root ::= \"[\" \"]\"")));
        let mut row = vec![1.0; n];
        let error = sampler.pick(&row, History::default(), 0).unwrap_err().to_string();
        assert_eq!(error, "logits: every token is masked, none can be picked");
        row[5] = f32::NAN;
        assert!(sampler.pick(&row, History::default(), 0).unwrap_err().to_string().contains("NaN for token 5"));
        let history = History { committed: &[5], path: &[], start: 0 };
        assert!(sampler.pick(&vec![1.0; n], history, 0).unwrap_err().to_string().contains("is not legal after \"\""));
        sampler.constrain(None);
        assert!(!legal.contains(&sampler.pick(&vec![1.0; n], history, 0).unwrap()));
    }
}
