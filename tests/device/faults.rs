//! What goes wrong on the way is told where results are read, and nothing else comes of it.

use crate::common::emulator;
use crate::{device, open};
use foretoken::backend::{Backend, KvType};
use foretoken::model::{Input, Rows};

#[test]
fn a_launch_that_fails_is_told_at_the_next_read() {
    if emulator::within(
        "faults::a_launch_that_fails_is_told_at_the_next_read",
        &[("EMULATED_ERRORS", "cuLaunchKernel=700")],
    ) {
        let model = open(&device(), "llama");
        let mut state = model.state(64, 64, KvType::F16).unwrap();
        let error = format!("{:#}", model.forward(&mut state, Input::Chain(&[1, 2]), Rows::All).unwrap_err());
        assert!(error.starts_with("cuda:0: launching a kernel: "), "{error}");
    }
}

#[test]
fn without_graphs_launches_go_one_by_one() {
    let environment = [("EMULATED_ERRORS", "cuStreamBeginCapture_v2=900")];
    if emulator::within("faults::without_graphs_launches_go_one_by_one", &environment) {
        let device = device();
        let model = open(&device, "llama");
        let mut state = model.state(64, 64, KvType::F16).unwrap();
        for token in 1..5 {
            let logits = model.forward(&mut state, Input::Chain(&[token]), Rows::All).unwrap();
            assert!(logits.iter().all(|x| x.is_finite()));
        }
        assert_eq!(device.graphs(), (0, 0));
    }
}

#[test]
fn memory_that_is_not_there_is_told_when_it_is_asked_for() {
    let environment = [("EMULATED_MEMORY", "8000000")];
    if emulator::within("faults::memory_that_is_not_there_is_told_when_it_is_asked_for", &environment) {
        let error = format!("{:#}", device().mat(1000, 4000).map(|_| ()).unwrap_err());
        assert!(error.starts_with("cuda:0: allocating ") && error.contains("out of memory"), "{error}");
    }
}
