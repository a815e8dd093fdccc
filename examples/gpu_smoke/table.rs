use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use serde_json::{Value, json};

const MESSAGE: f64 = 64.0;

struct Row {
    name: String,
    median: f64,
    low: f64,
    high: f64,
}

/// Prints what was found as it comes: text on stderr, one JSON object per line on stdout.
#[derive(Default)]
pub struct Table {
    device: String,
    rows: Vec<Row>,
    failed: u64,
}

static RESULTS: AtomicU64 = AtomicU64::new(0);

/// Returns the number of results that were printed.
pub fn results() -> u64 {
    RESULTS.load(Relaxed)
}

fn print(found: &Value) {
    println!("{found}");
    RESULTS.fetch_add(1, Relaxed);
}

impl Table {
    pub fn about(&mut self, name: &'static str, value: impl Into<Value>) {
        let value = value.into();
        if let ("device", Value::String(device)) = (name, &value) {
            self.device.clone_from(device);
        }
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
        self.rows.push(Row { name, median, low, high });
    }

    pub fn aimed(&self, workload: &str, subject: &str, name: &str, aim: Option<f64>, aim_ns: f64) {
        let way = |name: &str| Some(MESSAGE / self.named(name)?.median);
        let limit = way("copy to device, pinned").zip(way("copy to host, pinned")).map(|(up, down)| up.max(down));
        let Some(Row { median, low, high, .. }) = self.named(name) else { return };
        let each = |rate: &f64| 1e3 / rate;
        let source = if self.device.starts_with("ringmem driver double") { "double".to_owned() } else { format!("gpu:{}", self.device) };
        print(&json!({
            "bench": "gpu_smoke", "workload": workload, "subject": subject, "unit": "ns/message", "median": each(median), "low": each(high),
            "high": each(low), "ratio": limit.map(|limit| each(median) / limit), "aim": aim, "aim_ns": aim_ns, "limit": limit, "source": source,
            "class": "",
        }));
    }

    fn named(&self, name: &str) -> Option<&Row> {
        self.rows.iter().find(|row| row.name == name)
    }

    pub fn fact(&mut self, name: impl Into<String>, holds: Option<bool>, facts: impl Into<String>) {
        let (name, facts) = (name.into(), facts.into());
        let result = match holds {
            Some(true) => "passed",
            Some(false) => "failed",
            None => "skipped",
        };
        self.failed += u64::from(holds == Some(false));
        eprintln!("{result:8} {name}: {facts}");
        print(&json!({ "fact": name, "result": result, "facts": facts }));
    }

    pub fn holds(&self) -> bool {
        self.failed == 0
    }
}
