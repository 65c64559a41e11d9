//! What can be typed. Flags are named as llama.cpp names them where it has one.

#![forbid(unsafe_code)]

mod bench;
mod chat;
mod device;
mod draft;
mod features;
mod parse;
mod shard;
mod template;
mod text;

pub use bench::{BenchArgs, DraftSet};
pub use chat::{ChatArgs, History, Think};
#[cfg(feature = "cuda")]
pub use device::{CheckSize, DeviceCheckArgs};
pub use draft::{Draft, DraftArgs};
pub use features::{FeaturesArgs, Taps};
pub use parse::{command, parse};
pub use shard::Shard;
pub use template::TemplateArgs;
pub use text::{ShapeArgs, TextArgs};

use crate::backend::{Device, KvType};
use crate::isa::Isa;
use clap::builder::{OsStringValueParser, TryMapValueParser, TypedValueParser, ValueParserFactory};
use clap::{ArgAction, Args, Parser, Subcommand, ValueEnum};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// Quantised GGUF language models on the command line, with lossless speculative decoding
///
/// Without a command, `foretoken -m FILE` is `chat` on a terminal, and `run` with a prompt or a pipe.
#[derive(Parser, Debug)]
#[command(name = "foretoken", version, propagate_version = true, max_term_width = 100)]
#[command(before_help = "\
Examples:
  foretoken -m M.gguf                                             talk to a model
  foretoken -m M.gguf -p \"Why is the sky blue?\"                  one answer
  git diff | foretoken -m M.gguf -p \"Describe this change:\" -    a prompt and a pipe
  foretoken batch -m M.gguf < requests.jsonl > answers.jsonl      many answers
  foretoken inspect M.gguf                                        what is in the file")]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Talk to a model, turn by turn
    ///
    /// On a terminal there is line editing and a history; pasted lines are one message, so are lines between """ and
    /// """, and a line that ends with \ goes on in the next. Ctrl-C stops an answer and keeps what there is of it;
    /// before the first word of one it takes the message back. Ctrl-C twice at an empty prompt ends with status 130,
    /// Ctrl-D with 0. A line that starts with / is a command (/help lists them), // is a message that starts with /.
    /// From a pipe, every line that is not blank is a message, the answers are all that stdout gets, and the first error
    /// ends with status 1. When the context is full the oldest turns are forgotten: those that leave room for an answer,
    /// a quarter of the context or -n; the system message stays.
    #[command(before_help = "\
Examples:
  foretoken chat -m M.gguf --system \"Answer in one sentence.\"
  foretoken chat -m M.gguf --prompt-cache M.cache --draft lookup
  printf '%s\\n' \"Name a colour.\" \"Another.\" | foretoken chat -m M.gguf")]
    Chat(ChatArgs),
    /// Answer one prompt on stdout
    ///
    /// stdout gets the answer and, unless it ends with one or is empty, a newline. The text is what the user says in the
    /// file's chat template; with --raw, or when the file has no template, the model continues the text. Without -p and -f
    /// the text is read from stdin, unless that is a terminal; with them stdin is not touched, unless - puts it after -p,
    /// on a new line. A byte-order mark at the start of each is dropped, everything else is taken as it is, final newline
    /// and NUL included; what is not UTF-8 is an error that names the first wrong byte.
    /// Exit status: 0, also when stdout is closed early; 1 for a failure; 2 for a wrong command line; 130 when interrupted.
    #[command(before_help = "\
Examples:
  foretoken run -m M.gguf -p \"Why is the sky blue?\" -n 100 --temp 0
  cat notes.txt | foretoken run -m M.gguf -p \"Summarise:\" -
  foretoken run -m M.gguf --raw -e -p \"Once upon a time\\n\" --echo")]
    Run(RunArgs),
    /// Answer JSON lines from stdin with JSON lines on stdout
    ///
    /// A request is an object with "prompt" (what a user says) or "messages" (of "role" and "content") and perhaps "tools",
    /// "template_args" (an object), "id", "raw" (true: continue the prompt, no template), "max_tokens", "temperature", "top_k", "top_p", "min_p", "seed",
    /// "stop" (a text or a list), "logit_bias" ({"ID": NUMBER}, false bans), "grammar" (GBNF) or "json_schema", and "draft"
    /// (as --draft, a text or a list). Flags give what it does not say; a seed not
    /// given is made of --seed and the number of the line. An answer has "id" (by default the number of the line), "text",
    /// "tokens" (ids, without the end token), "finish_reason" (stop length error), "usage" and "timings". A line that
    /// cannot be answered gets "error" instead and the rest goes on: the exit status is 0 when all lines were read.
    #[command(before_help = "\
Examples:
  foretoken batch -m M.gguf < requests.jsonl > answers.jsonl
  echo '{\"prompt\": \"Name a colour.\", \"max_tokens\": 8}' | foretoken batch -m M.gguf")]
    Batch(BatchArgs),
    /// Print the token ids of a text
    #[command(before_help = "\
Examples:
  foretoken tokenize -m M.gguf -p \"Hello, world\"
  foretoken tokenize -m M.gguf --json < notes.txt")]
    Tokenize(TokenizeArgs),
    /// Measure the perplexity of a text, windowed as llama.cpp does
    #[command(before_help = "\
Examples:
  foretoken perplexity -m M.gguf -f wiki.test.raw -c 512")]
    Perplexity(PerplexityArgs),
    /// Measure speed: prefill, decode and the cost of batch widths; with --prompts, what drafting gains on texts
    ///
    /// First the machine is measured: bytes read a second from buffers of several sizes, and int8 and f32 operations a second
    /// (a multiplication and an addition are two), by one thread and by all. Every result comes with its GB/s, its GOP/s
    /// and its share of the bound, the least time that this machine could take: the longer of reading all weights and the
    /// keys and values in sight once a pass, and of doing two operations for each element of a matrix and row, and those of
    /// attention. "bound by" says which is the longer.
    ///
    /// --against measures this binary and another one in turns, each a process of its own, -r rounds, and gives medians, extremes and
    /// how many times as fast this one is: the median of the rounds' own ratios. The other is the path of a foretoken,
    /// which gets the same arguments, or a command for sh that prints JSON: "old/foretoken bench -m M.gguf --json -r 1", or
    /// "llama-bench -m M.gguf -p 512 -n 128 -d 0,512 -o json -r 1", with which only prefill and decoding are compared.
    ///
    /// With --prompts every prompt is answered plainly and with each set of drafters, in turns: prompt by prompt, so that a
    /// machine that slows down slows all of them. --draft flags make one set together, each --draft-set one more. Texts
    /// must be equal to plain ones, token by token; one that is not ends the run with status 1 (with rules of acceptance
    /// that may change the text they are counted). The file holds JSON lines: {"prompt": ..., "category": ...}, or
    /// {"question_id": ..., "category": ..., "turns": [...]} as Spec-Bench has them, whose turns are played as a
    /// conversation with the model's own answers; other fields are ignored. Among the latter the eight categories of
    /// MT-Bench make one row, mt_bench. Tokens are the most likely ones unless --temp says otherwise.
    #[command(before_help = "\
Examples:
  foretoken bench -m M.gguf
  foretoken bench -m M.gguf --widths 1,4,8 --depth 0,4000 --json
  foretoken bench -m M.gguf -r 5 --against old/foretoken
  foretoken bench -m M.gguf --prompts questions.jsonl --draft lookup --report page.html")]
    Bench(BenchArgs),
    /// Check a GPU against the CPU and the laws, measure it, and write a report
    #[cfg(feature = "cuda")]
    #[command(hide = true)]
    DeviceCheck(DeviceCheckArgs),
    /// Write what a model computes over texts, for training heads
    ///
    /// An input line is an object with "text" (taken as run --raw takes it), "messages" (of "role" and "content", through
    /// the chat template, perhaps with "tools"), "prompt" and "response" (a conversation of one turn), or "tokens" (ids);
    /// other fields are ignored. For every token the shards have its id, the last hidden row after the output norm, and
    /// the residual stream as it enters the tapped layers, in f16: models/FEATURES.md is the format. All lines are read
    /// before anything is computed, so that a bad one is found at once; texts of less than two tokens are left out.
    ///
    /// A shard gets its name when it is whole. A run that was stopped, however, goes on after the last whole shard when it is
    /// started again with the same arguments; a folder made of another model or input, or with other taps, is refused.
    #[command(before_help = "\
Examples:
  foretoken features -m M.gguf --input texts.jsonl -o features
  foretoken features -m M.gguf --input chats.jsonl --taps none --limit-tokens 1000000 -o features")]
    Features(FeaturesArgs),
    /// Explain a model file: metadata, tensors, kernels, memory needed
    #[command(before_help = "\
Examples:
  foretoken inspect M.gguf
  foretoken inspect M.gguf -c 0 --kv-type q8_0")]
    Inspect(InspectArgs),
    /// Print the completions of a shell
    #[command(before_help = "\
Examples:
  foretoken completions bash > ~/.local/share/bash-completion/completions/foretoken
  foretoken completions zsh > ~/.zfunc/_foretoken
  foretoken completions fish > ~/.config/fish/completions/foretoken.fish")]
    Completions {
        /// The shell
        #[arg(value_name = "SHELL")]
        shell: clap_complete::Shell,
    },
    /// Print the manual page, of all or of one command
    #[command(before_help = "\
Examples:
  foretoken man | man -l -
  foretoken man run > ~/.local/share/man/man1/foretoken-run.1")]
    Man {
        /// The command
        #[arg(value_name = "COMMAND")]
        command: Option<String>,
    },
}

/// The model and how to run it.
#[derive(Args, Debug, Clone)]
#[command(next_help_heading = "Model")]
pub struct ModelArgs {
    /// Model file (GGUF; of a split one, any shard)
    #[arg(short, long, value_name = "FILE")]
    pub model: PathBuf,
    /// Context length in tokens; 0 is the model's own [default: the model's own, at most 4096]
    #[arg(short, long, value_name = "N")]
    pub ctx_size: Option<usize>,
    /// Where to run: auto (a GPU that can hold the model, else the CPU), cpu, cuda or cuda:N; "list" lists what is there
    #[arg(long, value_name = "auto|cpu|cuda[:N]|list", default_value = "auto", value_parser = device::DeviceParser)]
    pub device: Device,
    /// Threads [default: physical cores this process may use]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
    /// Instruction set of the CPU [default: the best it has]
    #[arg(long, value_name = "NAME")]
    pub isa: Option<Isa>,
    /// Type of the KV cache
    #[arg(long, value_name = "TYPE", default_value = "f16", alias = "cache-type-k")]
    pub kv_type: KvType,
    /// Type of activations in matrix products; f32 widens the weights at load: slow, for telling what int8 costs
    #[arg(long, value_name = "TYPE", default_value = "int8", hide = true)]
    pub activations: Activations,
}

/// Types of activations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Activations {
    /// Blocks of 32 int8.
    Int8,
    /// As they are.
    F32,
}

/// How tokens are chosen.
#[derive(Args, Debug, Clone)]
#[command(next_help_heading = "Sampling")]
pub struct SamplingArgs {
    /// Seed; -1 draws one and prints it on stderr
    #[arg(short, long, value_name = "N", default_value_t = -1, allow_negative_numbers = true, value_parser = at_least_minus_one())]
    pub seed: i64,
    /// Temperature; 0 takes the most likely token [default: 0.8]
    #[arg(long, value_name = "X", alias = "temperature", allow_negative_numbers = true)]
    pub temp: Option<f32>,
    /// Keep the N most likely tokens; 0 is off [default: 40]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub top_k: Option<i64>,
    /// Keep the most likely tokens that make up this share; 1 is off [default: 0.95]
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    pub top_p: Option<f32>,
    /// Keep tokens at least this likely relative to the best; 0 is off [default: 0.05]
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    pub min_p: Option<f32>,
    /// Locally typical sampling; 1 is off [default: 1]
    #[arg(long, value_name = "X", alias = "typical-p", allow_negative_numbers = true)]
    pub typical: Option<f32>,
    /// Keep tokens within N standard deviations of the best logit; -1 is off [default: -1]
    #[arg(long, value_name = "X", alias = "top-nsigma", allow_negative_numbers = true)]
    pub top_n_sigma: Option<f32>,
    /// Chance of XTC to drop the likeliest tokens; 0 is off [default: 0]
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    pub xtc_probability: Option<f32>,
    /// Probability from which XTC counts a token as likely [default: 0.1]
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    pub xtc_threshold: Option<f32>,
    /// Penalise repeated tokens; 1 is off [default: 1]
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    pub repeat_penalty: Option<f32>,
    /// Tokens that penalties look back on; 0 is off, -1 the whole context [default: 64]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub repeat_last_n: Option<i64>,
    /// Penalty per occurrence; 0 is off [default: 0]
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    pub frequency_penalty: Option<f32>,
    /// Penalty for having occurred; 0 is off [default: 0]
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    pub presence_penalty: Option<f32>,
    /// DRY: penalise tokens that would continue a repetition; 0 is off [default: 0]
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    pub dry_multiplier: Option<f32>,
    /// DRY: base of the penalty [default: 1.75]
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    pub dry_base: Option<f32>,
    /// DRY: length of a repetition that is not penalised [default: 2]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub dry_allowed_length: Option<i64>,
    /// DRY: tokens looked back on; 0 is off, -1 the whole context [default: -1]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub dry_penalty_last_n: Option<i64>,
    /// DRY: text that ends repetitions, instead of the default ones; "none" for none (repeatable)
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub dry_sequence_breaker: Vec<String>,
    /// Add to a token's logit, e.g. 15043+1 or 15043-inf; ids from `tokenize` (repeatable; " cat" and "cat" are two tokens)
    #[arg(short, long, value_name = "ID(+|-)X")]
    pub logit_bias: Vec<String>,
}

/// What the answer must match. One of these at most.
#[derive(Args, Debug, Clone, Default)]
#[command(next_help_heading = "Constrained output")]
pub struct GrammarArgs {
    /// Answer only what this grammar matches (GBNF, with a rule "root")
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub grammar: Option<String>,
    /// File that holds the grammar
    #[arg(long, value_name = "FILE")]
    pub grammar_file: Option<PathBuf>,
    /// Answer only JSON that this schema allows, e.g. '{}' for any
    #[arg(long, value_name = "TEXT")]
    pub json_schema: Option<String>,
    /// File that holds the schema
    #[arg(long, value_name = "FILE")]
    pub json_schema_file: Option<PathBuf>,
    /// Answer only what this regular expression matches, from start to end
    #[arg(long, value_name = "REGEX", allow_hyphen_values = true)]
    pub regex: Option<String>,
    /// File that holds a grammar in Lark
    #[arg(long, value_name = "FILE")]
    pub lark_file: Option<PathBuf>,
}

/// -1 stands for something else, what is below for nothing.
fn at_least_minus_one() -> clap::builder::RangedI64ValueParser<i64> {
    clap::value_parser!(i64).range(-1..)
}

/// Where statistics go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StatsTarget {
    /// stderr.
    Stderr,
    /// A file.
    File(PathBuf),
}

impl ValueParserFactory for StatsTarget {
    type Parser = TryMapValueParser<OsStringValueParser, fn(OsString) -> Result<StatsTarget, &'static str>>;

    fn value_parser() -> Self::Parser {
        OsStringValueParser::new().try_map(|value| match value.as_bytes().strip_prefix(b"json") {
            Some(b"") => Ok(StatsTarget::Stderr),
            Some([b'=', file @ ..]) if !file.is_empty() => Ok(StatsTarget::File(OsStr::from_bytes(file).into())),
            _ => Err("supported: json or json=FILE"),
        })
    }
}

/// What is said on stderr.
#[derive(Args, Debug, Clone)]
#[command(next_help_heading = "Messages and statistics")]
pub struct ReportArgs {
    /// Statistics as one JSON object, on stderr or into a file
    #[arg(long, value_name = "json[=FILE]")]
    pub stats: Option<StatsTarget>,
    /// Print nothing on stderr but errors
    #[arg(short, long, conflicts_with = "verbose")]
    pub quiet: bool,
    /// Print more on stderr (-vv: tokens and rendered prompt)
    #[arg(short, long, action = ArgAction::Count)]
    pub verbose: u8,
}

/// `run`.
#[derive(Args, Debug, Clone)]
pub struct RunArgs {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub model: ModelArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub text: TextArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub shape: ShapeArgs,
    /// Tokens to generate at most; -1 until the model ends or the context is full
    #[arg(short = 'n', long, value_name = "N", default_value_t = -1, allow_negative_numbers = true, value_parser = at_least_minus_one(), help_heading = "Answer")]
    pub n_predict: i64,
    /// End the answer before this text (repeatable)
    #[arg(long, alias = "reverse-prompt", value_name = "TEXT", allow_hyphen_values = true, help_heading = "Answer")]
    pub stop: Vec<String>,
    /// System message
    #[arg(long, value_name = "TEXT", conflicts_with = "raw", allow_hyphen_values = true, help_heading = "Answer")]
    pub system: Option<String>,
    /// Take the text verbatim: no chat template, special text is parsed, BOS as the model says
    #[arg(long, conflicts_with_all = ["chat_template", "template_arg", "template_time"], help_heading = "Answer")]
    pub raw: bool,
    /// Print control tokens the model writes
    #[arg(long, help_heading = "Answer")]
    pub special: bool,
    /// Colour what was guessed, a colour for each drafter; only on a terminal, and not with NO_COLOR
    #[arg(long, help_heading = "Drafting")]
    pub show_draft: bool,
    /// Tell the template whether to think first (its `enable_thinking`); not all know it [default: as the template has it]
    #[arg(long, value_name = "on|off", hide_possible_values = true, help_heading = "Answer")]
    pub think: Option<Think>,
    /// Keep evaluated tokens in this file: what the next prompt starts with is not evaluated again
    #[arg(long, value_name = "FILE", help_heading = "Answer")]
    pub prompt_cache: Option<PathBuf>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub template: TemplateArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub sampling: SamplingArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub grammar: GrammarArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub draft: DraftArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub report: ReportArgs,
}

/// `batch`.
#[derive(Args, Debug, Clone)]
pub struct BatchArgs {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub model: ModelArgs,
    /// Tokens to generate at most, where a request does not say; -1 is no limit but the context
    #[arg(short = 'n', long, value_name = "N", default_value_t = -1, allow_negative_numbers = true, value_parser = at_least_minus_one(), help_heading = "Answer")]
    pub n_predict: i64,
    /// Answer only every N-th line, from line I on (I from 1 to N); ids and seeds are those of the whole
    #[arg(long, value_name = "I/N", help_heading = "Answer")]
    pub shard: Option<Shard>,
    /// Skip requests that have answers in this file, the output of an earlier run, where it is there. A torn last line
    /// counts as none, and is cut off if the file is stdout: `--resume OUT >> OUT`
    #[arg(long, value_name = "OUT", help_heading = "Answer")]
    pub resume: Option<PathBuf>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub template: TemplateArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub sampling: SamplingArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub grammar: GrammarArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub draft: DraftArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub report: ReportArgs,
}

/// `tokenize`.
#[derive(Args, Debug, Clone)]
pub struct TokenizeArgs {
    /// Model file; its weights are not read
    #[arg(short, long, value_name = "FILE")]
    pub model: PathBuf,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub text: TextArgs,
    /// Take the text of special tokens as plain text
    #[arg(long)]
    pub plain: bool,
    /// Put BOS in front
    #[arg(long)]
    pub bos: bool,
    /// Print one JSON array
    #[arg(long)]
    pub json: bool,
}

/// `perplexity`.
#[derive(Args, Debug, Clone)]
#[command(mut_arg("ctx_size", |arg| arg.help("Tokens in a window; 0 is the model's own context [default: 512, or the model's own if that is less]")))]
pub struct PerplexityArgs {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub model: ModelArgs,
    /// The text, at least one window long
    #[arg(short, long, value_name = "FILE")]
    pub file: PathBuf,
    /// Windows to score at most; -1 is all
    #[arg(long, value_name = "N", default_value_t = -1, allow_negative_numbers = true)]
    pub chunks: i64,
    /// Print one JSON object: ppl, its uncertainty, chunks scored, tokens scored, ctx
    #[arg(long)]
    pub json: bool,
    /// Print nothing on stderr but errors
    #[arg(short, long)]
    pub quiet: bool,
}

/// `inspect`.
#[derive(Args, Debug, Clone)]
pub struct InspectArgs {
    /// Model file (GGUF; of a split one, any shard)
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Context length to compute memory for; 0 is the model's own [default: the model's own, at most 4096]
    #[arg(short, long, value_name = "N")]
    pub ctx_size: Option<usize>,
    /// Type of the KV cache to compute memory for
    #[arg(long, value_name = "TYPE", default_value = "f16")]
    pub kv_type: KvType,
    /// Instruction set to name kernels of [default: the best this CPU has]
    #[arg(long, value_name = "NAME")]
    pub isa: Option<Isa>,
    /// Print values in full
    #[arg(short, long)]
    pub verbose: bool,
}
