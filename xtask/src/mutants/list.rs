//! The breaks of `tests/breaks`: one file for each area.
//!
//! ```text
//! == groups-head-seen-relaxed-by-a-reservation
//! layouts/src/ring/groups.rs
//! - self.output.own.consumer.head.load_acquire()
//! + self.output.own.consumer.head.load()
//! > ringmem-layouts suite loom_groups::a_slot_is_reused_after_its_release
//! ```
//!
//! CONTRIBUTING.md explains the lines. The code must be outside of `const fn`; the `+` may be missing.

use std::fmt;

use crate::{Failure, root};

pub struct Break {
    pub number: u32,
    pub name: String,
    pub file: String,
    pub after: Option<String>,
    pub old: String,
    pub new: String,
    pub test: Test,
}

pub struct Test {
    pub package: String,
    pub program: String,
    pub name: String,
}

impl fmt::Display for Test {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.package, self.program, self.name)
    }
}

pub fn read() -> Result<Vec<Break>, Failure> {
    let mut files = std::fs::read_dir(root().join("tests/breaks"))?.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>, Failure>>()?;
    files.sort();
    let mut breaks = Vec::new();
    for path in files {
        let area = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        for entry in format!("\n{}", crate::read(&path)?).split("\n== ").skip(1) {
            let (name, lines) = entry.split_once('\n').unwrap_or((entry, ""));
            let (number, name) = (u32::try_from(breaks.len())? + 1, format!("{area}/{name}"));
            breaks.push(parse(number, &name, lines).ok_or(format!("{}: {name} is not a break", path.display()))?);
        }
    }
    Ok(breaks)
}

fn parse(number: u32, name: &str, lines: &str) -> Option<Break> {
    let mut lines = lines.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let file = lines.next()?.to_owned();
    let (mut after, mut old, mut new, mut test) = (None, Vec::new(), Vec::new(), None);
    for line in lines {
        match line.split_at_checked(2)? {
            ("@ ", text) => after = Some(text.to_owned()),
            ("- ", text) => old.push(text),
            ("+ ", text) => new.push(text),
            ("> ", text) => test = Some(text),
            _ => return None,
        }
    }
    let mut words = test?.split(' ').map(str::to_owned);
    let test = Test { package: words.next()?, program: words.next()?, name: words.next()? };
    Some(Break { number, name: name.to_owned(), file, after, old: old.join("\n"), new: new.join("\n"), test })
}
