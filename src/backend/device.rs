//! Which device to run on, and which there are.

use super::cpu::team;
use crate::isa::Isa;
use anyhow::{Context, Error, Result};
use std::fmt;
use std::str::FromStr;

/// Where a model is to run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Device {
    /// On a GPU that is there and has the room, else on the CPU.
    #[default]
    Auto,
    /// On the CPU; no driver is loaded.
    Cpu,
    /// On this GPU, counted as the driver does, or not at all.
    Cuda(usize),
}

impl FromStr for Device {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let device = match text {
            "auto" => Some(Device::Auto),
            "cpu" => Some(Device::Cpu),
            "cuda" => Some(Device::Cuda(0)),
            _ => text.strip_prefix("cuda:").and_then(|n| n.parse().ok()).map(Device::Cuda),
        };
        device.with_context(|| format!("found '{text}', supported auto, cpu, cuda, cuda:N (N from 0) and list"))
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Device::Auto => f.write_str("auto"),
            Device::Cpu => f.write_str("cpu"),
            Device::Cuda(number) => write!(f, "cuda:{number}"),
        }
    }
}

/// What there is, a line each, for people.
pub fn list() -> String {
    let mut lines = format!("{:<8} {}, {} cores\n", "cpu", Isa::best().name(), team::default_threads());
    lines.push_str(&gpus());
    lines
}

#[cfg(feature = "cuda")]
fn gpus() -> String {
    match super::cuda::probe() {
        Ok(found) => found.iter().map(|gpu| format!("{:<8} {gpu}\n", Device::Cuda(gpu.number).to_string())).collect(),
        Err(absent) => format!("{:<8} not usable: {absent}\n", "cuda"),
    }
}

#[cfg(not(feature = "cuda"))]
fn gpus() -> String {
    format!("{:<8} not built in\n", "cuda")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_named() {
        for (text, want) in [
            ("auto", Some(Device::Auto)),
            ("cpu", Some(Device::Cpu)),
            ("cuda", Some(Device::Cuda(0))),
            ("cuda:0", Some(Device::Cuda(0))),
            ("cuda:12", Some(Device::Cuda(12))),
            ("cuda:", None),
            ("cuda:-1", None),
            ("gpu", None),
            ("", None),
            ("CPU", None),
        ] {
            let got = text.parse::<Device>();
            assert_eq!(got.as_ref().ok(), want.as_ref(), "{text}");
            let again = got.ok().map(|device| device.to_string().parse::<Device>().unwrap());
            assert_eq!(again, want);
        }
    }

    #[test]
    fn the_cpu_is_always_listed() {
        let list = list();
        assert!(
            list.starts_with("cpu ") && list.lines().count() >= 2 && list.lines().any(|l| l.starts_with("cuda")),
            "{list}"
        );
    }
}
