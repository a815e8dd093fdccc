use std::boxed::Box;
use std::io::ErrorKind;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::sync::atomic::fence;

use rustix::time::ClockId;

use super::{BYTES, MAGIC, Page, RoundTrips, VERSION, folder, now, time_of};
use crate::dump::Indices;
use crate::fork::Process;
use crate::pool::Statistics;
use crate::shared::mapping::Mapping;
use crate::{ControlBlock, Error, HostWord, Result, TelemetryBuffer};

const SAMPLE_NS: u64 = 10_000_000;
const POOL_NS: u64 = 200_000_000;

pub(crate) struct Publisher {
    mapping: Mapping,
    path: PathBuf,
    /// Its lock shows that this process lives.
    _file: OwnedFd,
    process: Process,
    start: u64,
    /// Message and answer of the measured round trip, and the time of the send.
    probe: Option<(u64, u64)>,
    due: u64,
    pool_due: u64,
    heartbeat: (u64, u64),
    high_water: [u64; 2],
    pub(crate) pool: Option<Box<dyn Fn() -> Statistics + Send>>,
}

impl Publisher {
    /// The outer error is the caller's: an invalid name, or one that this process has published. The inner one, of the system, concerns only the
    /// figures: the channel works without them.
    pub fn create(name: &str, kernel: &str, start: u64, stuck_after_ns: u64) -> Result<Result<Self>> {
        folder::check_name(name)?;
        match Self::created(name, kernel, start, stuck_after_ns) {
            Err(Error::System { answer, call, path }) if answer.kind() == ErrorKind::AlreadyExists => {
                Err(Error::System { call, path, answer })
            }
            created => Ok(created),
        }
    }

    fn created(name: &str, kernel: &str, start: u64, stuck_after_ns: u64) -> Result<Self> {
        let (path, file) = folder::create(name, &[0; BYTES])?;
        let mapping = match Mapping::new(file.as_fd(), BYTES as u64) {
            Ok(mapping) => mapping,
            Err(error) => {
                let _ = rustix::fs::unlink(&path);
                return Err(error);
            }
        };
        let publisher = Self {
            mapping,
            path,
            _file: file,
            process: Process::this(),
            start,
            probe: None,
            due: 0,
            pool_due: 0,
            heartbeat: (0, now()),
            high_water: [0; 2],
            pool: None,
        };
        let page = publisher.page();
        let mut text = [0; 64];
        let len = kernel.floor_char_boundary(text.len());
        text[..len].copy_from_slice(&kernel.as_bytes()[..len]);
        for (word, bytes) in page.kernel.iter().zip(text.chunks_exact(8)) {
            word.store(u64::from_le_bytes(bytes.try_into().unwrap_or_default()), Relaxed);
        }
        for (word, value) in [
            (&page.version, VERSION),
            (&page.size, BYTES as u64),
            (&page.pid, u64::from(std::process::id())),
            (&page.created_ns, now()),
            (&page.stuck_after_ns, stuck_after_ns),
        ] {
            word.store(value, Relaxed);
        }
        // SYNC POINT: page laid out. Pairs with View::read.
        page.magic.store(MAGIC, Release);
        Ok(publisher)
    }

    fn page(&self) -> &Page {
        // SAFETY: mapped with this length, at a page's start, as long as `self`. A page consists of words, valid for any bytes.
        unsafe { self.mapping.place().cast().as_ref() }
    }

    /// Whether a sample is due.
    pub fn count(&mut self, tail: u64, head: u64) -> bool {
        let (sent, received) = (tail.wrapping_sub(self.start), head.wrapping_sub(self.start));
        match self.probe {
            None if sent != self.page().sent.load(Relaxed) => self.probe = Some((sent, now())),
            Some((message, at)) if received.wrapping_sub(message) < 1 << 63 => {
                let bucket = &self.page().round_trips[RoundTrips::bucket(now().saturating_sub(at))];
                bucket.store(bucket.load(Relaxed).wrapping_add(1), Relaxed);
                self.probe = None;
            }
            _ => {}
        }
        let page = self.page();
        page.sent.store(sent, Relaxed);
        page.received.store(received, Relaxed);
        let time = time_of(ClockId::MonotonicCoarse);
        let is_due = time >= self.due;
        if is_due {
            self.due = time + SAMPLE_NS;
        }
        is_due
    }

    pub fn sample(&mut self, control: &ControlBlock<u64>, telemetry: Option<TelemetryBuffer<u64>>, rings: [Indices; 2]) {
        let time = now();
        if self.heartbeat.0 != control.heartbeat {
            self.heartbeat = (control.heartbeat, time);
        }
        for (most, ring) in self.high_water.iter_mut().zip(&rings) {
            *most = ring.fill().unwrap_or(0).max(*most);
        }
        let pool = match &self.pool {
            Some(pool) if time >= self.pool_due => Some(pool()),
            _ => None,
        };
        let page = self.page();
        let sequence = page.sequence.load(Relaxed);
        page.sequence.store(sequence.wrapping_add(1), Relaxed);
        // SYNC POINT: figures written. Pairs with View::read: a reader of a figure of this sample sees the odd sequence.
        fence(Release);
        page.sampled_ns.store(time, Relaxed);
        page.heartbeat_ns.store(self.heartbeat.1, Relaxed);
        store(&page.high_water, self.high_water);
        store(&page.control, words(control));
        if let Some(TelemetryBuffer {
            sequence,
            processed,
            dropped,
            latency_total_ns,
            latency_min_ns,
            latency_max_ns,
            depths,
            updated_ns,
        }) = telemetry
        {
            store(&page.telemetry, [sequence, processed, dropped, latency_total_ns, latency_min_ns, latency_max_ns, depths, updated_ns]);
        }
        let [input, output] = rings;
        store(&page.rings, [input.head, input.tail, input.capacity, output.head, output.tail, output.capacity]);
        if let Some(Statistics { reserved_bytes, reserved_peak, held_bytes, live, hits, misses, .. }) = pool {
            store(&page.pool, [reserved_bytes, reserved_peak, held_bytes, live, hits, misses]);
            page.has_pool.store(1, Relaxed);
        }
        page.sequence.store(sequence.wrapping_add(2), Release);
        if pool.is_some() {
            self.pool_due = time + POOL_NS;
        }
    }
}

fn store<const N: usize>(words: &[HostWord; N], values: [u64; N]) {
    for (word, value) in words.iter().zip(values) {
        word.store(value, Relaxed);
    }
}

const fn words(block: &ControlBlock<u64>) -> [u64; 16] {
    let &ControlBlock { abi, capabilities, command, epoch, input_ring, output_ring, telemetry, _host_reserved, .. } = block;
    let &ControlBlock { state, command_seen, error, processed, in_flight, clock, heartbeat, abi_seen, .. } = block;
    [
        abi,
        capabilities,
        command,
        epoch,
        input_ring,
        output_ring,
        telemetry,
        _host_reserved,
        state,
        command_seen,
        error,
        processed,
        in_flight,
        clock,
        heartbeat,
        abi_seen,
    ]
}

impl Drop for Publisher {
    fn drop(&mut self) {
        // The page of a fork's parent stays.
        if self.process.is_this() {
            let _ = rustix::fs::unlink(&self.path);
        }
    }
}
