//! `cargo xtask compare [REVISION]`.
//!
//! Benches run alternately. A row's ratio is the median over the rounds: a load longer than a run affects both sides.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::{Failure, answer, root};

const BENCHES: [&str; 3] = ["rings", "memory", "messages"];
const ROUNDS: usize = 3;
const LEVEL: f64 = 1.15;
const MOST: f64 = 1.5;

type Figures = BTreeMap<String, Vec<f64>>;

pub fn run(revision: Option<&str>) -> Result<(), Failure> {
    let revision = match revision {
        Some(revision) => revision.to_owned(),
        None => git(&root(), &["describe", "--tags", "--abbrev=0", "HEAD~1"]).unwrap_or_else(|_| "HEAD~1".to_owned()),
    };
    let commit = git(&root(), &["rev-parse", "--verify", &format!("{revision}^{{commit}}")])?;
    let built = crate::built();
    let tree = built.join("compare");
    check_out(&tree, &commit)?;
    // Cargo would give both programs the same name.
    let sides = [(&tree, build(&tree, &tree.join("target"))?), (&root(), build(&root(), &built)?)];
    let mut figures = [Figures::new(), Figures::new()];
    for round in 1..=ROUNDS {
        for bench in BENCHES {
            eprintln!("round {round} of {ROUNDS}: {bench}");
            for (side, (tree, programs)) in sides.iter().enumerate() {
                let program = programs.get(bench).ok_or_else(|| format!("{}: no bench {bench}", tree.display()))?;
                let output = Command::new(program)
                    .args(["--bench", "--quick", "--json"])
                    .current_dir(tree.join("benches"))
                    .stderr(Stdio::inherit())
                    .output()?;
                if !output.status.success() {
                    return Err(format!("{}: {}", program.display(), output.status).into());
                }
                add(&mut figures[side], &String::from_utf8(output.stdout)?)?;
            }
        }
    }
    let [old, new] = &figures;
    let (table, worst) = table(old, new);
    println!("new by old, old is {revision} ({})\n{table}", &commit[..12]);
    match worst {
        None => Err("no row was seen in every round of both".into()),
        Some(worst) if worst > MOST => Err(format!("a row is {worst:.2} times what it was, more than {MOST}").into()),
        Some(_) => Ok(()),
    }
}

fn git(tree: &Path, arguments: &[&str]) -> Result<String, Failure> {
    let tree = tree.to_str().ok_or("the path of the tree is not text")?;
    Ok(answer(Path::new("git"), &[&["-C", tree], arguments].concat())?.trim().to_owned())
}

fn check_out(tree: &Path, commit: &str) -> Result<(), Failure> {
    if tree.join(".git").exists() {
        git(tree, &["checkout", "--quiet", "--detach", commit])?;
    } else {
        git(&root(), &["worktree", "prune"])?;
        git(&root(), &["worktree", "add", "--quiet", "--detach", tree.to_str().ok_or("the target directory's name is not text")?, commit])?;
    }
    Ok(())
}

fn build(tree: &Path, built: &Path) -> Result<BTreeMap<String, PathBuf>, Failure> {
    eprintln!("building the benches of {}", tree.display());
    let output = crate::cargo()
        .args(["bench", "--quiet", "--no-run", "--message-format", "json", "--package", "ringmem-benches"])
        .args(BENCHES.iter().flat_map(|bench| ["--bench", bench]))
        .arg("--target-dir")
        .arg(built)
        .current_dir(tree)
        .stderr(Stdio::inherit())
        .output()?;
    if !output.status.success() {
        return Err(format!("{}: the benches do not build", tree.display()).into());
    }
    programs(&String::from_utf8(output.stdout)?)
}

fn programs(messages: &str) -> Result<BTreeMap<String, PathBuf>, Failure> {
    let mut programs = BTreeMap::new();
    for line in messages.lines() {
        let message: Value = serde_json::from_str(line)?;
        let is_bench = message["target"]["kind"].as_array().is_some_and(|kinds| kinds.iter().any(|kind| kind == "bench"));
        if let (true, Some(name), Some(path)) = (is_bench, message["target"]["name"].as_str(), message["executable"].as_str()) {
            programs.insert(name.to_owned(), path.into());
        }
    }
    Ok(programs)
}

fn add(figures: &mut Figures, output: &str) -> Result<(), Failure> {
    for line in output.lines() {
        let row: Value = serde_json::from_str(line).map_err(|error| format!("{error}: {line}"))?;
        let [bench, workload, class, subject] = ["bench", "workload", "class", "subject"].map(|field| row[field].as_str());
        let (Some(bench), Some(workload), Some(class), Some(subject)) = (bench, workload, class, subject) else {
            return Err(format!("no row of a bench: {line}").into());
        };
        if let (true, Some(median)) = (subject.starts_with("ringmem"), row["median"].as_f64()) {
            let name = format!("{bench:9} {workload:18} {class:4} {subject}");
            figures.entry(name).or_default().push(median);
        }
    }
    Ok(())
}

/// Returns the table, and the largest ratio, if a row was compared.
fn table(old: &Figures, new: &Figures) -> (String, Option<f64>) {
    let (mut text, mut worst, mut left) = (String::new(), None, 0);
    for name in old.keys().chain(new.keys().filter(|name| !old.contains_key(*name))) {
        let [was, is] = [old, new].map(|side| side.get(name).filter(|medians| medians.len() == ROUNDS));
        let (Some(was), Some(is)) = (was, is) else {
            left += 1;
            continue;
        };
        let ratio = median(was.iter().zip(is).map(|(was, is)| if was == is { 1.0 } else { is / was }).collect());
        let mark = if ratio > LEVEL { " <- slower" } else { "" };
        worst = Some(worst.map_or(ratio, |worst: f64| worst.max(ratio)));
        let _ = writeln!(text, "{name:62} {:10.2} {:10.2} {ratio:6.2}{mark}", median(was.clone()), median(is.clone()));
    }
    let _ = write!(text, "{left} rows not seen in every round of both");
    (text, worst)
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(rows: &[(&str, &[f64])]) -> Figures {
        rows.iter().map(|(name, medians)| ((*name).to_owned(), medians.to_vec())).collect()
    }

    #[test]
    fn only_bench_targets_are_read_from_cargo_messages() {
        let messages = r#"{"reason":"compiler-artifact","target":{"kind":["lib"],"name":"rtrb"},"executable":null}
{"reason":"compiler-artifact","target":{"kind":["bench"],"name":"rings"},"executable":"/t/rings-1"}
{"reason":"compiler-artifact","target":{"kind":["bin"],"name":"memory"},"executable":"/t/memory"}
{"reason":"build-finished","success":true}"#;
        let programs = programs(messages).expect("it is JSON");
        assert_eq!(programs, BTreeMap::from([("rings".to_owned(), PathBuf::from("/t/rings-1"))]));
    }

    #[test]
    fn add_keeps_only_our_rows_and_separates_classes() {
        let row = |class, subject, median: Value| {
            serde_json::json!({"bench": "rings", "workload": "spsc-8", "class": class, "subject": subject, "median": median}).to_string()
        };
        let first = [row("near", "ringmem", 2.5.into()), row("far", "ringmem", Value::Null), row("near", "rtrb", 3.0.into())];
        let second = [row("near", "ringmem", 2.0.into()), row("far", "ringmem", 8.0.into())];
        let mut found = Figures::new();
        add(&mut found, &first.join("\n")).expect("rows");
        add(&mut found, &second.join("\n")).expect("rows");
        let medians: Vec<(bool, &[f64])> = found.iter().map(|(name, medians)| (name.contains("near"), &medians[..])).collect();
        assert_eq!(medians, [(false, &[8.0][..]), (true, &[2.5, 2.0])]);
    }

    #[test]
    fn an_invalid_row_is_an_error() {
        for line in ["spsc-8 ringmem 2.5", r#"{"bench": "rings", "median": 2.5}"#] {
            assert!(add(&mut Figures::new(), line).is_err(), "{line}");
        }
    }

    #[test]
    fn a_ratio_is_the_median_over_rounds() {
        let old = figures(&[("a", &[10.0, 20.0, 10.0])]);
        let new = figures(&[("a", &[10.0, 20.0, 20.0])]);
        let (text, worst) = table(&old, &new);
        assert!(worst == Some(1.0) && !text.contains("slower"), "{text}");
    }

    #[test]
    fn table_marks_slower_rows_and_returns_the_worst() {
        let old = figures(&[("level", &[10.0; 3]), ("none", &[0.0; 3]), ("quicker", &[10.0; 3]), ("slower", &[10.0; 3])]);
        let new = figures(&[("level", &[11.5; 3]), ("none", &[0.0; 3]), ("quicker", &[5.0; 3]), ("slower", &[16.0; 3])]);
        let (text, worst) = table(&old, &new);
        let marked: Vec<&str> =
            text.lines().filter(|line| line.ends_with("<- slower")).filter_map(|line| line.split_whitespace().next()).collect();
        assert_eq!((marked, worst, text.contains("NaN")), (vec!["slower"], Some(1.6), false), "{text}");
    }

    #[test]
    fn incomplete_rows_are_counted_and_not_compared() {
        let old = figures(&[("gone", &[1.0; 3]), ("rare", &[1.0; 3])]);
        let new = figures(&[("new", &[9.0; 3]), ("rare", &[9.0; 2])]);
        let (text, worst) = table(&old, &new);
        assert_eq!((text.as_str(), worst), ("3 rows not seen in every round of both", None));
    }
}
