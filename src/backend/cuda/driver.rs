//! A context with one stream: memory, copies, launches.
//!
//! Ops do not wait: their launches are queued here and given to the stream some at a time, in order. Runs of launches that
//! were seen before, down to every argument, go as one launch graph instead (see [`super::graph`]). What fails on the way is
//! kept and told by the next [`Driver::copy_out`].

use super::fuse::{self, Pending};
use super::graph::Graphs;
use super::kernels::{self, Launch};
use super::probe::{self, Gpu, said};
use super::ptx;
use anyhow::{Context, Result, anyhow, ensure};
use cudarc::driver::CudaContext;
use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys::{self, CUdeviceptr, CUfunction, CUmodule, CUstream};
use std::collections::HashMap;
use std::ffi::{CString, c_void};
use std::sync::{Arc, Mutex, MutexGuard};

/// Launches that go to the stream together.
const TOGETHER: usize = 48;
/// Bytes of pinned memory that copies to the device go through.
const PINNED: usize = 16 << 20;
/// The most that goes through it in one piece.
pub const PIECE: usize = PINNED / 2;

/// Words that arguments of a launch take at most, and how many there may be.
const WORDS: usize = 24;
const ARGUMENTS: usize = 12;

/// A launch with its arguments.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Call {
    function: CUfunction,
    grid: (u32, u32, u32),
    block: u32,
    words: [u64; WORDS],
    /// Where each argument begins.
    starts: [u8; ARGUMENTS],
    count: u8,
    used: u8,
}

/// Arguments of a kernel.
#[derive(Clone, Copy, Default)]
pub struct Arguments {
    words: [u64; WORDS],
    starts: [u8; ARGUMENTS],
    count: u8,
    used: u8,
}

impl Arguments {
    /// Adds a value as C has it.
    fn push(mut self, bytes: &[u8]) -> Self {
        self.starts[usize::from(self.count)] = self.used;
        for word in bytes.chunks(8) {
            let mut whole = [0; 8];
            whole[..word.len()].copy_from_slice(word);
            self.words[usize::from(self.used)] = u64::from_ne_bytes(whole);
            self.used += 1;
        }
        self.count += 1;
        self
    }

    /// A pointer.
    pub fn pointer(self, address: CUdeviceptr) -> Self {
        self.push(&address.to_ne_bytes())
    }

    /// A number, which must fit.
    pub fn int(self, n: usize) -> Self {
        self.push(&i32::try_from(n).expect("shapes are checked when they are made").to_ne_bytes())
    }

    /// A number of 32 bits.
    pub fn bits(self, x: u32) -> Self {
        self.push(&x.to_ne_bytes())
    }

    /// A float.
    pub fn float(self, x: f32) -> Self {
        self.push(&x.to_ne_bytes())
    }

    /// Weights that are multiplied with one input.
    pub fn products(self, products: &kernels::Products) -> Self {
        let kernels::Products { quants, steps, blocks, bias, out, outputs } = *products;
        let words = [quants, steps, blocks, bias, out].concat().into_iter().flat_map(u64::to_ne_bytes);
        self.push(&words.chain(outputs.into_iter().flat_map(i32::to_ne_bytes)).collect::<Vec<_>>())
    }

    /// Word `word` of argument `i`.
    fn word(&self, i: usize, word: usize) -> u64 {
        assert!(i < usize::from(self.count));
        self.words[usize::from(self.starts[i]) + word]
    }

    /// The two 32-bit halves of word `word` of argument `i`.
    fn halves(&self, i: usize, word: usize) -> [[u8; 4]; 2] {
        let [a, b, c, d, e, f, g, h] = self.word(i, word).to_ne_bytes();
        [[a, b, c, d], [e, f, g, h]]
    }

    /// Argument `i`, a pointer.
    pub fn pointer_at(&self, i: usize) -> CUdeviceptr {
        self.word(i, 0)
    }

    /// Argument `i`, a number.
    pub fn int_at(&self, i: usize) -> usize {
        i32::from_ne_bytes(self.halves(i, 0)[0]) as usize
    }

    /// Argument `i`, a float.
    pub fn float_at(&self, i: usize) -> f32 {
        f32::from_ne_bytes(self.halves(i, 0)[0])
    }

    /// Argument `i`, a shape of attention.
    pub fn shape_at(&self, i: usize) -> kernels::AttendShape {
        let half = |n: usize| self.halves(i, n / 2)[n % 2];
        let (int, float) = (|n| i32::from_ne_bytes(half(n)), |n| f32::from_ne_bytes(half(n)));
        let [rows, heads, group, width, slots, blocks] = [0, 1, 2, 3, 4, 5].map(int);
        let (scale, softcap, window) = (float(6), float(7), int(8));
        kernels::AttendShape { rows, heads, group, width, slots, blocks, scale, softcap, window }
    }

    /// Argument `i`, weights that are multiplied with one input.
    pub fn products_at(&self, i: usize) -> kernels::Products {
        let three = |field: usize| [0, 1, 2].map(|n| self.word(i, 3 * field + n));
        let [quants, steps, blocks, bias, out] = [0, 1, 2, 3, 4].map(three);
        let outputs = [0, 1, 2].map(|n| i32::from_ne_bytes(self.halves(i, 15 + n / 2)[n % 2]));
        kernels::Products { quants, steps, blocks, bias, out, outputs }
    }

    /// A shape of attention.
    pub fn shape(self, shape: &kernels::AttendShape) -> Self {
        let kernels::AttendShape { rows, heads, group, width, slots, blocks, scale, softcap, window } = *shape;
        let ints = [rows, heads, group, width, slots, blocks].map(i32::to_ne_bytes);
        let floats = [scale, softcap].map(f32::to_ne_bytes);
        self.push(&[ints.concat(), floats.concat(), window.to_ne_bytes().to_vec()].concat())
    }
}

impl Call {
    /// Gives it to a stream.
    pub fn start(&self, stream: CUstream) -> Result<(), DriverError> {
        let mut words = self.words;
        let mut pointers = [std::ptr::null_mut::<c_void>(); ARGUMENTS];
        for (pointer, &start) in pointers.iter_mut().zip(&self.starts[..usize::from(self.count)]) {
            *pointer = (&raw mut words[usize::from(start)]).cast();
        }
        let Self { function, grid, block, .. } = *self;
        let pointers = &mut pointers[..usize::from(self.count)];
        // SAFETY: a function of a module that is never unloaded before its context, with the arguments that the kernel
        // takes: `kernels` says which, and tests run each. What they point to outlives the launch, see `Memory`.
        unsafe { result::launch_kernel(function, grid, (block, 1, 1), 0, stream, pointers) }
    }

    /// Whether an argument points into `memory`, or looks as if it did.
    fn uses(&self, memory: &Memory) -> bool {
        let range = memory.address..memory.address + memory.bytes as u64;
        self.words[..usize::from(self.used)].iter().any(|word| range.contains(word))
    }
}

/// The context of a GPU, and what is on its way to it.
pub struct Driver {
    context: Arc<CudaContext>,
    gpu: Gpu,
    stream: CUstream,
    state: Mutex<State>,
}

// SAFETY: the stream, modules and functions are handles, which the driver lets any thread use whose current context is
// theirs; every call makes sure of that.
unsafe impl Send for Driver {}
// SAFETY: as above; what changes is behind a lock.
unsafe impl Sync for Driver {}

struct State {
    modules: HashMap<String, CUmodule>,
    functions: HashMap<String, CUfunction>,
    queue: Vec<Call>,
    /// The latest launch, which may become one with the next.
    latest: Option<Pending>,
    graphs: Graphs,
    pinned: *mut u8,
    /// Bytes of it that copies under way may still read.
    busy: usize,
    fault: Option<anyhow::Error>,
}

impl Driver {
    /// Opens a GPU and loads what every model needs.
    pub fn open(gpu: &Gpu) -> Result<Self> {
        let Gpu { number, name, arch: (major, minor), .. } = gpu;
        let (oldest, _) = probe::OLDEST_ARCH;
        ensure!(
            gpu.arch >= probe::OLDEST_ARCH,
            "cuda:{number}, {name}, is of architecture sm_{major}{minor}, sm_{oldest}0 or newer is needed"
        );
        let opening = |error| anyhow!("opening cuda:{number}, {name}: {}", said(error));
        let context = CudaContext::new(*number).map_err(opening)?;
        let stream = result::stream::create(result::stream::StreamKind::NonBlocking).map_err(opening)?;
        // SAFETY: pinned memory that is freed with the driver.
        let pinned = unsafe { result::malloc_host(PINNED, 0) }.map_err(opening)?;
        let state = State {
            modules: HashMap::new(),
            functions: HashMap::new(),
            queue: Vec::with_capacity(TOGETHER),
            latest: None,
            graphs: Graphs::new(),
            pinned: pinned.cast(),
            busy: 0,
            fault: None,
        };
        let driver = Self { context, gpu: gpu.clone(), stream, state: Mutex::new(state) };
        for module in ["ops", "cache", "attend", "sample"] {
            driver.load(module)?;
        }
        Ok(driver)
    }

    /// The GPU.
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// An attribute of the GPU, 0 where the driver does not know.
    pub fn attribute(&self, which: sys::CUdevice_attribute) -> u64 {
        self.context.attribute(which).ok().and_then(|value| u64::try_from(value).ok()).unwrap_or(0)
    }

    /// Free bytes of memory.
    pub fn free(&self) -> Result<u64> {
        let (free, _) = self.context.mem_get_info().map_err(|e| anyhow!("{}: {}", self.name(), said(e)))?;
        Ok(free as u64)
    }

    fn name(&self) -> String {
        format!("cuda:{}", self.gpu.number)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// The state, with the context made current for this thread.
    fn bound(&self) -> MutexGuard<'_, State> {
        let mut state = self.state();
        if let Err(error) = self.context.bind_to_thread() {
            state.note("making its context current", error);
        }
        state
    }

    /// Loads a module, if it is not.
    pub fn load(&self, module: &str) -> Result<()> {
        let mut state = self.bound();
        if state.modules.contains_key(module) {
            return Ok(());
        }
        let ptx = ptx::text(module).with_context(|| format!("there are no kernels '{module}'"))?;
        // SAFETY: it is text that ends with a NUL.
        let loaded = unsafe { result::module::load_data(ptx.as_ptr().cast()) }.map_err(|error| {
            let arch = format!("sm_{}{}", self.gpu.arch.0, self.gpu.arch.1);
            anyhow!("{}: its driver does not take the kernels '{module}' for {arch}: {}", self.name(), said(error))
        })?;
        state.modules.insert(module.to_owned(), loaded);
        Ok(())
    }

    /// Queues a launch.
    pub fn launch(&self, launch: &Launch, arguments: Arguments) {
        let mut state = self.bound();
        let next = Pending { launch: launch.clone(), arguments };
        match state.latest.as_ref().and_then(|latest| fuse::join(latest, &next)) {
            Some(joined) => state.latest = Some(joined),
            None => {
                state.queue_latest();
                state.latest = Some(next);
            }
        }
        if state.queue.len() >= TOGETHER {
            state.flush(self.stream);
        }
    }

    /// Memory of `bytes` bytes, for `what`. Its content is anything.
    pub fn allocate(self: &Arc<Self>, bytes: usize, what: &str) -> Result<Memory> {
        let mut state = self.bound();
        // Memory that is freed for this one has to be free.
        state.flush(self.stream);
        drop(state);
        // SAFETY: the memory is freed by `Memory`.
        let address = unsafe { result::malloc_sync(bytes.max(16)) }.map_err(|error| {
            anyhow!("{}: allocating {:.1} MB of {what}: {}", self.name(), bytes as f64 / 1e6, said(error))
        })?;
        Ok(Memory { driver: self.clone(), address, bytes })
    }

    /// Copies `bytes` to byte `at` of `to`, after what was launched with arguments that point there and before anything
    /// that is launched from now on.
    pub fn copy_in(&self, to: &Memory, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= to.bytes, "{} bytes at {at} do not fit {}", bytes.len(), to.bytes);
        bytes.chunks(PIECE).enumerate().for_each(|(i, piece)| self.copy_piece(to, at + i * PIECE, piece));
    }

    fn copy_piece(&self, to: &Memory, at: usize, bytes: &[u8]) {
        let mut state = self.bound();
        state.queue_latest();
        if state.queue.iter().any(|call| call.uses(to)) {
            state.flush(self.stream);
        }
        let size = bytes.len().next_multiple_of(64);
        if state.busy + size > PINNED {
            state.synchronise(self.stream);
        }
        // SAFETY: within the pinned memory, and no copy under way reads this part of it.
        let part = unsafe { std::slice::from_raw_parts_mut(state.pinned.add(state.busy), bytes.len()) };
        part.copy_from_slice(bytes);
        state.busy += size;
        // SAFETY: both live until the copy is done: the part by `busy`, the memory because freeing waits.
        if let Err(error) = unsafe { result::memcpy_htod_async(to.address + at as u64, part, self.stream) } {
            state.note("copying to the device", error);
        }
    }

    /// Copies `out.len()` values from byte `at` of `from` and waits for them, and so for everything before.
    pub fn copy_out<T: Plain>(&self, from: &Memory, at: usize, out: &mut [T]) -> Result<()> {
        assert!(at + size_of_val(out) <= from.bytes);
        let mut state = self.bound();
        state.flush(self.stream);
        if !out.is_empty() {
            // SAFETY: within the memory; `out` is written before this function returns, for it waits.
            if let Err(error) = unsafe { result::memcpy_dtoh_async(out, from.address + at as u64, self.stream) } {
                state.note("copying from the device", error);
            }
        }
        state.synchronise(self.stream);
        self.told(state)
    }

    /// Waits until all is done; what went wrong is told by the next copy.
    pub fn settle(&self) {
        let mut state = self.bound();
        state.flush(self.stream);
        state.synchronise(self.stream);
    }

    /// What went wrong so far; it is told once.
    fn told(&self, mut state: MutexGuard<'_, State>) -> Result<()> {
        match state.fault.take() {
            None => Ok(()),
            Some(fault) => Err(fault.context(self.name())),
        }
    }

    /// Launch graphs made and launched so far.
    pub fn graphs(&self) -> (usize, usize) {
        self.state().graphs.counts()
    }
}

impl State {
    fn note(&mut self, doing: &str, error: DriverError) {
        // The first is the reason for those that follow.
        self.fault.get_or_insert_with(|| anyhow!("{doing}: {}", said(error)));
    }

    fn function(&mut self, launch: &Launch) -> Result<CUfunction, DriverError> {
        if let Some(&function) = self.functions.get(&launch.kernel) {
            return Ok(function);
        }
        let Some(&module) = self.modules.get(&launch.module) else {
            return Err(DriverError(sys::CUresult::CUDA_ERROR_NOT_FOUND));
        };
        let name = CString::new(launch.kernel.as_str()).unwrap_or_default();
        // SAFETY: a module that is loaded.
        let function = unsafe { result::module::get_function(module, name)? };
        self.functions.insert(launch.kernel.clone(), function);
        Ok(function)
    }

    /// Queues the latest launch.
    fn queue_latest(&mut self) {
        let Some(Pending { launch, arguments }) = self.latest.take() else { return };
        let function = match self.function(&launch) {
            Ok(function) => function,
            Err(error) => return self.note(&format!("finding kernel {}", launch.kernel), error),
        };
        let Arguments { words, starts, count, used } = arguments;
        self.queue.push(Call { function, grid: launch.grid, block: launch.block, words, starts, count, used });
    }

    /// Gives the stream what is queued.
    fn flush(&mut self, stream: CUstream) {
        self.queue_latest();
        if self.fault.is_none()
            && let Err((doing, error)) = self.graphs.run(&self.queue, stream)
        {
            self.note(doing, error);
        }
        self.queue.clear();
    }

    fn synchronise(&mut self, stream: CUstream) {
        // SAFETY: the driver's own stream.
        match unsafe { result::stream::synchronize(stream) } {
            Ok(()) => self.busy = 0,
            Err(error) => {
                // Whatever is wrong, nothing that was under way goes on.
                self.busy = 0;
                self.note("running", error);
            }
        }
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        let mut state = self.bound();
        state.queue.clear();
        state.latest = None;
        state.synchronise(self.stream);
        state.graphs.clear();
        // SAFETY: each was made once and is used no more; errors at the end of all are nobody's concern.
        unsafe {
            for (_, module) in state.modules.drain() {
                let _ = result::module::unload(module);
            }
            let _ = result::free_host(state.pinned.cast());
            let _ = result::stream::destroy(self.stream);
        }
    }
}

/// Types of which any bytes are a value.
pub trait Plain: Copy {}
impl Plain for u8 {}
impl Plain for u32 {}
impl Plain for f32 {}

/// The bytes of values.
pub fn bytes_of<T: Plain>(values: &[T]) -> &[u8] {
    // SAFETY: the same memory; there is no padding in such values.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}

/// Memory of the device.
pub struct Memory {
    driver: Arc<Driver>,
    address: CUdeviceptr,
    bytes: usize,
}

impl Memory {
    /// Where it begins.
    pub fn address(&self) -> CUdeviceptr {
        self.address
    }

    /// Its size.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let mut state = self.driver.bound();
        // Launches that are queued may use it; those on the stream are waited for.
        state.flush(self.driver.stream);
        state.synchronise(self.driver.stream);
        // SAFETY: allocated once, freed once, used by nothing that runs.
        if let Err(error) = unsafe { result::free_sync(self.address) } {
            state.note("freeing memory", error);
        }
    }
}
