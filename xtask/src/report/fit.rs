//! The section of the bench `fit`: a row for each program, a column for each allocator.

use std::fmt::Write;

use super::{Results, Row, number};

pub const BENCH: &str = "fit";

pub fn section(text: &mut String, results: &Results) {
    let rows: Vec<&Row> = results.rows.iter().filter(|row| row.bench == BENCH).collect();
    text.push_str(
        "What allocators reserve for the allocations of programs, and for what cost. `training` to `hostile` are generated; the others, of a folder that\n\
         `RINGMEM_TRACES` names, were recorded in real programs. `model` marks models of other allocators, which follow their published rules. That of\n\
         PyTorch's allocator without expandable segments reserves to the byte what recordings show; RMM's pool is best fit. It and `offset-allocator` have one arena, whose size a program must know in advance. Here it has no\n\
         end, and counts up to its highest byte in use.\n\n\
         The most reserved bytes over the most live bytes, as requested:\n\n",
    );
    table(text, &rows, |of| of("reserved/live").map(|row| format!("{:.3}", row.median)));
    text.push_str("\nPieces of memory allocated, mapped, moved and freed, and nanoseconds per allocation or free, from an empty allocator to the end:\n\n");
    table(text, &rows, |of| {
        let calls = of("calls")?.median;
        Some(of("ns/call").map_or_else(|| format!("{calls:.0}"), |row| format!("{calls:.0}; {} ns", number(row.median))))
    });
}

/// `cell` finds a program's row of an allocator by its unit.
fn table<'a>(text: &mut String, rows: &[&'a Row], cell: impl Fn(&dyn Fn(&str) -> Option<&'a Row>) -> Option<String>) {
    let mut subjects: Vec<(&str, &str)> = Vec::new();
    let mut workloads: Vec<&str> = Vec::new();
    for row in rows {
        if !subjects.iter().any(|(subject, _)| *subject == row.subject) {
            subjects.push((&row.subject, if row.source == "model" { ", model" } else { "" }));
        }
        if !workloads.contains(&row.workload.as_str()) {
            workloads.push(&row.workload);
        }
    }
    let _ = write!(text, "| program |");
    subjects.iter().for_each(|(subject, mark)| {
        let _ = write!(text, " {}{mark} |", subject.trim_start_matches("ringmem "));
    });
    let _ = writeln!(text, "\n|---|{}", "---:|".repeat(subjects.len()));
    for workload in workloads {
        let _ = write!(text, "| {workload} |");
        for (subject, _) in &subjects {
            let of = |unit: &str| rows.iter().copied().find(|row| row.workload == workload && row.subject == *subject && row.unit == unit);
            let _ = write!(text, " {} |", cell(&of).unwrap_or_default());
        }
        text.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_a_row_and_an_allocator_a_column() {
        let row = |workload: &str, subject: &str, unit: &str, source: &str, median| Row {
            bench: BENCH.into(),
            workload: workload.into(),
            subject: subject.into(),
            unit: unit.into(),
            source: source.into(),
            median,
            ..Row::default()
        };
        let rows = vec![
            row("cnn", "ringmem Pool", "reserved/live", "host", 1.0541),
            row("cnn", "ringmem Pool", "calls", "host", 50.0),
            row("cnn", "ringmem Pool", "ns/call", "host", 60.2),
            row("cnn", "PyTorch", "reserved/live", "model", 1.3),
            row("cnn", "PyTorch", "calls", "model", 9.0),
            row("new", "PyTorch", "calls", "model", 8.0),
        ];
        let mut text = String::new();
        section(&mut text, &Results { rows, ..Results::default() });
        let lines: Vec<&str> = text.lines().filter(|line| line.starts_with('|')).collect();
        let head = "| program | Pool | PyTorch, model |";
        assert_eq!(
            lines,
            [
                head,
                "|---|---:|---:|",
                "| cnn | 1.054 | 1.300 |",
                "| new |  |  |",
                head,
                "|---|---:|---:|",
                "| cnn | 50; 60.2 ns | 9 |",
                "| new |  | 8 |",
            ]
        );
    }
}
