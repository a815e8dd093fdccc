use std::any::Any;
use std::error::Error;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use ringmem::backend::cuda::Gpu;
use serde_json::{Value, json};

pub type Failure = Box<dyn Error + Send + Sync>;

#[derive(Debug)]
pub struct Skipped(pub String);

impl fmt::Display for Skipped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for Skipped {}

pub fn demand(holds: bool, what: impl FnOnce() -> String) -> Result<(), Failure> {
    if holds { Ok(()) } else { Err(what().into()) }
}

/// Lines of JSON that were printed.
static LINES: AtomicU64 = AtomicU64::new(0);

pub fn print(line: &Value) {
    println!("{line}");
    LINES.fetch_add(1, Relaxed);
}

/// Ends the process, and its kernels with it, if it prints no line for `limit`: then a call of the driver hangs. A slow machine takes longer for all
/// lines together.
pub fn watch(limit: Duration) {
    std::thread::spawn(move || {
        loop {
            let before = LINES.load(Relaxed);
            std::thread::sleep(limit);
            if LINES.load(Relaxed) == before {
                break;
            }
        }
        eprintln!("gpu_suite: no result for {} s: ended, and its kernels with it", limit.as_secs());
        // Not `exit`: the driver's destructors wait for the hanging call's locks.
        std::process::abort();
    });
}

/// The row of a measurement. `twin.cu` and `pools.py` print this form too.
pub struct Row<'a> {
    pub workload: &'a str,
    pub subject: &'a str,
    pub unit: &'a str,
    pub median: f64,
    pub low: f64,
    pub high: f64,
    /// The most that `median / limit` should be.
    pub aim: Option<f64>,
    /// The most that `median` should be.
    pub aim_ns: Option<f64>,
    /// The median of the best baseline.
    pub limit: Option<f64>,
}

impl Row<'_> {
    pub fn print(&self, source: &str) {
        let Self { workload, subject, unit, median, low, high, aim, aim_ns, limit } = self;
        print(&json!({
            "bench": "gpu_suite", "workload": workload, "subject": subject, "unit": unit, "median": median, "low": low, "high": high,
            "ratio": limit.map(|limit| median / limit), "aim": aim, "aim_ns": aim_ns, "limit": limit, "source": source, "class": "",
        }));
    }
}

pub struct Report {
    part: &'static str,
    begun: Instant,
    /// `double` or `gpu:NAME`.
    pub source: String,
    driver: Value,
    passed: u64,
    failed: u64,
    skipped: u64,
}

impl Report {
    pub fn new(part: &'static str) -> Self {
        Self { part, begun: Instant::now(), source: String::new(), driver: Value::Null, passed: 0, failed: 0, skipped: 0 }
    }

    pub fn opened(&mut self, version: u32, gpus: &[Gpu]) {
        let names: Vec<&str> = gpus.iter().map(|gpu| gpu.name.as_str()).collect();
        self.source = match names.first() {
            Some(name) if name.starts_with("ringmem driver double") => "double".to_owned(),
            name => format!("gpu:{}", name.unwrap_or(&"unknown")),
        };
        eprintln!("on {}, CUDA {}.{}", names.join(", "), version / 1000, version % 1000 / 10);
        self.driver = json!({ "version": version, "gpus": names });
    }

    /// Returns whether it holds.
    pub fn fact(&mut self, name: impl Into<String>, find: impl FnOnce() -> Result<String, Failure>) -> bool {
        let (name, begun) = (name.into(), Instant::now());
        let found = catch_unwind(AssertUnwindSafe(find)).unwrap_or_else(|panic| Err(words(&*panic).into()));
        let (result, facts) = match found {
            Ok(facts) => ("passed", facts),
            Err(why) if why.is::<Skipped>() => ("skipped", why.to_string()),
            Err(why) => ("failed", why.to_string()),
        };
        self.skipped += u64::from(result == "skipped");
        self.said(&name, result, &facts, begun);
        result == "passed"
    }

    /// Reports a fact that was found since `begun`. `None` is a fact that this device cannot have: the part passes without it.
    pub fn found(&mut self, name: &str, holds: Option<bool>, facts: &str, begun: Instant) {
        let result = match holds {
            Some(true) => "passed",
            Some(false) => "failed",
            None => "skipped",
        };
        self.said(name, result, facts, begun);
    }

    /// Counts a fact that another process has found, and prints its line again.
    pub fn relay(&mut self, line: &str) -> Result<(), Failure> {
        let found: Value = serde_json::from_str(line).map_err(|error| format!("`{line}`: {error}"))?;
        for (result, count) in [("passed", &mut self.passed), ("failed", &mut self.failed), ("skipped", &mut self.skipped)] {
            *count += u64::from(found["result"] == result);
        }
        print(&found);
        Ok(())
    }

    fn said(&mut self, name: &str, result: &str, facts: &str, begun: Instant) {
        self.passed += u64::from(result == "passed");
        self.failed += u64::from(result == "failed");
        eprintln!("{result:8} {name}: {}", facts.replace('\n', " "));
        print(&json!({ "part": self.part, "fact": name, "result": result, "facts": facts, "ms": begun.elapsed().as_millis() as u64 }));
    }

    pub fn nowhere(self, error: &ringmem::Error) -> ExitCode {
        print(&json!({ "part": self.part, "result": "skipped", "reason": error.to_string() }));
        eprintln!("gpu_suite: no GPU here: {error}");
        ExitCode::from(3)
    }

    /// Returns 0 if everything was tested and holds, 1 if something does not hold, else 4.
    pub fn end(self) -> ExitCode {
        let Self { part, begun, driver, passed, failed, skipped, .. } = self;
        let (result, code) = match (failed, skipped) {
            (0, 0) => ("passed", 0),
            (0, _) => ("skipped", 4),
            _ => ("failed", 1),
        };
        print(&json!({
            "part": part, "result": result, "passed": passed, "failed": failed, "skipped": skipped, "driver": driver,
            "seconds": begun.elapsed().as_secs_f64(),
        }));
        eprintln!("gpu_suite: {part}: {passed} passed, {failed} failed, {skipped} skipped");
        ExitCode::from(code)
    }
}

fn words(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    format!("panicked: {}", text.unwrap_or("with no words"))
}
