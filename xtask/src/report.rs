//! `cargo xtask report`: runs all benches, keeps their rows, and writes docs/performance.md, its charts and the README's table.
//!
//! 1. A run's rows are one file under docs/internals/results, named by machine and date. Documents show the newest file of each machine.
//! 2. Everything else is computed from these: `report --check` compares, `report --render` writes without a run.
//! 3. A failed bench has no rows; the documents and the error name it. The others are kept.

mod chart;
mod fit;
mod page;
mod scale;

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use serde_json::{Value, json};

use crate::{Failure, answer, read, root, write};

const BENCHES: [&str; 8] = ["rings", "messages", "memory", "fit", "manager", "movement", "scale", "instructions"];

/// The README's table is between these lines.
const MARKS: [&str; 2] = ["<!-- figures of `cargo xtask report` -->", "<!-- end of figures -->"];

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Row {
    pub bench: String,
    pub workload: String,
    pub subject: String,
    pub class: String,
    pub unit: String,
    pub source: String,
    pub median: f64,
    pub low: f64,
    pub high: f64,
    pub limit: Option<f64>,
    /// The number of objects, for growth.
    pub size: Option<u64>,
    /// Why the cost grows faster than the size's logarithm.
    pub reason: Option<String>,
}

impl Row {
    /// `None` if it was not observed.
    fn of(value: &Value) -> Result<Option<Self>, Failure> {
        let text = |field: &str| value[field].as_str().map(str::to_owned).ok_or_else(|| format!("no {field} in {value}"));
        let Some(median) = value["median"].as_f64() else { return Ok(None) };
        Ok(Some(Self {
            bench: text("bench")?,
            workload: text("workload")?,
            subject: text("subject")?,
            class: text("class")?,
            unit: text("unit")?,
            source: text("source")?,
            median,
            low: value["low"].as_f64().unwrap_or(median),
            high: value["high"].as_f64().unwrap_or(median),
            limit: value["limit"].as_f64(),
            size: value["size"].as_u64(),
            reason: value["reason"].as_str().map(str::to_owned),
        }))
    }

    pub fn is_ours(&self) -> bool {
        self.subject.starts_with("ringmem")
    }

    /// A time or a count beside those of competitors, of which less is better.
    pub fn is_compared(&self) -> bool {
        self.is_ours() && self.size.is_none() && self.bench != fit::BENCH
    }

    /// Its median over another's; 1 for equal ones, also for two zeros.
    pub fn over(&self, other: &Self) -> f64 {
        if self.median == other.median { 1.0 } else { self.median / other.median }
    }

    fn competes(&self) -> bool {
        !["ringmem", "twin", "beside"].iter().any(|first| self.subject.starts_with(first))
    }
}

#[derive(Debug, Default)]
pub struct Results {
    pub machine: String,
    pub cores: u64,
    pub date: String,
    pub compiler: String,
    pub revision: String,
    pub is_quick: bool,
    /// Failed benches with their exit status.
    pub failed: Vec<String>,
    pub rows: Vec<Row>,
}

impl Results {
    fn parse(text: &str) -> Result<Self, Failure> {
        let value: Value = serde_json::from_str(text)?;
        let field = |name: &str| value[name].as_str().map(str::to_owned).ok_or_else(|| format!("no {name}"));
        let rows = value["rows"].as_array().ok_or("no rows")?;
        Ok(Self {
            machine: short(&field("machine")?),
            cores: value["cores"].as_u64().ok_or("no cores")?,
            date: field("date")?,
            compiler: field("compiler")?,
            revision: field("revision")?,
            is_quick: value["quick"].as_bool().ok_or("no quick")?,
            failed: value["failed"].as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect(),
            rows: rows.iter().filter_map(|row| Row::of(row).transpose()).collect::<Result<_, _>>()?,
        })
    }

    pub fn best(&self, of: &Row) -> Option<&Row> {
        let same = |row: &&Row| (&row.bench, &row.workload, &row.class) == (&of.bench, &of.workload, &of.class) && row.competes();
        self.rows.iter().filter(same).min_by(|a, b| a.median.total_cmp(&b.median))
    }

    /// The same row of ours here, and the best competitor's.
    fn pair(&self, of: &Row) -> Option<(&Row, &Row)> {
        let row = self.find(&of.bench, &of.workload, &of.subject)?;
        Some((row, self.best(row)?))
    }

    /// Prefers near cores to far ones.
    fn find(&self, bench: &str, workload: &str, subject: &str) -> Option<&Row> {
        let found = |class: &str| {
            self.rows.iter().find(|row| row.bench == bench && row.workload == workload && row.subject == subject && row.class == class)
        };
        found("near").or_else(|| found("far")).or_else(|| found(""))
    }
}

/// Runs the benches and writes everything; prints only the tables of `names`, if any.
pub fn run(is_quick: bool, names: &[&str]) -> Result<(), Failure> {
    if let Some(unknown) = names.iter().find(|name| !BENCHES.contains(name)) {
        return Err(format!("no bench {unknown}: the benches are {}", BENCHES.join(", ")).into());
    }
    let (mut lines, mut failed) = (Vec::new(), Vec::new());
    for bench in BENCHES.iter().filter(|bench| names.is_empty() || names.contains(bench)) {
        eprintln!("bench {bench}");
        match rows_of(bench, is_quick) {
            Ok(rows) => lines.extend(rows),
            Err(error) => failed.push(format!("{bench}: {error}")),
        }
    }
    let processor = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let machine = processor.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": ")).map_or("unknown", |(_, name)| name);
    let date = answer(Path::new("date"), &["-u", "+%F"])?;
    let head = json!({
        "machine": machine, "cores": std::thread::available_parallelism()?.get(), "date": date.trim(), "quick": is_quick,
        "compiler": answer(Path::new("rustc"), &["--version"])?.trim(), "failed": failed,
        "revision": answer(Path::new("git"), &["rev-parse", "--short=12", "HEAD"])?.trim(),
    });
    let text = document(&head, &lines);
    let results = Results::parse(&text)?;
    let mut errors: Vec<String> = failed.iter().map(|bench| format!("bench {bench}")).collect();
    if names.is_empty() {
        println!("{}", page::summary(&results));
        let with_others = newest().and_then(|mut all| {
            all.retain(|other| other.machine != results.machine);
            all.insert(0, results);
            documents(&all)
        });
        match with_others {
            Ok(documents) => {
                write(&folder().join(file_name(machine, date.trim())), &text)?;
                write_all(documents)?;
            }
            Err(error) => {
                let path = root().join("target/report.json");
                write(&path, &text)?;
                errors.push(format!("{error}: the rows are in {}, nothing else was written", path.display()));
            }
        }
    } else {
        println!("{}", page::page(&[results], names));
    }
    if errors.is_empty() { Ok(()) } else { Err(errors.join("\n").into()) }
}

fn rows_of(bench: &str, is_quick: bool) -> Result<Vec<Value>, Failure> {
    let mut command = crate::cargo();
    command.args(["bench", "--quiet", "--package", "ringmem-benches", "--bench", bench, "--", "--json"]);
    if is_quick {
        command.arg("--quick");
    }
    let output = command.stderr(Stdio::inherit()).output()?;
    if !output.status.success() {
        return Err(output.status.to_string().into());
    }
    rows(&String::from_utf8(output.stdout)?)
}

fn rows(output: &str) -> Result<Vec<Value>, Failure> {
    let row = |line: &str| {
        let row: Value = serde_json::from_str(line).map_err(|error| format!("{error}: {line}"))?;
        Row::of(&row)?;
        Ok::<_, Failure>(row)
    };
    let rows = output.lines().map(row).collect::<Result<Vec<_>, _>>()?;
    if rows.is_empty() { Err("no rows".into()) } else { Ok(rows) }
}

fn document(head: &Value, rows: &[Value]) -> String {
    let head = head.to_string();
    let mut text = format!("{},\"rows\":[\n", head.strip_suffix('}').unwrap_or(&head));
    for (at, row) in rows.iter().enumerate() {
        let _ = writeln!(text, "{row}{}", if at + 1 < rows.len() { "," } else { "" });
    }
    text + "]}\n"
}

/// Without marks, "Processor" and "CPU".
fn short(machine: &str) -> String {
    let words = machine.split_whitespace().map(|word| word.replace("(R)", "").replace("(TM)", ""));
    words.filter(|word| !["Processor", "CPU", "@"].contains(&word.as_str())).collect::<Vec<_>>().join(" ")
}

fn file_name(machine: &str, date: &str) -> String {
    let words: Vec<String> =
        machine.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty()).map(str::to_lowercase).collect();
    format!("{date}-{}.json", words.join("-"))
}

fn folder() -> PathBuf {
    root().join("docs/internals/results")
}

/// Of each machine, newest first.
fn newest() -> Result<Vec<Results>, Failure> {
    let mut found: Vec<PathBuf> = fs::read_dir(folder())?.map(|entry| Ok(entry?.path())).collect::<Result<_, std::io::Error>>()?;
    found.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
    found.sort();
    let mut all: Vec<Results> = Vec::new();
    for path in found.iter().rev() {
        let results = Results::parse(&read(path)?).map_err(|error| format!("{}: {error}", path.display()))?;
        if all.iter().all(|newer| newer.machine != results.machine) {
            all.push(results);
        }
    }
    Ok(all)
}

fn documents(all: &[Results]) -> Result<Vec<(PathBuf, String)>, Failure> {
    let results = all.first().ok_or("docs/internals/results has no results: run cargo xtask report")?;
    let mut documents = vec![(root().join("docs/performance.md"), page::page(all, &BENCHES))];
    for bench in BENCHES {
        if let Some(chart) = chart::ratios(results, bench) {
            documents.push((root().join(format!("docs/performance/{bench}.svg")), chart));
        }
    }
    documents.extend(scale::charts(results).into_iter().map(|(name, chart)| (root().join(format!("docs/performance/{name}.svg")), chart)));
    let readme = root().join("README.md");
    let text = between_marks(&read(&readme)?, &page::readme(all)?)?;
    documents.push((readme, text));
    Ok(documents)
}

fn between_marks(text: &str, table: &str) -> Result<String, Failure> {
    let [begin, end] = MARKS;
    let parts = text.split_once(begin).and_then(|(before, rest)| Some((before, rest.split_once(end)?.1)));
    let (before, after) = parts.ok_or_else(|| format!("README.md lacks the lines {begin} and {end}"))?;
    Ok(format!("{before}{begin}\n{table}{end}{after}"))
}

pub fn render() -> Result<(), Failure> {
    write_all(documents(&newest()?)?)
}

fn write_all(documents: Vec<(PathBuf, String)>) -> Result<(), Failure> {
    fs::create_dir_all(root().join("docs/performance"))?;
    documents.iter().try_for_each(|(path, text)| write(path, text))
}

pub fn check() -> Result<(), Failure> {
    for (path, text) in documents(&newest()?)? {
        if read(&path)? != text {
            return Err(format!("{} is not what cargo xtask report --render writes", path.display()).into());
        }
    }
    Ok(())
}

/// Three digits.
fn number(value: f64) -> String {
    let digits = match value.abs() {
        size if size >= 99.95 => 0,
        size if size >= 9.995 => 1,
        _ => 2,
    };
    format!("{value:.digits$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_round_trip_through_a_document() {
        let head = json!({ "machine": "M", "cores": 2, "date": "2026-01-02", "quick": true, "compiler": "c", "revision": "r" });
        let row = json!({
            "bench": "rings", "workload": "w", "subject": "ringmem", "unit": "ns", "median": 1.5, "low": 1, "high": 2, "limit": null,
            "source": "host", "class": "near",
        });
        let mut missing = row.clone();
        missing["median"] = Value::Null;
        let results = Results::parse(&document(&head, &[row, missing])).expect("as written");
        assert_eq!((results.rows.len(), results.rows[0].median, results.is_quick), (1, 1.5, true));
        assert!(Results::parse(&document(&head, &[])).expect("no rows").rows.is_empty());
        assert!(Results::parse("{}").is_err());
        let head = json!({ "machine": "M", "cores": 2, "date": "2026-01-02", "quick": true, "compiler": "c", "revision": "r", "failed": ["b: 1"] });
        assert_eq!(Results::parse(&document(&head, &[])).expect("no rows").failed, ["b: 1"]);
    }

    #[test]
    fn output_without_rows_or_with_other_lines_is_an_error() {
        let row = r#"{"bench":"b","workload":"w","subject":"s","unit":"ns","median":1,"source":"host","class":"","size":10,"reason":"r"}"#;
        assert_eq!(rows(&format!("{row}\n{row}\n")).expect("rows").len(), 2);
        for wrong in ["", "running\n", "{\"bench\":\"b\",\"median\":1}\n"] {
            assert!(rows(wrong).is_err(), "{wrong}");
        }
        let row = Row::of(&serde_json::from_str(row).expect("JSON")).expect("a row").expect("observed");
        assert_eq!((row.size, row.reason.as_deref()), (Some(10), Some("r")));
    }

    #[test]
    fn a_file_name_has_date_and_machine() {
        assert_eq!(file_name("AMD EPYC (Milan)  Processor", "2026-01-02"), "2026-01-02-amd-epyc-milan-processor.json");
    }

    #[test]
    fn a_machine_has_a_short_name() {
        assert_eq!(short("Intel(R) Xeon(R) Processor @ 2.50GHz"), "Intel Xeon 2.50GHz");
        assert_eq!(short("AMD EPYC"), "AMD EPYC");
    }

    #[test]
    fn only_text_between_the_marks_is_replaced() {
        let text = format!("a\n{}\nold\n{}\nb\n", MARKS[0], MARKS[1]);
        assert_eq!(between_marks(&text, "new\n").expect("marked"), format!("a\n{}\nnew\n{}\nb\n", MARKS[0], MARKS[1]));
        assert!(between_marks("a\n", "new\n").is_err());
    }

    #[test]
    fn best_ignores_our_rows_and_twins() {
        let row = |subject: &str, median| Row { subject: subject.into(), median, ..Row::default() };
        let results = Results {
            rows: vec![row("ringmem", 2.0), row("twin x", 1.0), row("beside", 1.0), row("a", 4.0), row("b", 3.0)],
            ..Results::default()
        };
        assert_eq!(results.best(&results.rows[0]).map(|row| row.subject.as_str()), Some("b"));
    }

    #[test]
    fn numbers_have_three_digits() {
        assert_eq!([0.0, 1.234, 9.999, 12.34, 99.96, 1234.5].map(number), ["0.00", "1.23", "10.0", "12.3", "100", "1234"]);
    }
}
