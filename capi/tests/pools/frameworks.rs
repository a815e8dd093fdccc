//! PyTorch's and CuPy's entry points.

use std::collections::HashMap;
use std::ffi::CString;
use std::path::{Path, PathBuf};
use std::thread;

use ringmem_capi::pool::PoolStatistics;
use ringmem_capi::status::Status;
use ringmem_capi::torch::*;
use ringmem_recordings::{Event, Kind, Recording};

use crate::rig::Alone;
use crate::{Address, KIB, MIB, NULL, Opened, alone, holds_in_a_forked_child, succeeds, text};

fn statistics(device: i32) -> PoolStatistics {
    let mut statistics = PoolStatistics { size: size_of::<PoolStatistics>(), ..PoolStatistics::default() };
    // SAFETY: a structure of that size.
    succeeds(unsafe { ringmem_torch_read_statistics(device, &raw mut statistics) });
    statistics
}

fn malloc(bytes: usize, device: i32, stream: Address) -> Address {
    // SAFETY: null, or a stream that lives until the process ends.
    unsafe { ringmem_torch_malloc(bytes as isize, device, stream) }
}

fn free(address: Address, bytes: usize, device: i32, stream: Address) {
    // SAFETY: the stream is null, or lives until the process ends; the tests queue no work.
    unsafe { ringmem_torch_free(address, bytes as isize, device, stream) };
}

/// Smallest first.
fn recordings() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace");
    let folder = root.parent().expect("a folder").join("shared/traces");
    let of = |name: &str| folder.join(name);
    let found: Vec<PathBuf> = ["cnn.trace", "finetune.trace", "gpt2-forward.trace", "gpt2-train.trace"]
        .map(of)
        .into_iter()
        .filter(|path| path.exists())
        .collect();
    if found.is_empty() { vec![root.join("cli/tests/commands/inference.trace")] } else { found }
}

/// Allocates and frees as recorded, and frees the rest at the end.
fn replay(events: &[Event]) {
    let mut live = HashMap::new();
    for event in events {
        match event.kind {
            Kind::Alloc => {
                let address = malloc(event.size as usize, 0, NULL);
                assert!(!address.is_null() || event.size == 0, "{}", text());
                live.insert(event.block, (address, event.size as usize));
            }
            Kind::Free => {
                if let Some((address, bytes)) = live.remove(&event.block) {
                    free(address, bytes, 0, NULL);
                }
            }
            Kind::Refused => {}
        }
    }
    live.into_values().for_each(|(address, bytes)| free(address, bytes, 0, NULL));
}

alone! {
    /// Of the sizes and lifetimes of a training step, on several threads, streams and devices.
    fn a_training_on_several_threads_ends_with_nothing_live() with("RINGMEM_DOUBLE_DEVICES" = "2", "RINGMEM_TORCH" = "limit=256MiB") {
        let devices = Opened::cuda();
        let side = devices.stream().addr();
        thread::scope(|scope| {
            for number in 0..4_usize {
                scope.spawn(move || {
                    let device = (number % 2) as i32;
                    let stream: Address = if number < 2 || device == 1 { NULL } else { std::ptr::without_provenance_mut(side) };
                    for step in 0..6_usize {
                        let layers: Vec<_> = (0..12).map(|layer| {
                            let bytes = [512, 40 * KIB, 3 * MIB / 2, 768 * KIB][(layer + step) % 4] + layer * 100;
                            let address = malloc(bytes, device, stream);
                            assert!(!address.is_null(), "{}", text());
                            if layer % 4 == 0 && device == 0 {
                                // SAFETY: a stream that lives until the process ends.
                                unsafe { ringmem_torch_record_stream(address, std::ptr::without_provenance_mut(side)) };
                            }
                            (address, bytes)
                        }).collect();
                        layers.into_iter().rev().for_each(|(address, bytes)| free(address, bytes, device, stream));
                    }
                });
            }
        });
        for device in [0, 1] {
            let statistics = statistics(device);
            assert_eq!((statistics.live, statistics.live_bytes, statistics.allocations, statistics.limit), (0, 0, 144, 256 << 20));
            assert!(statistics.live_peak > 0 && statistics.reserved_peak >= statistics.live_peak);
        }
        ringmem_torch_empty_cache();
        assert!(crate::rig::soon(|| statistics(0).reserved_bytes + statistics(1).reserved_bytes == 0), "{:?}", statistics(0));
    }

    /// Of real programs where their recordings are, else one of the project's own; on one thread, then on four at once.
    fn recorded_allocations_are_served_and_freed() with("RINGMEM_TORCH" = "simulated=512GiB") {
        let mut live_before = 0;
        for path in recordings() {
            let bytes = std::fs::read(&path).expect("a recording");
            let recording = Recording::parse(bytes).expect("it is read elsewhere, too");
            for threads in [1, 4] {
                ringmem_torch_empty_cache();
                thread::scope(|scope| {
                    for _ in 0..threads {
                        scope.spawn(|| recording.devices.iter().for_each(|device| replay(&device.events)));
                    }
                });
                let statistics = statistics(0);
                assert_eq!((statistics.live, statistics.live_bytes), (0, 0), "{}", path.display());
                if threads == 1 && statistics.live_peak > live_before {
                    // The peaks are those of this recording, which is larger than all before.
                    let ratio = statistics.reserved_peak as f64 / statistics.live_peak as f64;
                    eprintln!("{}: {} MiB live, {ratio:.3} reserved", path.display(), statistics.live_peak >> 20);
                    assert!(ratio < 1.15, "{}: {statistics:?}", path.display());
                }
                live_before = live_before.max(statistics.live_peak);
            }
        }
    }

    /// At most 38 of 64 MiB are live, but each stream's pool keeps what was freed on it, and takes what the others keep.
    fn threads_on_several_streams_are_refused_nothing_that_fits() with("RINGMEM_TORCH" = "limit=64MiB,simulated=256MiB,slab=1MiB") {
        thread::scope(|scope| {
            for thread in 0..4_u64 {
                scope.spawn(move || {
                    let mut random = thread;
                    for _ in 0..1000 {
                        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                        let (bytes, stream) = ((random >> 33) as usize % (7 * MIB) + 5 * MIB / 2, std::ptr::without_provenance_mut((random >> 20) as usize % 6));
                        let address = malloc(bytes, 0, stream);
                        assert!(!address.is_null(), "{}", text());
                        free(address, bytes, 0, stream);
                    }
                });
            }
        });
        assert_eq!((statistics(0).live, statistics(0).allocations), (0, 4000));
    }

    fn a_forked_child_is_refused() with("RINGMEM_TORCH" = "limit=8MiB,simulated=64MiB") {
        let block = malloc(KIB, 0, NULL);
        holds_in_a_forked_child(|| {
            let is_forked = || text().contains("forked after its first use");
            let is_null = malloc(KIB, 0, NULL).is_null() && is_forked();
            free(block, KIB, 0, NULL);
            ringmem_torch_set_memory_fraction(1.5, 0);
            let is_refused = is_forked();
            // SAFETY: a text.
            let status = unsafe { ringmem_torch_write_snapshot(c"/missing/file".as_ptr()) };
            is_null && is_refused && status == Status::Unsupported && is_forked()
        });
        free(block, KIB, 0, NULL);
        assert_eq!(statistics(0).live, 0);
    }

    fn impossible_requests_return_null_with_a_text() with("RINGMEM_TORCH" = "limit=8MiB,simulated=64MiB") {
        assert_eq!(statistics(3).limit, 0, "no device is in use yet");
        ringmem_torch_init(1);
        assert!(malloc(0, 0, NULL).is_null());
        for (bytes, device, fact) in [(9 * MIB, 0, "9 MiB requested, more than the limit of the pool, 8 MiB"), (1, 5, "no device 5: there are 1"), (usize::MAX, 0, "invalid size: -1 bytes")] {
            assert!(malloc(bytes, device, NULL).is_null());
            assert!(text().contains(fact), "{}", text());
        }
        let block = malloc(KIB, 0, NULL);
        free(std::ptr::without_provenance_mut(0x1230), KIB, 0, NULL);
        assert!(text().contains("no live block of this pool at 0x1230"), "{}", text());
        free(NULL, 0, 0, NULL);
        assert_eq!(statistics(0).live, 1);
        ringmem_torch_set_memory_fraction(0.5, 0);
        assert!(text().contains("a limit of 8 MiB since its first allocation"), "{}", text());
        ringmem_torch_set_memory_fraction(2.0, 0);
        assert!(text().contains("the fraction 2 is not within 0 and 1"), "{}", text());
        ringmem_torch_begin_allocate_to_pool(0, TorchPoolId { first: 0, second: 1 }, std::ptr::null());
        assert!(text().contains("CUDA graphs"), "{}", text());
        free(block, KIB, 0, NULL);
        assert_eq!(statistics(0).live, 0);
        for device in [1, 99, -1] {
            let mut figures = PoolStatistics { size: size_of::<PoolStatistics>(), ..PoolStatistics::default() };
            // SAFETY: a structure of that size.
            assert_eq!(unsafe { ringmem_torch_read_statistics(device, &raw mut figures) }, Status::NoDevice);
            assert!(text().contains(&format!("no device {device}: there are 1")), "{}", text());
        }
    }

    fn empty_and_foreign_tensors_are_recorded_without_an_error() with("RINGMEM_TORCH" = "simulated=64MiB") {
        free(malloc(KIB, 0, NULL), KIB, 0, NULL);
        for address in [NULL, std::ptr::without_provenance_mut(0x1230)] {
            // SAFETY: any handle stands for a stream.
            unsafe { ringmem_torch_record_stream(address, NULL) };
        }
        assert_eq!(text(), "");
    }

    fn a_full_standard_error_ends_no_process() with("RINGMEM_TORCH" = "simulated=64MiB") {
        // SAFETY: descriptors of this process, which prints nothing else.
        unsafe {
            let full = libc::open(c"/dev/full".as_ptr(), libc::O_WRONLY);
            assert!(full >= 0 && libc::dup2(full, 2) == 2);
        }
        assert!(malloc(usize::MAX, 0, NULL).is_null());
        free(std::ptr::without_provenance_mut(0x1230), 1, 0, NULL);
    }

    fn a_simulated_device_takes_the_handle_of_any_stream() with("RINGMEM_TORCH" = "simulated=64MiB") {
        let stream: Address = std::ptr::without_provenance_mut(0x7f00);
        let (x, y) = (malloc(KIB, 0, stream), malloc(KIB, 0, NULL));
        assert!(!x.is_null() && !y.is_null(), "{}", text());
        // SAFETY: any handle stands for a stream.
        unsafe { ringmem_torch_record_stream(y, stream) };
        free(x, KIB, 0, stream);
        free(y, KIB, 0, NULL);
        assert_eq!(malloc(KIB, 0, stream), x, "{}", text());
        free(x, KIB, 0, stream);
        assert_eq!(statistics(0).live, 0);
    }

    fn a_fraction_limits_the_pool() with("RINGMEM_TORCH" = "simulated=64MiB") {
        ringmem_torch_set_memory_fraction(0.25, 0);
        let block = malloc(KIB, 0, NULL);
        ringmem_torch_set_memory_fraction(0.25, 0);
        assert_eq!(statistics(0).limit, 16 << 20);
        free(block, KIB, 0, NULL);
    }

    fn an_invalid_variable_is_the_error_of_each_allocation() with("RINGMEM_TORCH" = "limit=lots") {
        assert!(malloc(1, 0, NULL).is_null());
        assert!(text().starts_with("RINGMEM_TORCH: limit: a size is a number"), "{}", text());
    }

    fn without_a_device_the_error_names_it() with("RINGMEM_DOUBLE_DEVICES" = "0") {
        assert!(malloc(1, 0, NULL).is_null());
        assert!(text().contains("no device 0: the backend has 0"), "{}", text());
    }

    fn cupy_allocates_for_one_stream() {
        let devices = Opened::cuda();
        let stream = devices.stream();
        // SAFETY: a stream that lives until the process ends; the tests queue no work.
        unsafe {
            let x = ringmem_cupy_malloc(stream, MIB, 0);
            ringmem_cupy_free(stream, x, 0);
            assert_eq!(ringmem_cupy_malloc(stream, MIB, 0), x);
            ringmem_cupy_free(stream, x, 0);
            assert!(ringmem_cupy_malloc(stream, usize::MAX, 0).is_null());
        }
        assert_eq!(statistics(0).live, 0);
    }
}

/// In a child process, whose snapshots are then read here.
fn written(name: &'static str, variable: impl Fn(&str) -> String, body: impl FnOnce()) -> Option<Vec<serde_json::Value>> {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().to_str().expect("UTF-8").to_owned();
    let alone = Alone::new(name).with("RINGMEM_TORCH", variable(&path));
    if alone.is_here() {
        body();
        return None;
    }
    let said = alone.run();
    assert!(!said.contains("violation"), "{said}");
    let read = |name| {
        let bytes = std::fs::read(folder.path().join(name)).ok()?;
        Some(serde_json::from_slice(&bytes).expect("JSON"))
    };
    Some(["exit.json", "oom.json"].into_iter().filter_map(read).collect())
}

#[test]
fn a_snapshot_is_written_at_exit_with_blocks_live() {
    let name = concat!(module_path!(), "::a_snapshot_is_written_at_exit_with_blocks_live");
    let body = || {
        assert!(!malloc(3 * MIB, 0, NULL).is_null());
    };
    let Some(states) = written(name, |folder| format!("snapshot={folder}/exit.json"), body) else { return };
    let [state] = &states[..] else { panic!("{states:?}") };
    assert_eq!(state["pools"][0]["name"], "device 0, stream 0x0");
    assert_eq!(state["pools"][0]["statistics"]["live"], 1, "{state}");
}

#[test]
fn a_snapshot_is_written_at_the_first_failed_allocation() {
    let name = concat!(module_path!(), "::a_snapshot_is_written_at_the_first_failed_allocation");
    let body = || {
        let block = malloc(3 * MIB, 0, NULL);
        assert!(malloc(3 * MIB, 0, NULL).is_null());
        free(block, 3 * MIB, 0, NULL);
        assert!(malloc(30 * MIB, 0, NULL).is_null());
        // SAFETY: a text.
        let status = unsafe { ringmem_torch_write_snapshot(CString::new("/missing/file").expect("no zero").as_ptr()) };
        assert_eq!(status, Status::System);
    };
    let Some(states) = written(name, |folder| format!("limit=4MiB,oom-snapshot={folder}/oom.json"), body) else { return };
    let [state] = &states[..] else { panic!("{states:?}") };
    assert_eq!(state["pools"][0]["statistics"]["live"], 1, "the first one: {state}");
}
