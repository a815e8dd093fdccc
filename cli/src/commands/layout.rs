use std::io::Write;
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use ringmem::backend::host::HostBackend;
use ringmem::stream::Module;
use ringmem::streaming::{FileSource, Source};
use ringmem::{Abi, Image, describe};

use crate::selection::Choice;
use crate::{Failure, Outcome, failed, shown};

pub(super) const EXAMPLES: &str = "\
Examples:
  ringmem layout ControlBlock
  ringmem layout --format c > ringmem.h
  ringmem layout --check ringmem.h";

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Print only this struct
    name: Option<String>,
    /// Output format
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
    /// Also load the kernels on this backend; fails if they were compiled with different structs
    #[arg(long, value_enum)]
    backend: Option<Choice>,
    /// The same as --format json
    #[arg(long, conflicts_with = "format")]
    json: bool,
    /// Compare this C header with the output of --format c, or only its declarations of a named struct; fail with the first line that differs
    #[arg(long, value_name = "FILE", conflicts_with_all = ["format", "json"])]
    check: Option<PathBuf>,
}

impl Arguments {
    pub(super) fn prints_text(&self) -> bool {
        self.check.is_some() || !self.json && matches!(self.format, Format::Table)
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Format {
    /// Text for a terminal
    Table,
    /// One JSON object
    Json,
    /// An SVG picture of the bytes
    Svg,
    /// A header file for C11 and C++11
    C,
}

pub(super) fn run(arguments: &Arguments, image: &Image, out: &mut dyn Write, err: &mut dyn Write) -> Outcome {
    if let Some(wanted) = arguments.backend {
        Module::load(&wanted.open(HostBackend::builder(), err)?.backend, image, &image.abi)?;
    }
    let abi = match &arguments.name {
        None => image.abi,
        Some(name) => {
            let layout = image.abi.layouts.iter().find(|layout| layout.name == name).ok_or_else(|| unknown(name, &image.abi))?;
            Abi { layouts: std::slice::from_ref(layout), hash: image.abi.hash }
        }
    };
    if let Some(path) = &arguments.check {
        let header = describe::c(&image.abi).to_string();
        match arguments.name {
            None => compare(path, &read(path, header.len())?, &header)?,
            Some(_) => compare_declarations(path, &read(path, header.len())?, &header, &describe::c(&abi).to_string())?,
        }
        return Ok(writeln!(out, "{} matches the layouts of this program", shown(path))?);
    }
    match if arguments.json { Format::Json } else { arguments.format } {
        Format::Table => write!(out, "{}", describe::table(&abi)),
        Format::Json => write!(out, "{}", describe::json(&abi)),
        Format::Svg => write!(out, "{}", describe::svg(&abi)),
        Format::C => write!(out, "{}", describe::c(&abi)),
    }
    .map_err(Failure::Print)
}

fn read(path: &Path, expected: usize) -> Result<String, Failure> {
    let mut source = FileSource::open(path).map_err(Failure::fact)?;
    let mut bytes = vec![0; source.len().min(2 * expected as u64 + LINE) as usize];
    source.read_exact(&mut bytes, 0).and_then(|()| source.check()).map_err(|cause| failed(path, cause))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn compare(path: &Path, text: &str, header: &str) -> Outcome {
    let (mut found, mut expected) = (text.lines(), header.lines());
    for number in 1_u64.. {
        match (found.next(), expected.next()) {
            (None, None) => break,
            (found, expected) if found == expected => {}
            (found, expected) => return Err(differs(path, number, found, expected)),
        }
    }
    Ok(())
}

/// Compares the ABI hash and the declarations of the structs of `one`, the header of one struct with its nested ones. `text` may be that header or
/// one of more structs, whose comments about the set differ.
fn compare_declarations(path: &Path, text: &str, all: &str, one: &str) -> Outcome {
    let found: Vec<&str> = text.lines().collect();
    let compare = |begin: usize, expected: &str| {
        for (number, expected) in (begin..).zip(expected.lines()) {
            if found.get(number) != Some(&expected) {
                return Err(differs(path, number as u64 + 1, found.get(number).copied(), Some(expected)));
            }
        }
        Ok(())
    };
    // In the header of all structs, two of one name have the hash in it: the declarations are taken from there, by their titles.
    let titles: Vec<&str> = one.lines().filter(|line| is_title(line)).collect();
    let declared = all.split("\n\n").filter(|part| part.lines().next().is_some_and(|first| titles.contains(&first)));
    let hash = all.lines().find(|line| line.starts_with(HASH)).unwrap_or_default();
    for expected in std::iter::once(hash).chain(declared) {
        let first = expected.lines().next().unwrap_or_default();
        let key = if first.starts_with(HASH) { HASH } else { first.split_inclusive(':').next().unwrap_or(first) };
        let begin = found.iter().position(|line| *line == first).or_else(|| found.iter().position(|line| line.starts_with(key)));
        compare(begin.unwrap_or(found.len()), expected.trim_end())?;
    }
    Ok(())
}

const HASH: &str = "#define RINGMEM_ABI_HASH ";

/// `/* ControlBlock: 128 bytes, aligned to 64, hash 0123456789abcdef. */`.
fn is_title(line: &str) -> bool {
    line.starts_with("/* ") && line.ends_with(". */") && line.contains(" bytes, aligned to ")
}

fn differs(path: &Path, number: u64, found: Option<&str>, expected: Option<&str>) -> Failure {
    let named = |line: Option<&str>| line.map_or_else(|| "the end of the file".to_owned(), |line| format!("`{}`", short(line)));
    Failure::Fact(format!("{}:{number}: found {}, expected {}", path.display(), named(found), named(expected)))
}

const LINE: u64 = 200;

fn short(line: &str) -> String {
    line.chars().take(LINE as usize).collect()
}

fn unknown(name: &str, abi: &Abi) -> Failure {
    let names: Vec<&str> = abi.layouts.iter().map(|layout| layout.name).collect();
    let similar = similar(name, &names).map_or_else(String::new, |similar| format!("did you mean {similar}? For "));
    let own = if similar.is_empty() { "for " } else { &similar };
    Failure::Usage(format!(
        "no struct named {name}: this program has {}; {own}structs of your own, use ringmem::describe",
        names.join(", ")
    ))
}

/// Returns the name with the least edits, if they are at most a third of it. Case does not matter.
fn similar<'a>(name: &str, names: &[&'a str]) -> Option<&'a str> {
    let lower = |text: &str| text.to_lowercase().chars().filter(|c| c.is_alphanumeric()).collect::<Vec<char>>();
    let name = lower(&short(name));
    let nearest = names.iter().map(|known| (edits(&name, &lower(known)), *known)).min()?;
    (3 * nearest.0 <= name.len()).then_some(nearest.1)
}

/// The Levenshtein distance.
fn edits(from: &[char], to: &[char]) -> usize {
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (at, one) in from.iter().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], at + 1);
        for (place, other) in to.iter().enumerate() {
            let replaced = diagonal + usize::from(one != other);
            diagonal = row[place + 1];
            row[place + 1] = replaced.min(diagonal + 1).min(row[place] + 1);
        }
    }
    row[to.len()]
}
