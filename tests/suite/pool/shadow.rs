//! A pool compared with a list of intervals.
//!
//! Over an address range, a refusal is checked against the promise that whole free handles, moved together, with what limit and device have left, do not
//! suffice. In so small a pool each handle is one granule, so the intervals tell which are free.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ringmem::Error;
use ringmem::backend::host::HostBackend;
use ringmem::error::Unavailable;
use ringmem::memory::{Buffer, Device};
use ringmem::pool::{Classes, Pool};
use ringmem::stream::Stream;

#[derive(Clone, Copy, Debug)]
pub enum Op {
    Take { bytes: u32, on: Option<u8> },
    Give { which: u16 },
    GiveQueued { which: u16, stream: u8 },
    Trim { kib: u16 },
    Prewarm { bytes: u16, count: u8 },
    Synchronize { stream: u8 },
    Check,
}

/// Where a pool's memory comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    Slabs,
    /// The device has more memory than the limit permits.
    Range,
    /// The device has less.
    ShortRange,
}

const LIMIT: u64 = 8 << 20;
const GRANULE: u64 = 64 << 10;
const MOST: usize = 200;

type Bytes = Buffer<u8, Pool<Device>>;

pub struct Shadow {
    backend: Arc<HostBackend>,
    pool: Pool<Device>,
    classes: Option<Classes>,
    device_memory: u64,
    is_range: bool,
    streams: [Stream; 3],
    live: Vec<(Bytes, u8)>,
    intervals: BTreeMap<u64, u64>,
    requested: u64,
    taken: u64,
    given: u64,
    refused: u64,
    mark: u8,
}

impl Shadow {
    pub fn new(steps: u32, is_exact: bool, source: Source) -> Self {
        let device_memory = if source == Source::ShortRange { LIMIT / 4 * 3 } else { 2 * LIMIT };
        let is_range = source != Source::Slabs && cfg!(target_os = "linux");
        let granule = is_range.then_some(GRANULE);
        let backend = HostBackend::builder().device_memory(device_memory).mapping_granularity(granule).build().expect("a backend");
        let classes = Classes::new(4096, 10, steps).expect("classes");
        let builder = Pool::builder(Device::new(&backend, 0)).limit(LIMIT).classes(classes).exact(is_exact);
        let builder = if is_range { builder } else { builder.slab(1 << 20) };
        let pool = builder.patience(Duration::from_secs(60)).build().expect("a pool");
        let streams = [(); 3].map(|()| Stream::new(&backend, 0).expect("a stream"));
        let (live, intervals) = (Vec::new(), BTreeMap::new());
        let classes = (!is_exact).then_some(classes);
        Self {
            backend,
            pool,
            classes,
            device_memory,
            is_range,
            streams,
            live,
            intervals,
            requested: 0,
            taken: 0,
            given: 0,
            refused: 0,
            mark: 0,
        }
    }

    #[allow(dead_code, reason = "the fuzz target does not ask")]
    pub fn refused(&self) -> u64 {
        self.refused
    }

    pub fn step(&mut self, op: Op) {
        match op {
            Op::Take { bytes, on } => self.take(bytes.max(1), on),
            Op::Give { which } => drop(self.untracked(which)),
            Op::GiveQueued { which, stream } => {
                if let Some(buffer) = self.untracked(which) {
                    let stream = &self.streams[usize::from(stream) % 3];
                    drop(stream.fill(buffer, .., 0xEE).expect("queued"));
                }
            }
            Op::Trim { kib } => {
                self.pool.trim_to(u64::from(kib) << 10);
            }
            Op::Prewarm { bytes, count } => {
                let _ = self.pool.prewarm(u64::from(bytes).max(1), usize::from(count % 8));
            }
            Op::Synchronize { stream } => self.streams[usize::from(stream) % 3].synchronize().expect("nothing failed"),
            Op::Check => self.check(),
        }
    }

    fn take(&mut self, bytes: u32, on: Option<u8>) {
        if self.live.len() == MOST {
            drop(self.untracked(bytes as u16));
        }
        let (pool, len) = (self.pool.clone(), bytes as usize);
        let taken = match on {
            Some(stream) => Buffer::new_on(pool, len, &self.streams[usize::from(stream) % 3]),
            None => Buffer::new(pool, len),
        };
        let mut buffer = match taken {
            Ok(buffer) => buffer,
            Err(Error::OutOfMemory { requested, free, largest, unavailable, .. }) => {
                assert!(requested == u64::from(bytes) && largest < requested && largest <= free, "{requested} {free} {largest}");
                if self.is_range {
                    let movable = match unavailable.as_deref() {
                        Some(Unavailable::Fragments { movable, .. }) => *movable,
                        _ => 0,
                    };
                    self.check_refusal(requested, movable);
                }
                self.refused += 1;
                return;
            }
            Err(Error::Limit { requested, limit, .. }) => {
                assert!(requested == u64::from(bytes) && requested > limit, "{requested} {limit}");
                self.refused += 1;
                return;
            }
            Err(error) => panic!("{error}"),
        };
        let start = buffer.device_address().expect("it has bytes").get();
        let end = start + u64::from(bytes);
        let before = self.intervals.range(..end).next_back();
        assert!(before.is_none_or(|(_, &other)| other <= start), "{start:#x}..{end:#x} is somebody's");
        self.intervals.insert(start, end);
        self.mark = self.mark % 200 + 1;
        self.taken += 1;
        self.requested += u64::from(bytes);
        buffer.copy_from_at(0, &[self.mark]).expect("written");
        buffer.copy_from_at(len - 1, &[self.mark]).expect("written");
        self.live.push((buffer, self.mark));
    }

    fn check_refusal(&self, requested: u64, movable: u64) {
        let mapped = self.backend.counters().device_live.bytes;
        // A part shorter than its class serves the class below, so a block may be nearly as long as the class above its own.
        let held = |bytes: u64| match &self.classes {
            Some(classes) if bytes <= 1 << 20 => classes.class_of(bytes).and_then(|class| classes.size_of(class + 1)).unwrap_or(bytes),
            _ => bytes.next_multiple_of(256),
        };
        let granules = |(&start, &end): (&u64, &u64)| start / GRANULE..(start + held(end - start)).div_ceil(GRANULE);
        let used: BTreeSet<u64> = self.intervals.iter().flat_map(granules).collect();
        let whole = (mapped / GRANULE).saturating_sub(used.len() as u64) * GRANULE;
        let left = (LIMIT.min(self.device_memory) - mapped) / GRANULE * GRANULE;
        assert!(requested > whole + left, "{requested} bytes refused, {whole} in whole free handles, {left} to be mapped");
        assert!(if self.classes.is_none() { movable == whole } else { movable >= whole }, "{movable} of {whole}");
    }

    fn untracked(&mut self, which: u16) -> Option<Bytes> {
        if self.live.is_empty() {
            return None;
        }
        let (buffer, mark) = self.live.swap_remove(usize::from(which) % self.live.len());
        let mut ends = [0; 2];
        buffer.copy_to_at(0, &mut ends[..1]).expect("read");
        buffer.copy_to_at(buffer.len() - 1, &mut ends[1..]).expect("read");
        assert_eq!(ends, [mark; 2], "somebody wrote to a live block");
        self.intervals.remove(&buffer.device_address().expect("it has bytes").get());
        self.given += 1;
        self.requested -= buffer.len() as u64;
        Some(buffer)
    }

    fn check(&self) {
        let statistics = self.pool.statistics();
        assert_eq!((statistics.acquires(), statistics.returns, statistics.live), (self.taken, self.given, self.live.len() as u64));
        assert_eq!(statistics.requested_bytes, self.requested);
        assert!(statistics.held_bytes >= self.requested && statistics.held_bytes + statistics.free_bytes <= statistics.reserved_bytes);
        assert!(statistics.reserved_peak <= LIMIT, "{}", statistics.reserved_peak);
        for slab in self.pool.snapshot() {
            let mut end = 0;
            for (offset, bytes, _) in slab.parts {
                assert_eq!(offset, end, "no gap, no overlap");
                end += bytes;
            }
            assert_eq!(end, slab.bytes);
        }
    }

    pub fn finish(mut self) {
        self.check();
        while let Some(buffer) = self.untracked(0) {
            drop(buffer);
        }
        self.check();
        for stream in &self.streams {
            stream.synchronize().expect("nothing failed");
        }
        self.pool.trim_to(0);
        assert_eq!(self.pool.statistics().reserved_bytes, 0);
        let begun = Instant::now();
        while self.backend.counters().device_live.bytes > 0 {
            assert!(begun.elapsed() < Duration::from_secs(60), "not in time: everything is freed");
            std::thread::yield_now();
        }
    }
}
