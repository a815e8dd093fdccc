//! The checked-in PTX: generated, or compared with a new build.

use std::path::PathBuf;

use ringmem_ptx_builder::{Builder, Compiler};

use crate::{Failure, check};

const PACKAGE: &str = "ringmem-kernels";
const MADE_BY: &str = "// Made by `cargo xtask ptx` with ";

pub fn path() -> PathBuf {
    crate::root().join("kernels-rs/ptx/ringmem.ptx")
}

/// Returns the compiler; without one, says that the check is skipped, and why.
pub fn compiler_or_skipped() -> Result<Option<Compiler>, Failure> {
    match Compiler::find() {
        Ok(compiler) => Ok(Some(compiler)),
        Err(why) => crate::skipped(&format!("skipped: no PTX compiler\n{why}")).map(|()| None),
    }
}

pub fn write() -> Result<(), Failure> {
    let (text, _) = fresh()?;
    crate::write(&path(), &text)?;
    println!("wrote {}: now `cargo xtask ptx-check`", path().display());
    Ok(())
}

/// Compares byte by byte if the same compiler generated the file, otherwise by compiler-independent properties.
pub fn compare() -> Result<(), Failure> {
    let (new, version) = fresh()?;
    let old = crate::read(&path())?;
    if new == old {
        println!("{} is what its source gives", path().display());
        return Ok(());
    }
    let stale =
        |what: String| Err(format!("{} is not what its source gives: {what}\nrefresh it with `cargo xtask ptx`", path().display()).into());
    let maker = maker(&old).unwrap_or("an unknown compiler");
    if maker == version {
        return stale(first_difference(&old, &new));
    }
    println!("comparison by bytes skipped: made by another compiler ({maker})");
    let (old, new) = (check::Module::parse(&old)?, check::Module::parse(&new)?);
    if old.abi != new.abi {
        return stale(format!("RINGMEM_ABI is {:x?}, expected {:x?}", old.abi, new.abi));
    }
    if old.kernels() != new.kernels() {
        return stale(format!("its kernels and argument counts are {:?}, expected {:?}", old.kernels(), new.kernels()));
    }
    let findings = check::rules(&new);
    if !findings.is_empty() {
        let lines: Vec<String> = findings.iter().map(ToString::to_string).collect();
        return Err(format!("{} with this compiler:\n{}", path().display(), lines.join("\n")).into());
    }
    println!("its ABI, kernels and argument counts are what its source gives");
    Ok(())
}

fn fresh() -> Result<(String, String), Failure> {
    let compiler = Compiler::find()?;
    println!("compiling {PACKAGE} with {}: {}", compiler.found, compiler.version);
    let raw = Builder::new(crate::root().join("Cargo.toml"), PACKAGE).target(crate::target()).build(&compiler)?.text;
    let text = format!("{MADE_BY}{}\n{}", compiler.version, normalised(&raw));
    // Local paths differ between machines.
    let home = std::env::var("HOME").unwrap_or_default();
    for place in [&*crate::root().to_string_lossy(), &home].into_iter().filter(|place| place.len() > 1) {
        if let Some(line) = text.lines().find(|line| line.contains(place)) {
            return Err(format!("the PTX names a place on this machine: {line}").into());
        }
    }
    Ok((text, compiler.version))
}

fn normalised(raw: &str) -> String {
    let debug = |line: &str| line.trim_start().starts_with(".loc\t") || line.trim_start().starts_with(".file\t");
    let mut text: String = raw.lines().filter(|line| !debug(line)).flat_map(|line| [line.trim_end(), "\n"]).collect();
    text.truncate(text.trim_end().len());
    text + "\n"
}

fn maker(text: &str) -> Option<&str> {
    text.lines().next()?.strip_prefix(MADE_BY)
}

fn first_difference(old: &str, new: &str) -> String {
    let line = old.lines().zip(new.lines()).take_while(|(old, new)| old == new).count();
    let nth = |text: &str| text.lines().nth(line).unwrap_or("the end").trim().to_owned();
    format!("line {} is `{}`, expected `{}`", line + 1, nth(old), nth(new))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn normalised_ptx_has_no_paths_or_locations() {
        let raw = "//\n\t.file\t1 \"/somewhere/lib.rs\"\n.visible .entry a() \n{\n\t.loc\t1 2 3\n\tret;\t\n}\n\n\n";
        assert_eq!(normalised(raw), "//\n.visible .entry a()\n{\n\tret;\n}\n");
    }

    #[test]
    fn the_first_difference_has_its_line_number() {
        assert_eq!(first_difference("a\nb\nc\n", "a\nd\nc\n"), "line 2 is `b`, expected `d`");
        assert_eq!(first_difference("a\n", "a\nb\n"), "line 2 is `the end`, expected `b`");
    }

    #[test]
    fn the_checked_in_image_names_its_compiler() {
        assert!(maker(&std::fs::read_to_string(path()).unwrap()).is_some());
    }
}
