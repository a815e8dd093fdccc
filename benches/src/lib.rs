//! Measuring and reporting for all benches.
//!
//! 1. The subjects of a workload run in turns, in one process. A row is the median of its turns, with minimum and maximum. The number of
//!    messages per turn is chosen so that turns take equally long. On a loaded machine there are fewer turns.
//! 2. A row of two cores is classed `near` or `far` by a compare-exchange ping-pong before and after each turn. A turn during which the
//!    class changed is discarded.
//! 3. `ratio` is the row's time over the best competitor's: below 1 is faster, within 1.15 either way is level.
//! 4. `limit` is the cost on this machine without the measured code, measured in turns of the same run.

mod instructions;
mod table;
mod threads;

use std::time::{Duration, Instant};

pub use instructions::count;
use table::Row;
pub use threads::{Gate, Job, job, pin, team, two_threads};

/// The options of the command line.
pub struct Wanted {
    /// Print one JSON object per row and line instead of a table.
    pub json: bool,
    /// Run few, short turns.
    pub quick: bool,
    /// This process was started by [`count`], which selects the turn by number: all workloads must be present, and none may run by itself.
    pub counted: bool,
    /// Run only workloads whose name contains one of these; all if empty.
    pub names: Vec<String>,
}

impl Wanted {
    /// Parses `[--json] [--quick] [NAME]...`; ignores the arguments that cargo adds.
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

/// A turn of about `messages` messages; returns nanoseconds per message.
pub type Turn = fn(messages: u64) -> f64;

/// The name of a subject and its turn. Names of ours begin with `ringmem`, those of ours with a part omitted with `twin`, and those of
/// others outside the comparison of the aim with `beside`.
pub type Subject = (&'static str, Turn);

/// A workload and its subjects.
pub struct Workload {
    /// The name in the table.
    pub name: &'static str,
    /// The unit of the figures.
    pub unit: &'static str,
    /// Whether it runs on two cores.
    pub two_cores: bool,
    /// The target ratio, for near and far cores.
    pub aim: [f64; 2],
    /// An additional target in nanoseconds.
    pub aim_ns: Option<f64>,
    /// Target for wrappers: added nanoseconds over the best competitor, where the subject is that competitor with a layer around it.
    pub aim_added_ns: Option<f64>,
    /// The limit of the machine.
    pub limit: Option<Turn>,
    /// The source of the times: `host`, or [`LINK_MODEL`].
    pub source: &'static str,
    /// The function in which [`count`] counts, by a part of its name; `None` for the whole process.
    pub within: Option<&'static str>,
    /// The subjects, in the order of their turns.
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

/// The number and duration of turns.
struct Plan {
    turns: usize,
    /// After this time a workload ends early, but with at least three turns.
    most: Duration,
}

const QUICK: Plan = Plan { turns: 11, most: Duration::from_millis(2800) };
const FULL: Plan = Plan { turns: 151, most: Duration::from_secs(25) };

/// Duration of a turn. Many short turns rather than few long ones: a preempted subject loses one turn, and the median ignores it.
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

/// Prints the wanted workloads whose turns return counts instead of times: one turn of `messages` messages each.
pub fn run_once(bench: &str, wanted: &Wanted, messages: u64, workloads: &[Workload]) {
    for workload in workloads.iter().filter(|workload| wanted.wants(workload.name)) {
        let rows: Vec<_> = workload.subjects.iter().map(|(_, turn)| Row::of(vec![turn(messages)])).collect();
        table::print(bench, wanted.json, workload, 0, "", &rows);
    }
}

fn classes(workload: &Workload) -> &'static [&'static str] {
    if workload.two_cores { &["near", "far"] } else { &[""] }
}

/// Returns per class a row for each subject, then one for the limit if there is one; `None` without samples.
fn measure(workload: &Workload, plan: &Plan) -> Vec<Vec<Option<Row>>> {
    let begun = Instant::now();
    let turns: Vec<Turn> = workload.subjects.iter().map(|(_, turn)| *turn).chain(workload.limit).collect();
    let messages: Vec<u64> = turns.iter().map(|turn| messages_for(*turn)).collect();
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

/// Returns the number of messages for a turn of the desired duration.
fn messages_for(turn: Turn) -> u64 {
    let wanted = TURN.as_nanos() as f64;
    let mut messages = 1 << 10;
    loop {
        // The better of two, because one may have waited for its core.
        let took = turn(messages).min(turn(messages)) * messages as f64;
        if took >= wanted / 8.0 {
            return (messages as f64 * wanted / took).max(1.0) as u64;
        }
        messages *= 4;
    }
}
