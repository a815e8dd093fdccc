use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::list::Break;
use crate::{Failure, answer, read, root};

const FUNCTION: &str = r#"
#[doc(hidden)]
#[allow(missing_docs)]
pub fn is_broken(number: u32) -> bool {
    extern crate std;
    static SWITCH: std::sync::OnceLock<u32> = std::sync::OnceLock::new();
    *SWITCH.get_or_init(|| std::env::var("RINGMEM_BREAK").map_or(0, |number| number.parse().unwrap())) == number
}
"#;

pub fn path() -> PathBuf {
    crate::target().join("mutants/tree")
}

pub fn target() -> PathBuf {
    crate::target().join("mutants/build")
}

/// Gives the packages of the tree another version: cargo names their intermediate files by name, version, and place in the workspace.
fn with_another_version(manifest: &str) -> Result<String, Failure> {
    let (before, after) = manifest.split_once("[workspace.package]\nversion = \"").ok_or("no version of the workspace")?;
    let (version, after) = after.split_once('"').ok_or("no version of the workspace")?;
    Ok(format!("{before}[workspace.package]\nversion = \"{version}+broken\"{after}"))
}

/// Makes a shared library one for Rust alone. Cargo names those for other languages by their package alone, so that the tree's would replace the product's.
fn for_rust_alone(manifest: &str) -> String {
    let lines = manifest.lines().map(|line| if line.starts_with("crate-type = ") { "crate-type = [\"lib\"]" } else { line });
    lines.flat_map(|line| [line, "\n"]).collect()
}

/// Cargo does not recompile unchanged files.
pub fn write(breaks: &[Break]) -> Result<(), Failure> {
    let list =
        answer(Path::new("git"), &["-C", &root().to_string_lossy(), "ls-files", "-z", "--cached", "--others", "--exclude-standard"])?;
    let mut broken = BTreeMap::<&str, Vec<&Break>>::new();
    breaks.iter().for_each(|found| broken.entry(&found.file).or_default().push(found));
    let roots: Vec<String> = broken.keys().map(|file| root_of(file)).collect();
    for name in list.split('\0').filter(|name| !name.is_empty()) {
        let Ok(mut bytes) = std::fs::read(root().join(name)) else { continue };
        if let Some(breaks) = broken.remove(name) {
            bytes = with_switches(String::from_utf8(bytes)?, &breaks)?.into_bytes();
        }
        if name == "Cargo.toml" {
            bytes = with_another_version(&String::from_utf8(bytes)?)?.into_bytes();
        }
        // The driver double needs its archive, whose name has a hash.
        if name == "capi/Cargo.toml" {
            bytes = for_rust_alone(&String::from_utf8(bytes)?).into_bytes();
        }
        if roots.iter().any(|root| root == name) {
            bytes.extend_from_slice(FUNCTION.as_bytes());
        }
        let path = path().join(name);
        if std::fs::read(&path).is_ok_and(|before| before == bytes) {
            continue;
        }
        std::fs::create_dir_all(path.parent().ok_or("a file has a directory")?)?;
        std::fs::write(path, bytes)?;
    }
    broken.keys().next().map_or(Ok(()), |file| Err(format!("{file}: no such file").into()))
}

/// The folder of a file's package.
fn folder_of(file: &str) -> &str {
    file.split_once("src/").map_or("", |(folder, _)| folder)
}

fn root_of(file: &str) -> String {
    format!("{}src/lib.rs", folder_of(file))
}

pub fn package_of(file: &str) -> Result<String, Failure> {
    package(&root().join(folder_of(file)).join("Cargo.toml"))
}

fn with_switches(mut text: String, breaks: &[&Break]) -> Result<String, Failure> {
    for found in breaks {
        let Break { name, number, after, old, new, .. } = found;
        let from = match after {
            None if text.matches(old).count() == 1 => 0,
            None => return Err(format!("{name}: `{old}` is in the file {} times", text.matches(old).count()).into()),
            Some(after) => text.find(after).map(|at| at + after.len()).ok_or(format!("{name}: no `{after}`"))?,
        };
        let at = text[from..].find(old).ok_or(format!("{name}: no `{old}`"))? + from;
        let switch = format!("if crate::is_broken({number}) {{ {new} }} else {{ {old} }}");
        let switch = if old.ends_with([';', '}']) { switch } else { format!("({switch})") };
        text.replace_range(at..at + old.len(), &switch);
    }
    Ok(text)
}

pub fn package(manifest: &Path) -> Result<String, Failure> {
    let text = read(manifest)?;
    let name = text.lines().find_map(|line| line.strip_prefix("name = \"")?.strip_suffix('"'));
    Ok(name.ok_or_else(|| format!("{}: no name", manifest.display()))?.to_owned())
}
