//! `cargo xtask gpu-smoke`: builds the smoke test and its `run.sh`, for a machine with only a driver.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use crate::Failure;

const RUN: &str = "\
#!/bin/sh
# Runs the first-light program: `./run.sh [OUT]` writes OUT/gpu-smoke.txt and OUT/gpu-smoke.json (OUT: here).
# OUT/gpu-smoke.log has the rows as they came. Needs glibc 2.34 or newer.
# Exit codes: 0 all facts hold, 1 one does not, 3 no driver or no device.
here=$(cd \"$(dirname \"$0\")\" && pwd)
out=${1:-$here}
mkdir -p \"$out\" || exit 1
rm -f \"$out/gpu-smoke.json\"
date -u > \"$out/gpu-smoke.txt\"
uname -srm >> \"$out/gpu-smoke.txt\"
\"$here/gpu_smoke\" --json \"$out/gpu-smoke.json\" >> \"$out/gpu-smoke.txt\" 2> \"$out/gpu-smoke.log\"
code=$?
[ $code -eq 0 ] || cat \"$out/gpu-smoke.log\" >&2
cat \"$out/gpu-smoke.txt\"
exit $code
";

pub fn run() -> Result<(), Failure> {
    let root = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let target = std::path::absolute(std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from))?;
    let status = Command::new(cargo)
        .args(["build", "--profile", "bundle", "--package", "ringmem", "--features", "cuda", "--example", "gpu_smoke"])
        .arg("--target-dir")
        .arg(&target)
        .current_dir(&root)
        .status()?;
    if !status.success() {
        return Err("the program does not build".into());
    }
    let folder = target.join("gpu-smoke");
    fs::create_dir_all(&folder)?;
    fs::copy(target.join("bundle/examples/gpu_smoke"), folder.join("gpu_smoke"))?;
    let script = folder.join("run.sh");
    fs::write(&script, RUN)?;
    #[cfg(unix)]
    fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    println!("{}: copy it to a machine with a GPU and run run.sh there", folder.display());
    Ok(())
}
