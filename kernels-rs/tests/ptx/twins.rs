//! Kernels with one weakened instruction, which the machine or a conversation must notice.

use std::collections::{BTreeMap, BTreeSet};

use ringmem_kernels::IMAGE;
use ringmem_ptx_machine::Image;

use crate::conversations::{self as with, Heard, Run};
use crate::probes;

fn ptx() -> &'static str {
    std::str::from_utf8(IMAGE.ptx).expect("PTX is text")
}

fn text_of(kernel: &str) -> (usize, Vec<&'static str>) {
    let opening = format!(".visible .entry {kernel}(");
    let lines: Vec<&str> = ptx().lines().collect();
    let first = lines.iter().position(|line| *line == opening).expect("a kernel of that name");
    let length = lines[first..].iter().position(|line| *line == "}").expect("its end");
    (first, lines[first..=first + length].to_vec())
}

fn address(line: &str) -> Option<(&str, u64)> {
    let inside = line.split_once('[')?.1.split_once(']')?.0;
    let (register, offset) = inside.split_once('+').unwrap_or((inside, "0"));
    Some((register, offset.parse().ok()?))
}

/// The lines whose order matters to a peer.
fn sites(body: &[&str]) -> Vec<usize> {
    // Attaching loads the headers of the rings, and ends with the fence of the state `Ready`; the host wrote the words loaded before it before the launch.
    // Probes do not attach.
    let is_barrier = |line: &str| ["bar.warp.sync", "bar.sync"].iter().any(|name| line.contains(name));
    let is_of = |line: &str, access: &str, offset| line.contains(access) && address(line).is_some_and(|found| found.1 == offset);
    let attached = body.iter().rposition(|line| is_of(line, "ld.acquire.sys", 256));
    let is_ready = |lines: &[&str]| lines[0].contains("fence.") && is_of(lines[1], "st.relaxed.sys", 64);
    let begin = attached.and_then(|attached| Some(attached + body[attached..].windows(2).position(is_ready)?));
    let has = |register: &str, offset: u64| body.iter().any(|line| line.contains(".sys.") && address(line) == Some((register, offset)));
    let is_index = |at: usize| {
        let Some((register, offset)) = address(body[at]).filter(|_| body[at].contains(".sys.")) else { return false };
        let is_ring = !has(register, 64) && !has(register, 16);
        let is_command = offset == 16 && body[at].contains("ld.acquire");
        begin.is_none_or(|begin| at > begin && (is_ring || is_command))
    };
    // Groups look at their counters by relaxed loads in many places: `loom_groups` has the models of these words.
    let has_counters = body.iter().any(|line| line.contains("atom."));
    let matters = |at: &usize| {
        let is = |part: &str| body[*at].contains(part);
        let is_look = has_counters && is("ld.relaxed");
        is_barrier(body[*at]) || is("atom.") || is("red.release") || is_index(*at) && !is_look || is("fence.") && is_index(at + 1)
    };
    (0..body.len() - 1).filter(matters).collect()
}

fn weaker(line: &str) -> Vec<(&'static str, String)> {
    let replaced = |name, from: &str, to: &str| (name, line.replace(from, to));
    let is = |part: &str| line.contains(part);
    if is("bar.warp.sync") || is("bar.sync") {
        return vec![("removed", String::new())];
    }
    if is("fence.") {
        return vec![("removed", String::new()), replaced("gpu", ".sys", ".gpu")];
    }
    if is("red.release") || is("atom.") {
        let mut all = vec![replaced("cta", ".gpu", ".cta"), ("plain", plain(line))];
        if is(".release") {
            all.push(replaced("relaxed", ".release", ".relaxed"));
        }
        return all;
    }
    let order = ["acquire", "release", "relaxed"].into_iter().find(|order| is(order)).expect("an order");
    let mut all = vec![replaced("weak", &format!(".{order}.sys"), ""), replaced("gpu", ".sys", ".gpu")];
    if order != "relaxed" {
        all.push(replaced("relaxed", order, "relaxed"));
    }
    all
}

fn plain(line: &str) -> String {
    let (before, operands) = line.trim().trim_end_matches("; }").split_once("[place], ").expect("an update of `place`");
    match operands.split_once(", ") {
        None => format!("{{ .reg .b64 sum; ld.global.b64 sum, [place]; add.u64 sum, sum, {operands}; st.global.b64 [place], sum; }} }}"),
        Some((old, new)) => {
            let target = before.rsplit(' ').find(|word| !word.is_empty()).expect("a target");
            format!(
                "{{ .reg .pred same; ld.global.b64 {target} [place]; setp.eq.u64 same, {target} {old}; @same st.global.b64 [place], {new}; }} }}"
            )
        }
    }
}

/// Weakenings that are not found: kernels, lines (an operation, and which of its occurrences), and forms.
type Unseen = (&'static [&'static str], &'static [Lines], &'static [&'static str]);

/// An operation, and which of its occurrences.
type Lines = (&'static str, &'static [usize]);

const SERVERS: &[&str] =
    &["burst", "echo", "echo_block", "echo_flagged", "echo_paired", "echo_grouped", "histogram", "reduce", "transform"];

const HEAD: &str = "ld.acquire.sys.b64 [128]";
const COMMAND: &str = "ld.acquire.sys.b64 [16]";
const TURN: &str = "ld.acquire.sys.b64 [0]";

const UNSEEN: &[Unseen] = &[
    // Strong stores, which the machine keeps behind the loads before them.
    (&["echo_paired"], &[(HEAD, &[1])], &["relaxed"]),
    // No data belong to the command.
    (SERVERS, &[(COMMAND, &[1])], &["relaxed"]),
    // On attaching; lanes write nothing before it.
    (SERVERS, &[("bar.warp.sync", &[1])], &["removed"]),
    // The first orders loads of `Groups::first` after another group's stores: both are strong, and strong loads of the machine find the newest value.
    (&["echo_grouped"], &[("bar.warp.sync", &[2, 3])], &["removed"]),
    // Never reached: refusals.
    (&["echo", "burst", "transform", "echo_paired"], &[("bar.warp.sync", &[4])], &["removed"]),
    (&["echo_flagged"], &[("bar.warp.sync", &[5])], &["removed"]),
    (&["echo_grouped"], &[("bar.warp.sync", &[6])], &["removed"]),
    (&["histogram", "reduce"], &[("bar.warp.sync", &[6])], &["removed"]),
    (&["echo_block"], &[("bar.sync", &[8, 9])], &["removed"]),
    // The broadcast before it is a barrier of the block.
    (&["echo_block"], &[("bar.sync", &[6])], &["removed"]),
    // Only lane 0 writes answers, after the handler's own barriers.
    (&["histogram", "reduce"], &[("bar.warp.sync", &[5])], &["removed"]),
    // Lane 0 alone accesses slots.
    (&["burst"], &[("bar.warp.sync", &[2, 3])], &["removed"]),
    // Flags of the output ring are read and cleared before `Ready`; none was raised.
    (&["echo_flagged"], &[("ld.relaxed.sys.b64 [0]", &[1, 2, 3, 4]), ("st.relaxed.sys.b64 [0] 0", &[1, 2, 3, 4])], &["weak", "gpu"]),
    // The first is between the poll of the output's head and the stores behind it, as HEAD. Nothing depends on the second: each word has its own
    // flag.
    (&["echo_paired"], &[("bar.warp.sync", &[2, 3])], &["removed"]),
    // Never reached: a group that fails to attach, the end of an epoch, a panic, refusals, and a group other than 0 that leaves by a command.
    (&["echo_grouped"], &[("atom.relaxed.gpu.global.cas.b64 [0]", &[1, 3, 7])], &["cta", "plain"]),
    (&["echo_grouped"], &[("red.release.gpu.global.add.u64 [0]", &[3, 4])], &["cta", "plain", "relaxed"]),
    // Only groups of one device access the counters. The publication's fence follows the wait for the turn.
    (&["echo_grouped"], &[(TURN, &[2, 3])], &["gpu", "relaxed"]),
    // The machine keeps the order of stores to one word.
    (&["echo_grouped"], &[("red.release.gpu.global.add.u64 [0]", &[2, 5])], &["relaxed"]),
    // No data belong to the word.
    (&["ping_pong"], &[("fence.acq_rel.sys", &[1])], &["removed", "gpu"]),
    (&["ping_pong"], &[("ld.acquire.sys.b64 [8]", &[1]), ("st.release.sys.b64 [136]", &[1])], &["relaxed"]),
    // Between stores of one word.
    (&["publish"], &[("fence.acq_rel.sys", &[1, 2, 3, 4, 5])], &["removed", "gpu"]),
    (&["publish"], &[("st.release.sys.b64 [136]", &[1, 2, 3, 4, 5])], &["relaxed"]),
];

/// Not tried, since only some runs reach them: a group that comes after the end, the last look of a late group, and the waits before a pause or an end, which
/// are for the host, whom the machine does not observe. `loom_groups` has the models of these.
const UNTRIED: &[(&str, &[Lines])] =
    &[("echo_grouped", &[("red.release.gpu.global.add.u64 [0]", &[1]), (TURN, &[4, 5, 6, 7, 8, 9, 10, 11, 12, 13])])];

const SEEDS: u64 = 64;
const PASSES: u64 = 2;

fn name(line: &str) -> String {
    let words: Vec<&str> = line.trim().trim_end_matches(';').split_whitespace().collect();
    let constant = words.last().filter(|last| line.contains("st.") && last.parse::<u64>().is_ok());
    let offset = address(line).map_or(String::new(), |(_, offset)| format!(" [{offset}]"));
    format!("{}{offset}{}", words[0], constant.map_or(String::new(), |constant| format!(" {constant}")))
}

fn assert_found(kernel: &'static str, twins: usize, converse: fn(&Run<'_>) -> Heard) {
    let image = Image::parse(ptx()).unwrap_or_else(|fault| panic!("{fault}"));
    for seed in 0..PASSES {
        assert_eq!(converse(&Run { image: &image, kernel, seed }), Ok(()), "{kernel} itself, seed {seed}");
    }
    let rows = UNSEEN.iter().filter(|row| row.0.contains(&kernel));
    let unseen: BTreeSet<String> = rows
        .flat_map(|(_, sites, forms)| sites.iter().flat_map(move |(site, times)| times.iter().map(move |time| (site, time, forms))))
        .flat_map(|(site, time, forms)| forms.iter().map(move |form| format!("{site} #{time} {form}")))
        .collect();
    let (first, body) = text_of(kernel);
    let (mut times, mut missed, mut count) = (BTreeMap::new(), BTreeSet::new(), 0);
    for at in sites(&body) {
        let site = name(body[at]);
        let time = times.entry(site.clone()).and_modify(|time| *time += 1).or_insert(1);
        let untried = UNTRIED.iter().filter(|row| row.0 == kernel).flat_map(|row| row.1);
        if untried.into_iter().any(|(untried, times)| *untried == site && times.contains(time)) {
            continue;
        }
        for (form, text) in weaker(body[at]) {
            count += 1;
            let twin = format!("{site} #{time} {form}");
            let lines: Vec<&str> = ptx().lines().enumerate().map(|(n, line)| if n == first + at { &text } else { line }).collect();
            let image = Image::parse(&lines.join("\n")).unwrap_or_else(|fault| panic!("{twin}: {fault}"));
            let seeds = if unseen.contains(&twin) { PASSES } else { SEEDS };
            if (0..seeds).all(|seed| converse(&Run { image: &image, kernel, seed }).is_ok()) {
                missed.insert(twin);
            }
        }
    }
    assert_eq!(missed, unseen, "{kernel}: missed, and known to be missed");
    assert_eq!(count, twins, "{kernel}: the rules find other lines");
}

#[test]
fn weakened_accesses_of_echo_are_detected() {
    assert_found("echo", 21, with::echo);
}

#[test]
fn weakened_accesses_of_echo_over_split_rings_are_detected() {
    assert_found("echo", 21, with::split_rings);
}

#[test]
fn weakened_accesses_of_echo_flagged_are_detected() {
    assert_found("echo_flagged", 40, with::echo_flagged);
}

#[test]
fn weakened_accesses_of_echo_block_are_detected() {
    assert_found("echo_block", 28, with::echo_block);
}

#[test]
fn weakened_accesses_of_echo_paired_are_detected() {
    assert_found("echo_paired", 18, with::echo_paired);
}

#[test]
fn weakened_accesses_of_echo_grouped_are_detected() {
    assert_found("echo_grouped", 53, with::echo_grouped);
}

#[test]
fn weakened_accesses_of_burst_are_detected() {
    assert_found("burst", 21, with::burst);
}

#[test]
fn weakened_accesses_of_histogram_are_detected() {
    assert_found("histogram", 23, with::histogram);
}

#[test]
fn weakened_accesses_of_reduce_are_detected() {
    assert_found("reduce", 23, with::reduce);
}

#[test]
fn weakened_accesses_of_transform_are_detected() {
    assert_found("transform", 21, with::transform);
}

#[test]
fn weakened_accesses_of_the_probes_are_detected() {
    assert_found("ping_pong", 16, probes::ping_pong);
    assert_found("publish", 59, probes::publish);
}

/// Stores behind a fence: a name, the offset of the store from a register, and the offset of another store from the same register. They are two words
/// of the control block, and a record's first field and its sequence number.
const PUBLISHED: [(&str, u64, u64); 4] = [("state", 64, 72), ("acknowledgement", 72, 64), ("fields", 8, 0), ("sequence", 0, 8)];

#[test]
fn lost_fences_before_states_and_records_are_detected() {
    let (first, body) = text_of("echo");
    let is_store = |at: usize, offset: u64, other: u64| {
        let stores = |line: &str, offset| line.contains("st.relaxed.sys") && address(line).is_some_and(|found| found.1 == offset);
        let Some((register, _)) = address(body[at]).filter(|_| stores(body[at], offset)) else { return false };
        body.iter().any(|line| stores(line, other) && address(line) == Some((register, other)))
    };
    let image = Image::parse(ptx()).unwrap_or_else(|fault| panic!("{fault}"));
    for seed in 0..PASSES {
        assert_eq!(with::life(&Run { image: &image, kernel: "echo", seed }), Ok(()), "echo itself, seed {seed}");
    }
    let mut missed = Vec::new();
    for (word, offset, other) in PUBLISHED {
        let fences: Vec<usize> = (0..body.len() - 1).filter(|at| body[*at].contains("fence.") && is_store(at + 1, offset, other)).collect();
        assert!(!fences.is_empty(), "{word}: the rule finds no line");
        for (form, fence) in [("removed", ""), ("gpu", "fence.acq_rel.gpu;")] {
            let text = |(n, line)| if n >= first && fences.contains(&(n - first)) { fence } else { line };
            let lines: Vec<&str> = ptx().lines().enumerate().map(text).collect();
            let image = Image::parse(&lines.join("\n")).unwrap_or_else(|fault| panic!("{word}: {fault}"));
            if (0..SEEDS).all(|seed| with::life(&Run { image: &image, kernel: "echo", seed }).is_ok()) {
                missed.push((word, form));
            }
        }
    }
    assert_eq!(missed, []);
}

/// A `Block` has two sets of words, which its meetings use in turn: with one, a fast warp overwrites what a slow one still reads.
#[test]
fn one_set_of_words_for_all_meetings_is_detected() {
    let (first, body) = text_of("echo_block");
    let turns = |line: &str| line.contains("and.b32") && line.ends_with(", 512;");
    assert!(body.iter().filter(|line| turns(line)).count() >= 5, "the rule finds the sets");
    let one = |(n, line): (usize, &str)| match n.checked_sub(first) {
        Some(at) if at < body.len() && turns(line) => line.replace(", 512;", ", 0;"),
        _ => line.to_owned(),
    };
    let lines: Vec<String> = ptx().lines().enumerate().map(one).collect();
    let image = Image::parse(&lines.join("\n")).unwrap_or_else(|fault| panic!("{fault}"));
    assert!((0..SEEDS).any(|seed| with::echo_block(&Run { image: &image, kernel: "echo_block", seed }).is_err()));
}
