//! The table that every bench prints, and the measuring under it.
//!
//! 1. All subjects of a workload take turns in one run; a row is the median of its turns, with the least and the greatest beside it.
//! 2. A row of two cores is classed by a compare-exchange ping-pong before and after each turn: `near` or `far`. A turn during
//!    which the class changed counts for neither.
//! 3. `ratio` is ours over the best competitor's in time: below 1 is ahead, within 1.15 either way is level.

use std::sync::atomic::{AtomicU64, Ordering::AcqRel, Ordering::Acquire};
use std::time::Instant;

use serde_json::json;

/// What the command line asks for.
pub struct Wanted {
    /// One object per row and line instead of a table.
    pub json: bool,
    /// Few short turns.
    pub quick: bool,
    /// Only workloads whose name contains one of these; all if there are none.
    pub names: Vec<String>,
}

impl Wanted {
    /// Reads `[--json] [--quick] [NAME]...`; what cargo adds itself is passed over.
    #[must_use]
    pub fn from_args() -> Self {
        let mut wanted = Self { json: false, quick: false, names: Vec::new() };
        for argument in std::env::args().skip(1) {
            match argument.as_str() {
                "--json" => wanted.json = true,
                "--quick" => wanted.quick = true,
                other if other.starts_with("--") => {}
                name => wanted.names.push(name.to_owned()),
            }
        }
        wanted
    }

    fn wants(&self, workload: &str) -> bool {
        self.names.is_empty() || self.names.iter().any(|name| workload.contains(name.as_str()))
    }
}

/// Who is measured: a name that begins with `ringmem` if it is ours, and one turn of `messages` messages, in nanoseconds each.
pub type Subject = (&'static str, fn(messages: u64) -> f64);

/// One workload and all who take part.
pub struct Workload {
    /// As in the table.
    pub name: &'static str,
    /// Two threads on two cores, or one.
    pub two_cores: bool,
    /// Messages a turn.
    pub messages: u64,
    /// The ratio that is aimed at.
    pub aim: f64,
    /// In the order of their turns.
    pub subjects: &'static [Subject],
}

const CLASSES: [&str; 2] = ["near", "far"];

/// Measures the workloads that are wanted and prints their rows.
pub fn run(bench: &str, wanted: &Wanted, workloads: &[Workload]) {
    if !wanted.json {
        println!("{:16} {:24} {:>6} {:>9} {:>9} {:>9} {:>7}", "workload", "subject", "class", "median ns", "low", "high", "ratio");
    }
    for workload in workloads.iter().filter(|workload| wanted.wants(workload.name)) {
        let (turns, messages) = if wanted.quick { (5, workload.messages / 10) } else { (21, workload.messages) };
        let classes = if workload.two_cores { &CLASSES[..] } else { &[""] };
        let mut samples = vec![vec![Vec::new(); classes.len()]; workload.subjects.len()];
        for _ in 0..turns {
            for (subject, (_, turn)) in workload.subjects.iter().enumerate() {
                let before = if workload.two_cores { class() } else { 0 };
                let each = turn(messages);
                let after = if workload.two_cores { class() } else { 0 };
                if before == after {
                    samples[subject][before].push(each);
                }
            }
        }
        for (class, class_name) in classes.iter().enumerate() {
            let rows: Vec<Option<[f64; 3]>> = samples.iter_mut().map(|by_class| row(&mut by_class[class])).collect();
            let ours = |index: &usize| workload.subjects[*index].0.starts_with("ringmem");
            let best = (0..rows.len()).filter(|index| !ours(index)).filter_map(|index| rows[index]).map(|row| row[0]).reduce(f64::min);
            for (index, (subject, _)) in workload.subjects.iter().enumerate() {
                let ratio = rows[index].zip(best).map(|(row, best)| row[0] / best);
                print(bench, wanted, workload, subject, class_name, rows[index], ratio);
            }
        }
    }
}

/// Median, least and greatest; `None` for no samples.
fn row(samples: &mut [f64]) -> Option<[f64; 3]> {
    samples.sort_by(f64::total_cmp);
    Some([*samples.get(samples.len() / 2)?, *samples.first()?, *samples.last()?])
}

fn print(bench: &str, wanted: &Wanted, workload: &Workload, subject: &str, class: &str, row: Option<[f64; 3]>, ratio: Option<f64>) {
    let [median, low, high] = [0, 1, 2].map(|part| row.map(|row| row[part]));
    if wanted.json {
        let object = json!({
            "bench": bench, "workload": workload.name, "subject": subject, "unit": "ns/message", "median": median, "low": low,
            "high": high, "ratio": ratio, "aim": workload.aim, "limit": null, "source": "host", "class": class,
        });
        println!("{object}");
    } else if let (Some(median), Some(low), Some(high)) = (median, low, high) {
        let ratio = ratio.map_or(String::new(), |ratio| format!("{ratio:.2}"));
        println!("{:16} {subject:24} {class:>6} {median:9.2} {low:9.2} {high:9.2} {ratio:>7}", workload.name);
    } else {
        println!("{:16} {subject:24} {class:>6} not observed", workload.name);
    }
}

/// Pins the calling thread to a core; without effect where that is not allowed.
pub fn pin(core: usize) {
    let mut cores = rustix::thread::CpuSet::new();
    cores.set(core);
    let _ = rustix::thread::sched_setaffinity(None, &cores);
}

/// 0 for near, 1 for far: between cores that share a cache a compare-exchange goes there and back in some 60 ns, else in some 260.
fn class() -> usize {
    const ROUNDS: u64 = 20_000;
    static TURN: AtomicU64 = AtomicU64::new(0);
    TURN.store(0, std::sync::atomic::Ordering::Release);
    let swing = |mine: u64, rounds: u64| {
        for _ in 0..rounds {
            // Only the one whose turn it is tries, or each failure would take the line from the other.
            while TURN.load(Acquire) != mine || TURN.compare_exchange(mine, 1 - mine, AcqRel, Acquire).is_err() {
                std::hint::spin_loop();
            }
        }
    };
    let warm = ROUNDS / 10;
    let took = std::thread::scope(|scope| {
        scope.spawn(|| {
            pin(1);
            swing(1, warm + ROUNDS);
        });
        pin(0);
        // Until the other has come to its core.
        swing(0, warm);
        let begun = Instant::now();
        swing(0, ROUNDS);
        begun.elapsed()
    });
    usize::from(took.as_nanos() > u128::from(ROUNDS) * 150)
}

/// One turn of two threads: `send` on core 0, `receive` on core 1, from the moment both are there until the receiver is done.
pub fn two_threads(messages: u64, send: impl FnOnce() + Send, receive: impl FnOnce() + Send) -> f64 {
    let start = std::sync::Barrier::new(2);
    std::thread::scope(|scope| {
        let receiver = scope.spawn(|| {
            pin(1);
            start.wait();
            let begun = Instant::now();
            receive();
            begun.elapsed()
        });
        pin(0);
        start.wait();
        send();
        match receiver.join() {
            Ok(elapsed) => elapsed.as_nanos() as f64 / messages as f64,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}
