//! `cargo xtask driver-double FOLDER`: links the driver double as a shared library, which programs find by `LD_LIBRARY_PATH` in place of NVIDIA's.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::{Failure, OF_TESTS, artifacts, execute, root};

/// Links `libcuda.so.1` in `folder`, and `libcuda.so`, a link to it.
pub fn link(folder: &Path) -> Result<(), Failure> {
    let archive = library(&artifacts(&OF_TESTS)?, "ringmem_driver_double", "a")?;
    fs::create_dir_all(folder)?;
    let library = folder.join("libcuda.so.1");
    // Programs open either name. The double exports the driver's functions alone, and so keeps Rust's standard library to itself.
    let mut linker = Command::new("cc");
    linker.args(["-shared", "-Wl,-soname,libcuda.so", "-Wl,--gc-sections", "-o"]).arg(&library);
    linker.arg(format!("-Wl,--version-script={}", root().join("tests/driver-double/exports.map").display()));
    linker.arg("-Wl,--whole-archive").arg(archive).args(["-Wl,--no-whole-archive", "-lpthread", "-ldl", "-lm", "-lgcc_s"]);
    execute(&mut linker)?;
    let name = folder.join("libcuda.so");
    if name.symlink_metadata().is_ok() {
        fs::remove_file(&name)?;
    }
    Ok(symlink("libcuda.so.1", name)?)
}

/// The file of a library that has such an extension, for example `so`.
pub fn library(artifacts: &[Value], target: &str, extension: &str) -> Result<PathBuf, Failure> {
    let of_target = artifacts.iter().filter(|artifact| artifact["target"]["name"] == target);
    let files = of_target.filter_map(|artifact| artifact["filenames"].as_array()).flatten().filter_map(Value::as_str);
    let mut files = files.map(PathBuf::from).filter(|file| file.extension().is_some_and(|kind| kind == extension));
    files.next().ok_or_else(|| format!("cargo names no file .{extension} of {target}").into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::messages;

    #[test]
    fn the_archive_is_that_of_the_double() {
        let artifact = |name: &str, file: &str| {
            format!(
                "{{\"reason\":\"compiler-artifact\",\"target\":{{\"name\":\"{name}\"}},\"filenames\":[\"/t/{name}.rlib\",\"{file}\"]}}\n"
            )
        };
        let of = |text: &str| library(&messages(text.as_bytes()), "ringmem_driver_double", "a").ok();
        let both = artifact("other", "/t/libother.a") + &artifact("ringmem_driver_double", "/t/libdouble-12.a") + "not json\n";
        assert_eq!(of(&both), Some(PathBuf::from("/t/libdouble-12.a")));
        assert_eq!(of(&artifact("ringmem_driver_double", "/t/double.so")), None);
    }
}
