use std::boxed::Box;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::sync::atomic::fence;

use rustix::time::ClockId;

use super::{BYTES, MAGIC, Page, RoundTrips, VERSION, folder, now, time_of};
use crate::dump::Indices;
use crate::pool::Statistics;
use crate::shared::mapping::Mapping;
use crate::sys::fork::Process;
use crate::{ControlBlock, HostWord, Result, TelemetryBuffer};

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
    pool: Option<Box<dyn Fn() -> Statistics + Send>>,
}

impl Publisher {
    /// The outer error is the caller's: an invalid name, or one that this process has published. The inner one, of the system, concerns only the
    /// figures: the channel works without them.
    pub fn create(name: &str, kernel: &str, start: u64, stuck_after_ns: u64) -> Result<Result<Self>> {
        folder::check_name(name)?;
        Ok(folder::create(name, &[0; BYTES])?.and_then(|(path, file)| Self::with(path, file, kernel, start, stuck_after_ns)))
    }

    fn with(path: PathBuf, file: OwnedFd, kernel: &str, start: u64, stuck_after_ns: u64) -> Result<Self> {
        let mapping = Mapping::new(file.as_fd(), BYTES as u64).inspect_err(|_| folder::remove(&path))?;
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

    /// Reads this pool from the next sample on, in the place of an earlier one.
    pub fn show(&mut self, pool: impl Fn() -> Statistics + Send + 'static) {
        self.pool = Some(Box::new(pool));
        self.pool_due = 0;
    }

    fn page(&self) -> &Page {
        // SAFETY: mapped with this length, at a page's start, as long as `self`. A page consists of words, valid for any bytes.
        unsafe { self.mapping.place().cast().as_ref() }
    }

    /// Stores the counts, and returns whether a sample is due.
    ///
    /// One round trip at a time is measured: it begins when a count has more messages than the last, and ends when as many answers have been received, since
    /// each message has one answer, in order.
    pub fn count(&mut self, tail: u64, head: u64) -> bool {
        let (sent, received) = (tail.wrapping_sub(self.start), head.wrapping_sub(self.start));
        match self.probe {
            // A kernel that has sent more than it was sent sends messages of its own.
            None if sent != self.page().sent.load(Relaxed) && received.wrapping_sub(sent) >= 1 << 63 => self.probe = Some((sent, now())),
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
    let &ControlBlock { abi, capabilities, command, epoch, input_ring, output_ring, telemetry, input_second, .. } = block;
    let &ControlBlock { state, command_seen, error, processed, in_flight, output_second, heartbeat, abi_seen, .. } = block;
    [
        abi,
        capabilities,
        command,
        epoch,
        input_ring,
        output_ring,
        telemetry,
        input_second,
        state,
        command_seen,
        error,
        processed,
        in_flight,
        output_second,
        heartbeat,
        abi_seen,
    ]
}

impl Drop for Publisher {
    fn drop(&mut self) {
        // The page of a fork's parent stays.
        if self.process.is_this() {
            folder::remove(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use core::array;
    use core::cell::Cell;
    use core::time::Duration;
    use std::sync::Arc;
    use std::sync::atomic::AtomicU64;
    use std::time::Instant;
    use std::vec::Vec;

    use zerocopy::transmute;

    use super::*;
    use crate::monitor::{Figures, PoolUse, View};

    fn published(name: &str) -> (Publisher, View) {
        let publisher = Publisher::create(name, "kernel", 1000, 77).expect("a page").expect("a folder of this user");
        let view = View::open(&publisher.path).expect("a page");
        (publisher, view)
    }

    fn numbered<const N: usize>(first: u64) -> [u64; N] {
        array::from_fn(|at| first + at as u64)
    }

    /// Rings of 100 slots with these many messages.
    fn filled(fills: [u64; 2]) -> [Indices; 2] {
        fills.map(|fill| Indices { head: 5, tail: 5 + fill, capacity: 100 })
    }

    fn sample(publisher: &mut Publisher, heartbeat: u64, fills: [u64; 2]) {
        let mut words = numbered::<16>(0);
        words[14] = heartbeat;
        publisher.sample(&transmute!(words), None, filled(fills));
    }

    /// A pool that counts its reads.
    fn counted(publisher: &mut Publisher) -> Arc<AtomicU64> {
        let reads = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&reads);
        publisher.show(move || {
            let reads = count.fetch_add(1, Relaxed);
            Statistics { hits: reads, ..Statistics::default() }
        });
        reads
    }

    #[test]
    fn each_figure_of_a_sample_is_read_under_its_own_name() {
        let (mut publisher, view) = published("names");
        publisher.show(|| Statistics {
            hits: 401,
            misses: 402,
            returns: 403,
            live: 404,
            requested_bytes: 405,
            held_bytes: 406,
            reserved_bytes: 407,
            reserved_peak: 408,
            ..Statistics::default()
        });
        let (control, telemetry): (ControlBlock<u64>, TelemetryBuffer<u64>) =
            (transmute!(numbered::<16>(100)), transmute!(numbered::<8>(200)));
        let input = Indices { head: 301, tail: 304, capacity: 8 };
        let output = Indices { head: 311, tail: 316, capacity: 16 };
        publisher.sample(&control, Some(telemetry), [input, output]);
        publisher.count(1012, 1009);
        let Figures { pid, kernel, open_for_ns, age_ns, quiet_for_ns, stuck_after_ns, sent, received, .. } =
            view.read().expect("no writer");
        assert_eq!((pid, kernel.as_str(), stuck_after_ns), (std::process::id().into(), "kernel", 77));
        assert_eq!((sent, received), (12, 9), "both count from the start index");
        assert!(open_for_ns >= age_ns && age_ns.is_some() && quiet_for_ns.is_some());
        let figures = view.read().expect("no writer");
        assert_eq!((figures.control, figures.telemetry), (control, telemetry));
        let rings = figures.rings.map(|Indices { head, tail, capacity }| [head, tail, capacity]);
        assert_eq!((rings, figures.high_water), ([[301, 304, 8], [311, 316, 16]], [3, 5]));
        let pool = PoolUse { reserved_bytes: 407, reserved_peak: 408, held_bytes: 406, live: 404, hits: 401, misses: 402 };
        assert_eq!(figures.pool, Some(pool));
        publisher.sample(&control, None, [input, output]);
        assert_eq!(view.read().expect("no writer").telemetry, telemetry, "a sample without telemetry keeps the last one");
    }

    #[test]
    fn a_high_water_mark_never_falls() {
        let (mut publisher, view) = published("most");
        for (fills, most) in [([7, 1], [7, 1]), ([2, 9], [7, 9]), ([0, 0], [7, 9]), ([8, 3], [8, 9])] {
            sample(&mut publisher, 0, fills);
            assert_eq!(view.read().expect("no writer").high_water, most);
        }
        publisher.sample(&transmute!(numbered::<16>(0)), None, [Indices { head: 9, tail: 0, capacity: 4 }; 2]);
        assert_eq!(view.read().expect("no writer").high_water, [8, 9], "impossible indices are no fill");
    }

    #[test]
    fn the_heartbeat_is_dated_by_its_first_sample() {
        let (mut publisher, view) = published("beat");
        let date = |publisher: &Publisher| publisher.page().heartbeat_ns.load(Relaxed);
        sample(&mut publisher, 1, [0; 2]);
        let first = date(&publisher);
        let began = Instant::now();
        while view.read().expect("no writer").quiet_for_ns < Some(1_000_000) {
            assert!(began.elapsed() < Duration::from_secs(60), "samples a millisecond later");
            sample(&mut publisher, 1, [0; 2]);
            assert_eq!(date(&publisher), first);
        }
        sample(&mut publisher, 2, [0; 2]);
        assert!(date(&publisher) > first);
    }

    /// Calls `due` 2 000 times, and again until it returned true twice; checks that this happened at most once per interval.
    fn at_most_every(interval_ns: u64, mut due: impl FnMut() -> bool) {
        let (began, mut calls, mut times) = (Instant::now(), 0, 0);
        while calls < 2000 || times < 2 {
            assert!(began.elapsed() < Duration::from_secs(60), "{times} times in {calls} calls");
            calls += 1;
            times += u64::from(due());
        }
        // The coarse clock may be a tick ahead of an interval's start.
        let most = began.elapsed().as_nanos() as u64 / (interval_ns - interval_ns / 2) + 2;
        assert!(times <= most, "{times} times in {calls} calls, {most} allowed");
    }

    #[test]
    fn a_sample_is_due_at_most_every_10_ms() {
        let (mut publisher, _view) = published("due");
        at_most_every(SAMPLE_NS, || publisher.count(1000, 1000));
    }

    #[test]
    fn a_pool_is_read_at_most_every_200_ms() {
        let (mut publisher, view) = published("seldom");
        let reads = counted(&mut publisher);
        let seen = Cell::new(0);
        at_most_every(POOL_NS, || {
            sample(&mut publisher, 0, [0; 2]);
            let reads = reads.load(Relaxed);
            assert_eq!(view.read().expect("no writer").pool.map(|pool| pool.hits + 1), Some(reads), "the last read stays");
            seen.replace(reads) < reads
        });
    }
    #[test]
    fn times_are_read_from_their_own_dates() {
        let (mut publisher, view) = published("dates");
        sample(&mut publisher, 1, [0; 2]);
        let (page, before) = (publisher.page(), now());
        for (date, ago) in [(&page.created_ns, 9), (&page.heartbeat_ns, 7), (&page.sampled_ns, 4)] {
            date.store(before - ago, Relaxed);
        }
        let figures = view.read().expect("no writer");
        let elapsed = now() - before;
        assert_eq!(figures.quiet_for_ns, Some(3), "from the heartbeat to the sample");
        for (time, least) in [(figures.open_for_ns, 9), (figures.age_ns, 4)] {
            assert!(time.is_some_and(|time| (least..=least + elapsed).contains(&time)), "{time:?}, not {least} and up to {elapsed} more");
        }
        assert_eq!(figures.open_for_ns.zip(figures.age_ns).map(|(open, age)| open - age), Some(5));
    }

    #[test]
    fn a_channel_is_idle_a_second_after_its_last_sample() {
        const SECOND: u64 = 1_000_000_000;
        let (mut publisher, view) = published("idle");
        let read = || view.read().expect("no writer");
        assert_eq!(read().idle_for_ns(), None, "no sample");
        sample(&mut publisher, 1, [1, 0]);
        let sampled = now();
        for ago in [0, SECOND / 2, SECOND, 5 * SECOND] {
            publisher.page().sampled_ns.store(sampled - ago, Relaxed);
            let figures = read();
            assert_eq!(figures.idle_for_ns(), figures.age_ns.filter(|&age| age > SECOND), "{ago}");
            assert!(ago < SECOND || figures.idle_for_ns() >= Some(ago), "{figures:?}");
        }
    }

    #[test]
    fn each_measured_round_trip_is_counted() {
        const TRIPS: u64 = 2 * RoundTrips::BUCKETS as u64;
        let (mut publisher, view) = published("trips");
        for trip in 1..=TRIPS {
            publisher.count(1000 + trip, 1000 + trip - 1);
            publisher.count(1000 + trip, 1000 + trip);
        }
        assert_eq!(view.read().expect("no writer").round_trips.count(), TRIPS);
    }

    #[test]
    fn messages_of_a_kernels_own_are_no_round_trips() {
        let (mut publisher, view) = published("own");
        publisher.count(1000, 1005);
        publisher.count(1001, 1005);
        publisher.count(1001, 1006);
        let figures = view.read().expect("no writer");
        assert_eq!((figures.sent, figures.received, figures.round_trips.count()), (1, 6, 0));
    }

    #[test]
    fn pages_are_listed_by_process_and_name() {
        let _published = ["list-d", "list-a", "list-f", "list-b", "list-e", "list-c"].map(published);
        let listed = crate::monitor::list().expect("the folders of this user");
        let ours: Vec<_> = listed.iter().map(|one| one.name.as_str()).filter(|name| name.starts_with("list-")).collect();
        assert!(ours.len() >= 6 && listed.is_sorted_by_key(|one| (one.pid, &one.name)), "{listed:?}");
    }
}
