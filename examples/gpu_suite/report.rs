use std::any::Any;
use std::error::Error;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::time::Instant;

use ringmem::backend::cuda::Gpu;
use serde_json::{Value, json};

pub type Failure = Box<dyn Error>;

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

pub struct Report {
    part: &'static str,
    begun: Instant,
    driver: Value,
    passed: u64,
    failed: u64,
    skipped: u64,
}

impl Report {
    pub fn new(part: &'static str) -> Self {
        Self { part, begun: Instant::now(), driver: Value::Null, passed: 0, failed: 0, skipped: 0 }
    }

    pub fn about(&mut self, version: u32, gpus: &[Gpu]) {
        let names: Vec<&str> = gpus.iter().map(|gpu| gpu.name.as_str()).collect();
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
        let count = match result {
            "passed" => &mut self.passed,
            "skipped" => &mut self.skipped,
            _ => &mut self.failed,
        };
        *count += 1;
        eprintln!("{result:8} {name}: {}", facts.replace('\n', " "));
        println!(
            "{}",
            json!({ "part": self.part, "fact": name, "result": result, "facts": facts, "ms": begun.elapsed().as_millis() as u64 })
        );
        result == "passed"
    }

    pub fn nowhere(self, error: &ringmem::Error) -> ExitCode {
        println!("{}", json!({ "part": self.part, "result": "skipped", "reason": error.to_string() }));
        eprintln!("gpu_suite: no GPU here: {error}");
        ExitCode::from(3)
    }

    /// Returns 0 if everything was tested and holds, 1 if something does not hold, else 4.
    pub fn end(self) -> ExitCode {
        let Self { part, begun, driver, passed, failed, skipped } = self;
        let (result, code) = match (failed, skipped) {
            (0, 0) => ("passed", 0),
            (0, _) => ("skipped", 4),
            _ => ("failed", 1),
        };
        println!(
            "{}",
            json!({
                "part": part, "result": result, "passed": passed, "failed": failed, "skipped": skipped, "driver": driver,
                "seconds": begun.elapsed().as_secs_f64(),
            })
        );
        eprintln!("gpu_suite: {part}: {passed} passed, {failed} failed, {skipped} skipped");
        ExitCode::from(code)
    }
}

fn words(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    format!("panicked: {}", text.unwrap_or("with no words"))
}
