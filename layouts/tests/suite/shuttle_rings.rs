//! Longer runs of every ring than loom can enumerate.

use std::cell::UnsafeCell;
use std::mem::ManuallyDrop;
use std::panic::catch_unwind;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64 as Counter, Ordering};

use ringmem_layouts::attach::Corrupt;
use ringmem_layouts::ring::mpmc::ManyProducer;
use ringmem_layouts::ring::{PopError, RingFlags, Slot, flagged, mpmc, mpsc, spsc};
use ringmem_layouts::{Machine, RingHeader, RingLayout, RmwWord, SlotCell, Word};
use shuttle::sync::atomic::{AtomicBool, AtomicU64};
use shuttle::{check_random, thread};

const SCHEDULES: usize = 2_000;
const MESSAGES: u64 = 12;
const CAPACITY: usize = 2;
const START: u64 = u64::MAX - 2;

const WHOLE: u8 = 0;
const TORN_EXCHANGE: u8 = 1;

struct Shuttle<const BROKEN: u8>;

impl<const BROKEN: u8> Machine for Shuttle<BROKEN> {
    type Word = ShuttleWord<BROKEN>;
    type Cell<T> = ShuttleCell<T>;
    type Corrupt = Corrupt;

    fn at(&self, _address: u64, _bytes: u64, _align: u64) -> Option<NonNull<u8>> {
        None
    }
}

struct ShuttleWord<const BROKEN: u8>(AtomicU64);

// SAFETY: each is one sequentially consistent access.
unsafe impl<const BROKEN: u8> Word for ShuttleWord<BROKEN> {
    fn new(value: u64) -> Self {
        Self(AtomicU64::new(value))
    }
    fn load(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
    fn load_acquire(&self) -> u64 {
        self.load()
    }
    fn store(&self, value: u64) {
        self.0.store(value, Ordering::SeqCst);
    }
    fn store_release(&self, value: u64) {
        self.store(value);
    }
    fn publish_all<const N: usize>(words: [(&Self, u64); N]) {
        for (word, value) in words {
            word.store(value);
        }
    }
}

// SAFETY: single atomic operations. The broken one is detected: a cell refuses a second visitor.
unsafe impl<const BROKEN: u8> RmwWord for ShuttleWord<BROKEN> {
    fn compare_exchange(&self, current: u64, new: u64) -> Result<u64, u64> {
        if BROKEN != TORN_EXCHANGE {
            return self.0.compare_exchange(current, new, Ordering::SeqCst, Ordering::SeqCst);
        }
        let found = self.load();
        if found != current {
            return Err(found);
        }
        self.store(new);
        Ok(found)
    }
    fn fetch_add(&self, value: u64) -> u64 {
        self.0.fetch_add(value, Ordering::SeqCst)
    }
    fn swap(&self, value: u64) -> u64 {
        self.0.swap(value, Ordering::SeqCst)
    }
}

struct ShuttleCell<T> {
    visited: AtomicBool,
    value: UnsafeCell<T>,
}

impl<T> ShuttleCell<T> {
    fn visit<R>(&self, visit: impl FnOnce(*mut T) -> R) -> R {
        assert!(!self.visited.swap(true, Ordering::SeqCst), "{OVERLAP}");
        let result = visit(self.value.get());
        self.visited.store(false, Ordering::SeqCst);
        result
    }
}

// SAFETY: the pointer of its cell.
unsafe impl<T> SlotCell<T> for ShuttleCell<T> {
    fn new(value: T) -> Self {
        Self { visited: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }
    fn with<R>(&self, read: impl FnOnce(*const T) -> R) -> R {
        self.visit(|value| read(value.cast_const()))
    }
    fn with_mut<R>(&self, write: impl FnOnce(*mut T) -> R) -> R {
        self.visit(write)
    }
}

const OVERLAP: &str = "two at one slot";

struct Memory<M: Machine, S> {
    header: RingHeader<M::Word>,
    slots: Vec<S>,
}

// SAFETY: shuttle checks whether the ring's protocol suffices.
unsafe impl<M: Machine, S> Sync for Memory<M, S> {}

impl<M: Machine, S> Memory<M, S> {
    fn new(kind: RingFlags, slot: impl Fn(M::Cell<u64>, u64) -> S) -> &'static Self
    where
        M: 'static,
    {
        let layout = RingLayout::of_kind::<u64>(kind, CAPACITY as u64).unwrap();
        Box::leak(Box::new(Self {
            header: RingHeader::new::<u64>(&layout, START),
            slots: (0..CAPACITY as u64).map(|place| slot(M::Cell::new(u64::MAX), place)).collect(),
        }))
    }
    fn slots(&self) -> NonNull<S> {
        NonNull::from(self.slots.as_slice()).cast()
    }
    /// # Safety
    ///
    /// Made by `new`, without handles.
    unsafe fn free(&'static self) {
        // SAFETY: the caller promises that `new` leaked this box and that no handle borrows it, so it is freed once and unused.
        drop(unsafe { Box::from_raw(std::ptr::from_ref(self).cast_mut()) });
    }
}

/// A failed model must not call shuttle.
struct Kept<H>(ManuallyDrop<H>);

impl<H> Drop for Kept<H> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            // SAFETY: once; unused afterwards.
            unsafe { ManuallyDrop::drop(&mut self.0) };
        }
    }
}

fn meet<P: Send + 'static, C: Send + 'static>(
    producers: Vec<P>,
    consumers: Vec<C>,
    fill: fn(&mut P, &[u64], u64) -> usize,
    drain: fn(&mut C, u64) -> Vec<u64>,
) {
    let count = producers.len() as u64;
    let came = Arc::new(Counter::new(0));
    let writers: Vec<_> = producers
        .into_iter()
        .zip(0..)
        .map(|(producer, who)| {
            let mut producer = Kept(ManuallyDrop::new(producer));
            thread::spawn(move || {
                let mut sent = 0;
                let mut tries = who;
                while sent < MESSAGES {
                    let rest: Vec<u64> = (sent..MESSAGES).take(CAPACITY).map(|number| who << 32 | number).collect();
                    let taken = fill(&mut producer.0, &rest, tries);
                    sent += taken as u64;
                    tries += 1;
                    if taken == 0 {
                        thread::yield_now();
                    }
                }
            })
        })
        .collect();
    let readers: Vec<_> = consumers
        .into_iter()
        .zip(0..)
        .map(|(consumer, who)| {
            let mut consumer = Kept(ManuallyDrop::new(consumer));
            let came = came.clone();
            thread::spawn(move || {
                let mut got = Vec::new();
                let mut tries: u64 = who;
                while came.load(Ordering::Relaxed) < count * MESSAGES {
                    let some = drain(&mut consumer.0, tries);
                    came.fetch_add(some.len() as u64, Ordering::Relaxed);
                    tries += 1;
                    if some.is_empty() {
                        thread::yield_now();
                    }
                    got.extend(some);
                }
                got
            })
        })
        .collect();
    for writer in writers {
        writer.join().unwrap();
    }
    let got: Vec<Vec<u64>> = readers.into_iter().map(|reader| reader.join().unwrap()).collect();
    for one in &got {
        for who in 0..count {
            assert!(one.iter().filter(|value| **value >> 32 == who).is_sorted(), "out of order: {one:x?}");
        }
    }
    let mut all = got.concat();
    all.sort_unstable();
    let sent: Vec<u64> = (0..count).flat_map(|who| (0..MESSAGES).map(move |number| who << 32 | number)).collect();
    assert_eq!(all, sent, "lost or doubled");
}

fn got<T>(popped: Result<T, PopError<Corrupt>>) -> Option<T> {
    popped.map_err(|refused| assert_eq!(refused, PopError::Empty)).ok()
}

macro_rules! fill {
    ($producer:ident, $messages:ident, $way:ident, $($slice:expr)?) => {
        match $way % 4 {
            0 => usize::from($producer.push($messages[0]).is_ok()),
            1 => $producer.reserve(CAPACITY).map_or(0, |mut grant| grant.fill([$messages[0]])),
            2 => {
                let mut batch = $producer.batch(CAPACITY);
                $messages.iter().take_while(|value| batch.push(**value).is_ok()).count()
            }
            $(3 => $slice,)?
            _ => $producer.reserve(1).map_or(0, |mut grant| grant.fill($messages.iter().copied())),
        }
    };
}

macro_rules! drain {
    ($consumer:ident, $way:ident) => {
        match $way % 3 {
            0 => got($consumer.pop()).into_iter().collect(),
            1 => got($consumer.peek(CAPACITY)).map_or_else(Vec::new, |chunk| {
                let first = chunk.with(0, |value| *value);
                chunk.release(1);
                first.into_iter().collect()
            }),
            _ => {
                let mut batch = $consumer.batch(CAPACITY);
                (0..CAPACITY).map_while(|_| got(batch.pop())).collect()
            }
        }
    };
}

fn spsc_ring<const BROKEN: u8>() {
    type Ring<const BROKEN: u8> = Memory<Shuttle<BROKEN>, ShuttleCell<u64>>;
    let memory = Ring::<BROKEN>::new(RingFlags::SPSC, |cell, _| cell);
    // SAFETY: cells with values; the only ends.
    let producer = unsafe { spsc::Producer::<u64, Shuttle<BROKEN>>::new(&memory.header, &memory.header, memory.slots()) }.unwrap();
    // SAFETY: cells with values; the only ends.
    let consumer = unsafe { spsc::Consumer::<u64, Shuttle<BROKEN>>::new(&memory.header, &memory.header, memory.slots()) }.unwrap();
    meet(vec![producer], vec![consumer], |producer, messages, way| fill!(producer, messages, way,), |consumer, way| drain!(consumer, way));
    // SAFETY: without ends.
    unsafe { memory.free() };
}

type Slotted<const BROKEN: u8> = Memory<Shuttle<BROKEN>, Slot<ShuttleWord<BROKEN>, ShuttleCell<u64>>>;

fn flagged_ring<const BROKEN: u8>() {
    let memory = Slotted::<BROKEN>::new(RingFlags::FLAGGED, |cell, _| Slot::new(Word::new(0), cell));
    // SAFETY: slots with values; the only ends.
    let producer = unsafe { flagged::Producer::<u64, Shuttle<BROKEN>>::new(&memory.header, &memory.header, memory.slots()) }.unwrap();
    // SAFETY: slots with values; the only ends.
    let consumer = unsafe { flagged::Consumer::<u64, Shuttle<BROKEN>>::new(&memory.header, &memory.header, memory.slots()) }.unwrap();
    meet(
        vec![producer],
        vec![consumer],
        |producer, messages, way| fill!(producer, messages, way, producer.push_slice(messages).unwrap()),
        |consumer, way| drain!(consumer, way),
    );
    // SAFETY: without ends.
    unsafe { memory.free() };
}

fn many_fill<const BROKEN: u8, const KIND: u64>(
    producer: &mut ManyProducer<'static, u64, Shuttle<BROKEN>, KIND>,
    messages: &[u64],
    way: u64,
) -> usize {
    fill!(producer, messages, way, producer.push_slice(messages))
}

fn mpsc_ring<const BROKEN: u8>() {
    let memory = Slotted::<BROKEN>::new(RingFlags::MPSC, |cell, place| Slot::vacant(cell, place, CAPACITY as u64, START));
    // SAFETY: `CAPACITY` slots, vacant.
    let producer = unsafe { mpsc::Producer::<u64, Shuttle<BROKEN>>::new(&memory.header, memory.slots()) }.unwrap();
    // SAFETY: `CAPACITY` slots, vacant; the only consumer.
    let consumer = unsafe { mpsc::Consumer::<u64, Shuttle<BROKEN>>::new(&memory.header, &memory.header, memory.slots()) }.unwrap();
    meet(vec![producer.clone(), producer], vec![consumer], many_fill, |consumer, way| drain!(consumer, way));
    // SAFETY: without ends.
    unsafe { memory.free() };
}

fn mpmc_ring<const BROKEN: u8>() {
    let memory = Slotted::<BROKEN>::new(RingFlags::MPMC, |cell, place| Slot::vacant(cell, place, CAPACITY as u64, START));
    // SAFETY: `CAPACITY` slots, vacant.
    let producer = unsafe { mpmc::Producer::<u64, Shuttle<BROKEN>>::new(&memory.header, memory.slots()) }.unwrap();
    // SAFETY: `CAPACITY` slots, vacant.
    let consumer = unsafe { mpmc::Consumer::<u64, Shuttle<BROKEN>>::new(&memory.header, memory.slots()) }.unwrap();
    meet(vec![producer.clone(), producer], vec![consumer.clone(), consumer], many_fill, |consumer, way| match way % 3 {
        0 => got(consumer.pop()).into_iter().collect(),
        1 => got(consumer.take(CAPACITY)).map_or_else(Vec::new, |taken| ManuallyDrop::new(taken).by_ref().collect()),
        _ => {
            let mut values = [0; CAPACITY];
            let count = consumer.pop_slice(&mut values);
            values[..count].to_vec()
        }
    });
    // SAFETY: without ends.
    unsafe { memory.free() };
}

#[test]
fn an_spsc_ring_is_correct_in_random_schedules() {
    check_random(spsc_ring::<WHOLE>, SCHEDULES);
}

#[test]
fn a_flagged_ring_is_correct_in_random_schedules() {
    check_random(flagged_ring::<WHOLE>, SCHEDULES);
}

#[test]
fn an_mpsc_ring_is_correct_in_random_schedules() {
    check_random(mpsc_ring::<WHOLE>, SCHEDULES);
}

#[test]
fn an_mpmc_ring_is_correct_in_random_schedules() {
    check_random(mpmc_ring::<WHOLE>, SCHEDULES);
}

#[test]
fn a_torn_compare_exchange_is_detected() {
    for model in [mpsc_ring::<TORN_EXCHANGE>, mpmc_ring::<TORN_EXCHANGE>] {
        assert!(catch_unwind(|| check_random(model, SCHEDULES)).is_err(), "the broken model passed: the test sees nothing");
    }
}
