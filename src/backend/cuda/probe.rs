//! Which GPUs there are, found out without a panic whatever lies in the driver's place.
//!
//! The driver is opened at run time. A machine that has none is found out by one failed look for its library; one whose
//! driver lacks a function that is called here, or is older than the kernels' PTX, by looking before anything is called.

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys::{self, CUdevice_attribute as Attribute};
use libloading::Library;
use std::fmt;

/// Oldest driver that takes the kernels: PTX 8.1 came with CUDA 12.1.
const OLDEST: i32 = 12010;
/// Oldest architecture they are made for.
pub(super) const OLDEST_ARCH: (i32, i32) = (8, 0);

/// Names the driver's library has.
const LIBRARIES: [&str; 2] = ["libcuda.so.1", "libcuda.so"];

/// Every function of the driver that is called.
const FUNCTIONS: &[&str] = &[
    "cuInit",
    "cuDriverGetVersion",
    "cuDeviceGetCount",
    "cuDeviceGet",
    "cuDeviceGetName",
    "cuDeviceGetAttribute",
    "cuDeviceTotalMem_v2",
    "cuDevicePrimaryCtxRetain",
    "cuDevicePrimaryCtxRelease_v2",
    "cuCtxGetCurrent",
    "cuCtxSetCurrent",
    "cuGetErrorName",
    "cuGetErrorString",
    "cuMemGetInfo_v2",
    "cuMemAlloc_v2",
    "cuMemFree_v2",
    "cuMemHostAlloc",
    "cuMemFreeHost",
    "cuMemcpyHtoDAsync_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuModuleLoadData",
    "cuModuleUnload",
    "cuModuleGetFunction",
    "cuLaunchKernel",
    "cuStreamCreate",
    "cuStreamDestroy_v2",
    "cuStreamSynchronize",
    "cuStreamBeginCapture_v2",
    "cuStreamEndCapture",
    "cuGraphInstantiateWithFlags",
    "cuGraphLaunch",
    "cuGraphDestroy",
    "cuGraphExecDestroy",
];

/// A GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpu {
    /// Its number, counted from 0 as the driver does; `CUDA_VISIBLE_DEVICES` has a say in that.
    pub number: usize,
    /// Its name.
    pub name: String,
    /// Its architecture, major and minor.
    pub arch: (i32, i32),
    /// Its memory in bytes.
    pub memory: u64,
}

impl fmt::Display for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, arch: (major, minor), memory, .. } = self;
        write!(f, "{name}, sm_{major}{minor}, {:.1} GB", *memory as f64 / 1e9)
    }
}

/// Why there is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Absent {
    /// No driver.
    Driver,
    /// A library in its place that lacks a function.
    Function(&'static str),
    /// A driver of this version.
    Old(i32),
    /// A driver that does not start.
    Fault(String),
    /// A driver that shows no device.
    Device,
}

impl Absent {
    /// Whether nothing on the machine hints at a GPU.
    pub fn is_driver(&self) -> bool {
        *self == Absent::Driver
    }
}

impl fmt::Display for Absent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let version = |v: i32| format!("{}.{}", v / 1000, v % 1000 / 10);
        match self {
            Absent::Driver => f.write_str("no CUDA driver"),
            Absent::Function(name) => write!(f, "the CUDA driver lacks {name}: it is too old, or none of NVIDIA's"),
            Absent::Old(found) => {
                let (found, oldest) = (version(*found), version(OLDEST));
                write!(f, "the driver supports CUDA {found}, {oldest} is needed: driver 530 or newer")
            }
            Absent::Fault(what) => write!(f, "the CUDA driver does not start: {what}"),
            Absent::Device => f.write_str("the CUDA driver shows no device"),
        }
    }
}

impl std::error::Error for Absent {}

/// What the driver says of an error.
pub(super) fn said(error: DriverError) -> String {
    let text = |found: Result<&std::ffi::CStr, DriverError>| found.ok().map(|text| text.to_string_lossy().into_owned());
    match (text(error.error_string()), text(error.error_name())) {
        (Some(text), Some(name)) => format!("{text} ({name})"),
        _ => format!("error {}", error.0 as u32),
    }
}

/// The GPUs that there are, at least one.
pub fn probe() -> Result<Vec<Gpu>, Absent> {
    // SAFETY: a driver's library has no more to its opening than any other; it is only looked for.
    if !LIBRARIES.iter().any(|&name| unsafe { Library::new(name) }.is_ok()) {
        return Err(Absent::Driver);
    }
    // SAFETY: there is a library of this name, so it is found here too.
    let library = unsafe { sys::culib() };
    for name in FUNCTIONS {
        // SAFETY: the symbol is looked up, not used.
        if unsafe { library.get::<unsafe extern "C" fn()>(name.as_bytes()) }.is_err() {
            return Err(Absent::Function(name));
        }
    }
    let fault = |error: DriverError| match error.0 {
        sys::CUresult::CUDA_ERROR_NO_DEVICE => Absent::Device,
        _ => Absent::Fault(said(error)),
    };
    result::init().map_err(fault)?;
    let mut version = 0;
    // SAFETY: an integer to write to.
    unsafe { sys::cuDriverGetVersion(&mut version) }.result().map_err(fault)?;
    if version < OLDEST {
        return Err(Absent::Old(version));
    }
    let count = result::device::get_count().map_err(fault)?;
    let gpus: Result<Vec<Gpu>, DriverError> = (0..count).map(gpu).collect();
    gpus.map_err(fault).and_then(|gpus| if gpus.is_empty() { Err(Absent::Device) } else { Ok(gpus) })
}

fn gpu(number: i32) -> Result<Gpu, DriverError> {
    let device = result::device::get(number)?;
    // SAFETY: a device that the driver gave.
    let attribute = |which| unsafe { result::device::get_attribute(device, which) };
    let arch = (
        attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
        attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
    );
    // SAFETY: as above.
    let memory = unsafe { result::device::total_mem(device)? } as u64;
    Ok(Gpu { number: number as usize, name: result::device::get_name(device)?, arch, memory })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_one_line() {
        for (absent, want) in [
            (Absent::Driver, "no CUDA driver"),
            (Absent::Function("cuX"), "the CUDA driver lacks cuX: it is too old, or none of NVIDIA's"),
            (Absent::Old(11080), "the driver supports CUDA 11.8, 12.1 is needed: driver 530 or newer"),
            (Absent::Fault("x (Y)".into()), "the CUDA driver does not start: x (Y)"),
            (Absent::Device, "the CUDA driver shows no device"),
        ] {
            assert_eq!(absent.to_string(), want);
            assert_eq!(absent.is_driver(), absent == Absent::Driver);
        }
    }
}
