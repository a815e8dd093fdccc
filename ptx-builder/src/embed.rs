use std::path::{Path, PathBuf};
use std::{env, fs};

use crate::{Builder, Compiler, Error};

/// Compiles the build script's package for the device, and writes the PTX to `name` in `OUT_DIR`; again when a source file changes.
///
/// Without a compiler the file is empty, which drivers refuse, and a warning states what to install. Does nothing in the device build.
///
/// # Errors
///
/// The compiler's error, or that of a file.
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
            println!("cargo::rerun-if-changed={}", manifest.with_file_name("src").display());
            String::new()
        }
        Err(error) => return Err(error),
    };
    let file = out.join(name);
    fs::write(&file, text).map_err(Error::file(&file))
}
