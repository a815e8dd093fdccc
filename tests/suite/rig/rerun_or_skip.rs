//! A test that needs a tool is skipped without it; one about missing rights runs again, in a child process with fewer of them.
#![allow(dead_code, reason = "not every test program uses all of it")]

use std::fmt::Display;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::process::{Command, Output};

const CHILD: &str = "RINGMEM_TEST_RUNS_AGAIN";

/// In CI a skip is a failure.
pub fn skipped(why: impl Display) {
    assert!(std::env::var_os("CI").is_none(), "tests must not be skipped in CI: {why}");
    eprintln!("skipped: {why}");
}

pub fn is_again() -> bool {
    std::env::var_os(CHILD).is_some()
}

/// The child's shell runs `setup`; root's child lacks these capabilities.
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

/// Runs a test as a user without rights. Only root can.
pub fn passes_as(test: &str, user: u32) {
    use std::os::unix::process::CommandExt;
    let mut child = Command::new(std::env::current_exe().expect("this program"));
    child.args([test, "--exact", "--nocapture", "--test-threads=1"]).env(CHILD, "1").env_remove("XDG_RUNTIME_DIR").current_dir("/");
    match child.uid(user).gid(user).output() {
        Ok(child) => {
            let [out, err] = [&child.stdout, &child.stderr].map(|bytes| String::from_utf8_lossy(bytes));
            assert!(child.status.success() && out.contains("1 passed"), "{}: {out}\n{err}", child.status);
        }
        Err(error) => skipped(format_args!("no child as user {user}: {error}")),
    }
}

pub fn passes_again(test: &str, setup: &str, capabilities: &[&str]) {
    let child = again(test, setup, capabilities);
    let [out, err] = [&child.stdout, &child.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    if matches!(child.status.code(), Some(126 | 127)) {
        return skipped(format_args!("no child: {err}"));
    }
    assert!(child.status.success() && out.contains("1 passed"), "{}: {out}\n{err}", child.status);
}
