use ringmem::backend::host::Tally;
use ringmem::error::LimitOf;

use super::*;

fn pinned(backend: &Arc<HostBackend>, bytes: usize, options: Options) -> Result<Given, Error> {
    ask(backend, &Request { options, ..request(MemoryLocation::Pinned, 0, bytes) })
}

fn free(backend: &Arc<HostBackend>, block: &Block) {
    // SAFETY: unused.
    unsafe { backend.free(block, &Uses::NONE) }.expect("it is live");
}

#[test]
fn pinned_allocations_stop_at_the_budget() {
    let backend = build(HostBackend::builder().pinned_budget(10_000));
    let first = pinned(&backend, 6000, Options::empty()).expect("within");
    let error = pinned(&backend, 4001, Options::empty()).expect_err("above");
    assert!(matches!(error, Error::Limit { of: LimitOf::Pinned, requested: 4001, used: 6000, limit: 10_000 }), "{error:?}");
    assert_eq!(error.to_string(), "pinned memory limit reached: requested 4001 bytes, 6000 bytes of 10000 bytes in use");
    let second = pinned(&backend, 4000, Options::empty()).expect("all of it");
    give(&backend, MemoryLocation::Unified, 0, 4096).expect("managed memory is not pinned");
    give(&backend, MemoryLocation::Host, 0, 4096).expect("nor is pageable");
    free(&backend, &first);
    assert!(matches!(pinned(&backend, 6001, Options::empty()), Err(Error::Limit { of: LimitOf::Pinned, used: 4000, .. })));
    assert!(matches!(pinned(&backend, 1 << 50, Options::empty()), Err(Error::Map { .. })), "more than any machine has");
    assert_eq!(backend.counters().pinned_allocations, Tally { count: 2, bytes: 10_000 });
    free(&backend, &second);
}

#[test]
fn the_default_pinned_budget_is_a_quarter_of_host_memory() {
    let backend = build(HostBackend::builder().host_memory(40_000));
    assert!(matches!(
        pinned(&backend, 10_001, Options::empty()),
        Err(Error::Limit { of: LimitOf::Pinned, requested: 10_001, used: 0, limit: 10_000 })
    ));
    let block = pinned(&backend, 10_000, Options::empty()).expect("a quarter");
    free(&backend, &block);
}

#[test]
fn memory_with_pending_uses_counts_as_pinned() {
    let backend = build(HostBackend::builder().pinned_budget(8192));
    let stream = Stream::new(&backend, 0).expect("a stream");
    let held = Held::new(&backend, &stream);
    let device = give(&backend, MemoryLocation::Device, 0, 64).expect("room");
    let source = pinned(&backend, 4096, Options::empty()).expect("within");
    // SAFETY: within their blocks, otherwise unused.
    let ticket = unsafe { backend.copy(&Copy { to: start(&device), from: start(&source), bytes: 64 }, stream.id()) }.expect("it is queued");
    // SAFETY: used only by the copy.
    unsafe { backend.free(&source, &Uses::of(ticket)) }.expect("it is live");
    let used = 4096 + 16;
    assert!(matches!(pinned(&backend, 4096, Options::empty()), Err(Error::Limit { of: LimitOf::Pinned, used: u, .. }) if u == used));
    held.release(&stream);
    eventually("it is freed", || pinned(&backend, 4096, Options::empty()).is_ok());
}

#[test]
fn pinned_options_are_kept_and_unsupported_elsewhere() {
    let backend = build(HostBackend::builder());
    for options in [Options::empty(), Options::ZEROED, Options::WRITE_COMBINED, Options::WRITE_COMBINED | Options::ZEROED] {
        let block = pinned(&backend, 64, options).expect("pinned memory has it");
        assert_eq!(backend.options_of(&block), Some(options));
        free(&backend, &block);
        assert_eq!(backend.options_of(&block), None);
        if options.is_empty() || options == Options::ZEROED {
            continue;
        }
        for location in [MemoryLocation::Device, MemoryLocation::Unified, MemoryLocation::Host] {
            let refused = backend.allocate(&Request { options, ..request(location, 0, 64) }, None);
            assert!(matches!(refused, Err(Error::Unsupported { .. })), "{options:?} of {location:?}");
        }
    }
    assert_eq!(backend.counters().pinned_live.bytes, 0);
}

#[cfg(target_os = "linux")]
mod proc {
    use std::fs;

    use super::*;
    use crate::rig::rerun_or_skip::passes_again;

    const EXPECTED: &str = "RINGMEM_TEST_EXPECTS_PINNED";

    fn is_locked(address: u64) -> bool {
        let smaps = fs::read_to_string("/proc/self/smaps").expect("Linux shows it");
        let range = |line: &str| {
            let (start, end) = line.split_whitespace().next()?.split_once('-')?;
            Some(u64::from_str_radix(start, 16).ok()?..u64::from_str_radix(end, 16).ok()?)
        };
        let lines = smaps.lines().skip_while(|line| range(line).is_none_or(|range| !range.contains(&address)));
        let flags = lines.into_iter().find(|line| line.starts_with("VmFlags:")).expect("flags");
        flags.split(' ').any(|flag| flag == "lo")
    }

    #[test]
    fn is_pinned_agrees_with_the_system() {
        let backend = build(HostBackend::builder().pinned_budget(2 << 20));
        let block = pinned(&backend, 1 << 20, Options::empty()).expect("pinned or not");
        assert_eq!(block.is_pinned, is_locked(block.device_address.expect("a device sees it").get()));
        let must = pinned(&backend, 1 << 20, Options::MUST_PIN);
        assert!(must.is_ok() || (!block.is_pinned && matches!(must, Err(Error::Unsupported { .. }))), "{must:?}");
        assert_eq!(pinned(&backend, 1 << 20, Options::empty()).is_err(), must.is_ok(), "what was refused is not counted as pinned");
        if let Some(expected) = std::env::var_os(EXPECTED) {
            assert_eq!((block.is_pinned, must.is_ok()), (expected == "yes", expected == "yes"));
        }
    }

    #[test]
    fn is_pinned_agrees_with_the_system_under_any_limit() {
        for (kilobytes, expected) in [("64", "no"), ("4096", "yes")] {
            // Root may raise the limit before losing the capability to ignore it.
            let setup = format!("ulimit -l {kilobytes} || exit 127; export {EXPECTED}={expected};");
            passes_again("host_backend::pinned::proc::is_pinned_agrees_with_the_system", &setup, &["ipc_lock"]);
        }
    }
}
