use std::fmt::Write;

use ringmem::escape::xml;

use super::{Results, Row, number};

/// Counts with a smaller exponent are constant.
const FLAT: f64 = 0.05;

const COLOURS: [&str; 6] = ["#2471a3", "#c0392b", "#1e8449", "#b9770e", "#7d3c98", "#555555"];
const LEFT: f64 = 60.0;
const WIDTH: f64 = 360.0;
const TOP: f64 = 20.0;
const HEIGHT: f64 = 180.0;

struct Line<'a> {
    quantity: &'a str,
    subject: &'a str,
    reason: Option<&'a str>,
    nanos: Vec<(u64, f64)>,
    instructions: Vec<(u64, f64)>,
}

fn lines(results: &Results) -> Vec<Line<'_>> {
    let mut lines: Vec<Line<'_>> = Vec::new();
    for row in &results.rows {
        let Row { workload, subject, unit, size: Some(size), median, reason, .. } = row else { continue };
        let at = lines.iter().position(|line| line.quantity == workload && line.subject == subject).unwrap_or_else(|| {
            lines.push(Line { quantity: workload, subject, reason: reason.as_deref(), nanos: Vec::new(), instructions: Vec::new() });
            lines.len() - 1
        });
        let points = if unit == "ns" { &mut lines[at].nanos } else { &mut lines[at].instructions };
        points.push((*size, *median));
    }
    lines
}

/// The slope of the logarithms by least squares; `None` for fewer than two sizes.
fn exponent(points: &[(u64, f64)]) -> Option<f64> {
    let logs: Vec<(f64, f64)> = points.iter().filter(|point| point.1 > 0.0).map(|(size, cost)| ((*size as f64).ln(), cost.ln())).collect();
    let count = logs.len() as f64;
    let (x, y) = (logs.iter().map(|log| log.0).sum::<f64>() / count, logs.iter().map(|log| log.1).sum::<f64>() / count);
    let spread: f64 = logs.iter().map(|log| (log.0 - x).powi(2)).sum();
    (spread > 0.0).then(|| logs.iter().map(|log| (log.0 - x) * (log.1 - y)).sum::<f64>() / spread)
}

/// Whether the cost grows faster than `1 + log2(size)`.
fn is_above_log(points: &[(u64, f64)]) -> bool {
    let log: Vec<(u64, f64)> = points.iter().map(|&(size, _)| (size, 1.0 + (size as f64).log2())).collect();
    exponent(points).zip(exponent(&log)).is_some_and(|(cost, log)| cost > log)
}

fn above_log<'a>(line: &Line<'a>) -> Option<&'a str> {
    if line.reason.is_some() || !(is_above_log(&line.nanos) || is_above_log(&line.instructions)) {
        return line.reason;
    }
    let is_flat = exponent(&line.instructions).is_some_and(|exponent| exponent < FLAT);
    Some(if is_flat { "cache misses" } else { "**no reason known**" })
}

pub fn section(text: &mut String, results: &Results) {
    let lines = lines(results);
    for name in quantities(&lines) {
        let _ = writeln!(text, "![Cost by {name}](performance/scale-{name}.svg)");
    }
    text.push_str(
        "\nNanoseconds per operation with one object and with the most; the exponent of their number, fitted to time and to instructions.\n\n\
         | objects: operation | most | ns | exponent | instructions | faster than log n |\n|---|---:|---:|---:|---:|---|\n",
    );
    for line in &lines {
        let (Some(first), Some(last)) = (line.nanos.first(), line.nanos.last()) else { continue };
        let fitted = |points| exponent(points).map_or_else(String::new, |exponent| format!("{exponent:.2}").replace("-0.00", "0.00"));
        let name = line.subject.trim_start_matches("ringmem ");
        let _ = writeln!(
            text,
            "| {}: {name} | {} | {}..{} | {} | {} | {} |",
            line.quantity,
            label(last.0),
            number(first.1),
            number(last.1),
            fitted(&line.nanos),
            fitted(&line.instructions),
            above_log(line).unwrap_or_default()
        );
    }
}

fn quantities<'a>(lines: &[Line<'a>]) -> Vec<&'a str> {
    let mut names: Vec<&str> = lines.iter().map(|line| line.quantity).collect();
    names.dedup();
    names
}

pub fn charts(results: &Results) -> Vec<(String, String)> {
    let lines = lines(results);
    let chart = |name: &str| {
        let of_name: Vec<&Line<'_>> = lines.iter().filter(|line| line.quantity == name).collect();
        (format!("scale-{name}"), chart(name, &of_name))
    };
    quantities(&lines).into_iter().map(chart).collect()
}

fn chart(name: &str, lines: &[&Line<'_>]) -> String {
    let points = || lines.iter().flat_map(|line| &line.nanos);
    let most = points().map(|point| point.0).max().unwrap_or(1).max(2) as f64;
    let low = points().map(|point| point.1).fold(f64::INFINITY, f64::min).max(0.1).log10().floor();
    let high = points().map(|point| point.1).fold(1.0, f64::max).log10().ceil().max(low + 1.0);
    let x = |size: u64| LEFT + WIDTH * (size as f64).ln() / most.ln();
    let y = |nanos: f64| TOP + HEIGHT * (high - nanos.max(0.1).log10()) / (high - low);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 640 {:.0}\" font-family=\"sans-serif\" font-size=\"11\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n<text x=\"4\" y=\"12\">ns per operation, by {}</text>\n",
        TOP + HEIGHT + 24.0,
        xml(name)
    );
    for power in low as i32..=high as i32 {
        let (value, at) = (10_f64.powi(power), y(10_f64.powi(power)));
        let _ = writeln!(
            svg,
            "<line x1=\"{LEFT:.0}\" x2=\"{:.0}\" y1=\"{at:.1}\" y2=\"{at:.1}\" stroke=\"#dddddd\"/><text x=\"{:.0}\" y=\"{:.1}\" text-anchor=\"end\" fill=\"#555555\">{}</text>",
            LEFT + WIDTH,
            LEFT - 6.0,
            at + 4.0,
            if value < 1000.0 { value.to_string() } else { format!("{value:e}") }
        );
    }
    let sizes: Vec<u64> =
        lines.iter().max_by_key(|line| line.nanos.len()).map_or_else(Vec::new, |line| line.nanos.iter().map(|point| point.0).collect());
    for size in sizes.iter().step_by(sizes.len().div_ceil(8).max(1)) {
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.0}\" text-anchor=\"middle\" fill=\"#555555\">{}</text>",
            x(*size),
            TOP + HEIGHT + 16.0,
            label(*size)
        );
    }
    for (at, (line, colour)) in lines.iter().zip(COLOURS.iter().cycle()).enumerate() {
        let path: Vec<String> = line.nanos.iter().map(|&(size, nanos)| format!("{:.1},{:.1}", x(size), y(nanos))).collect();
        let _ = writeln!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/><text x=\"{:.0}\" y=\"{:.0}\" fill=\"{colour}\">{}</text>",
            path.join(" "),
            LEFT + WIDTH + 14.0,
            TOP + 14.0 + 18.0 * at as f64,
            xml(line.subject.trim_start_matches("ringmem "))
        );
    }
    svg + "</svg>\n"
}

fn label(size: u64) -> String {
    match size {
        u64::MAX => "2^64".into(),
        size if size < 1000 => size.to_string(),
        size => format!("{size:e}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn results(reason: Option<&str>, cost: fn(f64) -> f64, counts: Option<fn(f64) -> f64>) -> Results {
        let row = |size: u64, unit: &str, median: f64| Row {
            workload: "live".into(),
            subject: "ringmem Arena".into(),
            unit: unit.into(),
            median,
            size: Some(size),
            reason: reason.map(str::to_owned),
            ..Row::default()
        };
        let sizes = (0..7).map(|power| 10_u64.pow(power));
        let mut rows: Vec<Row> = sizes.clone().map(|size| row(size, "ns", cost(size as f64))).collect();
        rows.extend(sizes.filter_map(|size| Some(row(size, "instructions", counts?(size as f64)))));
        Results { rows, ..Results::default() }
    }

    fn note(results: &Results) -> Option<&str> {
        above_log(&lines(results)[0])
    }

    #[test]
    fn exponents_are_those_of_powers() {
        let linear = results(None, |size| 3.0 * size, Some(|_| 100.0));
        let line = &lines(&linear)[0];
        assert!((exponent(&line.nanos).expect("sizes") - 1.0).abs() < 1e-9);
        assert!(exponent(&line.instructions).expect("sizes").abs() < 1e-9);
        assert_eq!((exponent(&[]), exponent(&[(10, 5.0)])), (None, None));
    }

    #[test]
    fn only_growth_above_the_logarithm_has_a_note() {
        assert_eq!(note(&results(None, |_| 5.0, None)), None);
        assert_eq!(note(&results(None, |size| 9.0 + size.ln(), None)), None);
        assert_eq!(note(&results(None, f64::sqrt, None)), Some("**no reason known**"));
        assert_eq!(note(&results(None, f64::sqrt, Some(|_| 100.0))), Some("cache misses"));
        assert_eq!(note(&results(None, |_| 5.0, Some(f64::sqrt))), Some("**no reason known**"));
        assert_eq!(note(&results(Some("first fit"), f64::sqrt, None)), Some("first fit"));
    }

    #[test]
    fn a_chart_and_a_row_show_each_line() {
        let results = results(Some("first fit"), |size| 2.0 * size, None);
        let charts = charts(&results);
        assert_eq!(charts.len(), 1);
        let (name, svg) = &charts[0];
        assert_eq!((name.as_str(), svg.matches("<polyline").count()), ("scale-live", 1));
        assert!(svg.contains(">Arena</text>") && svg.contains(">1e6</text>"), "{svg}");
        let mut text = String::new();
        section(&mut text, &results);
        assert!(text.contains("| live: Arena | 1e6 | 2.00..2000000 | 1.00 |  | first fit |"), "{text}");
        assert!(text.contains("(performance/scale-live.svg)"), "{text}");
    }

    #[test]
    fn the_largest_index_stays_in_the_chart() {
        let row = |size| Row { workload: "indexes".into(), unit: "ns".into(), median: 0.01, size: Some(size), ..Row::default() };
        let svg = &charts(&Results { rows: vec![row(1), row(u64::MAX)], ..Results::default() })[0].1;
        assert!(svg.contains(">2^64</text>") && !svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }
}
