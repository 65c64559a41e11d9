//! `device-check`: whether a GPU computes what the CPU does, whether the laws hold on it, and how fast it is. One report.
//!
//! It needs no files: models have the shapes of real ones and weights that are made up on the device. `scripts/device_check`
//! runs it.

mod file;
mod laws;
mod ops;
mod shapes;
mod speed;

use crate::backend::cuda::{self, Cuda};
use crate::backend::{Backend, Device, KvType};
use crate::cli::{CheckSize, DeviceCheckArgs};
use crate::cmd::memory::size as bytes;
use crate::gguf::Gguf;
use crate::model::Model;
use anyhow::{Context, Result, bail};
use file::Hollow;
use shapes::{Mix, Shape};
use std::cell::Cell;
use std::fs;
use std::io::{Write, stderr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How much is done.
struct Size {
    /// Outputs and columns of products.
    products: &'static [(usize, usize)],
    rows: &'static [usize],
    laws: &'static [Shape],
    law: laws::Size,
    speeds: &'static [Shape],
    speed: speed::Size,
}

const FULL: Size = Size {
    products: &[(100, 32), (1000, 576), (257, 4096), (64, 14_336)],
    rows: ops::ROWS,
    laws: &shapes::LAWS,
    law: laws::Size { chain: 300, context: 500, nodes: 48, text: 48 },
    speeds: &shapes::REAL,
    speed: speed::Size {
        prefill: &[512, 2048],
        depths: &[0, 512, 4096],
        tokens: 32,
        widths: &[1, 2, 4, 8, 16, 32, 64],
        repetitions: 3,
    },
};

const TINY: Size = Size {
    products: &[(33, 32), (40, 256)],
    rows: &[1, 2, 5, 9],
    laws: &shapes::TINY,
    law: laws::Size { chain: 7, context: 5, nodes: 6, text: 5 },
    speeds: &[shapes::TINY[1]],
    speed: speed::Size { prefill: &[4], depths: &[0], tokens: 1, widths: &[1, 4], repetitions: 1 },
};

/// Random numbers (splitmix64).
struct Random(u64);

impl Random {
    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.bits() % n as u64) as usize
    }

    /// Between -2 and 2, more often near 0.
    fn value(&mut self) -> f32 {
        let unit = |bits: u64| (bits >> 40) as f32 / (1 << 23) as f32 - 1.0;
        unit(self.bits()) + unit(self.bits())
    }
}

/// A folder for files that are there only while they are opened.
struct Scratch {
    folder: PathBuf,
    made: Cell<usize>,
}

impl Scratch {
    fn new() -> Result<Self> {
        let folder = std::env::temp_dir().join(format!("foretoken-check-{}", std::process::id()));
        fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
        Ok(Self { folder, made: Cell::new(0) })
    }

    fn with<T>(&self, file: &Hollow, open: impl FnOnce(&Path) -> Result<T>) -> Result<T> {
        self.made.set(self.made.get() + 1);
        let path = self.folder.join(format!("{}.gguf", self.made.get()));
        file.write(&path)?;
        let opened = open(&path);
        let _ = fs::remove_file(&path);
        opened
    }

    /// A model on the device.
    fn load(&self, device: &Cuda, file: &Hollow) -> Result<Model<Cuda>> {
        let gguf = self.with(file, Gguf::open)?;
        Model::load(Arc::new(device.making_up()), &gguf, &mut |_, _| ())
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// The report, as it grows.
struct Report {
    text: String,
    failed: usize,
    begun: Instant,
}

impl Report {
    fn say(&mut self, text: &str) {
        // Whoever waits sees how far it is; the report is for later.
        let _ = writeln!(stderr(), "[{:>4} s] {}", self.begun.elapsed().as_secs(), text.trim_end());
        self.text += text.trim_end();
        self.text += "\n\n";
    }

    /// The outcome of one part, `what`.
    fn part(&mut self, what: &str, part: impl FnOnce() -> Result<String>) {
        let begun = Instant::now();
        let outcome = part();
        let took = begun.elapsed().as_secs_f64();
        match outcome {
            Ok(text) if text.starts_with('#') => self.say(&text),
            Ok(text) => self.say(&format!("- {what}: {text} ({took:.1} s)")),
            Err(error) => {
                self.failed += 1;
                self.say(&format!("- FAILED {what}: {error:#}"));
            }
        }
    }
}

/// Runs the command.
pub fn run(args: &DeviceCheckArgs) -> Result<()> {
    let number = match args.device {
        Device::Cuda(number) => number,
        Device::Auto => 0,
        Device::Cpu => bail!("--device cpu: there is nothing to check it against"),
    };
    let gpus = cuda::probe()?;
    let gpu = gpus.get(number).with_context(|| format!("--device cuda:{number}: there are {} GPUs", gpus.len()))?;
    let device = Cuda::open(gpu)?;
    let size = if args.size == CheckSize::Full { &FULL } else { &TINY };
    let limit = Duration::from_secs(args.seconds);
    let (scratch, begun) = (Scratch::new()?, Instant::now());
    let mut report = Report { text: String::new(), failed: 0, begun };
    let version = env!("CARGO_PKG_VERSION");
    report.say(&format!("# Device check of foretoken {version}: {gpu}"));
    report.part("ops", || {
        let ops::Counted { cases, apart, laws } = ops::check(&device, size.products, size.rows)?;
        Ok(format!("{cases} cases as on the CPU, at most {apart:.1e} of the largest value apart; {laws} times the same bits among other numbers of rows"))
    });
    for shape in size.laws {
        for (mix, kv) in [(Mix::Q4KM, KvType::F16), (Mix::Q8_0, KvType::Q8_0)] {
            let what = format!("laws on {} in {}, KV {kv:?}", shape.name, mix.name());
            report.part(&what, || laws::check(&device, shape, mix, kv, &size.law, &scratch));
        }
    }
    let rates = device.rates(0, Duration::ZERO)?;
    let bounds = [rates.reads[0].rate.all, rates.int8.all, rates.f32.all].map(|rate| rate / 1e9);
    report.say(&format!(
        "Bounds by what the driver says of the device: {:.0} GB/s, {:.0} GOP/s of int8, {:.0} of f32",
        bounds[0], bounds[1], bounds[2]
    ));
    for shape in size.speeds {
        for mix in [Mix::Q4KM, Mix::Q8_0] {
            let what = format!("speed of {} in {}", shape.name, mix.name());
            if begun.elapsed() > limit {
                report.say(&format!("- left out for want of time: {what}"));
                continue;
            }
            let (need, free) = (shape.file(mix, 0).bytes(), device.own_memory()?.unwrap_or(0));
            if need + need / 4 > free {
                report.say(&format!(
                    "- left out for want of memory: {what} needs {}, {} are free",
                    bytes(need),
                    bytes(free)
                ));
                continue;
            }
            report.part(&what, || speed::check(&device, &rates, shape, mix, &size.speed, &scratch));
        }
    }
    let (made, launched) = device.graphs();
    report.say(&format!("{made} launch graphs made, launched {launched} times"));
    match &args.output {
        None => std::io::stdout().write_all(report.text.as_bytes())?,
        Some(path) => fs::write(path, &report.text).with_context(|| path.display().to_string())?,
    }
    match report.failed {
        0 => Ok(()),
        n => bail!("{n} parts failed"),
    }
}
