//! The emulator itself: what it must notice.

use super::device::{Buffer, ORDERS, is_there, launch, set_order};
use crate::args;
use foretoken::backend::cuda::kernels::Launch;
use std::process::Command;

/// Says to this test's own process which faulty kernel to run.
const FAULT: &str = "FORETOKEN_FAULTY_KERNEL";

fn faulty(kernel: &str, threads: u32) -> Launch {
    Launch { module: String::new(), kernel: kernel.into(), grid: (1, 1, 1), block: threads }
}

#[test]
fn a_missing_barrier_shows_in_some_order() {
    if !is_there() {
        return;
    }
    let x: Vec<i32> = (1..=256).collect();
    let want: Vec<i32> = (0..256).map(|i| x[(i + 1) % 256]).collect();
    let wrong = ORDERS.iter().filter(|&&order| {
        set_order(order);
        let (from, to) = (Buffer::of(&x), Buffer::room(1024));
        launch(&faulty("fault_missing_barrier", 256), args![&from, &to]);
        to.read::<i32>(256) != want
    });
    assert!(wrong.count() > 0);
}

#[test]
fn faults_end_the_process() {
    if !is_there() {
        return;
    }
    let (from, to) = (Buffer::of(&[0i32; 272]), Buffer::room(128));
    if let Ok(kernel) = std::env::var(FAULT) {
        let (args, threads) = match kernel.as_str() {
            "fault_divergent_barrier" | "fault_missing_lane" => (args![&to], 32),
            _ => (args![&from, &to], 32),
        };
        let end = Buffer::of(&[0i32; 32]);
        let args = if kernel == "fault_past_the_end" { args![&end, &to] } else { args };
        return launch(&faulty(&kernel, threads), args);
    }
    for (kernel, says) in [
        ("fault_divergent_barrier", Some("thread 0 waits in __syncthreads")),
        ("fault_missing_lane", Some("no thread can run")),
        ("fault_misaligned", None),
        ("fault_past_the_end", None),
    ] {
        let mut again = Command::new(std::env::current_exe().unwrap());
        again.args(["emulator::faults_end_the_process", "--exact", "--nocapture"]).env(FAULT, kernel);
        let output = again.output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{kernel} was not noticed");
        assert!(says.is_none_or(|says| stderr.contains(says)), "{kernel}: {stderr}");
    }
}
