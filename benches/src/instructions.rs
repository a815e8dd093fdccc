//! Instructions per message, counted by callgrind: two runs of a subject differ in messages, so start-up cancels.

use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crate::table::{self, Row};
use crate::{Turn, Wanted, Workload};

const MESSAGES: [u64; 2] = [2048, 20 * 1024];

pub(crate) const COUNTED: &str = "--counted";

/// Makes glibc choose x86-64 baseline copies: otherwise counts depend on the processor.
const SAME_COPIES: &str = "glibc.cpu.hwcaps=-AVX512F,-AVX512VL,-AVX2,-AVX_Fast_Unaligned_Load,-SSSE3,-SSE4_1,-ERMS";

/// Counts the wanted workloads and prints their rows; in the counted process, does the work.
pub fn count(bench: &str, wanted: &Wanted, workloads: &[Workload]) {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [first, workload, subject, messages] = arguments.as_slice()
        && first == COUNTED
    {
        let numbers = [workload, subject, messages].map(|number| number.parse::<usize>().expect("a number"));
        turns(&workloads[numbers[0]])[numbers[1]](numbers[2] as u64);
        return;
    }
    if let Err(error) = Command::new("valgrind").arg("--version").stdout(Stdio::null()).status() {
        eprintln!("no instructions counted: valgrind: {error}");
        return;
    }
    if !wanted.json {
        table::head();
    }
    for (number, workload) in workloads.iter().enumerate().filter(|(_, workload)| wanted.wants(workload.name)) {
        table::print(bench, wanted.json, workload, 0, "", &rows(number, workload));
    }
}

fn turns(workload: &Workload) -> Vec<Turn> {
    workload.subjects.iter().map(|(_, turn)| *turn).chain(workload.limit).collect()
}

fn rows(number: usize, workload: &Workload) -> Vec<Option<Row>> {
    let turns = turns(workload).len();
    let next = AtomicUsize::new(0);
    let one_by_one = || -> Vec<(usize, f64)> {
        std::iter::from_fn(|| Some(next.fetch_add(1, Relaxed)).filter(|turn| *turn < turns))
            .map(|turn| {
                let [few, many] =
                    [MESSAGES[0], MESSAGES[0] + MESSAGES[1]].map(|messages| instructions(number, workload.within, turn, messages));
                (turn, (many as f64 - few as f64) / MESSAGES[1] as f64)
            })
            .collect()
    };
    let mut rows = vec![None; turns];
    std::thread::scope(|scope| {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let threads: Vec<_> = (0..cores).map(|_| scope.spawn(one_by_one)).collect();
        for thread in threads {
            for (turn, each) in thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)) {
                rows[turn] = Row::of(vec![each]);
            }
        }
    });
    rows
}

fn instructions(workload: usize, within: Option<&str>, turn: usize, messages: u64) -> u64 {
    let arguments = [workload.to_string(), turn.to_string(), messages.to_string()];
    under_callgrind(within, &arguments).expect("valgrind was there a moment ago")
}

/// `None` without valgrind.
pub(crate) fn under_callgrind(within: Option<&str>, arguments: &[String]) -> Option<u64> {
    let myself = std::env::current_exe().expect("a program has a path");
    let output = Command::new("valgrind")
        .env("GLIBC_TUNABLES", SAME_COPIES)
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .args(within.map(|function| format!("--toggle-collect=*{function}*")))
        .arg(myself)
        .arg(COUNTED)
        .args(arguments)
        .output()
        .ok()?;
    let said = String::from_utf8_lossy(&output.stderr);
    let collected = said.lines().find_map(|line| line.split_once("Collected :")?.1.trim().parse().ok());
    match collected {
        Some(count) if output.status.success() => Some(count),
        _ => panic!("{arguments:?} under callgrind: {}\n{said}", output.status),
    }
}
