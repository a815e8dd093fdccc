//! Compiles a crate of GPU kernels in Rust to PTX, by rustc's own NVPTX back end.
//!
//! 1. It finds a compiler that can, says which it is, and where there is none, what to install. It installs nothing.
//! 2. What it gives is text for the driver or for `ptxas`; no linker, no LLVM tools and no CUDA are needed.
//! 3. A build within cargo's build does not wait for that one's lock: it has a target directory of its own, for each compiler.
//!
//! A build script that puts a crate's own kernels where its source includes them:
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
//! The crate is `no_std`, has a panic handler when it is compiled for `target_os = "cuda"`, and its kernels are `extern "ptx-kernel"`, for which it
//! needs no feature attribute. `ringmem_kernels::kernels!` provides both. The library of the package is compiled, with the release profile.
#![deny(missing_docs, unsafe_code)]

mod compiler;
mod embed;
mod error;

use std::fs;
use std::path::{Path, PathBuf};

pub use compiler::{Compiler, output};
pub use embed::embed;
pub use error::Error;

/// What gives one.
pub const INSTALL: &str = "\
install one of
  apt-get install rustc-web rust-web-src
  rustup toolchain install nightly --component rust-src
or name one in RINGMEM_RUSTC";

/// A crate to be compiled, and for what.
#[derive(Clone, Debug)]
pub struct Builder {
    manifest: PathBuf,
    package: String,
    target: PathBuf,
    processor: String,
    version: u32,
}

/// PTX.
#[derive(Clone, Debug)]
pub struct Ptx {
    /// The file, in the target directory.
    pub path: PathBuf,
    /// What is in it.
    pub text: String,
    /// Every file that the crate, and what it depends on in the same workspace or by path, was compiled from.
    pub sources: Vec<PathBuf>,
}

const TARGET: &str = "nvptx64-nvidia-cuda";

impl Builder {
    /// A package of a manifest: its own, or its workspace's. For sm_70 and PTX 6.3, which every later driver takes; built in `target/ptx` beside
    /// the manifest.
    #[must_use]
    pub fn new(manifest: impl Into<PathBuf>, package: impl Into<String>) -> Self {
        let manifest = manifest.into();
        let target = manifest.parent().unwrap_or(Path::new("")).join("target/ptx");
        Self { manifest, package: package.into(), target, processor: "sm_70".to_owned(), version: 63 }
    }

    /// Builds elsewhere.
    #[must_use]
    pub fn target(mut self, directory: impl Into<PathBuf>) -> Self {
        self.target = directory.into();
        self
    }

    /// Compiles for another processor (`sm_70`) and PTX version (63 for 6.3), the least that the PTX then runs on.
    #[must_use]
    pub fn processor(mut self, processor: impl Into<String>, version: u32) -> Self {
        (self.processor, self.version) = (processor.into(), version);
        self
    }

    /// Compiles.
    ///
    /// # Errors
    ///
    /// What the compiler said, as [`Error::Failed`].
    pub fn build(&self, compiler: &Compiler) -> Result<Ptx, Error> {
        // A directory for each compiler: the file has the same name from all of them.
        let slug: String = compiler.version.chars().map(|c| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' }).collect();
        let target = self.target.join(slug);
        let mut command = compiler.cargo();
        command
            .env("RUSTFLAGS", self.flags())
            .env("CARGO_TARGET_DIR", &target)
            // Tests on the host unwind, a device cannot.
            .env("CARGO_PROFILE_RELEASE_PANIC", "abort")
            // One unit with all that the kernels call.
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
        // `true` stands in for the bitcode linker; places in source would bring this machine's paths into the PTX. The calling convention of kernels
        // is unstable: with the attribute here, no crate has to name it.
        format!(
            "-C target-cpu={processor} -C target-feature=+ptx{version} -C linker=true -Z location-detail=none -Z crate-attr=feature(abi_ptx) -A duplicate_features"
        )
    }
}

/// `STEM.s` or `STEM-HASH.s`, wherever this version of cargo puts it.
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

/// What a rule of make depends on, as cargo writes it: one rule, blanks within a name escaped.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_s_files_are_read_blanks_and_all() {
        let folder = tempfile::tempdir().unwrap();
        let rule = folder.path().join("kernels.d");
        fs::write(&rule, "/a/b/libkernels.ptx: /a/src/lib.rs /a/my\\ folder/x.rs /b.rs\n").unwrap();
        assert_eq!(sources(&rule).unwrap(), ["/a/src/lib.rs", "/a/my folder/x.rs", "/b.rs"].map(PathBuf::from));
        assert!(matches!(sources(&folder.path().join("none.d")), Err(Error::File { .. })));
    }

    #[test]
    fn assembly_is_found_wherever_it_lies_and_the_newest_of_its_name() {
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
