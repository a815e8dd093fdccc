//! Compiles a crate of GPU kernels in Rust to PTX, with rustc's NVPTX back end.
//!
//! 1. It needs no linker, LLVM tools or CUDA.
//! 2. It uses a target directory per compiler: it does not wait for an outer build's lock.
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
//! expands. The release profile applies.
#![deny(missing_docs, unsafe_code)]

mod compiler;
mod embed;
mod error;

use std::fs;
use std::path::{Path, PathBuf};

pub use compiler::{Compiler, output};
pub use embed::embed;
pub use error::Error;

/// How to install a compiler.
pub const INSTALL: &str = "\
install one of
  apt-get install rustc-web rust-web-src
  rustup toolchain install nightly --component rust-src
or name one in RINGMEM_RUSTC";

/// A crate to compile for a target.
#[derive(Clone, Debug)]
pub struct Builder {
    manifest: PathBuf,
    package: String,
    target: PathBuf,
    processor: String,
    version: u32,
}

/// The compiled PTX.
#[derive(Clone, Debug)]
pub struct Ptx {
    /// The file, in the target directory.
    pub path: PathBuf,
    /// Its contents.
    pub text: String,
    /// The source files of the crate, its workspace and path dependencies.
    pub sources: Vec<PathBuf>,
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

    /// Compiles the package.
    ///
    /// # Errors
    ///
    /// [`Error::Failed`] with the compiler's output.
    pub fn build(&self, compiler: &Compiler) -> Result<Ptx, Error> {
        let slug: String = compiler.version.chars().map(|c| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' }).collect();
        let target = self.target.join(slug);
        let mut command = compiler.cargo();
        command
            .env("RUSTFLAGS", self.flags())
            .env("CARGO_TARGET_DIR", &target)
            .env("CARGO_PROFILE_RELEASE_PANIC", "abort")
            .env("CARGO_PROFILE_RELEASE_LTO", "fat")
            .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "1")
            .args(["rustc", "--lib", "--quiet", "--release", "--crate-type", "cdylib", "-Z", "build-std=core", "--target", TARGET])
            .args(["--package", &self.package, "--manifest-path"])
            .arg(&self.manifest)
            .args(["--", "--emit=asm"]);
        output(command)?;
        let (directory, stem) = (target.join(TARGET).join("release"), self.package.replace('-', "_"));
        let path =
            newest_assembly(&directory, &stem).ok_or_else(|| Error::Nothing { name: format!("{stem}.s"), directory: directory.clone() })?;
        let text = fs::read_to_string(&path).map_err(Error::file(&path))?;
        Ok(Ptx { path, text, sources: sources(&directory.join(stem).with_extension("d"))? })
    }

    fn flags(&self) -> String {
        let Self { processor, version, .. } = self;
        // `true` replaces the bitcode linker. Source locations would add local paths.
        format!(
            "-C target-cpu={processor} -C target-feature=+ptx{version} -C linker=true -Z location-detail=none -Z crate-attr=feature(abi_ptx) -A duplicate_features"
        )
    }
}

fn newest_assembly(directory: &Path, stem: &str) -> Option<PathBuf> {
    let entries = fs::read_dir(directory).ok()?.flatten();
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

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dependency_rules_allow_escaped_spaces() {
        let folder = tempfile::tempdir().unwrap();
        let rule = folder.path().join("kernels.d");
        fs::write(&rule, "/a/b/libkernels.ptx: /a/src/lib.rs /a/my\\ folder/x.rs /b.rs\n").unwrap();
        assert_eq!(sources(&rule).unwrap(), ["/a/src/lib.rs", "/a/my folder/x.rs", "/b.rs"].map(PathBuf::from));
        assert!(matches!(sources(&folder.path().join("none.d")), Err(Error::File { .. })));
    }

    #[test]
    fn newest_assembly_returns_the_newest_matching_file() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("deps")).unwrap();
        let write = |name: &str, age| {
            let path = folder.path().join(name);
            fs::write(&path, name).unwrap();
            let time = std::time::SystemTime::now() - std::time::Duration::from_secs(age);
            fs::File::options().write(true).open(&path).unwrap().set_modified(time).unwrap();
        };
        assert_eq!(newest_assembly(folder.path(), "kernels"), None);
        write("deps/kernels-0123.s", 10);
        write("kernels.s", 20);
        write("kernels_of_others.s", 0);
        write("kernels-0123.o", 0);
        assert_eq!(newest_assembly(folder.path(), "kernels"), Some(folder.path().join("deps/kernels-0123.s")));
    }
}
