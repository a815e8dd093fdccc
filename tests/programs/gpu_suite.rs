//! `gpu_suite` without a driver, its parts `light` and `bench` on the driver double, and parts with a hung or failed step.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use ringmem::Error;
use ringmem::backend::cuda::Driver;
use ringmem_driver_double::{ALLOCATORS, libraries};
use serde_json::Value;

use crate::{example, rerun_or_skip};

fn command(libraries: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(example::program("gpu_suite"));
    command.args(arguments).env("LD_LIBRARY_PATH", libraries).env("RINGMEM_DOUBLE_LEAKS", "1");
    command
}

fn suite(libraries: &Path, arguments: &[&str]) -> Output {
    command(libraries, arguments).output().unwrap()
}

fn lines(output: Output) -> Vec<Value> {
    String::from_utf8(output.stdout).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn without_a_driver_one_line_is_printed_and_the_code_is_3() {
    if Driver::load().is_ok() {
        rerun_or_skip::skipped("a driver is installed");
        return;
    }
    let nothing = tempfile::tempdir().unwrap();
    for part in ["probe", "light", "bench"] {
        let output = suite(nothing.path(), &[part]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), said.lines().count()), (Some(3), 1), "{said}");
        assert!(said.starts_with("gpu_suite: no GPU here: no CUDA driver"), "{said}");
        let lines = lines(output);
        assert!(lines.len() == 1 && lines[0]["part"] == part && lines[0]["result"] == "skipped", "{lines:?}");
    }
}

#[test]
fn missing_and_failing_drivers_are_errors_with_facts() {
    const CHILD: &str = "RINGMEM_TEST_ASKS_FOR_A_DRIVER";
    if std::env::var_os(CHILD).is_some() {
        match Driver::load() {
            Ok(driver) => println!("version {}", driver.version()),
            Err(Error::NoDriver { tried, .. }) => println!("no driver in {tried:?}"),
            Err(Error::Driver { call, code, name, .. }) => println!("{call} said {name}, {code}"),
            Err(error) => println!("another error: {error}"),
        }
        return;
    }
    let (nothing, double) = (tempfile::tempdir().unwrap(), libraries().unwrap());
    let ask = |libraries: &Path, plan: &str| {
        let test = "gpu_suite::missing_and_failing_drivers_are_errors_with_facts";
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args([test, "--exact", "--nocapture"]).env(CHILD, "1").env("LD_LIBRARY_PATH", libraries).env("RINGMEM_DOUBLE_FAIL", plan);
        String::from_utf8(child.output().unwrap().stdout).unwrap()
    };
    let said = ask(&double, "cuInit:1:100");
    assert!(said.contains("cuInit said CUDA_ERROR_NO_DEVICE, 100"), "{said}");
    let said = ask(&double, "cuDriverGetVersion:1:1");
    assert!(said.contains("cuDriverGetVersion said CUDA_ERROR_INVALID_VALUE, 1"), "{said}");
    let said = ask(&double, "");
    assert!(said.contains("version 1"), "{said}");
    let said = ask(nothing.path(), "");
    assert!(said.contains("no driver in [\"libcuda.so.1\", \"libcuda.so\"]") || said.contains("version"), "{said}");
}

#[test]
fn on_the_double_every_fact_of_light_holds_without_a_leak() {
    let output = suite(&libraries().unwrap(), &["light", "--quick"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(0), "{said}");
    let found = lines(output);
    // On a busy machine a probe may poll too rarely between the numbers.
    let is_order = |line: &Value| line["fact"].as_str().is_some_and(|fact| fact.starts_with("order of the kernel's "));
    assert_eq!(
        found.iter().filter(|line| line["fact"].is_string() && line["result"] == "skipped" && !is_order(line)).count(),
        1,
        "132 blocks do not fit: {said}"
    );
    let orders: Vec<_> = found.iter().filter(|line| is_order(line)).collect();
    assert_eq!(orders.len(), 4, "{said}");
    for fact in orders {
        let looks = fact["facts"].as_str().and_then(|facts| facts.split_once(" looks between")?.0.rsplit(' ').next()?.parse::<u64>().ok());
        assert_eq!(fact["result"], if looks.expect("a number") < 10 { "skipped" } else { "passed" }, "{fact}");
    }
    let of = |key: &str| found.iter().filter(|line| !line[key].is_null()).collect::<Vec<_>>();
    let named = |key: &str, name: &str| of(key).into_iter().find(|line| line[key] == name).unwrap_or_else(|| panic!("no {name}: {said}"));
    assert!(named("about", "device")["value"].as_str().unwrap().contains("not a GPU"));
    assert!(of("fact").iter().all(|fact| fact["result"] != "failed"), "{said}");
    for name in [
        "ABI of the loaded image",
        "echo, two headers, both here, stream writes",
        "echo, a header on each side, stream writes",
        "echo, a flag in each word",
        "rate, one warp, batch 128",
        "rate, 8 blocks with a ring each",
        "ended by its deadline of 400 ms",
        "another under a new epoch",
        "left when its epoch was over",
    ] {
        assert_eq!(named("fact", name)["result"], "passed", "{name}: {said}");
    }
    let rows = of("row");
    assert!(rows.iter().all(|row| row["median"].as_f64().is_some_and(|median| median > 0.0)), "{rows:?}");
    assert!(rows.iter().any(|row| row["compared_to"] == "ping-pong, relaxed"));
    assert!(said.contains(": 0 leaked"), "{said}");

    let timed = of("workload");
    let rate = |name: &str| named("row", name)["median"].as_f64().unwrap();
    for (workload, subject, name) in [
        ("messages-warp", "ringmem echo, one warp", "rate, one warp, batch 128"),
        ("messages-launch", "ringmem echo, 8 rings", "rate, 8 blocks with a ring each"),
    ] {
        let row = timed.iter().find(|row| row["workload"] == workload && row["subject"] == subject).unwrap_or_else(|| panic!("{timed:?}"));
        let [median, ratio, limit] = ["median", "ratio", "limit"].map(|key| row[key].as_f64().unwrap());
        assert!((median * rate(name) - 1e3).abs() < 1e-6 && (ratio * limit - median).abs() < 1e-6 * median, "{row}");
        assert!(row["aim_ns"].is_number() && row["source"] == "double", "{row}");
    }
    let slower = rate("copy to device, pinned").min(rate("copy to host, pinned"));
    assert!(timed.iter().all(|row| (row["limit"].as_f64().unwrap() * slower - 64.0).abs() < 1e-6), "{timed:?}");
}

#[test]
fn a_failed_step_of_light_is_a_failed_fact_and_the_others_are_measured() {
    // Fails a copy, and a stream write of one rig, whose kernel then ends by its idle limit.
    let mut command = command(&libraries().unwrap(), &["light", "--quick"]);
    let output = command.env("RINGMEM_DOUBLE_FAIL", "cuStreamWriteValue64_v2:100:1,cuMemcpyDtoHAsync_v2:3:1").output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    let found = lines(output);
    let failed: Vec<_> =
        found.iter().filter(|line| line["result"] == "failed" && line["fact"].is_string()).map(|line| &line["fact"]).collect();
    assert_eq!(failed, ["copies", "two headers, both here, stream writes"], "{said}");
    for name in ["echo, a header on each side, stream writes", "rate, 8 blocks with a ring each", "left when its epoch was over"] {
        assert!(found.iter().any(|line| line["fact"] == name && line["result"] == "passed"), "{name}: {said}");
    }
    assert!(found.last().is_some_and(|line| line["failed"] == 2), "{said}");
}

#[test]
fn a_check_that_hangs_or_ends_its_process_costs_no_other_check() {
    // The first wait of this call, in a check, is for a kernel that the check holds.
    for (limit, deadline_ms, why) in
        [("40", "600000", "not done in time: the child said nothing for 5 s"), ("600", "2000", "its process ended: signal")]
    {
        let mut command = command(&libraries().unwrap(), &["conformance"]);
        command.env("RINGMEM_DOUBLE_WAITS", "cuMemcpyDtoHAsync_v2").env("RINGMEM_DOUBLE_DEADLINE_MS", deadline_ms);
        let output = command.env("RINGMEM_DOUBLE_MEMORY", (256_u64 << 20).to_string()).env("RINGMEM_BUNDLE_LIMIT", limit).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{said}");
        let found = lines(output);
        let facts: Vec<_> = found.iter().filter(|line| line["fact"].is_string()).collect();
        let failed: Vec<_> = facts.iter().filter(|fact| fact["result"] == "failed").collect();
        assert!(failed.len() == 1 && failed[0]["facts"].as_str().is_some_and(|facts| facts.starts_with(why)), "{said}");
        let last = found.last().unwrap();
        assert_eq!((&last["passed"], &last["failed"]), (&(facts.len() - 1).into(), &1.into()), "{last}");
        let names: std::collections::BTreeSet<_> = facts.iter().map(|fact| fact["fact"].as_str().unwrap()).collect();
        assert!(names.len() == facts.len() && names.contains("an_event_completes_after_earlier_work_and_has_a_time"), "{said}");
    }
}

#[test]
fn a_stuck_fact_leaves_most_of_a_short_part_to_the_others() {
    let mut command = command(&libraries().unwrap(), &["kernel", "--quick"]);
    command.env("RINGMEM_DOUBLE_WAITS", "cuMemHostAlloc").env("RINGMEM_DOUBLE_DEADLINE_MS", "600000").env("RINGMEM_BUNDLE_LIMIT", "40");
    let output = command.env("RINGMEM_DOUBLE_MEMORY", (256_u64 << 20).to_string()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    let found = lines(output);
    let stuck = found.iter().find(|line| line["result"] == "failed").unwrap();
    assert!(stuck["fact"] == "cuMemHostAlloc beside a running kernel" && stuck["ms"].as_u64().is_some_and(|ms| ms < 9_000), "{stuck}");
    let facts: Vec<_> = found.iter().filter_map(|line| line["fact"].as_str()).collect();
    // The likeliest to hang, then the test that kills a process.
    let last = [
        "a block of several warps beside many groups",
        "many streams beside a running kernel",
        "the host process killed under its kernel, and another started",
    ];
    assert_eq!(facts[facts.len() - 3..], last, "{said}");
    assert_eq!(found.last().unwrap()["failed"], 1, "{said}");
}

/// Numbers of our rows and of baselines, without `pool-100M` and `pool-1G`, which take seconds.
const CASES: [(&str, usize, usize); 19] = [
    ("h2d", 1, 2),
    ("d2h", 1, 2),
    ("d2d", 1, 2),
    ("stream", 1, 3),
    ("stream-back", 1, 4),
    ("flush", 1, 2),
    ("flush-16M", 1, 2),
    ("flush-large", 1, 2),
    ("flush-back", 1, 2),
    ("flush-back-large", 1, 2),
    ("overlap", 1, 3),
    ("pool-64K", 1, 3),
    ("pool-1M", 1, 3),
    ("round-trip", 1, 2),
    ("round-trip-p99", 1, 1),
    ("flagged-trip", 1, 1),
    ("messages", 1, 2),
    ("messages-8", 1, 1),
    ("accounts", 1, 1),
];

#[test]
fn every_case_of_bench_has_its_rows() {
    let arguments: Vec<&str> = ["bench", "--quick"].into_iter().chain(CASES.map(|(name, ..)| name)).collect();
    let output = suite(&libraries().unwrap(), &arguments);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && said.contains(": 0 leaked"), "{said}");
    let lines = lines(output);
    let rows: Vec<&Value> = lines.iter().filter(|line| line["workload"].is_string()).collect();
    for (name, ours, peers) in CASES {
        let rows: Vec<&&Value> = rows.iter().filter(|row| row["workload"] == name).collect();
        let is_ours = |row: &&&&Value| row["subject"].as_str().is_some_and(|subject| subject.starts_with("ringmem"));
        assert_eq!((rows.iter().filter(is_ours).count(), rows.len()), (ours, ours + peers), "{name}: {rows:?}");
        let is_limit = |row: &&&&Value| !is_ours(row) && !row["subject"].as_str().is_some_and(|subject| subject.starts_with("alone:"));
        let limit = rows.iter().find(|row| is_limit(row) && row["ratio"] == 1.0).unwrap_or_else(|| panic!("{name}: {rows:?}"));
        for row in &rows {
            let [low, median, high] = ["low", "median", "high"].map(|key| row[key].as_f64().expect("a number"));
            assert!(0.0 < low && low <= median && median <= high, "{row}");
            assert_eq!((row["bench"].as_str(), row["source"].as_str()), (Some("gpu_suite"), Some("double")), "{row}");
            assert!(row["ratio"].is_number() && row["aim"].is_number() && row["limit"] == limit["median"], "{row}");
        }
        assert!(name.starts_with("pool") == rows.iter().all(|row| row["unit"] == "ns/block"), "{rows:?}");
    }
    assert_eq!(rows.len(), CASES.iter().map(|(_, ours, peers)| ours + peers).sum::<usize>(), "{rows:?}");
}

#[test]
fn a_failed_case_is_named_and_others_run() {
    let mut command = command(&libraries().unwrap(), &["bench", "h2d", "stream", "flush", "--quick"]);
    let output = command.env("TMPDIR", "/proc/nowhere").output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("\nfailed   stream: cannot create /proc/nowhere/"), "{said}");
    let lines = lines(output);
    for (case, rows, result) in [("h2d", 3, "passed"), ("stream", 0, "failed"), ("flush", 3, "passed")] {
        assert_eq!(lines.iter().filter(|line| line["workload"] == case).count(), rows, "{lines:?}");
        assert!(lines.iter().any(|line| line["fact"] == case && line["result"] == result), "{lines:?}");
    }
}

#[test]
fn a_killed_bench_leaves_no_file() {
    use std::os::unix::fs::MetadataExt;
    let directory = tempfile::tempdir().unwrap();
    let mut command = command(&libraries().unwrap(), &["bench", "stream", "--seconds", "60"]);
    command.env("TMPDIR", directory.path()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    let descriptors = format!("/proc/{}/fd", child.id());
    let has_written = || {
        let entries = fs::read_dir(&descriptors).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).any(|path| {
            let is_ours = fs::read_link(&path).is_ok_and(|target| target.starts_with(directory.path()));
            is_ours && fs::metadata(&path).is_ok_and(|file| file.blocks() > 0)
        })
    };
    let begun = Instant::now();
    while !has_written() {
        assert!(begun.elapsed() < Duration::from_secs(60), "it has written nothing");
        std::thread::sleep(Duration::from_millis(1));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
}

#[test]
fn round_trip_probes_allocate_nothing_under_a_kernel() {
    let log = tempfile::NamedTempFile::new().unwrap();
    let mut command = command(&libraries().unwrap(), &["bench", "round-trip", "--quick"]);
    assert!(command.env("RINGMEM_DOUBLE_LOG", log.path()).output().unwrap().status.success());
    let log = std::fs::read_to_string(log.path()).unwrap();
    let mut calls: Vec<(u64, &str)> = log
        .lines()
        .filter_map(|line| {
            let (number, call) = line.split_once(' ')?;
            Some((number.parse().ok()?, call.split_once(' ')?.1))
        })
        .collect();
    calls.sort_unstable();
    let listening = calls.iter().skip_while(|(_, call)| !call.starts_with("cuLaunchKernel("));
    let probes = listening.clone().filter(|(_, call)| call.starts_with("cuLaunchKernel(")).count();
    assert!(probes > 2 * 3, "{probes} launches");
    for (number, call) in listening {
        assert!(!ALLOCATORS.iter().any(|symbol| call.starts_with(symbol)), "{number}: {call}");
    }
}

#[test]
fn invalid_arguments_exit_with_code_2() {
    let nothing = tempfile::tempdir().unwrap();
    for arguments in [&[][..], &["everything"], &["light", "--seconds"], &["light", "--loud"], &["light", "h2d"], &["bench", "everything"]]
    {
        assert_eq!(suite(nothing.path(), arguments).status.code(), Some(2), "{arguments:?}");
    }
}
