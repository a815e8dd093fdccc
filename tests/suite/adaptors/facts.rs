use std::alloc::Layout;
use std::mem::forget;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Instant;

use ringmem::backend::host::HostBackend;
use ringmem::backend::{Backend, MemoryLocation, Uses};
use ringmem::memory::{Aligned, Arena, Buffer, Device, Failing, Figures, Limited, Logged, Memory, Pinned, Statistics, Tracked, When};
use ringmem::stream::Stream;
use ringmem::{Error, Result};

use crate::LIMIT;
use crate::adaptors::hooked::{Hooked, set};
use crate::rig::busy_stream::Held;
use crate::rig::leak_checked::Clean;

pub fn backend() -> Clean {
    Clean::build(HostBackend::builder().device_memory(1 << 20))
}

fn device(backend: &Arc<HostBackend>) -> Device {
    Device::new(backend, 0)
}

pub fn bytes<M: Memory + Clone>(memory: &M, len: usize) -> Result<Buffer<u8, M>> {
    Buffer::new(memory.clone(), len)
}

#[test]
fn a_limit_rejects_one_byte_too_many() {
    let backend = backend();
    let memory = Limited::new(device(&backend), 1000);
    let first = bytes(&memory, 999).expect("below the limit");
    assert!(matches!(bytes(&memory, 2), Err(Error::Limit { requested: 2, used: 999, limit: 1000, .. })));
    let second = bytes(&memory, 1).expect("up to the limit");
    assert_eq!((memory.used(), backend.counters().device_live.bytes), (1000, 1000));
    drop(first);
    assert_eq!(memory.used(), 1);
    drop(second);
    assert!(bytes(&memory, 1000).is_ok());
    assert!(matches!(bytes(&memory, isize::MAX as usize), Err(Error::Limit { .. })));
}

#[test]
fn a_limit_reserves_before_it_allocates() {
    let backend = backend();
    let below = Hooked::new(&backend);
    let memory = Limited::new(below.clone(), 100);
    let again = memory.clone();
    set(&below.before_alloc, move || assert!(matches!(bytes(&again, 60), Err(Error::Limit { used: 60, .. }))));
    assert!(bytes(&memory, 60).is_ok());
    assert!(below.before_alloc.lock().expect("no panic").is_none());
    assert_eq!(memory.used(), 0);
}

#[test]
fn a_limit_always_holds_with_several_threads() {
    const LIMIT: u64 = 1000;
    let backend = backend();
    let memory = Limited::new(device(&backend), LIMIT);
    thread::scope(|scope| {
        for thread in 0..4 {
            let memory = &memory;
            scope.spawn(move || {
                let mut held = Vec::new();
                for round in 0..5000 {
                    match bytes(memory, 1 + (round * 7 + thread * 131) % 400) {
                        Ok(buffer) => held.push(buffer),
                        Err(Error::Limit { .. }) => held.clear(),
                        Err(error) => panic!("{error}"),
                    }
                    assert!(memory.used() <= LIMIT);
                }
            });
        }
    });
    assert!(backend.counters().device_live.peak <= LIMIT);
    assert_eq!((memory.used(), backend.counters().device_live.bytes), (0, 0));
}

#[test]
fn a_block_counts_against_a_limit_until_its_uses_complete() {
    let backend = backend();
    let stream = Stream::new(&backend, 0).expect("a stream");
    let memory = Limited::new(device(&backend), 1000);
    let held = Held::new(&backend, &stream);
    drop(stream.fill(bytes(&memory, 800).expect("below the limit"), .., 1).expect("queued"));
    assert_eq!((memory.used(), backend.counters().device_live.bytes), (800, 800));
    assert!(matches!(bytes(&memory, 800), Err(Error::Limit { used: 800, .. })));
    held.let_go();
    let deadline = Instant::now() + LIMIT;
    while memory.used() != 0 {
        assert!(Instant::now() < deadline, "{} bytes count for ever", memory.used());
        thread::yield_now();
    }
    assert!(bytes(&memory, 800).is_ok());
}

#[test]
fn a_failed_allocation_is_counted_only_as_a_failure() {
    let backend = backend();
    let below = Failing::new(device(&backend)).allocs(When::Call(1));
    let memory = Tracked::new(Statistics::new(Limited::new(below, 1000)));
    assert!(matches!(bytes(&memory, 700), Err(Error::Injected { call: "alloc", number: 1 })));
    let (statistics, limited) = (memory.inner(), memory.inner().inner());
    assert_eq!((limited.used(), statistics.scope().bytes, statistics.scope().refused), (0, Figures::default(), 1));
    assert_eq!((memory.live_bytes(), memory.leaks().len()), (0, 0));
    assert!(bytes(&memory, 700).is_ok());
}

#[test]
fn a_failed_free_still_removes_the_block_from_accounting() {
    let backend = backend();
    let below = Failing::new(device(&backend)).frees(When::Call(1));
    let memory = Logged::new(Tracked::new(Statistics::new(Limited::new(below, 1000))));
    let outcome = bytes(&memory, 700).expect("room").close();
    assert!(matches!(outcome, Err(Error::Injected { call: "free", number: 1 })), "{outcome:?}");
    let (tracked, statistics) = (memory.inner(), memory.inner().inner());
    assert_eq!((tracked.live_blocks(), tracked.live_bytes()), (0, 0));
    assert_eq!((statistics.scope().bytes.live, statistics.scope().blocks.live), (0, 0));
    assert_eq!((statistics.inner().used(), backend.counters().device_live.bytes), (0, 0));
    assert_eq!(memory.trace().to_string(), "alloc 0 700 1\nfree 0\n");
}

#[test]
fn failing_follows_its_condition() {
    let backend = backend();
    let fails = |when: When, sizes: &[usize]| -> Vec<u64> {
        let memory = Failing::new(device(&backend)).allocs(when);
        let refused = sizes.iter().filter_map(|&size| match bytes(&memory.clone(), size) {
            Err(Error::Injected { call: "alloc", number }) => Some(number),
            Err(error) => panic!("{error}"),
            Ok(_) => None,
        });
        let refused = refused.collect();
        assert_eq!(memory.calls(), sizes.len() as u64);
        refused
    };
    assert_eq!(fails(When::Never, &[1; 5]), [0_u64; 0]);
    assert_eq!(fails(When::Call(3), &[1; 5]), [3]);
    assert_eq!(fails(When::Above(10), &[9, 10, 11, 12, 1]), [3, 4]);
    let chance = |seed, probability| fails(When::Chance { seed, probability }, &[1; 1000]);
    assert_eq!((chance(1, 0.0).len(), chance(1, 1.0).len(), chance(1, f64::NAN).len()), (0, 1000, 0));
    assert!((200..300).contains(&chance(1, 0.25).len()), "{}", chance(1, 0.25).len());
    assert_eq!(chance(1, 0.25), chance(1, 0.25));
    assert_ne!(chance(1, 0.25), chance(2, 0.25));
    let before = backend.counters().device_allocations.count;
    assert_eq!(fails(When::Above(0), &[1; 3]), [1, 2, 3]);
    assert_eq!(backend.counters().device_allocations.count, before);
}

#[test]
fn an_inner_scope_counts_in_the_outer() {
    let backend = backend();
    let memory = Statistics::new(device(&backend));
    let figures = |live, peak, total| Figures { live, peak, total };
    let first = bytes(&memory, 100).expect("room");
    memory.push();
    let second = bytes(&memory, 30).expect("room");
    drop(first);
    assert_eq!(memory.scope().bytes, figures(-70, 30, 30));
    memory.push();
    drop(bytes(&memory, 500).expect("room"));
    assert_eq!(memory.overall().bytes, figures(30, 530, 630));
    assert_eq!(memory.pop().map(|scope| (scope.bytes, scope.blocks)), Some((figures(0, 500, 500), figures(0, 1, 1))));
    assert_eq!(memory.scope().bytes, figures(-70, 430, 530));
    assert_eq!(memory.pop().map(|scope| scope.bytes), Some(figures(-70, 430, 530)));
    assert_eq!(memory.pop(), None);
    assert_eq!((memory.scope().bytes, memory.scope().blocks), (figures(30, 530, 630), figures(1, 2, 3)));
    drop(second);
    assert_eq!(memory.scope().bytes.live, 0);
}

#[test]
fn statistics_are_exact_with_several_threads() {
    const THREADS: usize = 4;
    const ROUNDS: usize = 3000;
    let backend = backend();
    let memory = Statistics::new(device(&backend));
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                for round in 0..ROUNDS {
                    let _two = [bytes(&memory, 10).expect("room"), bytes(&memory, 20).expect("room")];
                    if round % 100 == 0 {
                        memory.push();
                        memory.pop();
                    }
                }
            });
        }
    });
    let all = memory.overall();
    let rounds = (THREADS * ROUNDS) as u64;
    assert_eq!((all.bytes.live, all.bytes.total, all.blocks.live, all.blocks.total), (0, rounds * 30, 0, rounds * 2));
    assert!((30..=120).contains(&all.bytes.peak), "{}", all.bytes.peak);
}

#[test]
fn blocks_are_aligned_rounded_and_freed_whole() {
    let backend = backend();
    let arena = Arena::new(device(&backend), 1 << 16, 4096).expect("room");
    let memory = Aligned::new(arena.clone(), 512).expect("a power of two").rounding(768).expect("not 0");
    let odd = bytes(&arena, 3).expect("room");
    let buffers = [1, 767, 768, 769].map(|len| bytes(&memory, len).expect("room"));
    for (buffer, len) in buffers.iter().zip([1, 767, 768, 769]) {
        let address = buffer.device_address().expect("it has bytes").get() - arena.device_address().expect("it has bytes").get();
        assert_eq!((address % 512, buffer.len()), (0, len));
    }
    assert_eq!(arena.free_bytes(), (1 << 16) - 3 - 768 * 5);
    let wide = memory.alloc(Layout::from_size_align(1, 4096).expect("a layout"), None).expect("room");
    assert_eq!((wide.layout.size(), wide.layout.align()), (1, 4096));
    // SAFETY: just allocated, unused.
    unsafe { memory.free(&wide, &Uses::NONE) }.expect("live");
    drop((buffers, odd));
    assert_eq!(arena.free_bytes(), 1 << 16);
}

#[test]
fn a_stronger_alignment_allows_a_cast() {
    let backend = backend();
    assert!(bytes(&device(&backend), 64).expect("room").cast::<u64>().is_err());
    let memory = Aligned::new(device(&backend), 8).expect("a power of two");
    let words = bytes(&memory, 64).expect("room").cast::<u64>().expect("aligned for them");
    assert_eq!(words.len(), 8);
    drop(words);
    assert_eq!(backend.counters().device_live.bytes, 0);
}

#[test]
fn an_impossible_alignment_or_multiple_is_an_error() {
    let backend = backend();
    for align in [0, 3, 1 << (usize::BITS - 1)] {
        assert!(matches!(Aligned::new(device(&backend), align), Err(Error::Align { asked, .. }) if asked == align as u64));
    }
    let memory = || Aligned::new(device(&backend), 512).expect("a power of two");
    assert!(matches!(memory().rounding(0), Err(Error::Size { asked: 0, .. })));
    assert!(matches!(bytes(&memory(), isize::MAX as usize), Err(Error::Size { .. })));
}

fn refusal<T>(outcome: Result<T, Error>) -> (u64, u64, u64) {
    match outcome.map(drop) {
        Err(Error::Size { asked, least, most, .. }) => (asked, least, most),
        Err(Error::Align { asked, most }) => (asked, 1, most),
        other => panic!("a size or an alignment should be refused: {other:?}"),
    }
}

#[test]
fn an_error_range_excludes_the_requested_value() {
    let backend = backend();
    let aligned = |align| Aligned::new(device(&backend), align).expect("a power of two");
    let largest = backend.capabilities(0).expect("device 0").largest_align;
    let all = isize::MAX as u64;
    assert_eq!(refusal(aligned(1).rounding(usize::MAX)), (u64::MAX, 1, all));
    assert_eq!(refusal(aligned(4096).rounding(isize::MAX as usize)), (all, 1, all - 4095));
    let multiple = (all - 4095) / 2 + 1;
    let one = aligned(4096).rounding(multiple as usize).expect("one is possible");
    assert_eq!(refusal(bytes(&one, multiple as usize + 1)), (multiple + 1, 1, multiple));
    let layout = Layout::from_size_align(10, 1 << 61).expect("a layout");
    let wide = aligned(1).rounding(all as usize - 4095).expect("one is possible");
    assert_eq!(refusal(wide.alloc(layout, None)), (1 << 61, 1, largest));
    assert_eq!(refusal(device(&backend).alloc(layout, None)), (1 << 61, 1, largest));
    for align in [1_u64 << 63, largest * 2, 3, 0] {
        for outcome in [
            refusal(Aligned::new(device(&backend), align as usize)),
            refusal(Arena::new(device(&backend), 100, align as usize)),
            refusal(Arena::new(device(&backend), 0, align as usize)),
        ] {
            assert_eq!(outcome, (align, 1, largest), "the one largest alignment of the device");
        }
    }
    assert_eq!(refusal(Arena::new(device(&backend), isize::MAX as usize, 4096)), (all, 1, all - 4095));
    assert_eq!(refusal(Arena::new(device(&backend), 0, 8)), (0, 1, all - 7));
}

#[test]
fn live_blocks_are_listed_oldest_first() {
    let backend = backend();
    let memory = Tracked::new(Pinned::new(&backend, 0));
    let mut buffers: Vec<_> = (1..=5).map(|len| bytes(&memory, len * 10).expect("room")).collect();
    let second = buffers.remove(1);
    forget(buffers.remove(2));
    backend.forgets();
    drop(buffers);
    let reused = bytes(&memory, 10).expect("room");
    let leaks = memory.leaks();
    let facts: Vec<_> = leaks.iter().map(|leak| (leak.number, leak.bytes, leak.location)).collect();
    assert_eq!(facts, [(2, 20, MemoryLocation::Pinned), (4, 40, MemoryLocation::Pinned), (6, 10, MemoryLocation::Pinned)]);
    assert!(leaks.is_sorted_by(|one, other| one.age >= other.age));
    assert_eq!((memory.live_blocks(), memory.live_bytes()), (3, 70));
    let later = memory.leaks();
    assert!(later.iter().zip(&leaks).all(|(later, earlier)| later.age >= earlier.age));
    drop((second, reused));
    assert_eq!((memory.live_blocks(), memory.live_bytes()), (1, 40));
}

#[test]
fn an_address_reused_during_a_free_is_listed() {
    let backend = backend();
    let below = Hooked::new(&backend);
    let memory = Tracked::new(below.clone());
    let (first, kept, again) = (bytes(&memory, 100).expect("room"), Arc::new(OnceLock::new()), memory.clone());
    set(&below.after_free, {
        let kept = Arc::clone(&kept);
        move || assert!(kept.set(bytes(&again, 100).expect("room")).is_ok())
    });
    let address = first.device_address();
    drop(first);
    assert_eq!(kept.get().map(Buffer::device_address), Some(address));
    assert_eq!(memory.leaks().iter().map(|leak| leak.number).collect::<Vec<_>>(), [2]);
    drop(kept);
    assert_eq!((memory.live_blocks(), memory.live_bytes()), (0, 0));
}

#[test]
fn a_panicking_allocation_returns_its_limit() {
    let backend = backend();
    let below = Hooked::new(&backend);
    let memory = Limited::new(below.clone(), 100);
    set(&below.before_alloc, || panic!("a memory that a test asked for"));
    assert!(catch_unwind(AssertUnwindSafe(|| bytes(&memory, 60))).is_err());
    assert_eq!(memory.used(), 0);
    assert!(bytes(&memory, 100).is_ok());
}

#[test]
fn a_panicking_free_returns_its_limit() {
    let backend = backend();
    let stream = Stream::new(&backend, 0).expect("a stream");
    let below = Hooked::new(&backend);
    let memory = Limited::new(below.clone(), 100);
    for is_used in [false, true] {
        let mut buffer = bytes(&memory, 100).expect("room");
        if is_used {
            buffer.used_by(&stream).expect("its backend's");
        }
        set(&below.after_free, || panic!("a memory that a test asked for"));
        assert!(catch_unwind(AssertUnwindSafe(|| drop(buffer))).is_err());
        assert!(is_used || memory.used() == 0, "the limit has not got its bytes back");
        stream.synchronize().expect("nothing failed");
        let begun = Instant::now();
        while memory.used() > 0 {
            assert!(begun.elapsed() < LIMIT, "the limit has not got its bytes back");
            thread::yield_now();
        }
    }
    assert!(bytes(&memory, 100).is_ok());
}
