use serde_json::{Value, json};

use crate::Workload;

#[derive(Clone, Copy)]
pub(crate) struct Row {
    median: f64,
    low: f64,
    high: f64,
}

impl Row {
    pub(crate) fn of(mut samples: Vec<f64>) -> Option<Self> {
        samples.sort_by(f64::total_cmp);
        Some(Self { median: *samples.get(samples.len() / 2)?, low: *samples.first()?, high: *samples.last()? })
    }

    pub(crate) fn median(&self) -> f64 {
        self.median
    }

    pub(crate) fn figures(&self) -> [f64; 3] {
        [self.median, self.low, self.high]
    }
}

pub(crate) fn head() {
    println!(
        "{:18} {:26} {:>5} {:>9} {:>9} {:>9} {:>7} {:>6} {:>8}",
        "workload", "subject", "class", "median", "low", "high", "ratio", "aim", "limit"
    );
}

pub(crate) fn print(bench: &str, json: bool, workload: &Workload, class: usize, class_name: &str, rows: &[Option<Row>]) {
    let (rows, limit) = rows.split_at(workload.subjects.len());
    let limit = limit.first().copied().flatten().map(|row| row.median);
    let subjects = || workload.subjects.iter().map(|(name, _)| *name).zip(rows.iter().copied());
    let competes = |name: &str| !["ringmem", "twin", "beside"].iter().any(|first| name.starts_with(first));
    let best = subjects().filter(|(name, _)| competes(name)).filter_map(|(_, row)| row).map(|row| row.median).reduce(f64::min);
    let mut order: Vec<(&str, Option<Row>)> = subjects().collect();
    order.sort_by(|a, b| a.1.map(|row| row.median).partial_cmp(&b.1.map(|row| row.median)).unwrap_or(std::cmp::Ordering::Equal));
    let name = workload.name;
    if !json && rows.iter().all(Option::is_none) {
        println!("{name:18} {:26} {class_name:>5} not observed", "all");
        return;
    }
    let aim = workload.aim[class];
    for (subject, row) in order {
        let ratio = row.zip(best).map(|(row, best)| row.median / best);
        if json {
            let mut object = json!({
                "bench": bench, "workload": name, "subject": subject, "unit": workload.unit, "median": row.map(|row| row.median),
                "low": row.map(|row| row.low), "high": row.map(|row| row.high), "ratio": ratio, "aim": aim, "limit": limit,
                "source": workload.source, "class": class_name,
            });
            if let Some(aim_ns) = workload.aim_ns {
                object["aim_ns"] = aim_ns.into();
            }
            if let Some(aim) = workload.aim_added_ns {
                object["aim_added_ns"] = aim.into();
                object["added_ns"] = row.zip(best).map(|(row, best)| row.median - best).into();
            }
            if row.is_none() {
                object["note"] = "not observed".into();
            }
            println!("{object}");
        } else if let Some(Row { median, low, high }) = row {
            let ratio = ratio.map_or(String::new(), |ratio| format!("{ratio:.2}"));
            let limit = limit.map_or(String::new(), |limit| format!("{limit:.2}"));
            let class_name = match workload.source {
                crate::LINK_MODEL => "model",
                "driver double" => "double",
                _ => class_name,
            };
            println!("{name:18} {subject:26} {class_name:>5} {median:9.2} {low:9.2} {high:9.2} {ratio:>7} {aim:6.3} {limit:>8}");
        } else {
            println!("{name:18} {subject:26} {class_name:>5} not observed");
        }
    }
}

pub(crate) fn object(bench: &str, workload: &str, subject: &str, unit: &str, source: &str, [median, low, high]: [f64; 3]) -> Value {
    json!({
        "bench": bench, "workload": workload, "subject": subject, "unit": unit, "median": median, "low": low, "high": high,
        "limit": null, "source": source, "class": "",
    })
}

/// Prints median, lowest and highest of samples, at least one, as JSON or as a line of text.
pub fn print_row(bench: &str, is_json: bool, workload: &str, subject: &str, unit: &str, source: &str, samples: Vec<f64>) {
    let Some(figures) = Row::of(samples).map(|row| row.figures()) else { return };
    if is_json {
        println!("{}", object(bench, workload, subject, unit, source, figures));
    } else {
        let [median, low, high] = figures;
        println!("{workload:22} {subject:30} {median:12.4} {low:12.4} {high:12.4} {unit} {source}");
    }
}
