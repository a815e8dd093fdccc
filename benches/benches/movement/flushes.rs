use std::hint::black_box;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::fence;
use std::time::{Duration, Instant};

use ringmem::SharedLayout;
use ringmem::backend::{Address, Backend, Copy, DeviceAddress};
use ringmem::bridge::{Opened, Options, Placement, RingBufferBridge, Sender, TransferStrategy};
use ringmem::memory::{Buffer, Pinned, PinnedBuffer};
use ringmem_benches::{Subject, Workload};

use crate::{backend, each};

#[derive(Clone, Copy, SharedLayout)]
#[repr(C, align(64))]
#[layout(size = 64, message = 64, writer = "the sender")]
struct Line {
    words: [u64; 8],
}

const LINE: Line = Line { words: [7; 8] };

struct Rig {
    backend: Arc<dyn Backend>,
    sender: Sender<Line>,
    bridge: RingBufferBridge<Line, Line>,
    head: Address,
}

impl Rig {
    fn new(capacity: u64) -> Self {
        let backend = backend();
        let options = Options { placement: Some([Placement::PINNED; 2]), capacity: [capacity, 1], ..Options::new(TransferStrategy::Sync) };
        let Opened { sender, bridge, .. } = RingBufferBridge::open(&backend, 0, &options).expect("a bridge");
        let [input, _] = bridge.addresses().expect("addresses");
        let head = Address::Device(DeviceAddress::new(input.peer + std::mem::offset_of!(ringmem::RingHeader<u64>, consumer) as u64));
        Self { backend, sender, bridge, head }
    }

    fn take_all(&self) {
        // SAFETY: a live ring's index, accessed as a word on all sides.
        unsafe { self.backend.publish_now(self.head, self.sender.tail()) }.expect("live");
    }
}

fn timed(rounds: u64, mut round: impl FnMut() -> Duration + Send) -> f64 {
    let mut sum = Duration::ZERO;
    each(rounds, || {
        for _ in 0..rounds {
            sum += round();
        }
    });
    sum.as_nanos() as f64 / rounds as f64
}

fn flush<const MESSAGES: usize>(rounds: u64) -> f64 {
    let mut rig = Rig::new(MESSAGES as u64);
    let messages = vec![LINE; MESSAGES];
    timed(rounds, || {
        assert_eq!(rig.sender.push_slice(black_box(&messages)), Ok(MESSAGES));
        let begun = Instant::now();
        let moved = rig.bridge.flush_to_device().expect("no fault");
        let took = begun.elapsed();
        assert_eq!(moved, MESSAGES as u64);
        rig.take_all();
        took
    })
}

fn memcpy<const MESSAGES: usize, const FENCED: bool>(rounds: u64) -> f64 {
    let memory: Pinned = Pinned::new(&backend(), 0);
    let pages = || PinnedBuffer::<Line>::new(memory.clone(), MESSAGES).expect("room");
    let (mut from, mut to) = (pages(), pages());
    let messages = vec![LINE; MESSAGES];
    timed(rounds, || {
        let (from, to) = (from.as_mut_slice().expect("idle"), to.as_mut_slice().expect("idle"));
        black_box(&mut *from).copy_from_slice(black_box(&messages));
        let begun = Instant::now();
        black_box(&mut *to).copy_from_slice(black_box(from));
        if FENCED {
            fence(SeqCst);
        }
        begun.elapsed()
    })
}

const ROUND: u64 = 1024;

fn batches<const BATCH: u64>(messages: u64) -> f64 {
    let mut rig = Rig::new(ROUND);
    let batch = [LINE; 32];
    let rounds = messages.div_ceil(ROUND);
    each(rounds * ROUND, || {
        for _ in 0..rounds {
            for _ in 0..ROUND / BATCH {
                assert_eq!(rig.sender.push_slice(black_box(&batch[..BATCH as usize])), Ok(BATCH as usize));
                assert_eq!(rig.bridge.flush_to_device().expect("no fault"), BATCH);
            }
            rig.take_all();
        }
    })
}

fn bare<const BATCH: u64>(messages: u64) -> f64 {
    let backend = backend();
    let mut target = Buffer::<Line, _>::new(Pinned::new(&backend, 0), ROUND as usize).expect("room");
    let mut source = Buffer::<Line, _>::new(Pinned::new(&backend, 0), ROUND as usize).expect("room");
    let batch = [LINE; 32];
    let (to, from) = (target.as_mut_slice().expect("idle"), source.as_mut_slice().expect("idle"));
    let rounds = messages.div_ceil(ROUND);
    each(rounds * ROUND, || {
        for _ in 0..rounds {
            for (to, from) in to.chunks_exact_mut(BATCH as usize).zip(from.chunks_exact_mut(BATCH as usize)) {
                from.copy_from_slice(black_box(&batch[..BATCH as usize]));
                let [to, from] = [&raw mut to[0], &raw mut from[0]].map(|line| Address::Host(NonNull::new(line).expect("a line").cast()));
                // SAFETY: two blocks of equal length, of this turn.
                unsafe { backend.copy_now(&Copy { to, from, bytes: BATCH * size_of::<Line>() as u64 }) }.expect("live");
            }
        }
    })
}

pub fn workloads() -> Vec<Workload> {
    let whole = |name, subjects: Vec<Subject>| Workload { unit: "ns/flush", ..Workload::one(name, 1.0 / 0.95, subjects) };
    vec![
        whole(
            "flush-64k",
            vec![("ringmem bridge", flush::<1024>), ("memcpy", memcpy::<1024, false>), ("memcpy and a fence", memcpy::<1024, true>)],
        ),
        whole("flush-1m", vec![("ringmem bridge", flush::<16_384>), ("memcpy", memcpy::<16_384, false>)]),
        Workload {
            aim_added_ns: Some(150.0),
            ..Workload::one("flush-one", 4.0, vec![("ringmem bridge", batches::<1>), ("backend", bare::<1>)])
        },
        Workload { aim_ns: Some(5.0), ..Workload::one("flush-32", 2.0, vec![("ringmem bridge", batches::<32>), ("backend", bare::<32>)]) },
    ]
}
