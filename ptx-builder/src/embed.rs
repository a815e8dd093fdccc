use std::path::{Component, Path, PathBuf};
use std::{env, fs};

use crate::{Builder, Compiler, Error, Kernel, compiler};

/// Compiles the build script's package for the device, and writes the PTX to `name` in `OUT_DIR`, where `kernels!` finds it; again when a source file or a
/// dependency's version or features change.
///
/// Without a compiler the file is empty, which drivers refuse, and a warning states which compilers were found, what each lacks and what to install;
/// the build script runs again when a compiler is installed. Another warning names kernels with local memory. Does nothing in the device build.
///
/// If the kernels do not compile, there is no file, and `kernels!` is an error that shows the compiler's: the host's compiler finds most mistakes too, and
/// shows them first, where an editor marks them. After a failed build script it would not run.
///
/// # Errors
///
/// That of a file, of a program that does not run, or PTX that a driver would refuse.
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
            let ptx = match Builder::new(manifest, &*package).target(target(&out)).build(&compiler) {
                Err(Error::Failed { said, .. }) => return leave_to_kernels(&file, &said),
                built => built?,
            };
            ptx.sources.iter().for_each(|source| println!("cargo::rerun-if-changed={}", source.display()));
            of_local_memory(&package, &ptx.kernels, &compiler.version).iter().for_each(|line| println!("cargo::warning={line}"));
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
    // In place: cargo's folder of this build script has no other writer, and a build that is cut short runs again.
    fs::write(&file, text).map_err(Error::file(&file))
}

/// A target directory of all packages of a build: core, which takes most of the time, is compiled for the first one. Cargo's `OUT_DIR` is
/// `build/PACKAGE-HASH/out`; of another build system's folders nothing is known.
fn target(out: &Path) -> PathBuf {
    match out.ancestors().nth(2) {
        Some(build) if build.file_name().is_some_and(|name| name == "build") => build.join("ringmem-ptx"),
        _ => out.join("ptx"),
    }
}

/// Leaves an error to `kernels!`, in place of the PTX. Until it is mended, the build script runs each time: cargo knows no time of a file that is not there.
fn leave_to_kernels(file: &Path, said: &str) -> Result<(), Error> {
    if file.exists() {
        fs::remove_file(file).map_err(Error::file(file))?;
    }
    println!("cargo::rerun-if-changed={}", file.display());
    let errors = file.with_extension("errors");
    println!("cargo::rustc-env=RINGMEM_DEVICE_ERRORS={}", errors.display());
    fs::write(&errors, said.to_owned() + &remedies(said)).map_err(Error::file(&errors))
}

/// Remedies of errors whose own advice holds for the host alone.
fn remedies(said: &str) -> String {
    let known: [(&[&str], &str); 3] = [
        (
            &["import `ringmem`", "crate `ringmem`"],
            "import from `ringmem_kernels`, which kernels and host share: `ringmem` is for the host alone",
        ),
        (&["can't find crate for `std`"], "begin the library with `#![no_std]`: a GPU has no `std`"),
        (
            &[
                "found for type `f32`",
                "found for type `f64`",
                "found for type `{float}`",
                "found for reference `&f32`",
                "found for reference `&f64`",
            ],
            "`core` has few functions of floats: call `sqrt` and `mul_add` of `ringmem_kernels::math`, and others of the package `libm`, as in `libm::expf(x)`",
        ),
    ];
    let fitting = known.iter().filter(|(signs, _)| signs.iter().any(|sign| said.contains(sign)));
    fitting.map(|(_, remedy)| format!("\nhelp: {remedy}\n")).collect()
}

/// Says which kernels have stack frames, if any have.
fn of_local_memory(package: &str, kernels: &[Kernel], compiler: &str) -> Vec<String> {
    let framed = kernels.iter().filter(|kernel| kernel.local_bytes > 0);
    let framed: Vec<String> = framed.map(|kernel| format!("`{}` {} bytes", kernel.name, kernel.local_bytes)).collect();
    if framed.is_empty() {
        return Vec::new();
    }
    vec![
        format!("kernels of {package} use local memory, in each thread: {}", framed.join(", ")),
        format!("compiled with {compiler}"),
        "their launch can fail while another kernel runs: see \"Operation\" in docs/guide/cuda.md of ringmem".to_owned(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_with_local_memory_are_named_with_their_bytes() {
        let kernel = |name: &str, local_bytes| Kernel { name: name.to_owned(), local_bytes };
        let [first, second, _] =
            &of_local_memory("particles", &[kernel("step", 128), kernel("copy", 0), kernel("sum", 8)], "rustc 1.97.0")[..]
        else {
            panic!("three lines")
        };
        assert_eq!(first, "kernels of particles use local memory, in each thread: `step` 128 bytes, `sum` 8 bytes");
        assert_eq!(second, "compiled with rustc 1.97.0");
        assert!(of_local_memory("particles", &[kernel("copy", 0)], "rustc 1.97.0").is_empty());
    }

    #[test]
    fn errors_of_host_habits_have_the_device_s_remedy() {
        for (said, remedy) in [
            ("error[E0432]: unresolved import `ringmem`", "ringmem_kernels"),
            ("error[E0433]: cannot find module or crate `ringmem` in this scope", "ringmem_kernels"),
            ("error[E0463]: can't find crate for `std`", "#![no_std]"),
            ("error[E0599]: no method named `sqrt` found for type `f32` in the current scope", "ringmem_kernels::math"),
        ] {
            let added = remedies(said);
            assert!(added.starts_with("\nhelp: ") && added.contains(remedy) && added.lines().count() == 2, "{added}");
        }
        assert_eq!(remedies("error[E0432]: unresolved import `ringmem_kernels::Nothing`"), "");
    }

    #[test]
    fn packages_share_a_target_directory_in_cargo_s_folder_of_build_scripts() {
        let [particles, planets] = ["/t/debug/build/particles-12/out", "/t/debug/build/planets-34/out"].map(|out| target(Path::new(out)));
        assert_eq!((particles.as_path(), planets), (Path::new("/t/debug/build/ringmem-ptx"), particles.clone()));
        assert_eq!(target(Path::new("/other/bin/particles.out_dir")), Path::new("/other/bin/particles.out_dir/ptx"));
        assert_eq!(target(Path::new("/out")), Path::new("/out/ptx"));
    }

    #[test]
    fn a_path_cannot_name_an_embedded_file() {
        for name in ["", "../step.ptx", "/tmp/step.ptx", "ptx/step.ptx", ".."] {
            assert!(matches!(embed(name), Err(Error::Name(_))), "{name}");
        }
    }
}
