use std::time::Instant;

use ringmem::Result;
use serde_json::{Value, json};

use crate::report::{Report, Row, print};

/// Bytes of a message.
const MESSAGE: f64 = 64.0;

/// The rows and facts of this part, each printed when it is found.
pub struct Table<'a> {
    report: &'a mut Report,
    rows: Vec<Samples>,
    /// When the last fact was found.
    since: Instant,
}

struct Samples {
    name: String,
    median: f64,
    low: f64,
    high: f64,
}

impl<'a> Table<'a> {
    pub fn new(report: &'a mut Report) -> Self {
        Self { report, rows: Vec::new(), since: Instant::now() }
    }

    pub fn about(&self, name: &'static str, value: impl Into<Value>) {
        let value = value.into();
        eprintln!("{name:28} {}", value.as_str().map_or_else(|| value.to_string(), str::to_owned));
        print(&json!({ "about": name, "value": value }));
    }

    pub fn row(&mut self, name: impl Into<String>, unit: &'static str, samples: &mut [f64], compared: Option<&str>) {
        samples.sort_by(f64::total_cmp);
        let at = |share: f64| samples.get(((samples.len() as f64 - 1.0) * share).round() as usize).copied().unwrap_or(f64::NAN);
        let (name, low, median, high) = (name.into(), at(0.0), at(0.5), at(0.99));
        let compared = compared.and_then(|other| Some((other, median / self.named(other)?.median)));
        let text = compared.map_or(String::new(), |(other, ratio)| format!("{ratio:.2} x {other}"));
        eprintln!("{name:44} {median:>10.2} {low:>10.2} {high:>10.2} {unit:8} {text}");
        let (compared_to, ratio) = compared.unzip();
        print(&json!({ "row": name, "unit": unit, "median": median, "low": low, "p99": high, "compared_to": compared_to, "ratio": ratio }));
        self.rows.push(Samples { name, median, low, high });
    }

    /// Prints the rate `name` as the time of a message, with its aims and the time of a message on the link as its limit.
    pub fn aimed(&self, workload: &str, subject: &str, name: &str, aim: Option<f64>, aim_ns: f64) {
        let way = |name: &str| Some(MESSAGE / self.named(name)?.median);
        let limit = way("copy to device, pinned").zip(way("copy to host, pinned")).map(|(up, down)| up.max(down));
        let Some(Samples { median, low, high, .. }) = self.named(name) else { return };
        let [median, low, high] = [median, high, low].map(|rate| 1e3 / rate);
        Row { workload, subject, unit: "ns/message", median, low, high, aim, aim_ns: Some(aim_ns), limit }.print(&self.report.source);
    }

    fn named(&self, name: &str) -> Option<&Samples> {
        self.rows.iter().find(|row| row.name == name)
    }

    /// Runs a step, whose error is a failed fact of this name.
    pub fn step(&mut self, name: impl AsRef<str>, step: impl FnOnce(&mut Self) -> Result<()>) {
        if let Err(error) = step(self) {
            self.fact(name, Some(false), error.to_string());
        }
    }

    /// Reports a fact; `None` if this device cannot have it.
    pub fn fact(&mut self, name: impl AsRef<str>, holds: Option<bool>, facts: impl AsRef<str>) {
        let begun = std::mem::replace(&mut self.since, Instant::now());
        self.report.found(name.as_ref(), holds, facts.as_ref(), begun);
    }
}
