//! `--device` from outside: what is said of every kind of machine, and that there is an answer.

use crate::common::cli::{self, refused, save, stats, stderr, tiny};
use crate::common::{emulator, scratch};
use assert_cmd::Command;
use std::path::Path;
use std::process::Output;

const ASK: &str = "-p hello --raw --temp 0 -n 5 -s 1 -t 1 --stats json -v";

/// The binary with this folder to look for libraries in, and this environment.
fn run(folder: &Path, environment: &[(&str, &str)], line: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_foretoken"));
    command.args(line.split_whitespace()).env("LD_LIBRARY_PATH", folder).envs(environment.iter().copied());
    command.env("XDG_CACHE_HOME", scratch("device-cache")).output().unwrap()
}

/// That the CPU answers by itself and says why in one line, and that nothing answers when a GPU is insisted on.
fn falls_back(folder: &Path, environment: &[(&str, &str)], model: &Path, why: &str) {
    let ask = format!("run -m {} {ASK}", model.display());
    let want = run(folder, environment, &format!("{ask} --device cpu"));
    assert!(want.status.success() && !stderr(&want).contains("GPU"), "{}", stderr(&want));
    let got = run(folder, environment, &ask);
    assert_eq!(got.status.code(), Some(0), "{why}: {}", stderr(&got));
    assert_eq!(got.stdout, want.stdout, "{why}");
    let said = stderr(&got);
    let lines: Vec<&str> = said.lines().filter(|line| line.starts_with("no GPU: ")).collect();
    assert!(lines.len() == 1 && lines[0].contains(why) && lines[0].ends_with("running on the CPU"), "{why}: {said}");
    let whole = said.lines().find(|line| line.starts_with("whole ")).unwrap();
    assert!(whole.contains(why), "{whole}");
    assert_eq!(stats(&got)["device"], "cpu");
    refused(&run(folder, environment, &format!("{ask} --device cuda")), 1, &["cuda:0", why], why);
}

#[test]
fn machines_without_a_usable_gpu_answer_on_the_cpu() {
    let model = save("places", &tiny());
    // No library at all: here, unless this machine has one.
    let nothing = scratch("device-nothing");
    if let Err(absent) = foretoken::backend::cuda::probe()
        && absent.is_driver()
    {
        falls_back(&nothing, &[], &model, "no CUDA driver");
        let list = run(&nothing, &[], "run --device list");
        let text = String::from_utf8(list.stdout).unwrap();
        assert!(list.status.success() && text.contains("cuda     not usable: no CUDA driver"), "{text}");
    }
    let lacking = "extern \"C\" int cuInit(unsigned) { return 0; }";
    if let Some(folder) = emulator::impostor("device-lacking", lacking) {
        falls_back(&folder, &[], &model, "the CUDA driver lacks cuDriverGetVersion");
    }
    let Some(folder) = emulator::folder() else { return };
    for (name, value, why) in [
        ("EMULATED_DEVICES", "0", "the CUDA driver shows no device"),
        ("EMULATED_DRIVER", "11080", "the driver supports CUDA 11.8, 12.1 is needed"),
        ("EMULATED_ERRORS", "cuInit=999", "the CUDA driver does not start"),
        ("EMULATED_ERRORS", "cuDevicePrimaryCtxRetain=2", "opening cuda:0"),
        ("EMULATED_ERRORS", "cuModuleLoadData=222", "its driver does not take the kernels"),
        ("EMULATED_MEMORY", "101000000", "are free"),
    ] {
        falls_back(folder, &[(name, value)], &model, why);
    }
}

#[test]
fn a_gpu_answers_where_there_is_one() {
    let Some(folder) = emulator::folder() else { return };
    let model = save("gpu", &tiny());
    let ask = format!("run -m {} {ASK}", model.display());
    let cpu = run(folder, &[], &format!("{ask} --device cpu"));
    for device in ["", "--device auto", "--device cuda", "--device cuda:1"] {
        let got = run(folder, &[("EMULATED_DEVICES", "2")], &format!("{ask} {device}"));
        assert_eq!(got.status.code(), Some(0), "{device}: {}", stderr(&got));
        assert_eq!(got.stdout, cpu.stdout, "{device}");
        let number = if device.ends_with('1') { "cuda:1" } else { "cuda:0" };
        assert_eq!((&stats(&got)["device"], &stats(&got)["isa"]), (&number.into(), &"sm_80".into()), "{device}");
        assert!(stderr(&got).contains(&format!("{number} (emulated device, sm_80)")), "{}", stderr(&got));
    }
    // What is for the CPU is done by the CPU, and goes with no other device.
    let got = run(folder, &[], &format!("{ask} --isa scalar"));
    assert_eq!((&stats(&got)["device"], got.status.code()), (&"cpu".into(), Some(0)));
    refused(&run(folder, &[], &format!("{ask} --isa scalar --device cuda")), 1, &["--isa is for the CPU"], "--isa");
    refused(&run(folder, &[], &format!("{ask} --device cuda:1")), 1, &["the last is cuda:0"], "cuda:1");
    refused(&run(folder, &[], &format!("{ask} --device gpu")), 2, &["--device: found 'gpu'"], "gpu");
    let list = String::from_utf8(run(folder, &[("EMULATED_DEVICES", "2")], "chat --device list").stdout).unwrap();
    assert_eq!(list.lines().count(), 3, "{list}");
    assert!(list.contains("cuda:1   emulated device, sm_80, 4.3 GB"), "{list}");
}

#[test]
fn every_command_runs_there() {
    let Some(folder) = emulator::folder() else { return };
    let model = save("commands", &cli::chatty());
    let scratch = scratch("device-commands");
    std::fs::write(scratch.join("text"), "some text that is long enough for a window or two of it").unwrap();
    std::fs::write(scratch.join("lines"), "{\"text\": \"some text\"}\n").unwrap();
    let (model, at) = (model.display(), scratch.display());
    for line in [
        format!("perplexity -m {model} -f {at}/text -c 16 --device cuda"),
        format!("features -m {model} --input {at}/lines --taps 1 -o {at}/features --device cuda"),
        format!("bench -m {model} --prefill 5 --decode 2 --depth 0 --widths 1,2 -r 1 --profile 1 --device cuda"),
        format!("run -m {model} -p hi -n 3 -s 1 --prompt-cache {at}/cache --draft lookup --device cuda"),
        format!("run -m {model} -p hi -n 3 -s 1 --prompt-cache {at}/cache --draft model:{model} --device cuda"),
    ] {
        let got = run(folder, &[], &line);
        assert_eq!(got.status.code(), Some(0), "{line}: {}", stderr(&got));
        assert!(!stderr(&got).contains("warning"), "{line}: {}", stderr(&got));
    }
    // A cache of the CPU's is not the device's.
    let other = run(folder, &[], &format!("run -m {model} -p hi -n 3 -s 1 --prompt-cache {at}/cache --device cpu"));
    assert!(stderr(&other).contains("made with --isa: sm_80"), "{}", stderr(&other));
}

#[test]
fn a_device_is_checked_and_measured() {
    let Some(folder) = emulator::folder() else { return };
    let report = scratch("device-check").join("report.md");
    let line = format!("device-check --size tiny -o {}", report.display());
    let got = run(folder, &[("EMULATED_ORDER", "reverse")], &line);
    assert_eq!(got.status.code(), Some(0), "{}", stderr(&got));
    let text = std::fs::read_to_string(report).unwrap();
    for part in [
        "# Device check of foretoken",
        "- ops: ",
        "- laws on tiny in Q4_K_M",
        "### odd in Q8_0",
        "| decode at depth | 0 |",
    ] {
        assert!(text.contains(part), "no {part} in {text}");
    }
    assert!(!text.contains("FAILED"), "{text}");
    println!("{text}");
    // A device that is wrong is told of.
    let got = run(folder, &[("EMULATED_ERRORS", "cuLaunchKernel=700")], "device-check --size tiny");
    assert_eq!(got.status.code(), Some(1));
    assert!(stderr(&got).contains("FAILED ops: ") && stderr(&got).contains("error: "), "{}", stderr(&got));
    let nothing = run(&scratch("device-none"), &[], "device-check --device cpu");
    refused(&nothing, 1, &["--device cpu"], "cpu");
}

#[test]
fn the_script_writes_a_report() {
    let Some(folder) = emulator::folder() else { return };
    let out = scratch("device-script");
    let script = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/device_check");
    let mut command = Command::new(script);
    command.env("FORETOKEN", env!("CARGO_BIN_EXE_foretoken")).env("OUT", &out).env("LD_LIBRARY_PATH", folder);
    let got = command.env("CHECK", "--size tiny --seconds 0").output().unwrap();
    assert_eq!(got.status.code(), Some(0), "{}", stderr(&got));
    let report = String::from_utf8(got.stdout).unwrap();
    assert!(report.contains("emulated-device"), "{report}");
    let text = std::fs::read_to_string(report.trim()).unwrap();
    assert!(text.contains("- ops: ") && text.contains("left out for want of time"), "{text}");
}
