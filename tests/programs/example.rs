//! The examples of `ringmem` as programs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

/// Cargo builds all examples with all tests. For a single test the program may be missing or stale, and is built here.
pub fn program(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("this test's program");
    let [profile, target] = [2, 3].map(|nth| test.ancestors().nth(nth).expect("a folder of cargo's"));
    let program = profile.join("examples").join(name);
    if !is_fresh(&program) {
        let profile = profile.file_name().and_then(|name| name.to_str()).map_or("dev", |name| if name == "debug" { "dev" } else { name });
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.args(["build", "--offline", "--package", "ringmem", "--example", name, "--all-features", "--profile", profile]);
        cargo.args(["--manifest-path", concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"), "--target-dir"]).arg(target);
        let output = cargo.output().expect("cargo runs");
        assert!(output.status.success(), "the example {name} does not build: {}", String::from_utf8_lossy(&output.stderr));
    }
    program
}

fn is_fresh(program: &Path) -> bool {
    let changed = |path: &Path| fs::metadata(path).and_then(|found| found.modified()).ok();
    let (Some(built), Ok(list)) = (changed(program), fs::read_to_string(program.with_extension("d"))) else { return false };
    let sources = list.split_once(": ").map_or("", |(_, sources)| sources);
    let sources = sources.replace("\\ ", "\0");
    sources.split_whitespace().all(|source| changed(Path::new(&source.replace('\0', " "))).unwrap_or(SystemTime::now()) <= built)
}
