use std::fmt::Write;

use serde_json::{Value, json};

const MESSAGE: f64 = 64.0;

pub struct Row {
    pub name: String,
    pub unit: &'static str,
    pub median: f64,
    low: f64,
    high: f64,
    compared: Option<(String, f64)>,
}

struct Fact {
    name: String,
    holds: Option<bool>,
    facts: String,
}

#[derive(Default)]
pub struct Table {
    about: Vec<(&'static str, Value)>,
    rows: Vec<Row>,
    facts: Vec<Fact>,
    aimed: Vec<Value>,
}

impl Table {
    pub fn about(&mut self, name: &'static str, value: impl Into<Value>) {
        self.about.push((name, value.into()));
    }

    pub fn row(&mut self, name: impl Into<String>, unit: &'static str, samples: &mut [f64], compared: Option<&str>) {
        samples.sort_by(f64::total_cmp);
        let at = |share: f64| samples.get(((samples.len() as f64 - 1.0) * share).round() as usize).copied().unwrap_or(f64::NAN);
        let (low, median, high) = (at(0.0), at(0.5), at(0.99));
        let compared = compared.and_then(|other| {
            let row = self.named(other)?;
            Some((other.to_owned(), median / row.median))
        });
        let row = Row { name: name.into(), unit, median, low, high, compared };
        eprintln!("{}", row.line());
        self.rows.push(row);
    }

    pub fn aimed(&mut self, workload: &str, subject: &str, name: &str, aim: Option<f64>, aim_ns: f64) {
        let way = |name: &str| Some(MESSAGE / self.named(name)?.median);
        let limit = way("copy to device, pinned").zip(way("copy to host, pinned")).map(|(up, down)| up.max(down));
        let Some(Row { median, low, high, .. }) = self.named(name) else { return };
        let each = |rate: &f64| 1e3 / rate;
        let device = self.about.iter().find(|(name, _)| *name == "device").and_then(|(_, device)| device.as_str()).unwrap_or_default();
        let source = if device.starts_with("ringmem driver double") { "double".to_owned() } else { format!("gpu:{device}") };
        self.aimed.push(json!({
            "bench": "gpu_smoke", "workload": workload, "subject": subject, "unit": "ns/message", "median": each(median), "low": each(high),
            "high": each(low), "ratio": limit.map(|limit| each(median) / limit), "aim": aim, "aim_ns": aim_ns, "limit": limit, "source": source,
            "class": "",
        }));
    }

    fn named(&self, name: &str) -> Option<&Row> {
        self.rows.iter().find(|row| row.name == name)
    }

    pub fn lines(&self) -> String {
        self.aimed.iter().map(|row| format!("{row}\n")).collect()
    }

    pub fn fact(&mut self, name: impl Into<String>, holds: Option<bool>, facts: impl Into<String>) {
        let fact = Fact { name: name.into(), holds, facts: facts.into() };
        eprintln!("{}", fact.line());
        self.facts.push(fact);
    }

    pub fn holds(&self) -> bool {
        self.facts.iter().all(|fact| fact.holds != Some(false))
    }

    pub fn text(&self) -> String {
        let mut text = String::new();
        for (name, value) in &self.about {
            let _ = writeln!(text, "{name:28} {}", value.as_str().map_or_else(|| value.to_string(), str::to_owned));
        }
        let _ = writeln!(text, "\n{:44} {:>10} {:>10} {:>10} {:8} compared to", "row", "median", "low", "p99", "unit");
        for row in &self.rows {
            let _ = writeln!(text, "{}", row.line());
        }
        text.push('\n');
        for fact in &self.facts {
            let _ = writeln!(text, "{}", fact.line());
        }
        text
    }

    pub fn json(&self) -> Value {
        let about: serde_json::Map<String, Value> = self.about.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
        let rows: Vec<Value> = self.rows.iter().map(Row::json).collect();
        let facts: Vec<Value> =
            self.facts.iter().map(|fact| json!({ "name": fact.name, "holds": fact.holds, "facts": fact.facts })).collect();
        json!({ "about": about, "rows": rows, "facts": facts, "holds": self.holds() })
    }
}

impl Row {
    fn line(&self) -> String {
        let Self { name, unit, median, low, high, compared } = self;
        let compared = compared.as_ref().map_or(String::new(), |(other, ratio)| format!("{ratio:.2} x {other}"));
        format!("{name:44} {median:>10.2} {low:>10.2} {high:>10.2} {unit:8} {compared}")
    }

    fn json(&self) -> Value {
        let (compared, ratio) = self.compared.clone().map_or((None, None), |(other, ratio)| (Some(other), Some(ratio)));
        json!({
            "name": self.name, "unit": self.unit, "median": self.median, "low": self.low, "p99": self.high,
            "compared_to": compared, "ratio": ratio,
        })
    }
}

impl Fact {
    fn line(&self) -> String {
        let holds = match self.holds {
            Some(true) => "ok",
            Some(false) => "FAILED",
            None => "SKIPPED",
        };
        format!("{holds:8} {}: {}", self.name, self.facts)
    }
}
