//! [`embed`]: a build script's one line.

use std::path::{Path, PathBuf};
use std::{env, fs};

use crate::{Builder, Compiler, Error};

/// Compiles the package whose build script calls this for the device, and leaves the PTX as `name` in `OUT_DIR`. Cargo calls it again when a
/// source of it has changed.
///
/// Where there is no compiler the file is empty, and a warning says what to install: a host backend needs none, and a driver refuses an empty image.
/// Called in the build for the device itself it does nothing.
///
/// # Errors
///
/// What the compiler said; a file that cannot be written.
pub fn embed(name: &str) -> Result<(), Error> {
    if env::var_os("CARGO_CFG_TARGET_OS").is_some_and(|system| system == "cuda") {
        return Ok(());
    }
    let variable = |name: &'static str| env::var_os(name).ok_or(Error::NoBuildScript(name));
    let (package, out) = (variable("CARGO_PKG_NAME")?, PathBuf::from(variable("OUT_DIR")?));
    let manifest = Path::new(&variable("CARGO_MANIFEST_DIR")?).join("Cargo.toml");
    for variable in ["RINGMEM_RUSTC", "RINGMEM_CARGO"] {
        println!("cargo::rerun-if-env-changed={variable}");
    }
    println!("cargo::rerun-if-changed={}", manifest.display());
    let text = match Compiler::find() {
        Ok(compiler) => {
            let ptx = Builder::new(manifest, package.to_string_lossy()).target(out.join("ptx")).build(&compiler)?;
            ptx.sources.iter().for_each(|source| println!("cargo::rerun-if-changed={}", source.display()));
            ptx.text
        }
        Err(Error::NoCompiler(_)) => {
            println!("cargo::warning=no PTX of {}: no compiler with the source of core", package.display());
            crate::INSTALL.lines().for_each(|line| println!("cargo::warning={line}"));
            // When there is one, the next build after a change of the source finds it.
            println!("cargo::rerun-if-changed={}", manifest.with_file_name("src").display());
            String::new()
        }
        Err(error) => return Err(error),
    };
    let file = out.join(name);
    fs::write(&file, text).map_err(Error::file(&file))
}
