//! The table that every bench prints, and the measuring under it.
//!
//! 1. All subjects of a workload take turns in one run; a row is the median of its turns, with the least and the greatest beside it.
//!    Messages a turn are so many that each subject's turns take equally long; on a machine that others load there are fewer turns.
//! 2. A row of two cores is classed by a compare-exchange ping-pong before and after each turn: `near` or `far`. A turn during
//!    which the class changed counts for neither.
//! 3. `ratio` is a row over the best competitor's in time: below 1 is ahead, within 1.15 either way is level.
//! 4. `limit` is what the machine itself takes, measured in turns of the same run.

mod instructions;
mod table;
mod threads;

use std::time::{Duration, Instant};

pub use instructions::count;
use table::Row;
pub use threads::{Gate, Job, job, pin, team, two_threads};

/// What the command line asks for.
pub struct Wanted {
    /// One object per row and line instead of a table.
    pub json: bool,
    /// Few short turns.
    pub quick: bool,
    /// This process is run by [`count`], which tells it what to do by number: all workloads are to be there, and none is to do anything of itself.
    pub counted: bool,
    /// Only workloads whose name contains one of these; all if there are none.
    pub names: Vec<String>,
}

impl Wanted {
    /// Reads `[--json] [--quick] [NAME]...`; what cargo adds itself is passed over.
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

    /// Whether a workload is wanted.
    #[must_use]
    pub fn wants(&self, workload: &str) -> bool {
        self.names.is_empty() || self.names.iter().any(|name| workload.contains(name.as_str()))
    }
}

/// One turn of about so many messages, in nanoseconds each.
pub type Turn = fn(messages: u64) -> f64;

/// Who is measured: a name that begins with `ringmem` if it is ours, with `twin` if it is ours with something left out, with `beside` if it is
/// another's but does not do what the aim is set against; and its turn.
pub type Subject = (&'static str, Turn);

/// One workload and all who take part.
pub struct Workload {
    /// As in the table.
    pub name: &'static str,
    /// Of the figures.
    pub unit: &'static str,
    /// Two cores, or one.
    pub two_cores: bool,
    /// The ratio that is aimed at, near and far.
    pub aim: [f64; 2],
    /// Nanoseconds that are aimed at besides.
    pub aim_ns: Option<f64>,
    /// Nanoseconds more than the best competitor takes that are aimed at, where what is measured is that one with something around it.
    pub aim_added_ns: Option<f64>,
    /// What the machine takes.
    pub limit: Option<Turn>,
    /// Whose time it is: `host`, or [`LINK_MODEL`].
    pub source: &'static str,
    /// The function in which [`count`] counts, by a part of its name; `None` for the whole process.
    pub within: Option<&'static str>,
    /// In the order of their turns.
    pub subjects: Vec<Subject>,
}

/// The [source](Workload::source) of figures in virtual time.
pub const LINK_MODEL: &str = "link-model";

impl Workload {
    /// A workload of two cores, in nanoseconds a message.
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

    /// A workload of one core, in nanoseconds a message.
    #[must_use]
    pub fn one(name: &'static str, aim: f64, subjects: Vec<Subject>) -> Self {
        Self { two_cores: false, ..Self::two(name, [aim; 2], subjects) }
    }
}

/// How long and how often.
struct Plan {
    turns: usize,
    /// After so long a workload ends with the turns that it has had, but not before the third.
    most: Duration,
}

const QUICK: Plan = Plan { turns: 11, most: Duration::from_millis(2800) };
const FULL: Plan = Plan { turns: 151, most: Duration::from_secs(25) };

/// A turn. Many short ones rather than few long ones: who loses its core loses one turn, and the median does not see it.
const TURN: Duration = Duration::from_micros(2500);

/// Measures the workloads that are wanted and prints their rows.
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

/// Prints the workloads that are wanted whose turns give what was counted, not timed: one turn of so many messages each.
pub fn run_once(bench: &str, wanted: &Wanted, messages: u64, workloads: &[Workload]) {
    for workload in workloads.iter().filter(|workload| wanted.wants(workload.name)) {
        let rows: Vec<_> = workload.subjects.iter().map(|(_, turn)| Row::of(vec![turn(messages)])).collect();
        table::print(bench, wanted.json, workload, 0, "", &rows);
    }
}

fn classes(workload: &Workload) -> &'static [&'static str] {
    if workload.two_cores { &["near", "far"] } else { &[""] }
}

/// By class: a row for each subject, then one for the limit if there is one; `None` for no samples.
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

/// So many messages that a turn takes about as long as it should.
fn messages_for(turn: Turn) -> u64 {
    let wanted = TURN.as_nanos() as f64;
    let mut messages = 1 << 10;
    loop {
        // The better of two, since one may have waited for its core.
        let took = turn(messages).min(turn(messages)) * messages as f64;
        if took >= wanted / 8.0 {
            return (messages as f64 * wanted / took).max(1.0) as u64;
        }
        messages *= 4;
    }
}
