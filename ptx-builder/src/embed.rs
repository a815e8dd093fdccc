use std::path::{Component, Path, PathBuf};
use std::{env, fs};

use crate::{Builder, Compiler, Error, compiler};

/// Compiles the build script's package for the device, and writes the PTX to `name` in `OUT_DIR`, where `kernels!` finds it; again when a source file
/// changes.
///
/// Without a compiler the file is empty, which drivers refuse, and a warning states which compilers were found, what each lacks and what to install;
/// the build script runs again when a compiler is installed. Another warning names kernels with local memory. Does nothing in the device build.
///
/// # Errors
///
/// The compiler's error, that of a file, or PTX that a driver would refuse.
pub fn embed(name: &str) -> Result<(), Error> {
    let mut parts = Path::new(name).components();
    if !matches!((parts.next(), parts.next()), (Some(Component::Normal(_)), None)) {
        return Err(Error::Name(name.to_owned()));
    }
    if env::var_os("CARGO_CFG_TARGET_OS").is_some_and(|system| system == "cuda") {
        return Ok(());
    }
    let variable = |name: &'static str| env::var_os(name).ok_or(Error::NoBuildScript(name));
    let (package, out) = (variable("CARGO_PKG_NAME")?, PathBuf::from(variable("OUT_DIR")?));
    let (package, file) = (package.to_string_lossy(), out.join(name));
    let manifest = Path::new(&variable("CARGO_MANIFEST_DIR")?).join("Cargo.toml");
    for variable in ["RINGMEM_RUSTC", "RINGMEM_CARGO", "RINGMEM_PTXAS"] {
        println!("cargo::rerun-if-env-changed={variable}");
    }
    println!("cargo::rerun-if-changed={}", manifest.display());
    // For `kernels!`.
    println!("cargo::rustc-env=RINGMEM_EMBEDDED_PTX={}", file.display());
    let text = match Compiler::find() {
        Ok(compiler) => {
            let ptx = Builder::new(manifest, &*package).target(out.join("ptx")).build(&compiler)?;
            ptx.sources.iter().for_each(|source| println!("cargo::rerun-if-changed={}", source.display()));
            let framed: Vec<String> = ptx
                .kernels
                .iter()
                .filter(|kernel| kernel.local_bytes > 0)
                .map(|kernel| format!("`{}` {} bytes", kernel.name, kernel.local_bytes))
                .collect();
            if !framed.is_empty() {
                println!("cargo::warning=kernels of {package} use local memory, in each thread: {}", framed.join(", "));
                println!("cargo::warning=compiled with {}", compiler.version);
                println!(
                    "cargo::warning=their launch can fail while another kernel runs: see \"Operation\" in docs/guide/cuda.md of ringmem"
                );
            }
            ptx.text
        }
        Err(error @ Error::NoCompiler(_)) => {
            println!("cargo::warning=no PTX of {package}: {}", error.to_string().replace('\n', "\ncargo::warning="));
            compiler::records_of_installations().iter().for_each(|path| println!("cargo::rerun-if-changed={}", path.display()));
            println!("cargo::rerun-if-changed={}", manifest.with_file_name("src").display());
            String::new()
        }
        Err(error) => return Err(error),
    };
    fs::write(&file, text).map_err(Error::file(&file))
}
