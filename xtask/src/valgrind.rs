//! `cargo xtask valgrind`: unit tests and the model tests of one thread of ringmem-layouts read nothing uninitialised and leak nothing.

use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use serde_json::Value;

use crate::{Failure, artifacts, execute, root, text_of};

/// Forgets grants with values inside on purpose; it counts drops itself.
const LEAKS: &str = "every_value_is_dropped_once";

pub fn run() -> Result<(), Failure> {
    // All tests, as `cargo test --all-features` builds them: with other packages, cargo would build these once more.
    let artifacts = artifacts(&["test", "--quiet", "--all-features", "--no-run"])?;
    let layouts = root().join("layouts/Cargo.toml");
    let program =
        |kind, name| program(&artifacts, &layouts, [kind, name]).ok_or_else(|| format!("cargo names no {kind} {name} of the tests"));
    let (unit, suite) = (program("lib", "ringmem_layouts")?, program("test", "suite")?);
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

/// The test program of a package's target of that kind and name.
fn program(artifacts: &[Value], manifest: &Path, [kind, name]: [&str; 2]) -> Option<PathBuf> {
    let of_target = |artifact: &&Value| {
        let target = &artifact["target"];
        artifact["manifest_path"].as_str().map(Path::new) == Some(manifest) && target["kind"][0] == kind && target["name"] == name
    };
    let mut tests = artifacts.iter().filter(of_target).filter(|artifact| artifact["profile"]["test"] == true);
    tests.find_map(|artifact| artifact["executable"].as_str().map(PathBuf::from))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_program_is_that_of_its_package_kind_and_name() {
        let of = |package: &str, kind: &str, name: &str, is_test: bool, executable: Option<&str>| {
            let target = json!({ "kind": [kind], "name": name });
            json!({ "manifest_path": package, "target": target, "profile": { "test": is_test }, "executable": executable })
        };
        let artifacts = [
            of("/other/Cargo.toml", "lib", "own", true, Some("/t/of-other")),
            of("/own/Cargo.toml", "lib", "own", false, None),
            of("/own/Cargo.toml", "lib", "own", true, Some("/t/unit")),
            of("/own/Cargo.toml", "test", "threads", true, Some("/t/threads")),
            of("/own/Cargo.toml", "test", "suite", true, Some("/t/suite")),
        ];
        let program = |kind, name| program(&artifacts, Path::new("/own/Cargo.toml"), [kind, name]);
        assert_eq!((program("lib", "own"), program("test", "suite")), (Some("/t/unit".into()), Some("/t/suite".into())));
        assert_eq!((program("bench", "suite"), program("test", "own")), (None, None));
    }
}
