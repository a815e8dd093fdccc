//! `gpu_suite` without a driver, and its part `light` on the driver double.

use std::path::Path;
use std::process::{Command, Output};

use ringmem::Error;
use ringmem::backend::cuda::Driver;
use ringmem_driver_double::libraries;
use serde_json::Value;

use crate::{example, rights};

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
        rights::skipped("a driver is installed");
        return;
    }
    let nothing = tempfile::tempdir().unwrap();
    for part in ["probe", "light"] {
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
    assert_eq!(
        found.iter().filter(|line| line["fact"].is_string() && line["result"] == "skipped").count(),
        1,
        "132 blocks do not fit: {said}"
    );
    let of = |key: &str| found.iter().filter(|line| !line[key].is_null()).collect::<Vec<_>>();
    let named = |key: &str, name: &str| of(key).into_iter().find(|line| line[key] == name).unwrap_or_else(|| panic!("no {name}: {said}"));
    assert!(named("about", "device")["value"].as_str().unwrap().contains("not a GPU"));
    assert!(of("fact").iter().all(|fact| fact["result"] != "failed"), "{said}");
    for name in [
        "ABI of the loaded image",
        "order of the kernel's stores, with a barrier",
        "order of the kernel's loads, with an acquire",
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
fn invalid_arguments_exit_with_code_2() {
    let nothing = tempfile::tempdir().unwrap();
    for arguments in [&[][..], &["everything"], &["light", "--seconds"], &["light", "--loud"], &["light", "h2d"]] {
        assert_eq!(suite(nothing.path(), arguments).status.code(), Some(2), "{arguments:?}");
    }
}
