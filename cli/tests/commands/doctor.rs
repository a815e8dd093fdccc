use std::process::Command;

use ringmem_kernels::IMAGE;

use crate::program::{call, finish};

#[test]
fn the_doctor_reports_devices_limits_and_bandwidth() {
    let said = call(&IMAGE, ["doctor", "--backend", "host", "--json"]).json();
    for (key, values) in
        [("visibility", &["system", "device", "dma"][..]), ("strategy", &["unified", "async", "dma-polling"]), ("backend", &["host"])]
    {
        assert!(values.contains(&said[key].as_str().expect("text")), "{key}: {said}");
    }
    assert!(said["why"].as_str().is_some_and(|why| !why.is_empty()), "{said}");
    assert!(said["devices"].as_array().is_some_and(|devices| devices.len() == 1), "{said}");
    assert!(said["limits"].as_array().is_some_and(|limits| limits.iter().any(|limit| limit["name"] == "pinned")), "{said}");

    let ways = said["bandwidth"].as_array().expect("ways");
    let names: Vec<_> = ways.iter().map(|way| way["name"].as_str().expect("text")).collect();
    assert_eq!(names, ["upload", "download", "upload, pageable", "download, pageable", "on the device"]);
    for way in ways {
        let figure = |name: &str| way[name].as_f64().expect("a number");
        assert!((figure("gb_per_s") - figure("bytes") / figure("ns")).abs() < 1e-9 && figure("bytes") > 0.0, "{way}");
        assert_eq!(way["advice"].as_array().expect("a list").is_empty(), figure("gb_per_s") >= 2.0, "{way}");
    }

    let lines = call(&IMAGE, ["doctor"]).out;
    assert!(lines.matches("no CUDA driver").count() <= 1, "{lines}");
    let lines = call(&IMAGE, ["doctor", "--backend", "host"]).out;
    assert!(!lines.lines().any(|line| line.starts_with("pinned ") && line.ends_with("KiB")), "{lines}");
    for line in [
        "visibility  ",
        "strategy    unified: a bridge copies nothing",
        "backend     host, 1 device simulated",
        "CUDA        ",
        "pinned ",
        "bandwidth   of a simulated device",
        "  upload, pageable   ",
    ] {
        assert!(lines.contains(line), "{lines}");
    }
}

#[test]
fn the_pinned_budget_is_an_option() {
    let said = call(&IMAGE, ["doctor", "--backend", "host", "--pinned", "3GiB", "--json"]).json();
    let limits = said["limits"].as_array().expect("a list");
    let pinned = limits.iter().find(|limit| limit["name"] == "pinned").expect("the budget");
    assert_eq!(pinned["bytes"].as_u64(), Some(3 << 30), "{said}");
}

#[test]
fn too_little_pinned_memory_hides_no_other_finding() {
    let said = call(&IMAGE, ["doctor", "--backend", "host", "--pinned", "1KiB", "--json"]).json();
    assert_eq!((said["bandwidth"].as_array().map(Vec::len), &said["backend"]), (Some(0), &"host".into()), "{said}");
    let reason = said["bandwidth_error"].as_str().expect("the reason");
    assert!(reason.contains("requested 8 MiB, 0 bytes of 1 KiB in use: raise the limit with --pinned"), "{reason}");
    let lines = call(&IMAGE, ["doctor", "--backend", "host", "--pinned", "1KiB"]);
    assert_eq!((lines.code, lines.err.as_str()), (0, ""), "{lines:?}");
    for line in
        ["visibility  ", "mlock ", "pinned      1 KiB", "bandwidth   not measured with copies of 8 MiB: pinned memory limit reached"]
    {
        assert!(lines.out.contains(line), "{lines:?}");
    }
    assert!(call(&IMAGE, ["doctor", "--backend", "host", "--json"]).json()["bandwidth_error"].is_null());
    let demo = call(&IMAGE, ["demo", "--backend", "host", "--pinned", "1KiB"]);
    demo.refuses(1, &["pinned memory limit reached", "raise the limit with --pinned"]);
}

#[test]
fn ringmem_visibility_applies_with_a_warning() {
    let mut program = Command::new(env!("CARGO_BIN_EXE_ringmem"));
    program.args(["doctor", "--backend", "host"]).env("RINGMEM_VISIBILITY", "dma");
    let lines = finish(program).out;
    assert!(lines.starts_with("visibility  dma: set by RINGMEM_VISIBILITY"), "{lines}");
    assert!(lines.contains("RINGMEM_VISIBILITY=dma: differs from the detected visibility"), "{lines}");
    assert!(lines.contains("strategy    dma-polling"), "{lines}");
}

#[test]
#[cfg(target_os = "linux")]
fn the_reported_mlock_limit_matches_page_locking() {
    let run = |arguments: &str| {
        let mut shell = Command::new("bash");
        shell.args(["-c", &format!("ulimit -l 0; exec \"$0\" {arguments} --backend host"), env!("CARGO_BIN_EXE_ringmem")]);
        finish(shell)
    };
    let said = run("doctor --json").json();
    let limit = said["limits"].as_array().and_then(|limits| limits.iter().find(|limit| limit["name"] == "mlock")).expect("a limit");
    let streamed = run("stream Cargo.toml").out;
    assert!(streamed.contains("of 1 staging buffer page-locked"), "{streamed}");
    let is_locked = streamed.contains("1 of 1 staging buffer");
    assert_eq!((limit["bytes"].is_null(), limit["advice"].is_null()), (is_locked, is_locked), "{limit} {streamed}");
}
