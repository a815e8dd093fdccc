//! Tests that depend on user rights or on a tool: they run again in a child process, or report that they are skipped.
#![allow(dead_code, reason = "not every test program uses all of it")]

use std::fmt::Display;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::process::{Command, Output};

const CHILD: &str = "RINGMEM_TEST_RUNS_AGAIN";

/// Reports a skipped test. CI has everything that the tests need, so a skip is a failure there.
pub fn skipped(why: impl Display) {
    assert!(std::env::var_os("CI").is_none(), "tests must not be skipped in CI: {why}");
    eprintln!("skipped: {why}");
}

pub fn is_again() -> bool {
    std::env::var_os(CHILD).is_some()
}

/// Runs a test of this program in a child process, after its shell ran `setup`. A child of root lacks these capabilities, and has the rights of a user.
pub fn again(test: &str, setup: &str, capabilities: &[&str]) -> Output {
    let this = std::env::current_exe().expect("this program");
    let mut child = Command::new("sh");
    child.args(["-c", &format!("{setup} exec \"$0\" \"$@\"")]);
    if fs::metadata("/proc/self").expect("Linux shows it").uid() == 0 {
        let lost: Vec<String> = capabilities.iter().map(|name| format!("-{name}")).collect();
        child.arg("setpriv").arg(format!("--bounding-set={}", lost.join(",")));
    }
    child.arg(this).args([test, "--exact", "--nocapture", "--test-threads=1"]).env(CHILD, "1").output().expect("a shell")
}

pub fn passes_again(test: &str, setup: &str, capabilities: &[&str]) {
    let child = again(test, setup, capabilities);
    let [out, err] = [&child.stdout, &child.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    if matches!(child.status.code(), Some(126 | 127)) {
        return skipped(format_args!("no child: {err}"));
    }
    assert!(child.status.success() && out.contains("1 passed"), "{}: {out}\n{err}", child.status);
}
