//! [`Compiler`]: a Rust compiler for PTX.

use std::env;
use std::ffi::OsString;
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
                Err(why) => refused.push((found, why)),
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

/// Existing files and folders that change when a compiler is installed, so that a build script runs again. An installed file keeps the time that
/// its package gives it, so the package managers' own records are watched.
pub(crate) fn records_of_installations() -> Vec<PathBuf> {
    let components = nightly("rustc").and_then(|rustc| Some(rustc.parent()?.parent()?.join("lib/rustlib/components")));
    records(|name| env::var_os(name).filter(|named| !named.is_empty()), env::home_dir(), components)
}

fn records(variable: impl Fn(&str) -> Option<OsString>, home: Option<PathBuf>, components: Option<PathBuf>) -> Vec<PathBuf> {
    let folder = |name: &str, default: &str| variable(name).map(PathBuf::from).or_else(|| Some(home.as_ref()?.join(default)));
    let all = [
        // rustup writes a file per toolchain, then the list of a toolchain's components.
        folder("RUSTUP_HOME", ".rustup").map(|rustup| rustup.join("update-hashes")),
        components,
        // rustup itself.
        folder("CARGO_HOME", ".cargo").map(|cargo| cargo.join("bin")),
        Some("/var/lib/dpkg/status".into()),
        variable("RINGMEM_RUSTC").map(PathBuf::from),
    ];
    // Cargo runs a script at each build for a path that does not exist.
    all.into_iter().flatten().filter(|path| path.is_absolute() && path.exists()).collect()
}

fn nightly(tool: &str) -> Option<PathBuf> {
    let path = answer(Path::new("rustup"), &["which", "--toolchain", "nightly", tool]).ok()?;
    Some(PathBuf::from(path.trim()))
}

type Candidate = (&'static str, Option<PathBuf>, Option<PathBuf>);

fn candidates() -> Vec<Candidate> {
    let variable = |name| env::var_os(name).filter(|named| !named.is_empty()).map(PathBuf::from);
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
    let verbose = answer(rustc, &["-vV"])?;
    let line = |key: &str| verbose.lines().find_map(|line| line.strip_prefix(key)).unwrap_or("unknown");
    let release = line("release: ");
    let here = rustc.display();
    if !is_recent(release) {
        return Err(format!("{here} is {release}, older than {}", env!("CARGO_PKG_RUST_VERSION")));
    }
    let sysroot = answer(rustc, &["--print", "sysroot"])?;
    let core = Path::new(sysroot.trim()).join("lib/rustlib/src/rust/library/core/src/lib.rs");
    if !core.exists() {
        return Err(format!("{here}, {release}, has no rust-src: {} does not exist", core.display()));
    }
    answer(cargo, &["--version"])?;
    Ok(format!("{}, LLVM {}", verbose.lines().next().unwrap_or(release), line("LLVM version: ")))
}

/// At least the version that this package needs, such as 1.95.0 or 1.97.0-nightly.
fn is_recent(release: &str) -> bool {
    let number = |version: &str| {
        let mut parts = version.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
        (parts.next().unwrap_or(0), parts.next().unwrap_or(0))
    };
    number(release) >= number(env!("CARGO_PKG_RUST_VERSION"))
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
fn an_older_compiler_is_not_recent() {
    for (release, is) in
        [("1.95.0", true), ("1.97.0-nightly", true), ("2.0.0", true), ("1.94.9", false), ("1.85.0", false), ("unknown", false)]
    {
        assert_eq!(is_recent(release), is, "{release}");
    }
}

#[test]
fn the_records_of_installations_exist() {
    let folder = tempfile::tempdir().unwrap();
    let below = |path: &str| folder.path().join(path);
    std::fs::create_dir_all(below(".rustup/update-hashes")).unwrap();
    std::fs::create_dir_all(below("cargo/bin")).unwrap();
    let variable = |name: &str| match name {
        "CARGO_HOME" => Some(below("cargo").into()),
        "RINGMEM_RUSTC" => Some("/none".into()),
        _ => None,
    };
    let found = records(variable, Some(folder.path().to_owned()), Some(below("components")));
    let found: Vec<_> = found.into_iter().filter(|path| path.starts_with(folder.path())).collect();
    assert_eq!(found, [below(".rustup/update-hashes"), below("cargo/bin")]);
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
