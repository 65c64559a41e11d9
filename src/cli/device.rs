//! What says where to run.

use super::draft::one_line;
use crate::backend::{Device, device};
use clap::Arg;
use clap::builder::TypedValueParser;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use std::ffi::OsStr;

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
