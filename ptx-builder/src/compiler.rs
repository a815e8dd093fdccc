//! [`Compiler`]: a Rust compiler for PTX.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Error;

/// A rustc that can build `core`, and its cargo.
#[derive(Clone, Debug)]
pub struct Compiler {
    rustc: PathBuf,
    cargo: PathBuf,
    /// How it was found.
    pub found: &'static str,
    /// Version, such as `rustc 1.96.0 (...), LLVM 22.1.8`.
    pub version: String,
}

impl Compiler {
    /// Finds the first usable compiler: `RINGMEM_RUSTC` (with `RINGMEM_CARGO`, or the cargo in its directory), rustup's nightly, Debian's.
    ///
    /// # Errors
    ///
    /// [`Error::NoCompiler`].
    pub fn find() -> Result<Self, Error> {
        let mut refused = Vec::new();
        for (found, rustc, cargo) in candidates() {
            let Some(rustc) = rustc else {
                refused.push((found, "not there".to_owned()));
                continue;
            };
            let cargo = cargo.unwrap_or_else(|| rustc.with_file_name("cargo"));
            match version(&rustc, &cargo) {
                Ok(version) => return Ok(Self { rustc, cargo, found, version }),
                Err(why) => refused.push((found, format!("{}: {why}", rustc.display()))),
            }
        }
        Err(Error::NoCompiler(refused))
    }

    /// Returns a command for its cargo, without an outer cargo's environment.
    #[must_use]
    pub fn cargo(&self) -> Command {
        let mut command = Command::new(&self.cargo);
        without_outer_cargo(&mut command);
        command.env("RUSTC", &self.rustc).env("RUSTC_BOOTSTRAP", "1");
        command
    }
}

type Candidate = (&'static str, Option<PathBuf>, Option<PathBuf>);

fn candidates() -> Vec<Candidate> {
    let variable = |name| env::var_os(name).filter(|named| !named.is_empty()).map(PathBuf::from);
    let nightly = |tool: &str| {
        let path = answer(Path::new("rustup"), &["which", "--toolchain", "nightly", tool]).ok()?;
        Some(PathBuf::from(path.trim()))
    };
    let debian = Path::new("/usr/bin/rustc");
    let mut all = vec![
        ("rustup's nightly", nightly("rustc"), nightly("cargo")),
        ("Debian's rustc-web", debian.exists().then(|| debian.to_owned()), None),
    ];
    if let Some(rustc) = variable("RINGMEM_RUSTC") {
        all = vec![("RINGMEM_RUSTC", Some(rustc), variable("RINGMEM_CARGO"))];
    }
    all
}

fn version(rustc: &Path, cargo: &Path) -> Result<String, String> {
    let answer = |program: &Path, arguments: &[&str]| answer(program, arguments).map_err(|error| error.to_string());
    let sysroot = answer(rustc, &["--print", "sysroot"])?;
    let core = Path::new(sysroot.trim()).join("lib/rustlib/src/rust/library/core/src/lib.rs");
    if !core.exists() {
        return Err("has no rust-src".to_owned());
    }
    answer(cargo, &["--version"])?;
    let verbose = answer(rustc, &["-vV"])?;
    let line = |key: &str| verbose.lines().find_map(|line| line.strip_prefix(key)).unwrap_or("unknown");
    let release = line("release: ");
    if minor(release) < minor(env!("CARGO_PKG_RUST_VERSION")) {
        return Err(format!("is {release}, older than {}", env!("CARGO_PKG_RUST_VERSION")));
    }
    Ok(format!("{}, LLVM {}", verbose.lines().next().unwrap_or(release), line("LLVM version: ")))
}

fn minor(release: &str) -> u32 {
    release.split('.').nth(1).and_then(|minor| minor.parse().ok()).unwrap_or(0)
}

fn without_outer_cargo(command: &mut Command) {
    let stays = |name: &str| {
        ["CARGO_HOME", "CARGO_BUILD_JOBS", "RUSTUP_HOME", "RUSTUP_AUTO_INSTALL"].contains(&name)
            || ["CARGO_NET_", "CARGO_HTTP_", "CARGO_REGISTRIES_", "CARGO_SOURCE_", "CARGO_TERM_"]
                .iter()
                .any(|prefix| name.starts_with(prefix))
    };
    let of_cargo = |name: &str| name.starts_with("CARGO") || name.starts_with("RUST") || name == "LD_LIBRARY_PATH" || name == "OUT_DIR";
    for (name, _) in env::vars_os() {
        let text = name.to_string_lossy();
        let is_given = command.get_envs().any(|(given, _)| given == name);
        if of_cargo(&text) && !stays(&text) && !is_given {
            command.env_remove(&name);
        }
    }
}

/// Runs a program without an outer cargo's environment; returns its output.
///
/// # Errors
///
/// [`Error::Run`], or [`Error::Failed`] with its error output.
pub fn output(mut command: Command) -> Result<String, Error> {
    without_outer_cargo(&mut command);
    let output = command.output().map_err(|source| Error::Run { program: command.get_program().into(), source })?;
    if !output.status.success() {
        let words = [command.get_program()].into_iter().chain(command.get_args()).map(|word| word.to_string_lossy());
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(Error::Failed { command: words.collect::<Vec<_>>().join(" "), said: from_first_error(&said).to_owned() });
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Without cargo's progress and the warnings before the first error.
fn from_first_error(said: &str) -> &str {
    let begin = if said.starts_with("error") { 0 } else { said.find("\nerror").map_or(0, |at| at + 1) };
    &said[begin..]
}

#[test]
fn the_first_error_is_kept() {
    for (said, kept) in [("error: a\nerror: b", "error: a\nerror: b"), ("warning: w\nerror: a\n", "error: a\n"), ("unknown", "unknown")] {
        assert_eq!(from_first_error(said), kept);
    }
}

fn answer(program: &Path, arguments: &[&str]) -> Result<String, Error> {
    let mut command = Command::new(program);
    command.args(arguments);
    output(command)
}
