//! Launches of single kernels on the emulated driver.

use super::common::emulator;
use foretoken::backend::cuda::kernels::{AttendShape, Launch, Products};
use libloading::Library;
use std::ffi::{CString, c_void};
use std::sync::OnceLock;

/// The library and the entry points that are used, which are called as the driver's API says.
struct Driver {
    allocate: unsafe extern "C" fn(*mut u64, usize) -> i32,
    release: unsafe extern "C" fn(u64) -> i32,
    function: unsafe extern "C" fn(*mut *mut c_void, *mut c_void, *const i8) -> i32,
    #[allow(clippy::type_complexity, reason = "as in the driver")]
    launch: unsafe extern "C" fn(
        *mut c_void,
        u32,
        u32,
        u32,
        u32,
        u32,
        u32,
        u32,
        *mut c_void,
        *mut *mut c_void,
        *mut *mut c_void,
    ) -> i32,
    set_order: unsafe extern "C" fn(i32, u64),
}

/// Whether there is an emulated driver: without a C++ compiler there is none.
pub fn is_there() -> bool {
    emulator::folder().is_some()
}

fn driver() -> &'static Driver {
    static DRIVER: OnceLock<Driver> = OnceLock::new();
    DRIVER.get_or_init(|| {
        let path = emulator::folder().expect("asked for before").join("libcuda.so.1");
        // SAFETY: our own library; it starts nothing when it is loaded, and is never unloaded.
        let library: &'static Library = Box::leak(Box::new(unsafe { Library::new(path) }.unwrap()));
        // SAFETY: the types are those of `cuda/emulated/libcuda.cpp`.
        unsafe {
            Driver {
                allocate: *library.get(b"cuMemAlloc_v2").unwrap(),
                release: *library.get(b"cuMemFree_v2").unwrap(),
                function: *library.get(b"cuModuleGetFunction").unwrap(),
                launch: *library.get(b"cuLaunchKernel").unwrap(),
                set_order: *library.get(b"emulator_set_order").unwrap(),
            }
        }
    })
}

/// In which order threads that can run are picked.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Order {
    Forward,
    Reverse,
    Random(u64),
}

/// Several of them.
pub const ORDERS: [Order; 3] = [Order::Forward, Order::Reverse, Order::Random(7)];

/// Sets the order of what this thread launches.
pub fn set_order(order: Order) {
    let (order, seed) = match order {
        Order::Forward => (0, 1),
        Order::Reverse => (1, 1),
        Order::Random(seed) => (2, seed),
    };
    // SAFETY: sets two variables of this thread.
    unsafe { (driver().set_order)(order, seed) }
}

/// Device memory.
pub struct Buffer {
    at: u64,
    bytes: usize,
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: allocated by the driver, released once.
        assert_eq!(unsafe { (driver().release)(self.at) }, 0);
    }
}

/// What may be copied as bytes.
pub trait Plain: Copy {}
impl Plain for u8 {}
impl Plain for i8 {}
impl Plain for u16 {}
impl Plain for u32 {}
impl Plain for i32 {}
impl Plain for f32 {}
impl Plain for u64 {}
impl Plain for foretoken::backend::cuda::kernels::Step {}

impl Buffer {
    /// So many bytes, which begin as NaNs.
    pub fn room(bytes: usize) -> Self {
        let mut at = 0;
        // SAFETY: writes one address.
        assert_eq!(unsafe { (driver().allocate)(&mut at, bytes.max(1)) }, 0);
        Self { at, bytes }
    }

    pub fn floats(n: usize) -> Self {
        Self::room(4 * n)
    }

    pub fn of<T: Plain>(values: &[T]) -> Self {
        let buffer = Self::room(size_of_val(values));
        // SAFETY: plain values into memory of the host, as the emulated device's is, of their size.
        unsafe {
            std::ptr::copy_nonoverlapping(values.as_ptr().cast::<u8>(), buffer.at as *mut u8, size_of_val(values))
        }
        buffer
    }

    /// The first `n` values.
    pub fn read<T: Plain>(&self, n: usize) -> Vec<T> {
        assert!(n * size_of::<T>() <= self.bytes);
        let mut values = Vec::with_capacity(n);
        // SAFETY: plain values of the host's memory, within the buffer; the vector has room.
        unsafe {
            std::ptr::copy_nonoverlapping(self.at as *const u8, values.as_mut_ptr() as *mut u8, n * size_of::<T>());
            values.set_len(n);
        }
        values
    }

    /// Where it is.
    pub fn address(&self) -> u64 {
        self.at
    }

    /// A pointer to byte `offset`.
    pub fn at(&self, offset: usize) -> Arg {
        Arg::Pointer(self.at + offset as u64)
    }
}

/// An argument of a kernel.
#[derive(Clone, Copy, Debug)]
pub enum Arg {
    Pointer(u64),
    I32(i32),
    F32(f32),
    Shape(AttendShape),
    Products(Products),
}

pub const NULL: Arg = Arg::Pointer(0);

impl From<&Buffer> for Arg {
    fn from(buffer: &Buffer) -> Self {
        Arg::Pointer(buffer.at)
    }
}
impl From<usize> for Arg {
    fn from(n: usize) -> Self {
        Arg::I32(n as i32)
    }
}
impl From<f32> for Arg {
    fn from(x: f32) -> Self {
        Arg::F32(x)
    }
}

/// Runs a kernel.
pub fn launch(launch: &Launch, mut args: Vec<Arg>) {
    let name = CString::new(launch.kernel.as_str()).unwrap();
    let mut function = std::ptr::null_mut();
    // SAFETY: as the driver's API says.
    let found = unsafe { (driver().function)(&mut function, std::ptr::null_mut(), name.as_ptr().cast()) };
    assert_eq!(found, 0, "no kernel {}", launch.kernel);
    let mut pointers: Vec<*mut c_void> = args
        .iter_mut()
        .map(|arg| match arg {
            Arg::Pointer(p) => std::ptr::from_mut(p).cast(),
            Arg::I32(n) => std::ptr::from_mut(n).cast(),
            Arg::F32(x) => std::ptr::from_mut(x).cast(),
            Arg::Shape(shape) => std::ptr::from_mut(shape).cast(),
            Arg::Products(products) => std::ptr::from_mut(products).cast(),
        })
        .collect();
    let ((x, y, z), null) = (launch.grid, std::ptr::null_mut());
    // SAFETY: as many pointers to arguments as the kernel documents (`kernels.rs`).
    let result = unsafe {
        (driver().launch)(function, x, y, z, launch.block, 1, 1, 0, null, pointers.as_mut_ptr(), null.cast())
    };
    assert_eq!(result, 0, "{launch:?}");
}

/// The arguments of a launch.
#[macro_export]
macro_rules! args {
    ($($arg:expr),* $(,)?) => { vec![$($crate::device::Arg::from($arg)),*] };
}
