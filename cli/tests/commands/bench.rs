use ringmem_kernels::IMAGE;
use serde_json::Value;

use crate::program::{call, until};

/// Numbers of our rows and of baselines, without `pool-100M` and `pool-1G`, which take seconds.
const WORKLOADS: [(&str, usize, usize); 19] = [
    ("h2d", 1, 1),
    ("d2h", 1, 1),
    ("d2d", 1, 1),
    ("stream", 1, 3),
    ("stream-back", 1, 4),
    ("flush", 1, 1),
    ("flush-16M", 1, 1),
    ("flush-large", 1, 1),
    ("flush-back", 1, 1),
    ("flush-back-large", 1, 1),
    ("overlap", 1, 3),
    ("pool-64K", 1, 1),
    ("pool-1M", 1, 1),
    ("round-trip", 1, 2),
    ("round-trip-p99", 1, 1),
    ("flagged-trip", 1, 1),
    ("messages", 1, 2),
    ("messages-8", 1, 1),
    ("accounts", 1, 1),
];

fn arguments(more: &[&'static str]) -> Vec<&'static str> {
    ["bench", "--backend", "host", "--seconds", "0", "--bytes", "64KiB"].into_iter().chain(more.iter().copied()).collect()
}

#[test]
fn every_workload_has_its_rows() {
    let names: Vec<&str> = WORKLOADS.iter().map(|&(name, ..)| name).chain(["--json"]).collect();
    let out = call(&IMAGE, arguments(&names)).out;
    let rows: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).expect("an object a line")).collect();
    for (name, ours, peers) in WORKLOADS {
        let rows: Vec<&Value> = rows.iter().filter(|row| row["workload"] == name).collect();
        let is_ours = |row: &&&Value| row["subject"].as_str().is_some_and(|subject| subject.starts_with("ringmem"));
        assert_eq!((rows.iter().filter(is_ours).count(), rows.len()), (ours, ours + peers), "{name}: {out}");
        let is_limit = |row: &&&Value| !is_ours(row) && !row["subject"].as_str().is_some_and(|subject| subject.starts_with("alone:"));
        let limit = rows.iter().find(|row| is_limit(row) && row["ratio"] == 1.0).unwrap_or_else(|| panic!("{name}: {out}"));
        for row in &rows {
            let [low, median, high] = ["low", "median", "high"].map(|key| row[key].as_f64().expect("a number"));
            assert!(0.0 < low && low <= median && median <= high, "{row}");
            assert_eq!((row["bench"].as_str(), row["source"].as_str()), (Some("ringmem"), Some("host")), "{row}");
            assert!(row["ratio"].is_number() && row["aim"].is_number() && row["limit"] == limit["median"], "{row}");
        }
    }
    assert_eq!(rows.len(), WORKLOADS.iter().map(|(_, ours, peers)| ours + peers).sum::<usize>(), "{out}");
}

#[test]
fn a_failed_workload_is_named_and_others_run() {
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_ringmem"));
    let output =
        command.args(arguments(&["h2d", "stream", "flush", "--json"])).env("TMPDIR", "/proc/nowhere").output().expect("the program");
    let [out, err] = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).expect("text"));
    assert_eq!((output.status.code(), out.lines().count(), err.lines().count()), (Some(1), 4, 1), "{out}{err}");
    assert!(out.contains("h2d") && out.contains("flush") && err.starts_with("ringmem: stream: cannot create /proc/nowhere/"), "{out}{err}");
}

#[test]
fn one_workload_can_be_measured_with_its_unit() {
    let out = call(&IMAGE, arguments(&["pool-64K"])).out;
    let lines: Vec<&str> = out.lines().collect();
    assert!(lines.len() == 4 && lines[0] == "on the backend host: requested" && lines[1].starts_with("workload"), "{out}");
    assert!(lines[2..].iter().all(|line| line.starts_with("pool-64K") && line.ends_with("ns/block")), "{out}");
}

#[test]
#[cfg(target_os = "linux")]
fn a_killed_bench_leaves_no_file() {
    use std::os::unix::fs::MetadataExt;
    let directory = tempfile::tempdir().expect("a directory");
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_ringmem"));
    command.args(["bench", "stream", "--backend", "host", "--seconds", "60", "--bytes", "256MiB"]).env("TMPDIR", directory.path());
    let mut child = command.stdout(std::process::Stdio::null()).spawn().expect("the program");
    let descriptors = format!("/proc/{}/fd", child.id());
    until("it has written some", || {
        let entries = std::fs::read_dir(&descriptors).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).any(|path| {
            let is_ours = std::fs::read_link(&path).is_ok_and(|target| target.starts_with(directory.path()));
            is_ours && std::fs::metadata(&path).is_ok_and(|file| file.blocks() > 0)
        })
    });
    child.kill().expect("a child");
    child.wait().expect("a child");
    assert_eq!(std::fs::read_dir(directory.path()).expect("it is there").count(), 0);
}
