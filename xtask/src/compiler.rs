//! A compiler for machines without an operating system: where it is, and how it is called.
//!
//! `core` is built from source, so a compiler counts only where that source lies beside it. PTX comes from rustc's own NVPTX back end.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Failure;

const FLAGS: &str = "-C target-cpu=sm_70 -C target-feature=+ptx63 \
    -C linker=true \
    -Z location-detail=none"; // `true` stands in for the bitcode linker; places in source would bring this machine's paths into the PTX.

const TARGET: &str = "nvptx64-nvidia-cuda";

/// A rustc and its cargo.
pub struct Compiler {
    rustc: PathBuf,
    cargo: PathBuf,
    /// How it was found.
    pub found: &'static str,
    /// `rustc 1.96.0 (...), LLVM 22.1.8`.
    pub version: String,
}

/// The first that fits: `RINGMEM_RUSTC`, rustup's nightly, Debian's.
pub fn find() -> Result<Compiler, Failure> {
    let mut refused = Vec::new();
    for (found, rustc, cargo) in candidates() {
        let Some(rustc) = rustc else {
            refused.push(format!("  {found}: not there"));
            continue;
        };
        let cargo = cargo.unwrap_or_else(|| rustc.with_file_name("cargo"));
        match version(&rustc, &cargo) {
            Ok(version) => return Ok(Compiler { rustc, cargo, found, version }),
            Err(why) => refused.push(format!("  {found}: {}: {why}", rustc.display())),
        }
    }
    Err(format!(
        "no compiler with the source of core:\n{}\ninstall one of\n  apt-get install rustc-web rust-web-src\n  \
         rustup toolchain install nightly --component rust-src\nor name one in RINGMEM_RUSTC",
        refused.join("\n")
    )
    .into())
}

type Candidate = (&'static str, Option<PathBuf>, Option<PathBuf>);

fn candidates() -> Vec<Candidate> {
    let variable = |name| std::env::var_os(name).filter(|named| !named.is_empty()).map(PathBuf::from);
    let nightly = |tool: &str| {
        let path = answer(Path::new("rustup"), &["which", "--toolchain", "nightly", tool]).ok()?;
        Some(PathBuf::from(path.trim()))
    };
    let debian = Path::new("/usr/bin/rustc");
    let mut all = vec![
        ("rustup's nightly", nightly("rustc"), nightly("cargo")),
        ("Debian's rustc-web", debian.exists().then(|| debian.to_owned()), None),
    ];
    // Whoever names a compiler wants that one or none.
    if let Some(rustc) = variable("RINGMEM_RUSTC") {
        all = vec![("RINGMEM_RUSTC", Some(rustc), variable("RINGMEM_CARGO"))];
    }
    all
}

/// The version, or why this compiler will not do.
fn version(rustc: &Path, cargo: &Path) -> Result<String, Failure> {
    let sysroot = answer(rustc, &["--print", "sysroot"])?;
    let core = Path::new(sysroot.trim()).join("lib/rustlib/src/rust/library/core/src/lib.rs");
    if !core.exists() {
        return Err("has no rust-src".into());
    }
    answer(cargo, &["--version"])?;
    let verbose = answer(rustc, &["-vV"])?;
    let line = |key: &str| verbose.lines().find_map(|line| line.strip_prefix(key)).unwrap_or("unknown");
    let release = line("release: ");
    if minor(release) < minor(env!("CARGO_PKG_RUST_VERSION")) {
        return Err(format!("is {release}, older than {}", env!("CARGO_PKG_RUST_VERSION")).into());
    }
    Ok(format!("{}, LLVM {}", verbose.lines().next().unwrap_or(release), line("LLVM version: ")))
}

/// 96 of `1.96.0-nightly`.
fn minor(release: &str) -> u32 {
    release.split('.').nth(1).and_then(|minor| minor.parse().ok()).unwrap_or(0)
}

impl Compiler {
    /// Its cargo, which may build `core`.
    pub fn cargo(&self) -> Command {
        let mut command = Command::new(&self.cargo);
        without_outer_cargo(&mut command);
        command.env("RUSTC", &self.rustc).env("RUSTC_BOOTSTRAP", "1");
        command
    }

    /// Compiles a package to PTX text.
    pub fn ptx(&self, manifest: &Path, package: &str) -> Result<String, Failure> {
        // A directory for each compiler: the `.s` has the same name from all of them.
        let slug: String = self.version.chars().map(|c| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' }).collect();
        let target = crate::target().join(slug);
        let mut command = self.cargo();
        command
            .env("RUSTFLAGS", FLAGS)
            .env("CARGO_TARGET_DIR", &target)
            // The workspace's profile has fat LTO and one codegen unit; tests on the host unwind, a device cannot.
            .env("CARGO_PROFILE_RELEASE_PANIC", "abort")
            .args(["rustc", "--quiet", "--release", "--crate-type", "cdylib", "-Z", "build-std=core", "--target", TARGET])
            .args(["--package", package, "--manifest-path"])
            .arg(manifest)
            .args(["--", "--emit=asm"]);
        let output = command.output().map_err(|error| format!("{}: {error}", self.cargo.display()))?;
        if !output.status.success() {
            return Err(format!("{} failed on {package}:\n{}", self.cargo.display(), String::from_utf8_lossy(&output.stderr)).into());
        }
        let stem = package.replace('-', "_");
        let assembly = newest_assembly(&target.join(TARGET).join("release"), &stem)
            .ok_or_else(|| format!("{} left no {stem}.s: remove {}", self.cargo.display(), target.display()))?;
        crate::read(&assembly)
    }
}

/// `STEM.s` or `STEM-HASH.s`, wherever this version of cargo puts it.
fn newest_assembly(directory: &Path, stem: &str) -> Option<PathBuf> {
    let entries = std::fs::read_dir(directory).ok()?.flatten();
    let found = entries.filter_map(|entry| {
        let path = entry.path();
        if entry.file_type().ok()?.is_dir() {
            return newest_assembly(&path, stem);
        }
        let rest = path.file_name()?.to_str()?.strip_prefix(stem)?;
        let ours = rest == ".s" || rest.starts_with('-') && rest.ends_with(".s");
        ours.then_some(path)
    });
    found.max_by_key(|path| path.metadata().and_then(|data| data.modified()).ok())
}

/// `cargo xtask` runs under a cargo that tells its children which compiler, flags and libraries are its own: none of it is for this build.
fn without_outer_cargo(command: &mut Command) {
    let stays = |name: &str| {
        ["CARGO_HOME", "CARGO_BUILD_JOBS", "RUSTUP_HOME"].contains(&name)
            || ["CARGO_NET_", "CARGO_HTTP_", "CARGO_REGISTRIES_", "CARGO_SOURCE_", "CARGO_TERM_"]
                .iter()
                .any(|prefix| name.starts_with(prefix))
    };
    let of_cargo = |name: &str| name.starts_with("CARGO") || name.starts_with("RUST") || name == "LD_LIBRARY_PATH" || name == "OUT_DIR";
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if of_cargo(&text) && !stays(&text) {
            command.env_remove(&name);
        }
    }
}

/// What a program prints, or why it did not.
pub fn answer(program: &Path, arguments: &[impl AsRef<OsStr>]) -> Result<String, Failure> {
    let mut command = Command::new(program);
    without_outer_cargo(&mut command);
    let output = command.args(arguments).output().map_err(|error| format!("{}: {error}", program.display()))?;
    if !output.status.success() {
        let line: OsString = arguments.iter().map(AsRef::as_ref).collect::<Vec<_>>().join(OsStr::new(" "));
        return Err(format!("`{} {}` failed", program.display(), line.display()).into());
    }
    Ok(String::from_utf8(output.stdout)?)
}
