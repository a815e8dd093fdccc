use ringmem_kernels::IMAGE;
use serde_json::Value;

use crate::bytes::{Counted, count, file, noise, text};
use crate::program::{Ran, call, execute};

#[track_caller]
fn check(bytes: &[u8], arguments: &[&str]) -> Value {
    let file = file(bytes);
    let ran = call(&IMAGE, ["stream", text(file.path()), "--json"].iter().chain(arguments));
    compare(&ran, &count(bytes))
}

#[track_caller]
fn compare(ran: &Ran, counted: &Counted) -> Value {
    let object = ran.json();
    let histogram: Vec<u64> = serde_json::from_value(object["histogram"].clone()).expect("numbers");
    assert_eq!(histogram.len(), 256);
    assert_eq!(histogram, counted.histogram);
    assert_eq!(object["bytes"], counted.total());
    assert_eq!(object["checksum"], format!("{:016x}", counted.checksum));
    let entropy = object["entropy_bits"].as_f64().expect("a number");
    assert!((entropy - counted.entropy()).abs() < 1e-9, "{entropy} bits, not {}", counted.entropy());
    assert_eq!(object["verified"], true);
    object
}

const CHUNK: usize = 8192;

#[test]
fn files_of_boundary_lengths_are_counted() {
    for length in [0, 1, 7, 8, 9, 4095, 4096, 4097, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK, 3 * CHUNK + 5, 100_003] {
        let object = check(&noise(length), &["--chunk-size", "8KiB"]);
        assert_eq!(object["chunks"], length.div_ceil(CHUNK), "{length} bytes");
        assert_eq!(object["telemetry"]["processed"], object["chunks"]);
        assert_eq!(object["round_trip_ns"].is_null(), length == 0);
    }
}

#[test]
fn a_file_larger_than_the_device_memory_is_counted() {
    check(&noise(5_000_011), &["--device-memory", "1MiB"]);
    let object = check(&noise(300_007), &["--device-memory", "44KiB"]);
    assert_eq!(object["chunks"], 300_007_u64.div_ceil(4096), "chunks shrink to what fits twice");
}

#[test]
fn chunk_staging_and_ring_sizes_do_not_change_the_answer() {
    let bytes = noise(1_000_003);
    let (file, counted) = (file(&bytes), count(&bytes));
    for chunk in ["1", "4096", "5000", "64KiB", "1MB", "1GiB"] {
        for staging in ["1", "2", "7"] {
            for ring in ["1", "2", "1024"] {
                let arguments = [
                    "stream",
                    text(file.path()),
                    "--json",
                    "--chunk-size",
                    chunk,
                    "--staging",
                    staging,
                    "--ring-capacity",
                    ring,
                    "--backend",
                    "host",
                ];
                let object = compare(&call(&IMAGE, arguments), &counted);
                let capacity: u64 = ring.parse().expect("a number");
                for side in ["input", "output"] {
                    assert_eq!(object["ring"][side]["capacity"], capacity);
                    assert!(object["ring"][side]["high_water"].as_u64().is_some_and(|most| most <= capacity), "{object}");
                }
            }
        }
    }
}

#[test]
fn extreme_contents_are_counted() {
    let zeros = check(&vec![0; 1_000_000], &["--chunk-size", "64KiB"]);
    assert_eq!((zeros["histogram"][0].as_u64(), zeros["entropy_bits"].as_f64()), (Some(1_000_000), Some(0.0)));
    check(&vec![255; 70_001], &["--chunk-size", "4KiB"]);
    let each: Vec<u8> = (0..=255).collect();
    let each = check(&each, &[]);
    assert_eq!(each["histogram"], Value::from(vec![1_u64; 256]));
    assert_eq!(each["entropy_bits"], 8.0);
}

#[test]
fn swapped_words_change_the_checksum() {
    let mut bytes = noise(64);
    let before = check(&bytes, &[]);
    bytes.rotate_left(8);
    let after = check(&bytes, &[]);
    assert_eq!(before["histogram"], after["histogram"]);
    assert_ne!(before["checksum"], after["checksum"]);
}

fn names(object: &Value) -> Vec<&str> {
    let mut names: Vec<&str> = object.as_object().expect("an object").keys().map(String::as_str).collect();
    names.sort_unstable();
    names
}

#[test]
fn the_json_object_has_exactly_the_documented_fields() {
    let object = check(&noise(100_000), &["--chunk-size", "4KiB", "--backend", "host"]);
    assert_eq!(
        names(&object),
        [
            "backend",
            "bytes",
            "checksum",
            "chunks",
            "elapsed_ns",
            "entropy_bits",
            "histogram",
            "max_resident_bytes",
            "reference_bytes_per_s",
            "ring",
            "round_trip_ns",
            "telemetry",
            "throughput_bytes_per_s",
            "verified",
            "why"
        ]
    );
    let whole = |value: &Value| value.as_u64().unwrap_or_else(|| panic!("{value} is no whole number"));
    assert!(whole(&object["elapsed_ns"]) > 0);
    for rate in ["throughput_bytes_per_s", "reference_bytes_per_s"] {
        assert!(object[rate].as_f64().is_some_and(|rate| rate > 0.0 && rate.is_finite()), "{object}");
    }
    assert_eq!(names(&object["round_trip_ns"]), ["p50", "p99"]);
    assert!(0 < whole(&object["round_trip_ns"]["p50"]) && whole(&object["round_trip_ns"]["p50"]) <= whole(&object["round_trip_ns"]["p99"]));
    assert_eq!(names(&object["ring"]), ["input", "output"]);
    for side in ["input", "output"] {
        assert_eq!(names(&object["ring"][side]), ["capacity", "high_water"]);
    }
    assert!(whole(&object["ring"]["input"]["high_water"]) + whole(&object["ring"]["output"]["high_water"]) > 0);

    let telemetry = &object["telemetry"];
    let layout = ringmem::LAYOUTS.iter().find(|layout| layout.name == "TelemetryBuffer").expect("its table");
    let mut fields: Vec<&str> = layout.fields.iter().map(|field| field.name).collect();
    fields.sort_unstable();
    assert_eq!(names(telemetry), fields);
    assert_eq!((whole(&telemetry["processed"]), whole(&telemetry["dropped"])), (100_000_u64.div_ceil(4096), 0));
    assert!(whole(&telemetry["sequence"]).is_multiple_of(2));
    let mean = whole(&telemetry["latency_total_ns"]) / whole(&telemetry["processed"]);
    assert!((whole(&telemetry["latency_min_ns"])..=whole(&telemetry["latency_max_ns"])).contains(&mean));
    assert_eq!(whole(&telemetry["depths"]) as u32, 0, "nothing waits for the kernel after a drain");
    assert_eq!(object["backend"], "host");
    if cfg!(target_os = "linux") {
        assert!(whole(&object["max_resident_bytes"]) > 100_000, "more than the file was in memory");
    }
}

#[test]
fn the_process_and_the_function_agree() {
    for length in [0, 9, 4097, 1_000_003] {
        let bytes = noise(length);
        let file = file(&bytes);
        compare(&execute(["stream", text(file.path()), "--json", "--chunk-size", "64KiB"]), &count(&bytes));
    }
}

#[test]
fn the_text_output_has_chart_checksum_and_entropy() {
    let bytes = noise(50_000);
    let (file, counted) = (file(&bytes), count(&bytes));
    for ran in [call(&IMAGE, ["stream", text(file.path())]), execute(["stream", text(file.path())])] {
        assert_eq!((ran.code, ran.err.as_str()), (0, ""));
        let rows: Vec<&str> = ran.out.lines().filter(|line| line.starts_with("  |")).collect();
        assert!(rows.len() >= 4 && rows[0].contains('█'), "the tallest column fills the height: {}", ran.out);
        assert!(ran.out.contains(&format!("{:016x}, verified", counted.checksum)), "{}", ran.out);
        assert!(ran.out.contains(&format!("{:.4} bits", counted.entropy())), "{}", ran.out);
        assert!(ran.out.contains(text(file.path())) && ran.out.contains("host"), "{}", ran.out);
    }
    let empty = call(&IMAGE, ["stream", text(crate::bytes::file(b"").path())]);
    assert_eq!((empty.code, empty.err.as_str()), (0, ""));
    assert!(empty.out.contains("0000000000000000, verified"), "{}", empty.out);
}
