use std::fmt::Write;

use super::{Results, Row};
use crate::Failure;

/// Two timings within this factor are level.
const LEVEL: f64 = 1.15;

/// The rows of the README: the arguments of `cargo bench`, the subject, a description.
const README: [(&str, &str, &str, &str); 10] = [
    ("rings", "spsc-8", "ringmem", "8 bytes, each published"),
    ("rings", "spsc-64", "ringmem", "64 bytes, each published"),
    ("rings", "spsc-256", "ringmem", "256 bytes, each published"),
    ("rings", "batch32-64", "ringmem in place", "32 in place"),
    ("rings", "rtt-p50", "ringmem", "round trip"),
    ("rings", "oneshot-64", "ringmem", "one thread"),
    ("rings", "spsc-8", "ringmem flagged", "`ring::flagged`"),
    ("rings", "mpsc-2-1", "ringmem mpsc", "`ring::mpsc`"),
    ("rings", "mpmc-2-2", "ringmem mpmc", "`ring::mpmc`"),
    ("memory", "pool-warm-64K", "ringmem Pool", "a block of a pool"),
];

/// Returns the table for the README. Its first rows measure one and the same ring.
pub fn readme(results: &Results) -> Result<String, Failure> {
    let classes = if results.rows.iter().any(|row| row.class == "near") { "near" } else { "far" };
    let Results { machine, date, .. } = results;
    let mut text = format!(
        "Median nanoseconds on two {classes} cores of an {machine}, {date}; bold: slower by more than 15 %. The first six rows measure\n\
         `ring::spsc`. No figure is from a GPU. [All figures](docs/performance.md), losses first; [rejected attempts](docs/internals/measurements.md).\n\n\
         | `cargo bench -p ringmem-benches --bench` | ringmem | best competitor |\n|---|---:|---|\n"
    );
    for (bench, workload, subject, what) in README {
        let row = results.find(bench, workload, subject).ok_or_else(|| format!("no row {bench} {workload} {subject}"))?;
        let (figure, best) = (number(row.median), results.best(row));
        let figure = if best.is_some_and(|best| row.median > LEVEL * best.median) { format!("**{figure}**") } else { figure };
        let best = best.map_or_else(String::new, |best| format!("{} {}", best.subject, number(best.median)));
        let _ = writeln!(text, "| `{bench} -- {workload}`, {what} | {figure} | {best} |");
    }
    Ok(text)
}

pub fn page(results: &Results, benches: &[&str]) -> String {
    let Results { machine, cores, date, compiler, revision, is_quick, .. } = results;
    let command = if *is_quick { "cargo xtask report --quick" } else { "cargo xtask report" };
    let mut text = format!(
        "# Performance\n\n\
         Written by `{command}` on {date}: {machine}, {cores} cores, {compiler}, commit {revision}. No figure is from a GPU.\n\n\
         A figure is the median of turns that alternate with the competitors' in one process. `ratio` is ours over the fastest competitor's: below 1 is faster, and\n\
         within 1.15 either way is level. `limit` is the cost of the machine without the measured code. `near` and `far` are two cores that share a cache or do\n\
         not; a class that the machine did not show has no rows. `model` marks virtual time of the link model, `double` the test double of the driver.\n\n"
    );
    let ours: Vec<(&Row, Option<&Row>)> = results.rows.iter().filter(|row| row.is_ours()).map(|row| (row, results.best(row))).collect();
    let ratio = |(row, best): &(&Row, Option<&Row>)| best.map(|best| row.median / best.median);
    let losses = ours.iter().filter(|pair| ratio(pair).is_some_and(|ratio| ratio > LEVEL)).count();
    let compared = ours.iter().filter(|pair| ratio(pair).is_some()).count();
    let _ = writeln!(text, "{losses} of {compared} rows are slower than the best competitor. They are first in each table.");
    for bench in benches {
        let mut of_bench: Vec<_> = ours.iter().copied().filter(|(row, _)| row.bench == *bench).collect();
        if of_bench.is_empty() {
            continue;
        }
        of_bench.sort_by(|a, b| ratio(b).unwrap_or(0.0).total_cmp(&ratio(a).unwrap_or(0.0)));
        let _ = write!(text, "\n## {bench}\n\n`cargo bench -p ringmem-benches --bench {bench}`\n\n");
        if of_bench.iter().any(|pair| ratio(pair).is_some()) {
            let _ = write!(text, "![Ratios of {bench}](performance/{bench}.svg)\n\n");
        }
        table(&mut text, of_bench.into_iter());
    }
    text
}

fn table<'a>(text: &mut String, rows: impl Iterator<Item = (&'a Row, Option<&'a Row>)>) {
    text.push_str("| workload | ours | class | median (range) | best competitor | ratio | limit |\n|---|---|---|---:|---|---:|---:|\n");
    for (row, best) in rows {
        let Row { workload, subject, class, unit, source, .. } = row;
        let class = match source.as_str() {
            "link-model" => "model",
            "driver double" => "double",
            _ => class,
        };
        let rival = best.map_or_else(String::new, |best| format!("{} {}", best.subject, number(best.median)));
        let ratio = best.map_or_else(String::new, |best| format!("{:.2}", row.median / best.median));
        let limit = row.limit.map_or_else(String::new, number);
        let [median, low, high] = [row.median, row.low, row.high].map(number);
        let spread = if low == high { String::new() } else { format!(" ({low}..{high})") };
        let _ = writeln!(text, "| {workload} | {subject} | {class} | {median}{spread} {unit} | {rival} | {ratio} | {limit} |");
    }
}

pub fn number(value: f64) -> String {
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

    fn row(bench: &str, workload: &str, subject: &str, median: f64) -> Row {
        let text = |text: &str| text.to_owned();
        let (low, high) = (median, median);
        Row {
            bench: text(bench),
            workload: text(workload),
            subject: text(subject),
            class: text("near"),
            median,
            low,
            high,
            ..Row::default()
        }
    }

    #[test]
    fn losses_come_first() {
        let rows = vec![
            row("rings", "level", "ringmem", 1.1),
            row("rings", "level", "gil", 1.0),
            row("rings", "worst", "ringmem", 3.0),
            row("rings", "worst", "gil", 1.0),
            row("rings", "alone", "ringmem", 1.0),
        ];
        let text = page(&Results { rows, ..Results::default() }, &["rings"]);
        assert!(text.contains("1 of 2 rows are slower"), "{text}");
        let found: Vec<&str> = text.lines().filter(|line| line.contains("| ringmem |")).collect();
        assert_eq!(found[0], "| worst | ringmem | near | 3.00  | gil 1.00 | 3.00 |  |");
        assert!(found[1].starts_with("| level") && found[2].starts_with("| alone"), "{found:?}");
    }

    #[test]
    fn a_missing_readme_row_is_an_error() {
        let mut rows: Vec<Row> = README.iter().map(|(bench, workload, subject, _)| row(bench, workload, subject, 2.0)).collect();
        rows.push(row("rings", "spsc-8", "gil", 1.0));
        let text = readme(&Results { rows: rows.clone(), ..Results::default() }).expect("all rows");
        assert!(text.contains("| `rings -- spsc-8`, 8 bytes, each published | **2.00** | gil 1.00 |"), "{text}");
        rows.remove(3);
        assert!(readme(&Results { rows, ..Results::default() }).is_err());
    }

    #[test]
    fn numbers_have_three_digits() {
        assert_eq!([0.0, 1.234, 9.999, 12.34, 99.96, 1234.5].map(number), ["0.00", "1.23", "10.0", "12.3", "100", "1234"]);
    }
}
