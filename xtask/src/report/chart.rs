use std::fmt::Write;

use ringmem::escape::xml;

use super::{Results, Row};

const LEFT: f64 = 190.0;
const WIDTH: f64 = 480.0;
const STEP: f64 = 18.0;
/// The axis ends at this ratio and its inverse.
const MOST: f64 = 16.0;

/// Returns as SVG, on a logarithmic axis, our fastest row of each workload and class over the best competitor's; `None` without ratios.
pub fn ratios(results: &Results, bench: &str) -> Option<String> {
    let mut bars: Vec<(String, f64)> = Vec::new();
    for row in results.rows.iter().filter(|row| row.bench == bench && row.is_compared()) {
        let Some(best) = results.best(row) else { continue };
        let Row { workload, class, .. } = row;
        let (name, ratio) = (format!("{workload} {class}"), row.over(best));
        match bars.iter_mut().find(|bar| bar.0 == name) {
            Some(bar) => bar.1 = bar.1.min(ratio),
            None => bars.push((name, ratio)),
        }
    }
    if bars.is_empty() {
        return None;
    }
    let height = STEP * bars.len() as f64 + 50.0;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {:.0} {height:.0}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n\
         <text x=\"{LEFT:.0}\" y=\"14\">time over the best competitor's (left is faster)</text>\n",
        LEFT + WIDTH + 60.0
    );
    for tick in [1.0 / 16.0, 0.25, 0.5, 1.0, 2.0, 4.0, 16.0_f64] {
        let (x, label) = (place(tick), if tick < 1.0 { format!("1/{:.0}", 1.0 / tick) } else { format!("{tick:.0}") });
        let colour = if tick == 1.0 { "#333333" } else { "#dddddd" };
        let _ = write!(
            svg,
            "<line x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"36\" y2=\"{:.0}\" stroke=\"{colour}\"/>\n\
             <text x=\"{x:.1}\" y=\"31\" text-anchor=\"middle\" fill=\"#555555\">{label}</text>\n",
            height - 10.0
        );
    }
    for (at, (name, ratio)) in bars.iter().enumerate() {
        let y = 40.0 + STEP * at as f64;
        let (one, end) = (place(1.0), place(*ratio));
        let colour = match *ratio {
            ratio if ratio > 1.15 => "#c0392b",
            ratio if ratio < 1.0 / 1.15 => "#2471a3",
            _ => "#888888",
        };
        let _ = write!(
            svg,
            "<text x=\"{:.0}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\n\
             <rect x=\"{:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"12\" fill=\"{colour}\"/>\n\
             <text x=\"{:.0}\" y=\"{:.1}\" fill=\"#555555\">{ratio:.2}</text>\n",
            LEFT - 8.0,
            y + 10.0,
            xml(name),
            one.min(end),
            (one - end).abs().max(1.0),
            LEFT + WIDTH + 10.0,
            y + 10.0,
        );
    }
    Some(svg + "</svg>\n")
}

fn place(ratio: f64) -> f64 {
    LEFT + WIDTH * (ratio.clamp(1.0 / MOST, MOST).ln() / MOST.ln() + 1.0) / 2.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chart_shows_only_our_fastest_subject() {
        let row =
            |subject: &str, median| Row { bench: "b".into(), workload: "w".into(), subject: subject.into(), median, ..Row::default() };
        let results = Results { rows: vec![row("ringmem", 3.0), row("ringmem fast", 2.0), row("gil", 1.0)], ..Results::default() };
        let svg = ratios(&results, "b").expect("a ratio");
        assert!(svg.contains(">2.00</text>") && !svg.contains(">3.00</text>"), "{svg}");
        assert_eq!(ratios(&results, "none"), None);
    }

    #[test]
    fn an_extreme_ratio_stays_on_the_axis() {
        assert!(place(1e9) <= LEFT + WIDTH && place(0.0) >= LEFT && (place(1.0) - LEFT - WIDTH / 2.0).abs() < 1e-9);
    }
}
