use ringmem_recordings::Format;
use ringmem_recordings::Kind::{Alloc, Free, Refused};

use crate::{events, read, refuses};

const HEADER: &str = "Thread,Time,Action,Pointer,Size,Stream\n";

#[test]
fn calls_of_all_threads_are_one_sequence() {
    let log = format!(
        "{HEADER}1,10:00:00:000100,allocate,0x7f00,1000,0x0\n2,10:00:00.000200,allocate,0x7f80,2000,0x2a\n\
         1,10:00:00:000300,allocate failure,(nil),9000,0x0\n{HEADER}2,10:00:01:000000,free,0x7f00,1000,0x2a\n\
         2,,free,0x9999,500,0x2a\n1,x,allocate,0x7f80,4000,0x0\n"
    );
    let recording = read(log.clone());
    assert_eq!((recording.format, recording.devices.len()), (Format::Rmm, 1));
    let device = &recording.devices[0];
    let expected = [
        (Alloc, 0, 500),
        (Alloc, 1, 1000),
        (Alloc, 2, 2000),
        (Refused, 0, 9000),
        (Free, 1, 1000),
        (Free, 0, 500),
        (Free, 2, 2000),
        (Alloc, 3, 4000),
    ];
    assert_eq!(events(device), expected);
    assert_eq!((device.before, device.missing_frees, device.reserved), (1, 1, None));
    let facts: Vec<(u32, Option<u64>)> = device.events[1..5].iter().map(|event| (event.stream, event.time_ns.map(u64::from))).collect();
    let ten = 36_000_000_000_000;
    assert_eq!(facts, [(0, Some(ten + 100_000)), (1, Some(ten + 200_000)), (0, Some(ten + 300_000)), (1, Some(ten + 1_000_000_000))]);
    let windows = log.replace('\n', "\r\n");
    assert_eq!(events(&read(windows).devices[0]), expected);
}

#[test]
fn times_are_of_a_clock_or_seconds_and_go_on_after_midnight() {
    let times = |times: &[&str]| -> Vec<Option<u64>> {
        let lines: Vec<String> = (1..).zip(times).map(|(at, time)| format!("1,{time},allocate,0x{at}00,8,0\n")).collect();
        let recording = read(format!("{HEADER}{}", lines.concat()));
        recording.devices[0].events.iter().map(|event| event.time_ns.map(u64::from)).collect()
    };
    let day = 86_400_000_000_000;
    assert_eq!(
        times(&["23:59:59.999999", "23:59:59:999998", "00:00:00.000001", "2026-11-28 00:00:01", "2026-11-28T00:00:01.5"]),
        [Some(day - 1000), Some(day - 2000), Some(day + 1000), Some(day + 1_000_000_000), Some(day + 1_500_000_000)]
    );
    let threads = ["23:59:59.9", "00:00:00.1", "23:59:59.95", "00:00:00.2", "13:00:00"];
    let expected = [day - 100_000_000, day + 100_000_000, day - 50_000_000, day + 200_000_000, day + 46_800_000_000_000];
    assert_eq!(times(&threads), expected.map(Some));
    assert_eq!(times(&["1634567890.123456", "1634567891"]), [Some(1_634_567_890_123_456_000), Some(1_634_567_891_000_000_000)]);
    assert_eq!(times(&["1.é", "x", "1:-2", "99999999999999999999", "9999999999999"]), [None; 5]);
    assert_eq!(times(&["00:00:00.000000"]), [Some(1)], "none is 0");
}

#[test]
fn columns_have_any_order() {
    let recording = read("Size,Stream,Pointer,Action,Extra\n64,0,0x10,allocate,a\n64,0,0x10,free,b\n");
    assert_eq!(events(&recording.devices[0]), [(Alloc, 0, 64), (Free, 0, 64)]);
    let recording = read("\"Action\", \"Pointer\", Size, Stream\n\"allocate\", \"0X1f\", 64, 0\n\nallocate,0x0,0,0\nfree,0x1f,64,0\n");
    assert_eq!(events(&recording.devices[0]), [(Alloc, 0, 64), (Free, 0, 64)], "an allocation of nothing is none");
}

#[test]
fn an_invalid_line_is_an_error_with_its_number() {
    for (line, fact) in [
        ("1,10:00:00:000100,allocate,0x7f00,1000\n", "line 2: 5 fields, expected 6: `Stream` is missing"),
        (
            "1,10:00:00:000100,allocate,0x7f00,1000",
            "line 2: 5 fields, expected 6: `Stream` is missing; no line end: the log is truncated, remove",
        ),
        ("1,t,allocate,0x7f00,1000,0,0\n", "line 2: 7 fields, expected 6"),
        ("1,t,allocate,0x7f00,much,0x0\n", "line 2: `Size` is `much`, expected a number"),
        ("1,t,allocate,pointer,1,0x0\n", "line 2: `Pointer` is `pointer`, expected a number"),
        ("1,t,allocate,0x1,-1,0x0\n", "line 2: `Size` is `-1`"),
        ("1,t,allocate,0x1,18446744073709551616,0x0\n", "line 2: `Size` is `18446744073709551616`"),
        ("1,t,reallocate,0x1,1,0x0\n", "line 2: `Action` is `reallocate`"),
        ("1,t,allocate,0x1,1,0x", "line 2: `Stream` is `0x`, expected a number; no line end: the log is truncated"),
        ("1,t,allocate,0x1,140737488355329,0\n", "line 2: a block of 140737488355329 bytes; no device has more than 2^47 (128 TiB)"),
        ("1,t,free,0x1,18446744073709551615,0\n", "line 2: a block of 18446744073709551615 bytes"),
        (
            "1,t,allocate,0x1,140737488355328,0\n1,t,free,0x1,0,0\n1,t,allocate,0x1,140737488355328,0\n1,t,allocate,0x2,1,0\n",
            "line 5: 140737488355329 bytes are live with this block",
        ),
    ] {
        let error = refuses(format!("{HEADER}{line}"));
        assert!(error.starts_with(fact), "{error}");
    }
    let error = refuses("Thread,Action,Pointer,Stream\n1,allocate,0x1,0\n");
    assert_eq!(error, "line 1: the columns of a log of RMM without `Size`");
    assert_eq!(refuses("\n\nThread,Action,Size\n"), "line 3: the columns of a log of RMM without `Pointer` and `Stream`");
    let error = refuses("Action,Stream,Pointer,Size\nallocate,0,0x1,4096");
    assert!(error.starts_with("line 2: `Size` may lack its last characters; no line end"), "{error}");
}

/// The reader of tables begins a row before the empty lines above it, and between the characters of a line end.
#[test]
fn lines_are_counted_with_any_ends_and_with_empty_ones() {
    let log = "Action,Stream,Pointer,Size\nallocate,0,0x1,4096\nallocate,0,0x2,40";
    for (log, line) in
        [(log.to_owned(), 3), (log.replace('\n', "\r\n"), 3), (log.replace('\n', "\n\n"), 5), (log.replace('\n', "\r\n\r\n"), 5)]
    {
        let error = refuses(log.clone());
        assert!(error.starts_with(&format!("line {line}: `Size` may lack its last characters; no line end")), "{error} of {log:?}");
    }
    let error = refuses(format!("{HEADER}1,t,allocate,0x1,8,0\n\n\n\n1,t,allocate,0x2,much,0\n"));
    assert!(error.starts_with("line 6: `Size` is `much`"), "{error}");
    let error = refuses(format!("{HEADER}1,t,allocate,0x1,8,0\n1,t,allocate,0x2,20").replace('\n', "\r\n"));
    assert!(error.starts_with("line 3: 5 fields") && error.ends_with("remove this line"), "{error}");
}

#[test]
fn a_last_line_without_its_end_is_a_call_if_its_fields_are_valid() {
    let recording = read(format!("{HEADER}1,t,allocate,0x1,100,0x0\n1,t,free,0x1,100,0x0"));
    assert_eq!(events(&recording.devices[0]), [(Alloc, 0, 100), (Free, 0, 100)]);
    assert!(read(HEADER.trim_end()).devices[0].events.is_empty());
}

#[test]
fn blank_lines_before_the_columns_are_skipped() {
    let recording = read(format!("\n  \n{HEADER}1,t,allocate,0x1,100,0\n \n1,t,free,0x1,100,0\n"));
    assert_eq!((recording.format, events(&recording.devices[0])), (Format::Rmm, vec![(Alloc, 0, 100), (Free, 0, 100)]));
}

/// RMM logs a null pointer for each; some of its resources return another pointer.
#[test]
fn allocations_of_no_bytes_are_no_blocks_and_their_frees_are_known() {
    let pairs =
        ["(nil)", "0x0", "0x70"].map(|pointer| format!("1,t,allocate,{pointer},0,0\n1,t,free,{pointer},0,0\n1,t,free,{pointer},0,0\n"));
    let recording = read(format!("{HEADER}1,t,free,(nil),0,0\n1,t,free,(nil),64,0\n{}1,t,free,0x90,0,0\n", pairs.concat()));
    let device = &recording.devices[0];
    assert_eq!((events(device), device.before, device.unknown_frees), (vec![], 0, 1), "only the last is of an unknown block");
    assert!(read(format!("{HEADER}1,t,allocate,(nil),0,7\n1,t,free,(nil),0,7\n")).devices[0].streams.is_empty());
}

#[test]
fn streams_keep_their_recorded_names() {
    let recording = read(format!(
        "{HEADER}1,t,allocate failure,(nil),0,0x7F2a\n1,t,allocate,0x2,8,0\n1,t,allocate,0x3,8,0x7f2a\n1,t,allocate,0x4,8,7\n"
    ));
    let device = &recording.devices[0];
    let names: Vec<_> = device.events.iter().map(|event| device.stream_name(event.stream)).collect();
    assert_eq!(names.iter().map(|name| name.as_deref()).collect::<Vec<_>>(), ["0x7F2a", "0", "0x7F2a", "7"].map(Some));
    let ids: Vec<u64> = device.streams.iter().map(|stream| stream.id).collect();
    assert_eq!(ids, [0x7f2a, 0, 7]);
}
