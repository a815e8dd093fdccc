//! `cargo xtask instructions`: callgrind's counts of the hot paths against `benches/instructions.txt`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::Stdio;

use serde_json::Value;

use crate::Failure;

const TOLERANCE: f64 = 0.02;
const LEAST: f64 = 0.5;

type Counts = BTreeMap<(String, String), f64>;

pub fn check() -> Result<(), Failure> {
    let table = parse(&crate::read(&path())?)?;
    let counts = count()?;
    let mut findings = Vec::new();
    for ((workload, subject), &now) in &counts {
        match table.get(&(workload.clone(), subject.clone())) {
            None => findings.push(format!("{workload} {subject}: {now:.1} instructions, not in the table")),
            Some(&before) if now > before + (before * TOLERANCE).max(LEAST) => {
                findings.push(format!("{workload} {subject}: {now:.1} instructions, {before:.1} in the table"));
            }
            Some(&before) if now < before - (before * TOLERANCE).max(LEAST) => {
                println!("{workload} {subject}: {now:.1} instructions, fewer than the {before:.1} in the table");
            }
            Some(_) => {}
        }
    }
    findings.extend(
        table.keys().filter(|key| !counts.contains_key(*key)).map(|(workload, subject)| format!("{workload} {subject}: not counted")),
    );
    println!("{} paths", counts.len());
    if findings.is_empty() {
        return Ok(());
    }
    findings.push("if that is intended: cargo xtask instructions --bless".into());
    Err(findings.join("\n").into())
}

pub fn bless() -> Result<(), Failure> {
    let mut text = String::from("# Instructions per operation: `cargo xtask instructions --bless`.\n");
    for ((workload, subject), count) in count()? {
        writeln!(text, "{workload} {count:.1} {subject}")?;
    }
    crate::write(&path(), &text)
}

fn path() -> PathBuf {
    crate::root().join("benches/instructions.txt")
}

fn count() -> Result<Counts, Failure> {
    let mut cargo = crate::cargo();
    cargo.args(["bench", "--quiet", "-p", "ringmem-benches", "--bench", "instructions", "--", "--json"]);
    let output = cargo.stderr(Stdio::inherit()).output()?;
    if !output.status.success() {
        return Err("the bench `instructions` failed".into());
    }
    let mut counts = Counts::new();
    for line in String::from_utf8(output.stdout)?.lines() {
        let row: Value = serde_json::from_str(line).map_err(|error| format!("{line}: {error}"))?;
        if let (Some(workload), Some(subject), Some(count)) = (row["workload"].as_str(), row["subject"].as_str(), row["median"].as_f64())
            && subject.starts_with("ringmem")
        {
            counts.insert((workload.into(), subject.into()), count);
        }
    }
    if counts.is_empty() { Err("nothing was counted: is valgrind installed?".into()) } else { Ok(counts) }
}

fn parse(text: &str) -> Result<Counts, Failure> {
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let row = |line: &str| {
        let (workload, rest) = line.split_once(' ')?;
        let (count, subject) = rest.split_once(' ')?;
        Some(((workload.to_owned(), subject.to_owned()), count.parse().ok()?))
    };
    lines.map(|line| row(line).ok_or_else(|| format!("{}: expected `workload count subject`: {line}", path().display()).into())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_row_has_workload_count_and_subject() {
        let counts = parse("# comment\n\npush 7.5 ringmem spsc\n").expect("a table");
        assert_eq!(counts, Counts::from([(("push".into(), "ringmem spsc".into()), 7.5)]));
        assert!(parse("push ringmem spsc").is_err());
    }
}
