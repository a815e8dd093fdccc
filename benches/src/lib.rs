//! Measuring and reporting for all benches.
//!
//! 1. A workload's subjects run in turns of equal duration; a row is the median.
//! 2. A row of two cores is classed `near` or `far` before and after each turn. A turn during which the class changed is discarded.
//!
//! `docs/performance.md` explains the columns.

mod growth;
mod instructions;
mod table;
mod threads;

use std::time::{Duration, Instant};

pub use growth::{Growth, Line, MOST_COUNTED, Work, grow};
pub use instructions::count;
pub use ringmem_recordings::models::{BestFit, Extent};
use table::Row;
pub use table::print_row;
pub use threads::{Gate, Job, job, pin, team, two_threads};

/// Command-line options.
pub struct Wanted {
    /// Prints JSON objects instead of a table.
    pub json: bool,
    /// Few, short turns.
    pub quick: bool,
    /// Set in [`count`]'s process, which selects the turn by number: all workloads must be present.
    pub counted: bool,
    /// Parts of names of wanted workloads; all if empty.
    pub names: Vec<String>,
}

impl Wanted {
    /// Parses `[--json] [--quick] [NAME]...`; ignores cargo's arguments.
    #[must_use]
    pub fn from_args() -> Self {
        let mut wanted = Self { json: false, quick: false, counted: false, names: Vec::new() };
        for argument in std::env::args().skip(1) {
            match argument.as_str() {
                "--json" => wanted.json = true,
                "--quick" => wanted.quick = true,
                instructions::COUNTED => wanted.counted = true,
                other if other.starts_with("--") => {}
                name => wanted.names.push(name.to_owned()),
            }
        }
        wanted
    }

    /// Returns whether a workload is wanted.
    #[must_use]
    pub fn wants(&self, workload: &str) -> bool {
        self.names.is_empty() || self.names.iter().any(|name| workload.contains(name.as_str()))
    }
}

/// Runs about `messages` messages; returns nanoseconds per message.
pub type Turn = fn(messages: u64) -> f64;

/// A subject's name and turn. Our names begin with `ringmem`, ours without a part with `twin`, others outside the aim's comparison with `beside`.
pub type Subject = (&'static str, Turn);

/// A workload and its subjects.
pub struct Workload {
    /// The name in the table.
    pub name: &'static str,
    /// The unit of the figures.
    pub unit: &'static str,
    /// Runs on two cores.
    pub two_cores: bool,
    /// Target ratio, for near and far cores.
    pub aim: [f64; 2],
    /// Additional target in nanoseconds.
    pub aim_ns: Option<f64>,
    /// Target for wrappers: nanoseconds added to the competitor.
    pub aim_added_ns: Option<f64>,
    /// The machine's limit.
    pub limit: Option<Turn>,
    /// Source of the times: `host`, or [`LINK_MODEL`].
    pub source: &'static str,
    /// Part of the function's name in which [`count`] counts; `None` for the whole process.
    pub within: Option<&'static str>,
    /// Subjects, in order of turns.
    pub subjects: Vec<Subject>,
}

/// The [source](Workload::source) of figures in virtual time.
pub const LINK_MODEL: &str = "link-model";

impl Workload {
    /// Creates a workload of two cores, in nanoseconds per message.
    #[must_use]
    pub const fn two(name: &'static str, aim: [f64; 2], subjects: Vec<Subject>) -> Self {
        Self {
            name,
            unit: "ns/message",
            two_cores: true,
            aim,
            aim_ns: None,
            aim_added_ns: None,
            limit: None,
            source: "host",
            within: None,
            subjects,
        }
    }

    /// Creates a workload of one core, in nanoseconds per message.
    #[must_use]
    pub fn one(name: &'static str, aim: f64, subjects: Vec<Subject>) -> Self {
        Self { two_cores: false, ..Self::two(name, [aim; 2], subjects) }
    }
}

struct Plan {
    turns: usize,
    most: Duration,
}

const QUICK: Plan = Plan { turns: 11, most: Duration::from_millis(2800) };
const FULL: Plan = Plan { turns: 151, most: Duration::from_secs(25) };

const TURN: Duration = Duration::from_micros(2500);

/// Measures the wanted workloads and prints their rows.
pub fn run(bench: &str, wanted: &Wanted, workloads: &[Workload]) {
    let plan = if wanted.quick { QUICK } else { FULL };
    if !wanted.json {
        table::head();
    }
    for workload in workloads.iter().filter(|workload| wanted.wants(workload.name)) {
        let rows = measure(workload, &plan);
        for (class, name) in classes(workload).iter().enumerate() {
            table::print(bench, wanted.json, workload, class, name, &rows[class]);
        }
    }
}

/// Prints the wanted workloads whose turns return counts: one turn of `messages` messages each.
pub fn run_once(bench: &str, wanted: &Wanted, messages: u64, workloads: &[Workload]) {
    for workload in workloads.iter().filter(|workload| wanted.wants(workload.name)) {
        let rows: Vec<_> = workload.subjects.iter().map(|(_, turn)| Row::of(vec![turn(messages)])).collect();
        table::print(bench, wanted.json, workload, 0, "", &rows);
    }
}

fn classes(workload: &Workload) -> &'static [&'static str] {
    if workload.two_cores { &["near", "far"] } else { &[""] }
}

fn measure(workload: &Workload, plan: &Plan) -> Vec<Vec<Option<Row>>> {
    let begun = Instant::now();
    let turns: Vec<Turn> = workload.subjects.iter().map(|(_, turn)| *turn).chain(workload.limit).collect();
    let messages: Vec<u64> = turns.iter().map(|turn| messages_for(1 << 10, &mut |messages| turn(messages))).collect();
    let class = || if workload.two_cores { threads::class() } else { 0 };
    let mut samples = vec![vec![Vec::new(); turns.len()]; classes(workload).len()];
    let mut before = class();
    for round in 0..plan.turns {
        if round >= 3 && begun.elapsed() > plan.most {
            break;
        }
        for (index, turn) in turns.iter().enumerate() {
            let each = turn(messages[index]);
            let after = class();
            if before == after {
                samples[after][index].push(each);
            }
            before = after;
        }
    }
    samples.into_iter().map(|class| class.into_iter().map(Row::of).collect()).collect()
}

/// Returns the number of messages that fills a turn; tries `first` and more.
fn messages_for(first: u64, turn: &mut dyn FnMut(u64) -> f64) -> u64 {
    let wanted = TURN.as_nanos() as f64;
    let mut messages = first;
    loop {
        let took = turn(messages).min(turn(messages)) * messages as f64;
        if took >= wanted / 8.0 {
            return (messages as f64 * wanted / took).max(1.0) as u64;
        }
        messages *= 4;
    }
}

/// Uniform numbers, equal in each run.
pub struct Random(pub u64);

impl Random {
    /// Returns a number below `most`.
    pub fn below(&mut self, most: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 32) * most) >> 32
    }

    /// Returns a random element's index.
    pub fn index<T>(&mut self, of: &[T]) -> usize {
        self.below(of.len() as u64) as usize
    }
}
