//! Compiles a crate of GPU kernels in Rust to PTX, with rustc's NVPTX back end.
//!
//! 1. It needs no linker, LLVM tools or CUDA.
//! 2. It uses a target directory per compiler, which the build scripts of a workspace share: core is compiled once. It does not wait for an outer build's
//!    lock.
//!
//! A build script that compiles its crate's kernels to a file in `OUT_DIR`, which the crate's source includes:
//!
//! ```no_run
//! // build.rs; in lib.rs: include_bytes!(concat!(env!("OUT_DIR"), "/kernels.ptx"))
//! fn main() -> Result<(), ringmem_ptx_builder::Error> {
//!     ringmem_ptx_builder::embed("kernels.ptx")
//! }
//! ```
//!
//! Any other program:
//!
//! ```no_run
//! # fn main() -> Result<(), ringmem_ptx_builder::Error> {
//! use ringmem_ptx_builder::{Builder, Compiler};
//!
//! let compiler = Compiler::find()?;
//! println!("{}: {}", compiler.found, compiler.version);
//! let built = Builder::new("kernels/Cargo.toml", "my-kernels").build(&compiler)?;
//! println!("{}", built.path.display());
//! # Ok(())
//! # }
//! ```
//!
//! For `target_os = "cuda"` the crate is `no_std`, with a panic handler and `extern "ptx-kernel"` kernels, as `ringmem_kernels::kernels!`
//! expands.
//!
//! Kernels are compiled with one fixed profile: optimised, without debug information and overflow checks, aborting. The profiles of the package and
//! its workspace, their `package` overrides, `RUSTFLAGS`, wrappers and folders of cargo's configuration do not apply. The package's default features
//! do. PTX that a driver would refuse is an [`Error::Unusable`]: the text is checked, and assembled if `RINGMEM_PTXAS` names NVIDIA's `ptxas` or `PATH`
//! has one.
#![deny(missing_docs, unsafe_code)]

mod compiler;
mod embed;
mod error;
mod package;
mod ptx;
mod ptxas;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

pub use compiler::{Compiler, output};
pub use embed::embed;
pub use error::Error;
pub use ptx::{Kernel, Ptx};

/// How to install a compiler.
pub const INSTALL: &str = concat!(
    "install Rust ",
    env!("CARGO_PKG_RUST_VERSION"),
    " or later with the source of core, by one of
  apt-get install rustc-web rust-web-src
  rustup toolchain install nightly --component rust-src
or name one in RINGMEM_RUSTC"
);

/// A crate to compile for a target.
#[derive(Clone, Debug)]
pub struct Builder {
    manifest: PathBuf,
    package: String,
    target: PathBuf,
    processor: String,
    version: u32,
}

const TARGET: &str = "nvptx64-nvidia-cuda";

impl Builder {
    /// Builds a package of the manifest or its workspace. Defaults: sm_70, PTX 6.3, `target/ptx` next to the manifest.
    #[must_use]
    pub fn new(manifest: impl Into<PathBuf>, package: impl Into<String>) -> Self {
        let manifest = manifest.into();
        let target = manifest.parent().unwrap_or(Path::new("")).join("target/ptx");
        Self { manifest, package: package.into(), target, processor: "sm_70".to_owned(), version: 63 }
    }

    /// Sets the target directory.
    #[must_use]
    pub fn target(mut self, directory: impl Into<PathBuf>) -> Self {
        self.target = directory.into();
        self
    }

    /// Sets the minimum processor (`sm_70`) and PTX version (63 for 6.3).
    #[must_use]
    pub fn processor(mut self, processor: impl Into<String>, version: u32) -> Self {
        (self.processor, self.version) = (processor.into(), version);
        self
    }

    /// Compiles the package's library.
    ///
    /// # Errors
    ///
    /// [`Error::Failed`] with the compiler's output, [`Error::Unusable`] for PTX that a driver refuses, and [`Error::NoPackage`].
    pub fn build(&self, compiler: &Compiler) -> Result<Ptx, Error> {
        let package = package::find(compiler, &self.manifest, &self.package)?;
        let slug: String = compiler.version.chars().map(|c| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' }).collect();
        let target = std::path::absolute(self.target.join(slug)).map_err(Error::file(&self.target))?;
        // One file per package, processor and version: cargo keeps builds with other flags, and does not write a file again for a fresh one.
        let Self { processor, version, .. } = self;
        let path = target.join("ptx").join(format!("{}.{processor}.{version}.s", package.file_stem()));
        // rustc separates kinds of output by commas.
        if path.to_string_lossy().contains(',') {
            return Err(Error::Comma(path));
        }
        let folder = target.join("ptx");
        fs::create_dir_all(&folder).map_err(Error::file(&folder))?;
        // Cargo ends its lock before the list of sources is read, which another package's library of the same name would replace.
        let _lock = locked(&folder.join("lock"))?;
        let mut emit = OsString::from("--emit=asm=");
        emit.push(&path);
        let mut command = compiler.cargo();
        command
            .envs(PROFILE)
            .env("RUSTFLAGS", self.flags())
            .env("CARGO_TARGET_DIR", &target)
            // A shared build directory is locked by the outer cargo.
            .env("CARGO_BUILD_BUILD_DIR", &target)
            // Below it are no sources, so their paths stay absolute.
            .env("CARGO_BUILD_DEP_INFO_BASEDIR", &folder)
            .env("RUSTC_WRAPPER", "")
            .env("RUSTC_WORKSPACE_WRAPPER", "")
            .args(["rustc", "--lib", "--quiet", "--release", "--crate-type", "cdylib", "-Z", "build-std=core", "--target", TARGET])
            .arg("--manifest-path")
            .arg(&package.manifest)
            .arg("--")
            .arg(emit);
        output(command)?;
        let directory = target.join(TARGET).join("release");
        let text = fs::read_to_string(&path).map_err(|_| Error::Nothing {
            name: path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            directory: target.clone(),
        })?;
        let kernels = ptx::checked(&text, processor, *version).map_err(|faults| Error::Unusable { path: path.clone(), faults })?;
        ptxas::assemble(&path, processor)?;
        let mut sources = sources(&directory.join(&package.library).with_extension("d"))?;
        // Cargo runs no build script for another version or feature of a dependency.
        let manifests = manifests(&package.workspace, &sources);
        sources.extend(manifests);
        Ok(Ptx { sources, path, text, kernels })
    }

    fn flags(&self) -> String {
        let Self { processor, version, .. } = self;
        // `true` replaces the bitcode linker. Source locations would add local paths. Lints concern the host's build.
        format!(
            "-C target-cpu={processor} -C target-feature=+ptx{version} -C linker=true -Z location-detail=none -Z crate-attr=feature(abi_ptx) \
             --cap-lints=warn {OF_EACH_PACKAGE}"
        )
    }
}

/// All settings of the profile. The environment has precedence over manifests and cargo's configuration files. A build script or macro keeps the
/// user's `build-override`: it runs on the host.
const PROFILE: [(&str, &str); 12] = [
    ("CARGO_INCREMENTAL", "0"),
    ("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "1"),
    ("CARGO_PROFILE_RELEASE_DEBUG", "0"),
    ("CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS", "false"),
    ("CARGO_PROFILE_RELEASE_INCREMENTAL", "false"),
    ("CARGO_PROFILE_RELEASE_LTO", "fat"),
    ("CARGO_PROFILE_RELEASE_OPT_LEVEL", "3"),
    ("CARGO_PROFILE_RELEASE_OVERFLOW_CHECKS", "false"),
    ("CARGO_PROFILE_RELEASE_PANIC", "abort"),
    ("CARGO_PROFILE_RELEASE_RPATH", "false"),
    ("CARGO_PROFILE_RELEASE_SPLIT_DEBUGINFO", "off"),
    ("CARGO_PROFILE_RELEASE_STRIP", "none"),
];

/// The settings that `[profile.release.package.NAME]` can have too. Only a manifest or `--config` can name the packages, but rustc takes the last
/// of several values, and cargo passes `RUSTFLAGS` after a profile's.
const OF_EACH_PACKAGE: &str = "-C opt-level=3 -C codegen-units=1 -C debuginfo=0 -C debug-assertions=off -C overflow-checks=off -C strip=none \
    -C split-debuginfo=off";

/// Waits until no other builder has the file, which it locks until it is dropped. Like cargo, it does without on a file system that has no locks.
fn locked(path: &Path) -> Result<File, Error> {
    let file = File::create(path).map_err(Error::file(path))?;
    match file.lock() {
        Err(error) if error.kind() != ErrorKind::Unsupported => Err(Error::file(path)(error)),
        _ => Ok(file),
    }
}

/// Parses cargo's make rule: one rule, spaces escaped.
fn sources(rule: &Path) -> Result<Vec<PathBuf>, Error> {
    let text = fs::read_to_string(rule).map_err(Error::file(rule))?;
    let Some((_, names)) = text.lines().next().and_then(|line| line.split_once(": ")) else { return Ok(Vec::new()) };
    let (mut sources, mut name) = (Vec::new(), String::new());
    for word in names.split(' ') {
        match word.strip_suffix('\\') {
            Some(part) => {
                name.push_str(part);
                name.push(' ');
            }
            None => {
                name.push_str(word);
                sources.push(PathBuf::from(std::mem::take(&mut name)));
            }
        }
    }
    Ok(sources)
}

/// What decides on the dependencies: the lock file and the manifest of the workspace, and the manifests of the packages with these sources.
fn manifests(workspace: &Path, sources: &[PathBuf]) -> BTreeSet<PathBuf> {
    let of_source = |source: &PathBuf| source.ancestors().skip(1).map(|folder| folder.join("Cargo.toml")).find(|path| path.is_file());
    let of_workspace = ["Cargo.lock", "Cargo.toml"].map(|name| workspace.join(name)).into_iter().filter(|path| path.is_file());
    sources.iter().filter_map(of_source).chain(of_workspace).collect()
}

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_builder_excludes_others_until_it_has_ended() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        let first = locked(&path).unwrap();
        assert!(File::open(&path).unwrap().try_lock().is_err());
        drop(first);
        locked(&path).unwrap();
    }

    #[test]
    fn the_manifests_of_the_workspace_and_of_each_package_are_listed() {
        let folder = tempfile::tempdir().unwrap();
        let [root, kernels, shared] = ["", "kernels", "shared"].map(|name| folder.path().join(name));
        for package in [&kernels, &shared] {
            fs::create_dir_all(package.join("src")).unwrap();
            fs::write(package.join("Cargo.toml"), "").unwrap();
        }
        let sources = [kernels.join("src/lib.rs"), kernels.join("src/step.rs"), shared.join("src/lib.rs")];
        let of_packages = [kernels.join("Cargo.toml"), shared.join("Cargo.toml")];
        assert_eq!(manifests(&root, &sources), BTreeSet::from(of_packages.clone()), "a workspace without these has none");
        let of_workspace = ["Cargo.lock", "Cargo.toml"].map(|name| folder.path().join(name));
        of_workspace.iter().for_each(|path| fs::write(path, "").unwrap());
        assert_eq!(manifests(folder.path(), &sources), of_packages.into_iter().chain(of_workspace).collect());
    }

    #[test]
    fn dependency_rules_allow_escaped_spaces() {
        let folder = tempfile::tempdir().unwrap();
        let rule = folder.path().join("kernels.d");
        fs::write(&rule, "/a/b/libkernels.ptx: /a/src/lib.rs /a/my\\ folder/x.rs /b.rs\n").unwrap();
        assert_eq!(sources(&rule).unwrap(), ["/a/src/lib.rs", "/a/my folder/x.rs", "/b.rs"].map(PathBuf::from));
        assert!(matches!(sources(&folder.path().join("none.d")), Err(Error::File { .. })));
    }
}
