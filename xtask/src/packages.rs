//! `cargo xtask packages`: what users get. Each package builds from its own archive, has the files that it needs, and none of the tests'.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::{Failure, answer, built, cargo, execute, read, root};

const NAMES: [&str; 8] = [
    "ringmem-derive",
    "ringmem-layouts",
    "ringmem-kernels",
    "ringmem",
    "ringmem-ptx-builder",
    "ringmem-recordings",
    "ringmem-cli",
    "ringmem-capi",
];
const NEEDED: [&str; 3] = ["README.md", "LICENSE-MIT", "LICENSE-APACHE"];
const OF_TESTS: [&str; 4] = ["tests", "fuzz", "benches", ".ci"];

pub fn run() -> Result<(), Failure> {
    is_least_supported(&answer(Path::new("rustc"), &["--version"])?, &read(&root().join("Cargo.toml"))?)?;
    let folder = new_folder()?;
    let mut package = cargo();
    package.args(["package", "--quiet", "--allow-dirty", "--target-dir"]).arg(&folder).env("CARGO_PROFILE_DEV_DEBUG", "none");
    execute(package.args(NAMES.iter().flat_map(|name| ["-p", name])))?;
    let archives = names(&folder.join("package"))?;
    for name in NAMES {
        let archive = archives.iter().find(|archive| is_of(archive, name)).ok_or_else(|| format!("no archive of {name}"))?;
        let archive = folder.join("package").join(archive);
        let files = answer(Path::new("tar"), &[OsStr::new("tzf"), archive.as_os_str()])?;
        check_files(name, &files)?;
        println!("{name}: {} files", files.lines().count());
    }
    // deny.toml admits a second syn for optional features; std alone has one.
    let mut tree = cargo();
    tree.args(["tree", "--quiet", "-p", "ringmem", "--features", "std", "-e", "normal,build", "--duplicates"]);
    let twice = ringmem_ptx_builder::output(tree)?;
    if twice.trim().is_empty() { Ok(()) } else { Err(format!("ringmem with std has several versions of a crate:\n{twice}").into()) }
}

/// A folder that no run before had, even if they are removed: cargo keeps the archives of a folder by version, and takes an old one for the new.
fn new_folder() -> Result<PathBuf, Failure> {
    let target = built();
    for old in names(&target)?.iter().filter(|name| name.starts_with("packages.")) {
        fs::remove_dir_all(target.join(old))?;
    }
    Ok(target.join(format!("packages.{}", SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_millis())))
}

fn names(folder: &Path) -> Result<Vec<String>, Failure> {
    fs::read_dir(folder)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
}

/// CI compiles with the least version that the manifests promise.
fn is_least_supported(version: &str, manifest: &str) -> Result<(), Failure> {
    let found = version.split(' ').nth(1).unwrap_or_default();
    let wanted = manifest
        .lines()
        .find_map(|line| line.strip_prefix("rust-version = \"")?.strip_suffix('"'))
        .ok_or("Cargo.toml has no rust-version")?;
    match found.strip_prefix(wanted) {
        Some(rest) if rest.starts_with('.') => Ok(()),
        _ => Err(format!("rustc {found}: the least supported version is {wanted}, which is what CI compiles with").into()),
    }
}

fn is_of(archive: &str, name: &str) -> bool {
    let version = archive.strip_prefix(name).and_then(|rest| rest.strip_prefix('-'));
    archive.ends_with(".crate") && version.is_some_and(|version| version.starts_with(|first: char| first.is_ascii_digit()))
}

fn check_files(name: &str, files: &str) -> Result<(), Failure> {
    let within = || files.lines().filter_map(|file| file.split_once('/')).map(|(_, file)| file);
    if let Some(missing) = NEEDED.iter().find(|needed| !within().any(|file| file == **needed)) {
        return Err(format!("{name} has no {missing}").into());
    }
    let extra: Vec<&str> = within().filter(|file| file.split_once('/').is_some_and(|(folder, _)| OF_TESTS.contains(&folder))).collect();
    if extra.is_empty() { Ok(()) } else { Err(format!("{name} has files of tests:\n{}", extra.join("\n")).into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_belongs_to_one_package() {
        assert!(is_of("ringmem-0.3.0.crate", "ringmem") && is_of("ringmem-cli-0.3.0.crate", "ringmem-cli"));
        assert!(!is_of("ringmem-cli-0.3.0.crate", "ringmem") && !is_of("ringmem-0.3.0", "ringmem"));
    }

    #[test]
    fn a_package_has_its_licences_and_no_tests() {
        let files = "r-1/README.md\nr-1/LICENSE-MIT\nr-1/LICENSE-APACHE\nr-1/src/tests/a.rs\n";
        check_files("r", files).unwrap();
        assert!(check_files("r", &files.replace("LICENSE-MIT", "LICENSE")).unwrap_err().to_string().contains("LICENSE-MIT"));
        assert!(check_files("r", &format!("{files}r-1/tests/a.rs\n")).unwrap_err().to_string().ends_with("tests/a.rs"));
        assert!(check_files("r", "r-1/docs/README.md\n").is_err());
    }

    #[test]
    fn the_compiler_is_the_least_supported_one() {
        let manifest = "[workspace.package]\nrust-version = \"1.95\"\n";
        is_least_supported("rustc 1.95.0 (59807616e 2026-04-14)", manifest).unwrap();
        assert!(is_least_supported("rustc 1.96.0 (x)", manifest).is_err() && is_least_supported("rustc 1.950.0 (x)", manifest).is_err());
        assert!(is_least_supported("rustc 1.95.0 (x)", "[workspace]\n").is_err());
    }
}
