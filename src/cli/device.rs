//! What says where to run.

use super::draft::one_line;
use crate::backend::{Device, device};
use clap::Arg;
use clap::builder::TypedValueParser;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use std::ffi::OsStr;
#[cfg(feature = "cuda")]
use std::path::PathBuf;

/// Reads `--device`; `list` is a kind of help.
#[derive(Clone)]
pub(super) struct DeviceParser;

impl TypedValueParser for DeviceParser {
    type Value = Device;

    fn parse_ref(&self, _: &clap::Command, _: Option<&Arg>, value: &OsStr) -> Result<Device, clap::Error> {
        match value.to_string_lossy().as_ref() {
            "list" => {
                let mut list = clap::Error::new(ErrorKind::DisplayHelp);
                list.insert(ContextKind::Custom, ContextValue::String(device::list()));
                Err(list)
            }
            text => text.parse().map_err(|e| one_line("--device", &e)),
        }
    }
}

/// `device-check`.
#[cfg(feature = "cuda")]
#[derive(clap::Args, Debug, Clone)]
pub struct DeviceCheckArgs {
    /// The GPU: cuda or cuda:N
    #[arg(long, value_name = "cuda[:N]", default_value = "cuda", value_parser = DeviceParser)]
    pub device: Device,
    /// How much to do
    #[arg(long, value_name = "SIZE", default_value = "full")]
    pub size: CheckSize,
    /// Seconds after which no further shape is timed
    #[arg(long, value_name = "N", default_value_t = 330)]
    pub seconds: u64,
    /// File for the report [default: stdout]
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

/// How much `device-check` does.
#[cfg(feature = "cuda")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum CheckSize {
    /// Shapes of real models.
    Full,
    /// What an emulator can do.
    Tiny,
}
