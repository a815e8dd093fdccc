use std::io::Write;
use std::time::{Duration, Instant};

use serde_json::json;

use super::Failure;
use crate::json_line;
use crate::progress::Bar;

pub(super) type Turn<'a> = Box<dyn FnMut() -> Result<f64, Failure> + 'a>;

/// Ours begin with `ringmem`, partial baselines with `alone:`.
pub(super) struct Subject<'a> {
    pub name: &'static str,
    pub turn: Turn<'a>,
}

pub(super) struct Workload<'a> {
    pub name: &'static str,
    pub unit: &'static str,
    pub aim: Option<f64>,
    pub subjects: Vec<Subject<'a>>,
}

const TURNS: std::ops::RangeInclusive<usize> = 3..=51;

struct Row {
    median: f64,
    low: f64,
    high: f64,
}

impl Row {
    fn of(mut samples: Vec<f64>) -> Option<Self> {
        samples.sort_by(f64::total_cmp);
        Some(Self { median: *samples.get(samples.len() / 2)?, low: *samples.first()?, high: *samples.last()? })
    }
}

pub(super) struct Table<'a> {
    pub out: &'a mut dyn Write,
    pub json: bool,
    /// `host`, `double` or `gpu:NAME`.
    pub source: &'a str,
    pub columns: Option<usize>,
    pub bar: Bar,
    pub done: u64,
}

const WIDE: usize = 107;

impl Table<'_> {
    pub fn head(&mut self, backend: &str, why: &str) -> Result<(), Failure> {
        if !self.json {
            let is_wide = self.is_wide();
            let Self { out, .. } = self;
            writeln!(out, "on the backend {backend}: {why}")?;
            match is_wide {
                true => writeln!(
                    out,
                    "{:16} {:22} {:>13} {:>13} {:>13} {:>6} {:>6}  unit",
                    "workload", "subject", "median", "low", "high", "ratio", "aim"
                )?,
                false => writeln!(out, "workload, unit\n  {:22} {:>13} {:>13} {:>6}", "subject", "median", "high", "ratio")?,
            }
        }
        Ok(())
    }

    /// A narrow table names workload, unit and aim above the rows, and omits the minimum.
    fn is_wide(&self) -> bool {
        self.columns.is_none_or(|columns| columns >= WIDE)
    }

    pub fn run(&mut self, workload: Workload<'_>, time: Duration) -> Result<(), Failure> {
        let Workload { name, unit, aim, mut subjects } = workload;
        let mut samples = vec![Vec::new(); subjects.len()];
        self.bar.say(name);
        let begun = Instant::now();
        for round in 0..*TURNS.end() {
            let part = begun.elapsed().div_duration_f64(time).max(round as f64 / *TURNS.end() as f64);
            self.bar.set(self.done * 100 + (100.0 * part.min(1.0)) as u64);
            if round >= *TURNS.start() && begun.elapsed() > time {
                break;
            }
            for (subject, samples) in subjects.iter_mut().zip(&mut samples) {
                samples.push((subject.turn)()?);
            }
        }
        let mut rows: Vec<_> =
            subjects.iter().zip(samples).filter_map(|(subject, samples)| Some((subject.name, Row::of(samples)?))).collect();
        rows.sort_by(|a, b| a.1.median.total_cmp(&b.1.median));
        let is_limit = |name: &str| !name.starts_with("ringmem") && !name.starts_with("alone:");
        let best = rows.iter().find(|(name, _)| is_limit(name)).map(|(_, row)| row.median);
        let mut lines = String::new();
        if !self.json && !self.is_wide() {
            let aim = aim.map_or_else(String::new, |aim| format!(", aim {aim:.2}"));
            lines = format!("{name}, {unit}{aim}\n");
        }
        for (subject, Row { median, low, high }) in rows {
            let (ratio, source) = (best.map(|best| median / best), self.source);
            let [shown, aimed] = [ratio, aim].map(|ratio| ratio.map_or_else(String::new, |ratio| format!("{ratio:.2}")));
            lines += &match (self.json, self.is_wide()) {
                (true, _) => json_line(&json!({
                    "bench": "ringmem", "workload": name, "subject": subject, "unit": unit, "median": median, "low": low, "high": high,
                    "ratio": ratio, "aim": aim, "limit": best, "source": source, "class": "",
                })),
                (false, true) => format!("{name:16} {subject:22} {median:13.1} {low:13.1} {high:13.1} {shown:>6} {aimed:>6}  {unit}"),
                (false, false) => format!("  {subject:22} {median:13.1} {high:13.1} {shown:>6}"),
            };
            lines.push('\n');
        }
        Ok(self.bar.around(|| self.out.write_all(lines.as_bytes()))?)
    }
}
