//! The examples' figures add up.

use std::process::Command;

use crate::example;

fn printed(name: &str, arguments: &[&str]) -> String {
    let output = Command::new(example::program(name)).args(arguments).output().expect("it runs");
    let text = String::from_utf8(output.stdout).expect("text");
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    text
}

fn after(line: &str, word: &str) -> f64 {
    let mut words = line.split_whitespace().skip_while(|other| *other != word).skip(1);
    let number = words.next().and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("no number after `{word}` in `{line}`"));
    assert_eq!(words.next().map(|unit| unit.trim_end_matches(',')), Some("MiB"), "{line}");
    number
}

#[test]
fn a_kernel_answers_a_thousand_messages_and_is_dumped() {
    let text = printed("03_persistent_kernel", &[]);
    // The kernel may still count the last batch.
    assert!(text.contains("\noutput ring  0 of 1024, producer at 1000, consumer at 1000\n") && text.contains("\nso           "), "{text}");
    assert!(text.lines().last().is_some_and(|line| line.starts_with("1000 messages, ")), "{text}");
}

#[test]
fn an_own_kernel_runs_on_the_host_through_a_channel() {
    assert_eq!(printed("07_own_kernel", &[]), "100 orders filled for 12625.00\n");
}

#[test]
fn kernels_over_buffers_are_chained_without_copies_and_update_a_mirror() {
    let expected = [
        "process_data: 1000 roots, 0 of them wrong",
        "chain: 3 kernels, 0 copies between them; the last root is 44.279",
        "mirror: [200.0, 6.0, 9.0, 12.0] after 2 copies to the device and 2 back",
    ];
    assert_eq!(printed("10_grid_kernels", &[]).lines().collect::<Vec<_>>(), expected);
}

#[test]
fn a_thousand_hosts_need_relays_per_host_and_large_copies() {
    let text = printed("09_scale", &[]);
    let row = |start: &str| -> Vec<String> {
        let line = text.lines().find(|line| line.trim_start().starts_with(start)).unwrap_or_else(|| panic!("no `{start}` in {text}"));
        line.trim_start()[start.len()..].split_whitespace().map(str::to_owned).collect()
    };
    assert!(text.contains("a ring 384 bytes, of a channel 960 bytes; a ring with its slots 65920 bytes"), "{text}");
    // 8 * 8 * 999 and 999 pairs, with a ring on both hosts.
    assert_eq!(row("a ring per pair of GPUs"), ["127872", "49.1", "MB", "8429.3", "MB", "63936000"]);
    assert_eq!(row("a ring per pair of hosts"), ["1998", "0.8", "MB", "131.7", "MB", "999000"]);
    // 64 / (10000 + 6), 16384 / (10000 + 1366), 32768 / (10000 + 2731) bytes per ns.
    assert_eq!(row("64 "), ["0.006", "0.051", "12.5", "PCIe", "link"]);
    assert_eq!(row("16384 "), ["1.441", "11.532", "12.5", "PCIe", "link"]);
    assert_eq!(row("32768 "), ["2.574", "20.591", "12.5", "NIC"]);
}

#[test]
fn pools_print_used_available_and_total_memory() {
    let text = printed("04_pools", &[]);
    let shown: Vec<f64> = text
        .lines()
        .filter(|line| line.contains("total"))
        .map(|line| {
            let [used, available, total] = ["used", "available", "total"].map(|word| after(line, word));
            assert_eq!((used + available, total), (256.0, 256.0), "{line}");
            used
        })
        .collect();
    // Nothing; 40 MiB; 4 MiB for all batches; the same; nothing. Slabs are longer.
    let expected = if cfg!(target_os = "linux") { [0.0, 40.0, 44.0, 44.0, 0.0] } else { [0.0, 40.0, 72.0, 72.0, 0.0] };
    assert_eq!(shown, expected, "{text}");
    assert!(text.contains("a batch of 1 GiB becomes 102.4 MiB"), "{text}");
    assert!(text.contains(if cfg!(target_os = "linux") { "100 batches: 2 allocations" } else { "100 batches: 1 allocations" }), "{text}");
}

#[test]
fn a_stopped_stream_resumes_and_writes_the_whole_file() {
    let text = printed("05_stream_a_file", &[]);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "stopped: 1280 KiB are done, because it was cancelled", "{text}");
    assert_eq!(lines[1], "then 2816 KiB in 44 chunks, at most 3 under way", "{text}");
    assert_eq!(lines[2..], ["written: 4096 KiB, each byte 7 more"], "{text}");
}

struct Row {
    nodes: usize,
    columns: [usize; 2],
    mib: [f64; 2],
    is_refused: bool,
}

impl Row {
    fn of(line: &str) -> Option<Self> {
        let [nodes, bar, rest] = line.split('|').collect::<Vec<_>>()[..] else { return None };
        let words: Vec<&str> = rest.split_whitespace().collect();
        let number = |place: usize| words[place].parse().unwrap_or_else(|_| panic!("no number in `{line}`"));
        Some(Self {
            nodes: nodes.trim().parse().expect("a number of nodes"),
            columns: ['#', '.'].map(|mark| bar.matches(mark).count()),
            mib: [number(0), number(2)],
            is_refused: rest.ends_with("refused"),
        })
    }
}

fn simulate(most: usize, arguments: &[&str]) {
    let text = printed("06_simulation", arguments);
    let rows: Vec<Row> = text.lines().filter_map(Row::of).collect();
    let mut expected: Vec<(usize, bool)> = (0..).map(|growth| (1000 << growth, false)).take_while(|row| row.0 < most).collect();
    expected.extend([(most, false), (most, true), (2 * most, false), (2 * most, false)]);
    assert_eq!(rows.iter().map(|row| (row.nodes, row.is_refused)).collect::<Vec<_>>(), expected, "{text}");
    assert!(text.contains(&format!("after each of {} growths 13 checksums", expected.len() - 3)), "{text}");

    let words: Vec<&str> = text.lines().find_map(|line| line.strip_prefix("refused: ")).expect("a refusal").split_whitespace().collect();
    assert_eq!(words[0], (3 * most).to_string(), "{text}");

    let [.., before, trimmed] = &rows[..] else { panic!("{text}") };
    assert!(trimmed.mib[0] == before.mib[0] && trimmed.mib[1] <= before.mib[1], "{text}");
    if most >= 1_000_000 && cfg!(target_os = "linux") {
        assert!(trimmed.mib[0] > 0.95 * (trimmed.mib[0] + trimmed.mib[1]), "hardly more than the buffers stays reserved: {text}");
    }

    let limit = most as f64 * 105.0 * 3.6 / f64::from(1 << 20);
    for row in rows {
        let [live, kept] = row.mib;
        assert!(live + kept < limit + 0.1, "{text}");
        let (short, long) = ((live - 0.05) / limit * 60.0, (live + 0.05) / limit * 60.0);
        assert!((short.floor()..=long.ceil()).contains(&(row.columns[0] as f64)), "{} nodes: {text}", row.nodes);
        assert!(row.columns[0] + row.columns[1] <= 60, "{text}");
    }
    assert!(text.ends_with("freed: 13 buffers, 0 bytes live at the end\n"), "{text}");
}

#[test]
fn a_simulation_of_16000_nodes_survives_an_error() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("memory.json");
    simulate(16_000, &["--nodes", "16000", "--snapshot", file.to_str().expect("a path in UTF-8")]);
    let memory: serde_json::Value = serde_json::from_slice(&std::fs::read(file).expect("a snapshot")).expect("JSON");
    let names = |list: &serde_json::Value| -> Vec<String> {
        list.as_array().expect("a list").iter().map(|one| one["name"].as_str().unwrap_or_default().to_owned()).collect()
    };
    assert_eq!(names(&memory["pools"]), ["device", "staging"]);
    let buffers = names(&memory["managers"][0]["buffers"]);
    assert_eq!(buffers.len(), 13);
    let logged = names(&memory["traces"][0]["events"]);
    assert!(buffers.iter().all(|buffer| logged.contains(buffer)), "{buffers:?}, {logged:?}");
    let kinds = memory["traces"][0]["events"].as_array().expect("events").iter().filter(|event| event["kind"] == "refused");
    assert!(kinds.count() > 0, "the refusal is in the log");
}

#[test]
fn a_simulation_grows_to_a_million_nodes() {
    simulate(1_000_000, &[]);
}
