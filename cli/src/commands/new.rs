use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use crate::{Failure, Outcome, shown};

pub(super) const EXAMPLES: &str = "\
Examples:
  ringmem new particles
  ringmem new particles --path ../ringmem";

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The new or empty folder; its last part is the name of the package
    folder: PathBuf,
    /// The checkout of ringmem that the package uses; by default the one that this program was built from
    #[arg(long, value_name = "CHECKOUT")]
    path: Option<PathBuf>,
}

/// `NAME` is the package, `CRATE` its Rust name, `CHECKOUT` the path to ringmem.
const FILES: [(&str, &str); 6] = [
    ("Cargo.toml", include_str!("new/manifest.txt")),
    ("README.md", include_str!("new/readme.txt")),
    ("build.rs", include_str!("new/build.txt")),
    ("src/lib.rs", include_str!("new/lib.txt")),
    ("src/main.rs", include_str!("new/main.txt")),
    ("tests/step.rs", include_str!("new/test.txt")),
];

pub(super) fn run(arguments: &Arguments, out: &mut dyn Write) -> Outcome {
    let folder = &arguments.folder;
    // `.` and `..` have no last part, but name a folder.
    let named = if folder.file_name().is_some() { folder.clone() } else { folder.canonicalize().unwrap_or_default() };
    let name = named.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    if let Some(reason) = refusal(name) {
        return Err(Failure::Usage(format!("{} is not the name of a package: {reason}", shown(folder))));
    }
    if folder.exists() && !folder.read_dir().is_ok_and(|mut entries| entries.next().is_none()) {
        return Err(Failure::Fact(format!("{} exists: name a new or empty folder", shown(&named))));
    }
    let checkout = checkout(arguments.path.as_deref())?;
    let checkout = checkout.to_str().ok_or_else(|| Failure::Usage(format!("{} is not UTF-8, as a manifest must be", shown(&checkout))))?;
    for (file, text) in FILES {
        let path = folder.join(file);
        let text = filled(text, &[("CHECKOUT", &escaped(checkout)), ("CRATE", &name.replace('-', "_")), ("NAME", name)]);
        let written = path.parent().map_or(Ok(()), fs::create_dir_all).and_then(|()| {
            // The folder was empty. A link or file at this name is another process's.
            OpenOptions::new().write(true).create_new(true).open(&path)?.write_all(text.as_bytes())
        });
        written.map_err(|error| Failure::Fact(format!("cannot write {}: {error}", shown(&path))))?;
    }
    writeln!(out, "created {}: run `cargo run` in it", shown(folder)).map_err(Failure::Print)
}

fn checkout(named: Option<&Path>) -> Result<PathBuf, Failure> {
    let folder = named.unwrap_or(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/..")));
    let is_checkout = folder.join("kernels-rs/Cargo.toml").is_file() && folder.join("ptx-builder/Cargo.toml").is_file();
    match folder.canonicalize() {
        Ok(folder) if is_checkout => Ok(folder),
        _ => Err(Failure::Usage(format!("{} is not a checkout of ringmem: name one with --path", shown(folder)))),
    }
}

/// Replaces placeholders in one pass: a value may contain them.
fn filled(mut text: &str, values: &[(&str, &str)]) -> String {
    let mut filled = String::new();
    let first = |text: &str| values.iter().filter_map(|&(name, value)| Some((text.find(name)?, name, value))).min();
    while let Some((at, name, value)) = first(text) {
        filled.push_str(&text[..at]);
        filled.push_str(value);
        text = &text[at + name.len()..];
    }
    filled + text
}

/// The inside of a basic string of TOML, in which control characters have a number.
fn escaped(path: &str) -> String {
    let letter = |letter: char| match letter {
        '\\' | '"' => format!("\\{letter}"),
        _ if letter.is_control() => format!("\\u{:04x}", u32::from(letter)),
        _ => letter.to_string(),
    };
    path.chars().map(letter).collect()
}

/// This workspace's packages that the package depends on, which have its version, and names that cargo refuses. Another dependency may have the
/// package's name.
const RESERVED: [&str; 15] = [
    "alloc",
    "build",
    "compiler_builtins",
    "core",
    "deps",
    "examples",
    "incremental",
    "proc_macro",
    "ringmem",
    "ringmem_derive",
    "ringmem_kernels",
    "ringmem_layouts",
    "ringmem_ptx_builder",
    "std",
    "test",
];

/// In lower case, of edition 2024.
const KEYWORDS: [&str; 51] = [
    "abstract", "as", "async", "await", "become", "box", "break", "const", "continue", "crate", "do", "dyn", "else", "enum", "extern",
    "false", "final", "fn", "for", "gen", "if", "impl", "in", "let", "loop", "macro", "match", "mod", "move", "mut", "override", "priv",
    "pub", "ref", "return", "self", "static", "struct", "super", "trait", "true", "try", "type", "typeof", "unsafe", "unsized", "use",
    "virtual", "where", "while", "yield",
];

fn refusal(name: &str) -> Option<&'static str> {
    let is_spelled = name.starts_with(|first: char| first.is_ascii_lowercase())
        && name.chars().all(|letter| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '-' || letter == '_');
    if !is_spelled {
        return Some("use lower-case letters, digits, - and _, and begin with a letter");
    }
    if KEYWORDS.contains(&name) {
        return Some("it is a keyword of Rust: choose another");
    }
    RESERVED.contains(&&*name.replace('-', "_")).then_some("it is reserved for a crate or a folder of the build: choose another")
}
