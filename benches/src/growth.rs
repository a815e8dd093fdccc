//! Cost per operation at growing sizes: nanoseconds, and instructions where the work is deterministic.
//!
//! 1. All sizes of a line exist at once, and their turns alternate.
//! 2. Counts show the algorithm's growth, without cache misses.
//! 3. [`grow`] fails if a line's instructions grow faster than the logarithm of the size, unless [declared](Line::above_log).

use std::collections::HashMap;
use std::process::ExitCode;
use std::time::Duration;

use crate::instructions::{COUNTED, under_callgrind};
use crate::table::{self, Row};
use crate::{Wanted, messages_for, pin};

/// Performs about this many operations at one size; returns nanoseconds per operation.
pub type Work = Box<dyn FnMut(u64) -> f64>;

/// One operation at growing sizes.
pub struct Line {
    /// Its name.
    pub subject: &'static str,
    /// The sizes, ascending.
    pub sizes: Vec<u64>,
    /// Builds the state of a size.
    pub work: fn(size: u64) -> Work,
    /// Whether instructions are counted, in sizes of at most [`MOST_COUNTED`].
    pub is_counted: bool,
    /// Why the cost grows faster than the size's logarithm, if it does.
    pub reason: Option<&'static str>,
}

/// The lines of one quantity.
pub struct Growth {
    /// The quantity.
    pub name: &'static str,
    /// The lines.
    pub lines: Vec<Line>,
}

impl Line {
    /// Creates a line at sizes 1 to `10^last`.
    #[must_use]
    pub fn decades(subject: &'static str, last: u32, work: fn(u64) -> Work) -> Self {
        Self { subject, sizes: (0..=last).map(|power| 10_u64.pow(power)).collect(), work, is_counted: true, reason: None }
    }

    /// Creates a line at sizes 1, 2, 4 to `2^last`, without counts.
    #[must_use]
    pub fn doublings(subject: &'static str, last: u32, work: fn(u64) -> Work) -> Self {
        Self { subject, sizes: (0..=last).map(|power| 1 << power).collect(), work, is_counted: false, reason: None }
    }

    /// Declares why the cost grows faster than the size's logarithm.
    #[must_use]
    pub fn above_log(self, reason: &'static str) -> Self {
        Self { reason: Some(reason), ..self }
    }

    /// Omits counts, for work that uses threads or excludes some of its time.
    #[must_use]
    pub fn timed_only(self) -> Self {
        Self { is_counted: false, ..self }
    }
}

/// Larger states take too long under valgrind.
pub const MOST_COUNTED: u64 = 100_000;
const QUICK_COUNTED: [u64; 2] = [100, 10_000];
const OPERATIONS: u64 = 512;
/// Allowed factor above logarithmic growth.
const SLACK: f64 = 1.25;

const QUICK: (usize, Duration) = (7, Duration::from_millis(1500));
const FULL: (usize, Duration) = (41, Duration::from_secs(20));

/// Measures the wanted quantities and prints their rows. Fails if a line grows faster than declared.
pub fn grow(bench: &str, wanted: &Wanted, quantities: &[Growth]) -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [first, numbers @ ..] = arguments.as_slice()
        && first == COUNTED
    {
        let numbers: Vec<u64> = numbers.iter().map(|number| number.parse().expect("a number")).collect();
        let line = &quantities[numbers[0] as usize].lines[numbers[1] as usize];
        let mut work = (line.work)(numbers[2]);
        work(OPERATIONS);
        counted_operations(&mut work);
        return ExitCode::SUCCESS;
    }
    pin(0);
    let mut has_failed = false;
    for (number, quantity) in quantities.iter().enumerate().filter(|(_, quantity)| wanted.wants(quantity.name)) {
        for (place, line) in quantity.lines.iter().enumerate() {
            let times = timed(line, wanted.quick);
            print(bench, wanted.json, quantity.name, line, "ns", &times);
            let counts = if line.is_counted { counted([number, place], line, wanted.quick) } else { Vec::new() };
            print(bench, wanted.json, quantity.name, line, "instructions", &counts);
            if line.is_counted && counts.is_empty() {
                eprintln!("{} of {}: no counts without valgrind, so its growth is unknown", line.subject, quantity.name);
                has_failed |= std::env::var_os("CI").is_some();
            }
            if let Some(growth) = growth_above_log(&counts).filter(|_| line.reason.is_none()) {
                eprintln!("{} of {}: {growth}", line.subject, quantity.name);
                has_failed = true;
            }
        }
    }
    if has_failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

#[inline(never)]
fn counted_operations(work: &mut Work) {
    work(OPERATIONS);
}

fn timed(line: &Line, is_quick: bool) -> Vec<(u64, Row)> {
    let (turns, most) = if is_quick { QUICK } else { FULL };
    let mut states: Vec<(u64, Work, u64, Vec<f64>)> = line.sizes.iter().map(|&size| (size, (line.work)(size), 1, Vec::new())).collect();
    for (_, work, times, _) in &mut states {
        *times = messages_for(1, work);
    }
    let begun = std::time::Instant::now();
    for turn in 0..turns {
        if turn >= 3 && begun.elapsed() > most {
            break;
        }
        for (_, work, times, samples) in &mut states {
            samples.push(work(*times));
        }
    }
    states.into_iter().filter_map(|(size, _, _, samples)| Some((size, Row::of(samples)?))).collect()
}

fn counted(place: [usize; 2], line: &Line, is_quick: bool) -> Vec<(u64, Row)> {
    let wanted = |size: &&u64| **size <= MOST_COUNTED && (!is_quick || QUICK_COUNTED.contains(*size));
    let count = |size: u64| {
        let numbers = [place[0] as u64, place[1] as u64, size];
        let collected = under_callgrind(Some("growth*counted_operations"), &numbers.map(|number| number.to_string()));
        Some((size, Row::of(vec![collected? as f64 / OPERATIONS as f64])?))
    };
    let sizes: Vec<u64> = line.sizes.iter().filter(wanted).copied().collect();
    let mut rows: HashMap<u64, Row> = HashMap::new();
    for pair in sizes.chunks(2) {
        let counts = std::thread::scope(|scope| {
            let threads: Vec<_> = pair.iter().map(|&size| scope.spawn(move || count(size))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect::<Vec<_>>()
        });
        rows.extend(counts.into_iter().flatten());
    }
    sizes.into_iter().filter_map(|size| Some((size, *rows.get(&size)?))).collect()
}

fn growth_above_log(counts: &[(u64, Row)]) -> Option<String> {
    counts.windows(2).filter(|pair| pair[0].0 >= 10).find_map(|pair| {
        let [(few, low), (many, high)] = [pair[0], pair[1]];
        let [low, high] = [low.median(), high.median()];
        let allowed = SLACK * (many as f64).ln() / (few as f64).ln();
        (high > low * allowed).then(|| format!("{low:.0} instructions at {few}, {high:.0} at {many}: faster than the logarithm"))
    })
}

fn print(bench: &str, is_json: bool, quantity: &str, line: &Line, unit: &str, rows: &[(u64, Row)]) {
    let figures = rows.iter().map(|(size, row)| (size, row.figures()));
    if is_json {
        for (size, figures) in figures {
            let mut object = table::object(bench, quantity, line.subject, unit, "host", figures);
            (object["size"], object["reason"]) = ((*size).into(), line.reason.into());
            println!("{object}");
        }
    } else if !rows.is_empty() {
        println!("{quantity:10} {:32} {unit}", line.subject);
        figures.for_each(|(size, [median, low, high])| println!("{size:>43} {median:12.1} {low:12.1} {high:12.1}"));
    }
}
