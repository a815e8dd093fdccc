use std::fmt::Write;

use super::{Results, Row, fit, number, scale};
use crate::Failure;

/// Two timings within this factor are level.
const LEVEL: f64 = 1.15;

/// Rows of the README: the arguments of `cargo bench`, the subject, a description.
const README: [(&str, &str, &str, &str); 6] = [
    ("rings", "spsc-8", "ringmem", "8 bytes, each published"),
    ("rings", "rtt-p50", "ringmem", "round trip"),
    ("rings", "spsc-8", "ringmem flagged", "8 bytes, `ring::flagged`"),
    ("rings", "mpsc-2-1", "ringmem mpsc", "`ring::mpsc`, 2 producers"),
    ("rings", "mpmc-2-2", "ringmem mpmc", "`ring::mpmc`, 2 producers, 2 consumers"),
    ("memory", "pool-warm-64K", "ringmem Pool", "a block of a warm pool"),
];

/// The README's table. Its first rows measure the same ring.
pub fn readme(all: &[Results]) -> Result<String, Failure> {
    let mut text = "Median nanoseconds per message, round trip or block on two cores, then the best competitor and its figure. Less is better; a bold figure is slower than the\n\
         competitor's by more than 15 %. Near cores share a cache, far cores do not. *Each published*: the consumer can see each message at once, not only batches.\n\
         The first two rows measure `ring::spsc`. No figure is from a GPU. [All figures](docs/performance.md), losses first; [rejected attempts](docs/internals/measurements.md).\n\n\
         | `cargo bench -p ringmem-benches --bench` |"
        .to_owned();
    for results in all {
        let _ = write!(text, " {} |", of_run(results));
    }
    let _ = writeln!(text, "\n|---|{}", "---|".repeat(all.len()));
    for (bench, workload, subject, what) in README {
        let _ = write!(text, "| `{bench} -- {workload}`, {what} |");
        for results in all {
            let row = results.find(bench, workload, subject).ok_or_else(|| format!("no row {bench} {workload} {subject}"))?;
            let (figure, best) = (number(row.median), results.best(row));
            let figure = if best.is_some_and(|best| row.median > LEVEL * best.median) { format!("**{figure}**") } else { figure };
            let best = best.map_or_else(String::new, |best| format!(", {} {}", best.subject, number(best.median)));
            let _ = write!(text, " {figure}{best} |");
        }
        text.push('\n');
    }
    Ok(text)
}

fn of_run(results: &Results) -> String {
    let cores = if results.rows.iter().any(|row| row.class == "near") { "near" } else { "far" };
    format!("{}, {cores} cores, {}", results.machine, results.date)
}

/// The machine, the distance of its cores, and the figures' spread.
pub fn summary(results: &Results) -> String {
    let Results { machine, cores, date, compiler, revision, is_quick, failed, .. } = results;
    let command = if *is_quick { "cargo xtask report --quick" } else { "cargo xtask report" };
    let of_class = |class: &str| results.rows.iter().filter(|row| row.class == class).count();
    let mut text = format!(
        "`{command}`, {date}: {machine}, {cores} cores, near in {} rows, far in {}; {compiler}, commit {revision}.",
        of_class("near"),
        of_class("far")
    );
    let mut benches: Vec<&str> = results.rows.iter().map(|row| row.bench.as_str()).collect();
    benches.dedup();
    let spreads: Vec<String> = benches
        .into_iter()
        .filter_map(|bench| {
            let of_bench = results.rows.iter().filter(|row| row.bench == bench && row.median > 0.0 && row.low < row.high);
            let mut spreads: Vec<f64> = of_bench.map(|row| (row.high - row.low) / row.median).collect();
            spreads.sort_by(f64::total_cmp);
            Some(format!("{bench} {:.0} %", 100.0 * spreads.get(spreads.len() / 2)?))
        })
        .collect();
    if !spreads.is_empty() {
        let _ = write!(text, " Median spread, highest minus lowest turn: {}.", spreads.join(", "));
    }
    if !failed.is_empty() {
        let _ = write!(text, " **Failed: {}.**", failed.join("; "));
    }
    text
}

/// Tables of the first results, with the ratios of the others.
pub fn page(all: &[Results], benches: &[&str]) -> String {
    let [results, others @ ..] = all else { return String::new() };
    let [near, far] = ["near", "far"].map(|class| results.rows.iter().any(|row| row.class == class));
    let distance = match (near, far) {
        (true, true) => "Two cores are near, with a shared cache, unless marked `far`",
        (true, false) => "Two cores are near: they share a cache",
        _ => "Two cores are far: they share no cache",
    };
    let mut text = format!(
        "# Performance\n\n{}\n\n\
         A figure is the median (lowest..highest) of turns that alternate with the competitors' in one process: nanoseconds or instructions, unless stated. `ratio`\n\
         is ours over the fastest competitor's: below 1 is faster, within 1.15 either way is level. `limit` is the cost of the machine without the measured code.\n\
         `model` marks virtual time of the link model, `double` the test double of the driver. {distance}. No figure is from a GPU. A section's command is\n\
         `cargo bench -p ringmem-benches --bench SECTION`.\n\n",
        summary(results)
    );
    if !others.is_empty() {
        let others: Vec<String> = others.iter().map(of_run).collect();
        let _ = write!(text, "Other ratios in brackets: {}.\n\n", others.join(" and "));
    }
    let ours: Vec<(&Row, Option<&Row>)> = results.rows.iter().filter(|row| row.is_compared()).map(|row| (row, results.best(row))).collect();
    let ratio = |(row, best): &(&Row, Option<&Row>)| best.map(|best| row.over(best));
    let losses = ours.iter().filter(|pair| ratio(pair).is_some_and(|ratio| ratio > LEVEL)).count();
    let compared = ours.iter().filter(|pair| ratio(pair).is_some()).count();
    let _ = writeln!(text, "{losses} of {compared} rows, first in each table, are slower than the best competitor.");
    for bench in benches {
        let mut of_bench: Vec<_> = ours.iter().copied().filter(|(row, _)| row.bench == *bench).collect();
        let is_growth = results.rows.iter().any(|row| row.bench == *bench && row.size.is_some());
        let is_fit = *bench == fit::BENCH && results.rows.iter().any(|row| row.bench == *bench);
        if of_bench.is_empty() && !is_growth && !is_fit {
            continue;
        }
        let _ = write!(text, "\n## {bench}\n\n");
        if is_fit {
            fit::section(&mut text, results);
            continue;
        }
        if is_growth {
            scale::section(&mut text, results);
            continue;
        }
        of_bench.sort_by(|a, b| ratio(b).unwrap_or(0.0).total_cmp(&ratio(a).unwrap_or(0.0)));
        if of_bench.iter().any(|pair| ratio(pair).is_some()) {
            let _ = write!(text, "![Ratios of {bench}](performance/{bench}.svg)\n\n");
        }
        table(&mut text, &of_bench, others, near && far);
    }
    text
}

fn table(text: &mut String, rows: &[(&Row, Option<&Row>)], others: &[Results], is_mixed: bool) {
    let has_limits = rows.iter().any(|(row, _)| row.limit.is_some());
    let [head, line] = if has_limits { [" limit |", "---:|"] } else { [""; 2] };
    let _ = writeln!(text, "| workload | ours | median (range) | best competitor | ratio |{head}\n|---|---|---:|---|---:|{line}");
    for &(row, best) in rows {
        let Row { workload, subject, class, unit, source, .. } = row;
        let mark = match (source.as_str(), class.as_str()) {
            ("link-model", _) => " model",
            ("driver double", _) => " double",
            (_, "far") if is_mixed => " far",
            _ => "",
        };
        let name = subject.trim_start_matches("ringmem").trim_start_matches([',', ' ']);
        let name = if name.is_empty() { "ringmem" } else { name };
        let rival = best.map_or_else(String::new, |best| format!("{} {}", best.subject, number(best.median)));
        let mut ratio = best.map_or_else(String::new, |best| ratio_text(row, best));
        for theirs in others.iter().filter_map(|other| other.pair(row)).map(|(row, best)| ratio_text(row, best)) {
            if theirs != ratio {
                let _ = write!(ratio, " ({theirs})");
            }
        }
        let limit = if has_limits { format!(" {} |", row.limit.map_or_else(String::new, number)) } else { String::new() };
        let [median, low, high] = [row.median, row.low, row.high].map(number);
        let spread = if low == high { String::new() } else { format!(" ({low}..{high})") };
        let _ = writeln!(text, "| {workload}{mark} | {name} | {median}{spread}{} | {rival} | {ratio} |{limit}", stated(unit));
    }
}

/// Units that the text above the tables does not imply.
fn stated(unit: &str) -> String {
    let is_implied = match unit.split_once('/') {
        Some(("ns" | "instructions", each)) => each.chars().all(|c| c.is_ascii_lowercase()),
        _ => unit.is_empty(),
    };
    if is_implied { String::new() } else { format!(" {unit}") }
}

/// Two decimals would show a small cost, for which there may be an aim, as none. Four are for turns that differ less than that cost may.
fn ratio_text(row: &Row, best: &Row) -> String {
    const SMALL: f64 = 0.005;
    let (ratio, is_steady) = (row.over(best), |row: &Row| row.high - row.low < SMALL * row.median);
    let is_small_cost = ratio != 1.0 && (ratio - 1.0).abs() < SMALL && is_steady(row) && is_steady(best);
    if is_small_cost { format!("{ratio:.4}") } else { format!("{ratio:.2}") }
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
    fn equal_zeros_are_level_and_a_small_cost_has_four_decimals() {
        let rows = vec![
            row("memory", "refused", "ringmem", 0.0),
            row("memory", "refused", "other", 0.0),
            row("memory", "tracked", "ringmem", 256_761.0),
            row("memory", "tracked", "other", 256_470.0),
            row("memory", "slower", "ringmem", 1.1),
            row("memory", "slower", "other", 1.0),
            Row { high: 101.0, ..row("memory", "noisy", "ringmem", 100.1) },
            row("memory", "noisy", "other", 100.0),
        ];
        let text = page(&[Results { rows, ..Results::default() }], &["memory"]);
        for line in [
            "| refused | ringmem | 0.00 | other 0.00 | 1.00 |",
            "| other 256470 | 1.0011 |",
            "| other 1.00 | 1.10 |",
            "| other 100 | 1.00 |",
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
        assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
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
        let near = Results { rows, ..Results::default() };
        let far = |row: Row| Row { class: "far".into(), median: row.median + 1.0, ..row };
        let other = Results { machine: "M".into(), rows: near.rows.iter().take(4).cloned().map(far).collect(), ..Results::default() };
        let text = page(&[near, other], &["rings"]);
        assert!(text.contains("1 of 2 rows, first in each table, are slower"), "{text}");
        let found: Vec<&str> = text.lines().filter(|line| line.contains("| ringmem |")).collect();
        assert_eq!(found[0], "| worst | ringmem | 3.00 | gil 1.00 | 3.00 (2.00) |");
        assert!(found[1].starts_with("| level") && found[2].starts_with("| alone"), "{found:?}");
    }

    #[test]
    fn the_summary_has_machine_distance_spread_and_failures() {
        let near = |low, high| Row { low, high, ..row("rings", "w", "ringmem", 2.0) };
        let rows = vec![near(1.9, 2.1), near(1.0, 3.0), near(1.5, 2.5), Row { class: "far".into(), ..row("memory", "w", "gil", 1.0) }];
        let results = Results { machine: "M".into(), cores: 2, rows, failed: vec!["scale: exit status: 1".into()], ..Results::default() };
        let text = summary(&results);
        for part in [": M, 2 cores, near in 3 rows, far in 1;", "lowest turn: rings 50 %.", "**Failed: scale: exit status: 1.**"] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    #[test]
    fn only_unusual_units_are_stated() {
        assert_eq!(
            ["ns/message", "instructions/block", "ns/100 blocks", "bytes/element"].map(stated),
            ["", "", " ns/100 blocks", " bytes/element"]
        );
    }

    #[test]
    fn a_missing_readme_row_is_an_error() {
        let mut rows: Vec<Row> = README.iter().map(|(bench, workload, subject, _)| row(bench, workload, subject, 2.0)).collect();
        rows.push(row("rings", "spsc-8", "gil", 1.0));
        let of = |rows: &[Row]| Results { machine: "M".into(), rows: rows.to_vec(), ..Results::default() };
        let text = readme(&[of(&rows), of(&rows)]).expect("all rows");
        assert!(text.contains("| `rings -- spsc-8`, 8 bytes, each published | **2.00**, gil 1.00 | **2.00**, gil 1.00 |"), "{text}");
        let others = of(&rows);
        rows.remove(3);
        assert!(readme(&[others, of(&rows)]).is_err());
    }
}
