//! `cargo xtask valgrind`: unit tests and the model tests of one thread of ringmem-layouts read nothing uninitialised and leak nothing.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::{Failure, cargo, execute, messages, text_of};

/// Forgets grants with values inside on purpose; it counts drops itself.
const LEAKS: &str = "every_value_is_dropped_once";

pub fn run() -> Result<(), Failure> {
    let arguments = ["test", "--quiet", "-p", "ringmem-layouts", "--lib", "--test", "suite", "--no-run", "--message-format=json"];
    let output = cargo().args(arguments).stderr(Stdio::inherit()).output()?;
    let messages = messages(&output.stdout);
    let program = |kind| program(&messages, kind).ok_or_else(|| format!("cargo {}: no test program of kind {kind}", arguments.join(" ")));
    let (unit, suite) = (program("lib")?, program("test")?);
    let memcheck = |program: &Path, leaks: &str, tests: &[&str]| {
        let mut command = Command::new("valgrind");
        command.args(["--quiet", "--error-exitcode=9", "--show-leak-kinds=definite", "--errors-for-leak-kinds=definite", leaks]);
        // Few cases: each instruction takes some fifty times as long.
        command.arg(program).arg("--test-threads=1").args(tests).env("PROPTEST_CASES", "32");
        command
    };
    // Valgrind executes one thread at a time: two programs, of which the first takes half the time.
    let mut rings = memcheck(&suite, "--leak-check=full", &["rings_model::", "--skip", LEAKS]);
    let rings = Running { text: text_of(&rings), child: rings.spawn()? };
    execute(&mut memcheck(&unit, "--leak-check=full", &[]))?;
    execute(&mut memcheck(&suite, "--leak-check=full", &["_model::", "--skip", "rings_model::"]))?;
    execute(&mut memcheck(&suite, "--leak-check=no", &[LEAKS]))?;
    rings.end()
}

/// It does not outlive its parent's failure.
struct Running {
    text: String,
    child: Child,
}

impl Running {
    fn end(mut self) -> Result<(), Failure> {
        let status = self.child.wait()?;
        if status.success() { Ok(()) } else { Err(format!("{}: {status}", self.text).into()) }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn program(messages: &[Value], kind: &str) -> Option<PathBuf> {
    let mut tests = messages.iter().filter(|message| message["profile"]["test"] == true && message["target"]["kind"][0] == kind);
    tests.find_map(|message| message["executable"].as_str().map(PathBuf::from))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_that_of_its_kind() {
        let of = |kind: &str, is_test: bool, file: &str| {
            format!("{{\"profile\":{{\"test\":{is_test}}},\"target\":{{\"kind\":[\"{kind}\"]}},\"executable\":{file}}}\n")
        };
        let text = of("lib", false, "null") + &of("lib", true, "\"/t/unit\"") + "text\n" + &of("test", true, "\"/t/suite\"");
        let messages = messages(text.as_bytes());
        assert_eq!((program(&messages, "lib"), program(&messages, "test")), (Some("/t/unit".into()), Some("/t/suite".into())));
        assert_eq!(program(&messages, "bench"), None);
    }
}
