//! Launch graphs of runs of launches that come again.
//!
//! A step of a model is always the same launches with the same arguments, as long as its rows are as many: what else
//! changes is in device memory. So a run of launches that comes a second time is captured as a graph, and from then on
//! goes to the device by one call instead of dozens. Runs are compared down to the last argument, so a graph is never
//! launched for anything else.

use super::driver::Call;
use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys::{CUgraphExec, CUgraphInstantiate_flags, CUstream, CUstreamCaptureMode};
use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};

/// Shorter runs are not worth a graph.
const SHORTEST: usize = 6;
/// Graphs that are kept; the one that has not been used for the longest goes first.
const MOST: usize = 512;

struct Graph {
    hash: u64,
    calls: Box<[Call]>,
    graph: CUgraphExec,
    used: u64,
}

/// The graphs of a stream.
pub(super) struct Graphs {
    kept: Vec<Graph>,
    /// Runs that came once.
    seen: HashSet<u64>,
    /// Set when the driver has refused to make one.
    refused: bool,
    made: usize,
    launched: u64,
}

type Fault = (&'static str, DriverError);

impl Graphs {
    pub fn new() -> Self {
        Self { kept: vec![], seen: HashSet::new(), refused: false, made: 0, launched: 0 }
    }

    /// How many were made and launched.
    pub fn counts(&self) -> (usize, usize) {
        (self.made, self.launched as usize)
    }

    /// Gives `calls` to the stream, in order.
    pub fn run(&mut self, calls: &[Call], stream: CUstream) -> Result<(), Fault> {
        if calls.len() < SHORTEST || self.refused {
            return each(calls, stream);
        }
        let mut hasher = DefaultHasher::new();
        calls.hash(&mut hasher);
        let hash = hasher.finish();
        if let Some(at) = self.kept.iter().position(|graph| graph.hash == hash && *graph.calls == *calls) {
            return self.launch(at, stream);
        }
        if self.seen.insert(hash) {
            if self.seen.len() > 16 * MOST {
                self.seen.clear();
            }
            return each(calls, stream);
        }
        match capture(calls, stream) {
            Err(_) => {
                self.refused = true;
                each(calls, stream)
            }
            Ok(graph) => {
                self.seen.remove(&hash);
                if self.kept.len() == MOST
                    && let Some(oldest) = (0..MOST).min_by_key(|&at| self.kept[at].used)
                {
                    destroy(self.kept.swap_remove(oldest).graph);
                }
                self.kept.push(Graph { hash, calls: calls.into(), graph, used: 0 });
                self.made += 1;
                self.launch(self.kept.len() - 1, stream)
            }
        }
    }

    fn launch(&mut self, at: usize, stream: CUstream) -> Result<(), Fault> {
        self.launched += 1;
        self.kept[at].used = self.launched;
        // SAFETY: a graph that was made from launches as good as these.
        unsafe { result::graph::launch(self.kept[at].graph, stream) }.map_err(|error| ("launching a graph", error))
    }

    /// Destroys all; none may be running.
    pub fn clear(&mut self) {
        self.kept.drain(..).for_each(|graph| destroy(graph.graph));
    }
}

fn each(calls: &[Call], stream: CUstream) -> Result<(), Fault> {
    calls.iter().try_for_each(|call| call.start(stream)).map_err(|error| ("launching a kernel", error))
}

fn destroy(graph: CUgraphExec) {
    // SAFETY: it is used no more; one that is still running lives on until it is done.
    let _ = unsafe { result::graph::exec_destroy(graph) };
}

fn capture(calls: &[Call], stream: CUstream) -> Result<CUgraphExec, DriverError> {
    // SAFETY: the stream is this driver's, and only this thread, which holds its lock, gives it work.
    unsafe {
        result::stream::begin_capture(stream, CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)?;
        let launched = calls.iter().try_for_each(|call| call.start(stream));
        // Ends it in any case.
        let graph = result::stream::end_capture(stream);
        launched?;
        let graph = graph?;
        let made = result::graph::instantiate(graph, CUgraphInstantiate_flags(0));
        let _ = result::graph::destroy(graph);
        made
    }
}
