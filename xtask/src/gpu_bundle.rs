//! `cargo xtask gpu-bundle`: builds a self-contained set of tests for a machine with a GPU and a driver.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{Failure, answer, image, root};

const MOST: u64 = 60 << 20;
const TEXTS: [&str; 6] = ["run.sh", "twin.cu", "pools.py", "torch_allocators.py", "torch_tensors.py", "waits.py"];

pub fn run() -> Result<(), Failure> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let built = crate::built();
    let status = Command::new(&cargo)
        .args(["build", "--release", "--package", "ringmem", "--package", "ringmem-cli", "--features", "ringmem/cuda"])
        .args(["--bin", "ringmem", "--example", "gpu_suite", "--target-dir"])
        .arg(&built)
        .current_dir(root())
        .status()?;
    if !status.success() {
        return Err("the programs do not build".into());
    }
    // Of one kind: otherwise it is not optimised across crates.
    let library = ["rustc", "--release", "--package", "ringmem-capi", "--lib", "--crate-type", "cdylib", "--target-dir"];
    if !Command::new(&cargo).args(library).arg(&built).current_dir(root()).status()?.success() {
        return Err("the library for PyTorch does not build".into());
    }
    let folder = built.join("gpu-bundle");
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    fs::create_dir_all(&folder)?;
    for program in ["ringmem", "examples/gpu_suite", "libringmem_capi.so"] {
        let copy = copy(&built.join("release").join(program), &folder)?;
        // A profile that strips would compile everything again.
        answer(Path::new("strip"), &[copy])?;
    }
    for text in TEXTS {
        copy(&root().join("examples/gpu_suite").join(text), &folder)?;
    }
    copy(&image::path(), &folder)?;
    let bytes = fs::read_dir(&folder)?.map(|entry| Ok(entry?.metadata()?.len())).sum::<Result<u64, std::io::Error>>()?;
    if bytes > MOST {
        return Err(format!("{}: {bytes} bytes, more than {MOST}", folder.display()).into());
    }
    println!("{}, {} KiB: copy it to a machine with a GPU and run run.sh there", folder.display(), bytes >> 10);
    Ok(())
}

fn copy(file: &Path, folder: &Path) -> Result<PathBuf, Failure> {
    let copy = folder.join(file.file_name().ok_or("a file has a name")?);
    fs::copy(file, &copy).map_err(|error| format!("{}: {error}", file.display()))?;
    Ok(copy)
}
