//! The program on the driver double, and without a driver.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use ringmem_driver_double::libraries;
use serde_json::Value;

use crate::rerun_or_skip;

fn double() -> PathBuf {
    libraries().expect("the double is built")
}

fn run(libraries: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringmem"));
    command.args(arguments).env("LD_LIBRARY_PATH", libraries).env("RINGMEM_DOUBLE_LEAKS", "1").env_remove("RINGMEM_VISIBILITY");
    command.output().expect("the program")
}

fn answer(arguments: &[&str]) -> Value {
    let output = run(&double(), arguments);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {said}");
    assert!(said.contains(": 0 leaked") && !said.contains("violations"), "{arguments:?}: {said}");
    serde_json::from_slice(&output.stdout).expect("one object")
}

#[test]
fn messages_and_a_file_pass_through_a_driver_kernel() {
    for wanted in ["cuda", "auto"] {
        let demo = answer(&["demo", "--messages", "20000", "--json", "--backend", wanted]);
        assert_eq!((&demo["backend"], &demo["lost"], &demo["doubled"], &demo["wrong"]), (&"cuda".into(), &0.into(), &0.into(), &0.into()));
        assert!(demo["why"].as_str().is_some_and(|why| why.contains("not a GPU")), "{demo}");
    }
    let file = tempfile::NamedTempFile::new().expect("a file");
    let bytes: Vec<u8> = (0..300_001_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    std::fs::write(&file, &bytes).expect("a file");
    let path = file.path().to_str().expect("text");
    let streamed = answer(&["stream", path, "--chunk-size", "16KiB", "--json", "--backend", "cuda"]);
    assert_eq!((&streamed["verified"], &streamed["bytes"], &streamed["backend"]), (&true.into(), &bytes.len().into(), &"cuda".into()));
}

#[test]
fn doctor_and_layout_use_the_driver_s_device() {
    let said = answer(&["doctor", "--json"]);
    assert_eq!((&said["backend"], said["devices"].as_array().map(Vec::len)), (&"cuda".into(), Some(1)), "{said}");
    assert_eq!((&said["visibility"], &said["strategy"]), (&"system".into(), &"unified".into()), "{said}");
    assert!(said["chosen"].as_str().is_some_and(|why| why.contains("not a GPU")), "{said}");
    assert!(answer(&["layout", "--json", "--backend", "cuda"]).is_object());
}

#[test]
fn the_doctor_reports_whether_addresses_can_be_reserved() {
    for (attribute, granularity) in [("102=1", Some(2 << 20)), ("102=0", None)] {
        let doctor = |arguments: &[&str]| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_ringmem"));
            command.arg("doctor").args(arguments).env("LD_LIBRARY_PATH", double()).env("RINGMEM_DOUBLE_ATTRIBUTES", attribute);
            command.output().expect("the program").stdout
        };
        let said: Value = serde_json::from_slice(&doctor(&["--json"])).expect("one object");
        assert_eq!(said["devices"][0]["mapping_granularity"].as_u64(), granularity, "{said}");
        let lines = String::from_utf8(doctor(&[])).expect("text");
        let can = lines.contains("\naddresses   device 0 maps memory at reserved addresses, in units of 2 MiB\n");
        let cannot = lines.contains("\naddresses   device 0 cannot reserve addresses\n");
        assert_eq!((can, cannot), (granularity.is_some(), granularity.is_none()), "{lines}");
    }
}

#[test]
fn the_doctor_reports_a_kernel_watchdog_with_advice() {
    for (attribute, is_watched) in [("17=0", false), ("17=1", true)] {
        let doctor = |arguments: &[&str]| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_ringmem"));
            command.arg("doctor").args(arguments).env("LD_LIBRARY_PATH", double()).env("RINGMEM_DOUBLE_ATTRIBUTES", attribute);
            command.output().expect("the program").stdout
        };
        let said: Value = serde_json::from_slice(&doctor(&["--json"])).expect("one object");
        let gpu = &said["driver"]["gpus"][0];
        assert_eq!((&gpu["kernel_timeout"], gpu["advice"].is_string()), (&is_watched.into(), is_watched), "{said}");
        let lines = String::from_utf8(doctor(&[])).expect("text");
        let told = lines.lines().any(|line| line.starts_with("watchdog    ") && line.contains("not a GPU: it drives a display"));
        assert_eq!(told, is_watched, "{lines}");
    }
}

#[test]
fn the_doctor_warns_of_variables_that_stop_persistent_kernels() {
    const LOADING: &str = "CUDA_MODULE_LOADING";
    const BLOCKING: &str = "CUDA_LAUNCH_BLOCKING";
    let warned_of = |libraries: &Path, variables: &[(&str, &str)]| -> Vec<String> {
        let doctor = |arguments: &[&str]| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_ringmem"));
            command.arg("doctor").args(arguments).env("LD_LIBRARY_PATH", libraries).env_remove(LOADING).env_remove(BLOCKING);
            command.envs(variables.iter().copied()).output().expect("the program").stdout
        };
        let said: Value = serde_json::from_slice(&doctor(&["--json"])).expect("one object");
        let lines = String::from_utf8(doctor(&[])).expect("text");
        let warnings = said["environment"].as_array().expect("a list").iter().map(|warning| {
            let (name, advice) = (warning["name"].as_str().expect("text"), warning["advice"].as_str().expect("text"));
            let set = variables.iter().find(|(variable, _)| *variable == name).map(|(_, value)| *value);
            assert_eq!(warning["value"].as_str(), set, "{said}");
            let value = set.map_or(" is not set".to_owned(), |set| format!("={set}"));
            assert!(lines.lines().any(|line| line == format!("environment {name}{value}: {advice}")), "{lines}");
            name.to_owned()
        });
        let warnings: Vec<String> = warnings.collect();
        assert_eq!(lines.lines().filter(|line| line.starts_with("environment ")).count(), warnings.len(), "{lines}");
        warnings
    };
    let double = double();
    for (variables, expected) in [
        (&[][..], &[LOADING][..]),
        (&[(LOADING, "LAZY")], &[LOADING]),
        (&[(LOADING, "EAGER")], &[]),
        (&[(LOADING, "EAGER"), (BLOCKING, "0")], &[]),
        (&[(LOADING, "EAGER"), (BLOCKING, "1")], &[BLOCKING]),
        (&[(BLOCKING, "1")], &[LOADING, BLOCKING]),
    ] {
        assert_eq!(warned_of(&double, variables), expected, "{variables:?}");
    }
    let none = tempfile::tempdir().expect("a folder");
    assert_eq!(warned_of(none.path(), &[(BLOCKING, "1")]), [""; 0], "no driver, no GPU");
}

#[test]
fn the_driver_gets_32_connections_unless_set() {
    for (said, expected) in [(None, "32"), (Some("8"), "8")] {
        let log = tempfile::NamedTempFile::new().expect("a file");
        let mut command = Command::new(env!("CARGO_BIN_EXE_ringmem"));
        command.args(["doctor", "--backend", "cuda"]).env("LD_LIBRARY_PATH", double()).env("RINGMEM_DOUBLE_LOG", log.path());
        command.env_remove("CUDA_DEVICE_MAX_CONNECTIONS").envs(said.map(|said| ("CUDA_DEVICE_MAX_CONNECTIONS", said)));
        assert!(command.output().expect("the program").status.success());
        let log = std::fs::read_to_string(log.path()).expect("a log");
        let first = log.lines().next().unwrap_or_default();
        assert!(first.ends_with(&format!("; CUDA_DEVICE_MAX_CONNECTIONS={expected}")), "{first}");
    }
}

#[test]
fn without_a_driver_auto_uses_the_host_and_cuda_fails() {
    if ringmem::backend::cuda::Driver::load().is_ok() {
        rerun_or_skip::skipped("a driver is installed");
        return;
    }
    let nothing = tempfile::tempdir().expect("a folder");
    let output = run(nothing.path(), &["demo", "--messages", "100", "--json"]);
    let demo: Value = serde_json::from_slice(&output.stdout).expect("one object");
    assert_eq!(demo["backend"], "host");
    assert!(demo["why"].as_str().is_some_and(|why| why.contains("no CUDA driver")), "{demo}");
    let doctor: Value = serde_json::from_slice(&run(nothing.path(), &["doctor", "--json"]).stdout).expect("one object");
    for arguments in [&["demo", "--backend", "cuda"][..], &["doctor", "--backend", "cuda"], &["layout", "--backend", "cuda"]] {
        let output = run(nothing.path(), arguments);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), said.lines().count()), (Some(1), 1), "{said}");
        assert!(said.starts_with("ringmem: no CUDA driver"), "{said}");
        let why = said.trim_end().trim_start_matches("ringmem: ");
        assert!(why.contains("can be loaded: ") && demo["why"] == format!("no GPU: {why}"), "{said} {demo}");
        assert!(doctor["driver"].as_str().is_some_and(|driver| driver.starts_with(why)), "{said} {doctor}");
    }
}

#[test]
fn with_a_broken_driver_auto_uses_the_host_and_cuda_fails() {
    for (variable, value, why) in [
        ("RINGMEM_DOUBLE_DEVICES", "0", "no device 0: the backend has 0"),
        ("RINGMEM_DOUBLE_FAIL", "cuInit:1:999", "cuInit: CUDA_ERROR_UNKNOWN (999)"),
    ] {
        let run = |arguments: &[&str]| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_ringmem"));
            command.args(arguments).env("LD_LIBRARY_PATH", double()).env(variable, value).output().expect("the program")
        };
        let demo: Value = serde_json::from_slice(&run(&["demo", "--messages", "100", "--json"]).stdout).expect("one object");
        assert!(demo["backend"] == "host" && demo["why"].as_str().is_some_and(|said| said.contains(why)), "{demo}");
        let output = run(&["demo", "--backend", "cuda"]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(1) && said.lines().last() == Some(&format!("ringmem: {why}")), "{said}");
    }
}
