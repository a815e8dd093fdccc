use std::sync::Arc;

use ringmem::backend::host::HostBackend;
use ringmem::memory::Buffer;
use ringmem::stream::Stream;

use super::{Bytes, DevicePool, Held, KIB, MIB, address, allocations, backend, builder, give, pool};

/// Frees a block of `bytes` that a stream uses. A request of that stream for `asked` bytes gets it at once; one of `others` does not, nor one of another stream or
/// of the host.
fn is_reused_at_once_only_on_its_stream(backend: &Arc<HostBackend>, pool: &DevicePool, bytes: u64, asked: u64, others: &[u64]) {
    let (first, second) = (Stream::new(backend, 0).unwrap(), Stream::new(backend, 0).unwrap());
    let held = Held::new(backend, &first);
    let buffer = give(pool, bytes);
    let at = address(&buffer);
    drop(first.fill(buffer, .., 1).expect("queued"));
    let on = |bytes: u64, stream| Bytes::new_on(pool.clone(), bytes as usize, stream).unwrap();
    let mut others: Vec<Bytes> = others.iter().map(|&bytes| on(bytes, &first)).collect();
    others.extend([on(asked, &second), give(pool, asked)]);
    assert!(others.iter().all(|other| address(other) != at), "to another stream, the host, or a request of another length");
    let before = pool.statistics();
    let own = on(asked, &first);
    assert_eq!(address(&own), at);
    let after = pool.statistics();
    assert_eq!((after.pending, after.reserved_bytes), (0, before.reserved_bytes));
    let last = second.fill(own, .., 9).expect("queued");
    assert!(!last.is_done(), "the first stream is held");
    held.release();
    let own = last.wait().expect("no failure");
    assert!(own.to_vec().unwrap().iter().all(|&byte| byte == 9));
    drop((own, others));
    assert_eq!(pool.statistics().live, 0);
}

#[test]
fn a_freed_block_is_reused_at_once_only_on_its_stream() {
    let backend = backend(64 * MIB);
    is_reused_at_once_only_on_its_stream(&backend, &pool(&backend), KIB, KIB, &[]);
}

#[test]
fn a_block_without_a_cache_is_reused_at_once_only_on_its_stream() {
    for (is_exact, bytes, hits) in [(false, 4 * MIB, 1), (true, 4 * MIB, 0), (true, 2 * KIB, 0)] {
        let backend = backend(64 * MIB);
        let pool = builder(&backend).exact(is_exact).build().unwrap();
        is_reused_at_once_only_on_its_stream(&backend, &pool, bytes, bytes - bytes / 16, &[bytes - bytes / 4, bytes + 1]);
        assert_eq!(pool.statistics().hits, hits);
    }
}

#[test]
fn a_request_takes_a_longer_block_of_its_stream_rather_than_fail() {
    let backend = backend(64 * MIB);
    let pool = builder(&backend).limit(8 * MIB).patience(std::time::Duration::ZERO).build().unwrap();
    let stream = Stream::new(&backend, 0).unwrap();
    let held = Held::new(&backend, &stream);
    let (short, long) = (give(&pool, 3 * MIB), give(&pool, 5 * MIB));
    let at = address(&short);
    drop((stream.fill(long, .., 1).expect("queued"), stream.fill(short, .., 1).expect("queued")));
    super::shortage(Bytes::new(pool.clone(), 2 << 20));
    let given = Bytes::new_on(pool.clone(), 2 << 20, &stream).unwrap();
    assert_eq!(address(&given), at, "the shortest");
    held.release();
}

#[test]
fn memory_of_the_pool_serves_a_size_without_a_class_as_a_hit() {
    let backend = backend(64 * MIB);
    let pool = pool(&backend);
    drop(give(&pool, 4 * MIB));
    let before = allocations(&backend);
    for _ in 0..99 {
        drop(give(&pool, 4 * MIB));
    }
    let statistics = pool.statistics();
    assert_eq!((statistics.hits, statistics.misses, allocations(&backend)), (99, 1, before));
}

#[test]
fn a_block_is_reused_on_the_host_after_its_last_use() {
    let backend = backend(64 * MIB);
    let pool = pool(&backend);
    let stream = Stream::new(&backend, 0).unwrap();
    let buffer = give(&pool, KIB);
    let at = address(&buffer);
    drop(stream.fill(buffer, .., 1).expect("queued"));
    stream.synchronize().unwrap();
    let again = give(&pool, KIB);
    assert_eq!(address(&again), at);
    assert!(again.to_vec().unwrap().iter().all(|&byte| byte == 1), "what was queued is done");
}

#[test]
fn a_block_used_by_several_streams_waits_for_all_of_them() {
    let backend = backend(64 * MIB);
    let pool = builder(&backend).limit(2 * MIB).slab(2 * MIB).patience(std::time::Duration::ZERO).build().unwrap();
    let streams: Vec<_> = (0..6).map(|_| Stream::new(&backend, 0).unwrap()).collect();
    let mut held: Vec<_> = streams.iter().map(|stream| Held::new(&backend, stream)).collect();
    let mut buffer = give(&pool, 2 * MIB);
    for stream in &streams {
        buffer.used_by(stream).expect("a live stream");
    }
    drop(buffer);
    while let Some(last) = held.pop() {
        super::shortage(Bytes::new(pool.clone(), 1024));
        for stream in &streams {
            super::shortage(Bytes::new_on(pool.clone(), 1024, stream));
        }
        last.release_only();
    }
    super::eventually("all are over", || Buffer::<u8, _>::new(pool.clone(), 1024).is_ok());
    assert_eq!(pool.statistics().pending, 0);
}

#[test]
fn a_dropped_pool_keeps_its_slabs_until_queued_work_completes() {
    let backend = backend(64 * MIB);
    let streams: Vec<_> = (0..6).map(|_| Stream::new(&backend, 0).unwrap()).collect();
    let pool = pool(&backend);
    let held: Vec<_> = streams.iter().map(|stream| Held::new(&backend, stream)).collect();
    for stream in &streams {
        drop(stream.fill(give(&pool, KIB), .., 1).expect("queued"));
    }
    let reserved = pool.statistics().reserved_bytes;
    drop(pool);
    assert_eq!(backend.counters().device_live.bytes, reserved, "kernels run before the fills");
    for held in held {
        held.release_only();
    }
    super::eventually("the slab is freed", || backend.counters().device_live.bytes == 0);
    for stream in &streams {
        stream.synchronize().expect("no fill went to memory that was gone");
    }
}

#[test]
fn a_dropped_pool_waits_for_every_stream_of_a_block() {
    let backend = backend(64 * MIB);
    let streams = [(); 2].map(|()| Stream::new(&backend, 0).unwrap());
    let pool = pool(&backend);
    let held: Vec<_> = streams.iter().map(|stream| Held::new(&backend, stream)).collect();
    let mut buffer = give(&pool, KIB);
    for stream in &streams {
        buffer.used_by(stream).expect("a live stream");
    }
    drop(buffer);
    let statistics = pool.statistics();
    assert_eq!(statistics.pending, 1);
    drop(pool);
    for held in held {
        assert_eq!(backend.counters().device_live.bytes, statistics.reserved_bytes, "a kernel runs");
        held.release_only();
    }
    super::eventually("the slab is freed", || backend.counters().device_live.bytes == 0);
}

#[test]
fn a_dropped_pool_makes_no_stream_wait_for_another() {
    let backend = backend(64 * MIB);
    let streams: Vec<_> = (0..7).map(|_| Stream::new(&backend, 0).unwrap()).collect();
    let pool = pool(&backend);
    let mut held: Vec<_> = streams.iter().map(|stream| Held::new(&backend, stream)).collect();
    for stream in &streams {
        drop(stream.fill(give(&pool, KIB), .., 1).expect("queued"));
    }
    let reserved = pool.statistics().reserved_bytes;
    drop(pool);
    let first = held.remove(0);
    for held in held {
        held.release();
    }
    assert_eq!(backend.counters().device_live.bytes, reserved, "one fill is to come");
    first.release();
    super::eventually("the slab is freed", || backend.counters().device_live.bytes == 0);
    assert_eq!(backend.counters().unreported, 0);
}
