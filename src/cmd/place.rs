//! Where a command runs: the one place that names backends.

use super::load;
use super::report::Report;
use crate::backend::cpu::Cpu;
use crate::backend::{Backend, Device};
use crate::cli::{Activations, ModelArgs};
use anyhow::Result;

/// A device that models can be loaded on.
pub trait Place {
    /// Its backend.
    type Backend: Backend;

    /// A backend there, as `args` want it.
    fn open(&self, args: &ModelArgs) -> Result<Self::Backend>;

    /// Why it is no GPU, where one was looked for.
    fn why(&self) -> Option<&str>;
}

/// A command that runs on any place.
pub trait OnPlace {
    /// Runs it there.
    fn run(self, place: &impl Place) -> Result<()>;
}

/// The CPU.
struct OnCpu {
    why: Option<String>,
}

impl Place for OnCpu {
    type Backend = Cpu;

    fn open(&self, args: &ModelArgs) -> Result<Cpu> {
        let cpu = Cpu::new(load::isa(args.isa)?, load::threads(args))?;
        Ok(if args.activations == Activations::F32 { cpu.exact() } else { cpu })
    }

    fn why(&self) -> Option<&str> {
        self.why.as_deref()
    }
}

/// Runs `command` where `args` say.
pub fn choose(args: &ModelArgs, report: &Report, command: impl OnPlace) -> Result<()> {
    match gpu::find(args, report)? {
        #[cfg(feature = "cuda")]
        Ok(gpu) => command.run(&gpu),
        Err(why) => command.run(&OnCpu { why }),
    }
}

#[cfg(not(feature = "cuda"))]
mod gpu {
    use super::*;
    use anyhow::bail;
    use std::convert::Infallible;

    /// No GPU, and why where one was looked for.
    pub fn find(args: &ModelArgs, _: &Report) -> Result<Result<Infallible, Option<String>>> {
        match args.device {
            Device::Cuda(_) => bail!("--device {}: this foretoken was built without CUDA", args.device),
            Device::Auto | Device::Cpu => Ok(Err(None)),
        }
    }
}

#[cfg(feature = "cuda")]
mod gpu {
    use super::*;
    use crate::backend::cuda::{self, Absent, Cuda};
    use crate::cmd::memory::Need;
    use crate::gguf::Gguf;
    use crate::model::Config;
    use anyhow::{Context, bail, ensure};

    /// A GPU.
    pub struct OnGpu(Cuda);

    impl Place for OnGpu {
        type Backend = Cuda;

        fn open(&self, _: &ModelArgs) -> Result<Cuda> {
            Ok(self.0.clone())
        }

        fn why(&self) -> Option<&str> {
            None
        }
    }

    /// Whether what `args` ask for is for the CPU alone.
    fn wants_cpu(args: &ModelArgs) -> bool {
        args.device == Device::Cpu
            || args.device == Device::Auto && (args.isa.is_some() || args.activations == Activations::F32)
    }

    /// The GPU to run on, or why the CPU, where a GPU was looked for.
    pub fn find(args: &ModelArgs, report: &Report) -> Result<Result<OnGpu, Option<String>>> {
        if wants_cpu(args) {
            return Ok(Err(None));
        }
        let asked = match args.device {
            Device::Cuda(number) => Some(number),
            _ => None,
        };
        match open(args, asked) {
            Ok(cuda) => Ok(Ok(OnGpu(cuda))),
            Err(error) if asked.is_some() => Err(error.context(format!("--device {}", args.device))),
            Err(error) => {
                let why = format!("{error:#}");
                // A machine without a driver has nothing that its owner would miss.
                let level = u8::from(error.downcast_ref().is_some_and(|absent: &Absent| absent.is_driver()));
                report.detail(level, format_args!("no GPU: {why}: running on the CPU"));
                Ok(Err(Some(why)))
            }
        }
    }

    /// The GPU asked for, or the first on which the model fits.
    fn open(args: &ModelArgs, asked: Option<usize>) -> Result<Cuda> {
        ensure!(args.isa.is_none(), "--isa is for the CPU");
        ensure!(args.activations == Activations::Int8, "--activations f32 is for the CPU");
        let found = cuda::probe()?;
        if let Some(number) = asked {
            let most = found.len() - 1;
            let gpu = found.get(number).with_context(|| format!("there is none, the last is cuda:{most}"))?;
            return Cuda::open(gpu);
        }
        let mut reason = None;
        for gpu in &found {
            match Cuda::open(gpu).and_then(|cuda| fits(args, &cuda).map(|()| cuda)) {
                Ok(cuda) => return Ok(cuda),
                Err(error) => reason = reason.or(Some(error)),
            }
        }
        match reason {
            Some(reason) => Err(reason),
            None => bail!("the driver shows none"),
        }
    }

    /// Refuses a GPU without the room for the model. A file that cannot be read is told of when it is loaded.
    fn fits(args: &ModelArgs, cuda: &Cuda) -> Result<()> {
        let Ok(gguf) = Gguf::open(&args.model) else { return Ok(()) };
        let Ok(config) = Config::read(&gguf) else { return Ok(()) };
        let context = load::context_size(args.ctx_size, config.context);
        if config.check_session(context, args.kv_type).is_err() {
            return Ok(());
        }
        let need = Need::of(&gguf, &config, context, args.kv_type, |tensor| cuda.packed_bytes(tensor));
        need.check(context, cuda.own_memory()?, &format!(" on {}", cuda.describe().device))
    }
}
