//! `cargo xtask driver-double FOLDER`: links the driver double as a shared library, which programs find by `LD_LIBRARY_PATH` in place of NVIDIA's.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::{Failure, cargo, execute, messages, root};

/// Links `libcuda.so.1` in `folder`, and `libcuda.so`, a link to it.
pub fn link(folder: &Path) -> Result<(), Failure> {
    let archive = archive()?;
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

/// Builds it with the packages and targets that the tests build: with others, cargo would build all of them once more.
fn archive() -> Result<PathBuf, Failure> {
    let arguments = ["build", "--quiet", "--all-features", "--bins", "--examples", "--message-format=json"];
    let output = cargo().args(arguments).stderr(Stdio::inherit()).output()?;
    if !output.status.success() {
        return Err(format!("cargo {}: {}", arguments.join(" "), output.status).into());
    }
    of_messages(&messages(&output.stdout)).ok_or_else(|| "cargo names no archive of the driver double".into())
}

fn of_messages(messages: &[Value]) -> Option<PathBuf> {
    let double = messages.iter().find(|message| message["target"]["name"] == "ringmem_driver_double")?;
    let files = double["filenames"].as_array()?.iter().filter_map(Value::as_str);
    files.map(PathBuf::from).find(|file| file.extension().is_some_and(|kind| kind == "a"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_archive_is_that_of_the_double() {
        let artifact = |name: &str, file: &str| {
            format!(
                "{{\"reason\":\"compiler-artifact\",\"target\":{{\"name\":\"{name}\"}},\"filenames\":[\"/t/{name}.rlib\",\"{file}\"]}}\n"
            )
        };
        let of = |text: &str| of_messages(&messages(text.as_bytes()));
        let both = artifact("other", "/t/libother.a") + &artifact("ringmem_driver_double", "/t/libdouble-12.a") + "not json\n";
        assert_eq!(of(&both), Some(PathBuf::from("/t/libdouble-12.a")));
        assert_eq!(of(&artifact("ringmem_driver_double", "/t/double.so")), None);
    }
}
