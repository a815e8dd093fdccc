//! Any sequence of SPSC operations against a `VecDeque`, and every value dropped once.
//!
//! 1. What is pushed is popped, in order, at every capacity and start index; what does not fit comes back.
//! 2. Grants, chunks and batches do what they say when they are committed, dropped and forgotten.
//! 3. Values are dropped once, also when a drop or an iterator panics.

use std::cell::{Cell, RefCell};
use std::collections::{HashSet, VecDeque};
use std::fmt::Debug;
use std::mem::{MaybeUninit, forget};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;

use proptest::prelude::*;
use ringmem_layouts::Host;
use ringmem_layouts::ring::spsc::{Consumer, PopError, Producer, PushError, ReserveError, Ring, RingIn};
use ringmem_layouts::ring::{BareSlot, Storage};
use static_assertions::{assert_impl_all, assert_not_impl_any};

assert_impl_all!(Ring<u64, 4>: Send, Sync);
assert_not_impl_any!(Ring<Rc<u8>, 4>: Send, Sync);
assert_not_impl_any!(Ring<u64, 4>: Clone);
assert_impl_all!(Producer<'static, u64, Host>: Send);
assert_impl_all!(Consumer<'static, u64, Host>: Send);
assert_not_impl_any!(Producer<'static, u64, Host>: Clone, Sync);
assert_not_impl_any!(Consumer<'static, u64, Host>: Clone, Sync);
assert_not_impl_any!(Producer<'static, Rc<u8>, Host>: Send);
assert_not_impl_any!(Consumer<'static, Rc<u8>, Host>: Send);

/// What is done with something that acts when it is dropped.
#[derive(Clone, Copy, Debug)]
enum End {
    Drop,
    Explicit,
    Forget,
}

#[derive(Clone, Copy, Debug)]
enum Op {
    Push,
    PushSlice(usize),
    Reserve { count: u64, write: u64, end: End },
    ReserveSlices { count: u64, write: u64 },
    BatchPush { every: u64, count: u64, end: End },
    Pop,
    PopSlice(usize),
    Peek { most: u64, release: u64, end: End },
    BatchPop { every: u64, count: u64, end: End },
    LookAtHead,
    LookAtTail,
    SplitAgain,
}

fn op() -> impl Strategy<Value = Op> {
    let end = || prop_oneof![Just(End::Drop), Just(End::Explicit), Just(End::Forget)];
    prop_oneof![
        3 => Just(Op::Push),
        3 => Just(Op::Pop),
        2 => (0..12_usize).prop_map(Op::PushSlice),
        2 => (0..12_usize).prop_map(Op::PopSlice),
        2 => (prop_oneof![0..10_u64, Just(u64::MAX)], 0..10_u64, end()).prop_map(|(count, write, end)| Op::Reserve { count, write, end }),
        1 => (0..9_u64, 0..9_u64).prop_map(|(count, write)| Op::ReserveSlices { count, write }),
        2 => (0..5_u64, 0..10_u64, end()).prop_map(|(every, count, end)| Op::BatchPush { every, count, end }),
        2 => (prop_oneof![0..10_u64, Just(u64::MAX)], 0..10_u64, end()).prop_map(|(most, release, end)| Op::Peek { most, release, end }),
        2 => (0..5_u64, 0..10_u64, end()).prop_map(|(every, count, end)| Op::BatchPop { every, count, end }),
        1 => Just(Op::LookAtHead),
        1 => Just(Op::LookAtTail),
        1 => Just(Op::SplitAgain),
    ]
}

fn start() -> impl Strategy<Value = u64> {
    prop_oneof![0..3_u64, (0..20_u64).prop_map(|back| u64::MAX - back), any::<u64>()]
}

/// A value that is made from a number.
trait Value: Copy + PartialEq + Debug {
    fn of(number: u64) -> Self;
}

impl Value for u8 {
    fn of(number: u64) -> Self {
        number as u8
    }
}

impl Value for u64 {
    fn of(number: u64) -> Self {
        number
    }
}

impl Value for [u8; 5] {
    fn of(number: u64) -> Self {
        [number as u8, 1, 2, 3, !number as u8]
    }
}

/// Takes no room.
impl Value for () {
    fn of(_: u64) -> Self {}
}

/// What is between the indices: first what was popped and not released, last what was pushed and not published.
struct Model<T> {
    slots: VecDeque<T>,
    popped: usize,
    unpublished: usize,
    next: u64,
}

impl<T: Value> Model<T> {
    fn fresh(&mut self) -> T {
        self.next += 1;
        T::of(self.next)
    }
    fn visible(&self) -> usize {
        self.slots.len() - self.popped - self.unpublished
    }
    fn pop(&mut self) -> Option<T> {
        (self.visible() > 0).then(|| {
            self.popped += 1;
            self.slots[self.popped - 1]
        })
    }
    fn release(&mut self) {
        self.slots.drain(..self.popped);
        self.popped = 0;
    }
}

fn follows_the_model<T: Value, S: Storage<BareSlot<T>>>(mut ring: RingIn<T, S>, ops: &[Op]) {
    let mut model = Model::<T> { slots: VecDeque::new(), popped: 0, unpublished: 0, next: 0 };
    let mut ops = ops.iter().copied();
    loop {
        let (mut producer, mut consumer) = ring.split();
        loop {
            match ops.next() {
                None => return,
                Some(Op::SplitAgain) => break,
                Some(op) => step(&mut producer, &mut consumer, &mut model, op),
            }
            assert_eq!(producer.tail().wrapping_sub(consumer.head()), (model.slots.len() - model.popped) as u64);
        }
        // A dropped end publishes or releases what a forgotten grant or batch left.
        model.release();
        model.unpublished = 0;
    }
}

fn step<T: Value>(producer: &mut Producer<'_, T, Host>, consumer: &mut Consumer<'_, T, Host>, model: &mut Model<T>, op: Op) {
    let capacity = producer.capacity();
    let free = capacity - model.slots.len() as u64;
    match op {
        Op::Push => {
            let value = model.fresh();
            if free == 0 {
                assert_eq!(producer.push(value), Err(PushError::Full(value)));
                // What a forgotten batch left: both ends would wait for ever.
                model.unpublished = 0;
            } else {
                assert_eq!(producer.push(value), Ok(()));
                model.slots.push_back(value);
                model.unpublished = 0;
            }
        }
        Op::PushSlice(count) => {
            let values: Vec<T> = (0..count).map(|_| model.fresh()).collect();
            let taken = producer.push_slice(&values).unwrap();
            assert_eq!(taken as u64, free.min(count as u64));
            model.slots.extend(&values[..taken]);
            model.unpublished = 0;
        }
        Op::Reserve { count, write, end } => match producer.reserve(count) {
            Err(refused) if count > capacity => assert_eq!(refused, ReserveError::TooLarge { capacity }),
            Err(refused) => {
                assert!(count > free);
                assert_eq!(refused, ReserveError::Full { free });
                model.unpublished = 0;
            }
            Ok(mut grant) => {
                assert!(count <= free);
                assert_eq!((grant.len(), grant.is_empty()), (count, count == 0));
                let values: Vec<T> = (0..write).map(|_| model.fresh()).collect();
                let written = count.min(write);
                assert_eq!(grant.fill(values.iter().copied()), written);
                assert_eq!(grant.written(), written);
                if written == count {
                    assert_eq!(grant.write(T::of(0)), Err(T::of(0)));
                }
                model.slots.extend(&values[..written as usize]);
                match end {
                    End::Drop => drop(grant),
                    End::Explicit => grant.commit(),
                    End::Forget => {
                        model.unpublished = written as usize;
                        return forget(grant);
                    }
                }
                model.unpublished = 0;
            }
        },
        Op::ReserveSlices { count, write } => {
            let count = count.min(free);
            let mut grant = producer.reserve(count).unwrap();
            let mut values: Vec<T> = (0..count.min(write)).map(|_| model.fresh()).collect();
            // The first through `write`, the others through the slices.
            if let Some(first) = values.first() {
                grant.write(*first).unwrap();
            }
            let runs = grant.as_mut_slices();
            assert_eq!(
                (runs[0].len() + runs[1].len()) as u64,
                count - u64::from(!values.is_empty()),
                "what is written cannot be unwritten"
            );
            for (slot, value) in runs.into_iter().flatten().zip(values.iter().skip(1)) {
                slot.write(*value);
            }
            // SAFETY: one by `write`, the rest above.
            unsafe { grant.assume_written(values.len() as u64) };
            grant.commit();
            model.slots.extend(values.drain(..));
            model.unpublished = 0;
        }
        Op::BatchPush { every, count, end } => {
            let mut batch = producer.batch(every);
            // What an earlier batch left when it was forgotten.
            model.unpublished = 0;
            for _ in 0..count {
                let value = model.fresh();
                if model.slots.len() as u64 == capacity {
                    assert_eq!(batch.push(value), Err(PushError::Full(value)));
                    // A full ring has been published, or its consumer would wait for ever.
                    model.unpublished = 0;
                } else {
                    assert_eq!(batch.push(value), Ok(()));
                    model.slots.push_back(value);
                }
                let visible = consumer.refresh().unwrap() as usize;
                model.unpublished = model.slots.len() - model.popped - visible;
                assert!(model.unpublished < every.max(1) as usize, "a batch is published when it is complete");
                let dry = visible == 0 && model.popped == 0;
                assert!(!dry, "a consumer that has run dry is served at once");
            }
            match end {
                End::Drop => drop(batch),
                End::Explicit => batch.flush(),
                End::Forget => return forget(batch),
            }
            model.unpublished = 0;
        }
        Op::Pop => match model.pop() {
            Some(value) => {
                assert_eq!(consumer.pop(), Ok(value));
                model.release();
            }
            None => {
                assert_eq!(consumer.pop(), Err(PopError::Empty));
                model.release();
            }
        },
        Op::PopSlice(count) => {
            let mut values = vec![T::of(0); count];
            let taken = consumer.pop_slice(&mut values).unwrap();
            assert_eq!(taken, model.visible().min(count));
            for value in &values[..taken] {
                assert_eq!(Some(*value), model.pop());
            }
            model.release();
        }
        Op::Peek { most, release, end } => match consumer.peek(most) {
            Err(refused) => {
                assert_eq!(refused, PopError::Empty);
                assert!(most == 0 || model.visible() == 0);
                model.release();
            }
            Ok(chunk) => {
                let count = most.min(model.visible() as u64);
                assert_eq!(chunk.len(), count);
                let expected: Vec<T> = model.slots.iter().skip(model.popped).take(count as usize).copied().collect();
                assert_eq!(chunk.as_slices().concat(), expected);
                for (offset, value) in expected.iter().enumerate() {
                    assert_eq!(chunk.with(offset as u64, |seen| *seen), Some(*value));
                }
                assert_eq!(chunk.with(count, |seen| *seen), None);
                match end {
                    // A chunk takes nothing unless it is told to.
                    End::Drop | End::Forget => {}
                    End::Explicit => {
                        chunk.release(release);
                        for _ in 0..release.min(count) {
                            model.pop();
                        }
                        model.release();
                    }
                }
            }
        },
        Op::BatchPop { every, count, end } => {
            let mut batch = consumer.batch(every);
            // What an earlier batch left when it was forgotten.
            model.release();
            for _ in 0..count {
                match model.pop() {
                    Some(value) => assert_eq!(batch.pop(), Ok(value)),
                    None => assert_eq!(batch.pop(), Err(PopError::Empty)),
                }
                let used = (capacity - producer.refresh().unwrap()) as usize;
                let unreleased = used - (model.slots.len() - model.popped);
                assert!(unreleased < every.max(1) as usize, "a batch is released when it is complete");
                model.slots.drain(..model.popped - unreleased);
                model.popped = unreleased;
                if model.visible() == 0 && matches!(batch.pop(), Err(PopError::Empty)) {
                    let used = (capacity - producer.refresh().unwrap()) as usize;
                    let unreleased = used - (model.slots.len() - model.popped);
                    assert_eq!(unreleased, 0, "a consumer that has run dry has released");
                    model.slots.drain(..model.popped - unreleased);
                    model.popped = unreleased;
                }
            }
            match end {
                End::Drop => drop(batch),
                End::Explicit => batch.flush(),
                End::Forget => return forget(batch),
            }
            model.release();
        }
        Op::LookAtHead => {
            assert_eq!(producer.refresh(), Ok(free));
            assert_eq!(producer.free(), free);
        }
        Op::LookAtTail => {
            assert_eq!(consumer.refresh(), Ok(model.visible() as u64));
            assert_eq!(consumer.available(), model.visible() as u64);
        }
        Op::SplitAgain => unreachable!("the caller's"),
    }
}

fn at_every_capacity<T: Value>(start: u64, ops: &[Op]) {
    follows_the_model(Ring::<T, 1>::starting_at(start), ops);
    follows_the_model(Ring::<T, 2>::starting_at(start), ops);
    follows_the_model(Ring::<T, 4>::starting_at(start), ops);
    follows_the_model(Ring::<T, 8>::starting_at(start), ops);
    // The same over memory that is lent, with what the ring before has left there.
    let mut memory = [const { MaybeUninit::uninit() }; 8];
    for capacity in [1, 2, 4, 8] {
        follows_the_model(RingIn::<T, _>::over_starting_at(&mut memory[..capacity], start).unwrap(), ops);
    }
}

proptest! {
    // A failure is printed in full; a file of seeds beside the sources would say no more.
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn bytes_follow_the_model(start in start(), ops in prop::collection::vec(op(), 0..60)) {
        at_every_capacity::<u8>(start, &ops);
    }

    #[test]
    fn words_follow_the_model(start in start(), ops in prop::collection::vec(op(), 0..60)) {
        at_every_capacity::<u64>(start, &ops);
    }

    #[test]
    fn odd_sizes_follow_the_model(start in start(), ops in prop::collection::vec(op(), 0..60)) {
        at_every_capacity::<[u8; 5]>(start, &ops);
    }

    #[test]
    fn values_without_bytes_follow_the_model(start in start(), ops in prop::collection::vec(op(), 0..60)) {
        at_every_capacity::<()>(start, &ops);
    }

    #[test]
    fn every_value_is_dropped_once_also_when_a_drop_panics(
        start in start(),
        ops in prop::collection::vec(owned_op(), 0..60),
        bomb in prop::option::of(1..30_usize),
    ) {
        drops_each_once::<1>(start, &ops, bomb);
        drops_each_once::<2>(start, &ops, bomb);
        drops_each_once::<8>(start, &ops, bomb);
    }
}

thread_local! {
    /// The numbers that were dropped, in order. Not behind a pointer in each value: a value dropped twice should be counted, not crash.
    static DROPPED: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
    /// Which drop panics.
    static BOMB: Cell<Option<usize>> = const { Cell::new(None) };
}

fn dropped_since(before: usize) -> Vec<u64> {
    DROPPED.with_borrow(|dropped| dropped[before..].to_vec())
}

/// A value that notes its drop, and panics if it is the one that does.
struct Noted {
    id: u64,
}

impl Drop for Noted {
    fn drop(&mut self) {
        let count = DROPPED.with_borrow_mut(|dropped| {
            dropped.push(self.id);
            dropped.len()
        });
        if BOMB.get() == Some(count) && !std::thread::panicking() {
            // Not `panic!`: the hook would print it.
            resume_unwind(Box::new("bomb"));
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum OwnedOp {
    Push,
    BatchPush { count: u64, forget: bool },
    Reserve { count: u64, write: u64, forget: bool },
    Pop,
    Release { most: u64, count: u64 },
    SplitAgain,
}

fn owned_op() -> impl Strategy<Value = OwnedOp> {
    prop_oneof![
        2 => Just(OwnedOp::Push),
        2 => Just(OwnedOp::Pop),
        2 => (0..9_u64, any::<bool>()).prop_map(|(count, forget)| OwnedOp::BatchPush { count, forget }),
        2 => (0..9_u64, 0..9_u64, any::<bool>()).prop_map(|(count, write, forget)| OwnedOp::Reserve { count, write, forget }),
        2 => (0..9_u64, 0..9_u64).prop_map(|(most, count)| OwnedOp::Release { most, count }),
        1 => Just(OwnedOp::SplitAgain),
    ]
}

/// Slots in the ring itself, and slots that were lent.
fn drops_each_once<const N: usize>(start: u64, ops: &[OwnedOp], bomb: Option<usize>) {
    drops(Ring::<Noted, N>::starting_at(start), ops, bomb);
    let mut memory = [const { MaybeUninit::uninit() }; N];
    drops(RingIn::over_starting_at(&mut memory[..], start).unwrap(), ops, bomb);
}

fn drops<S: Storage<BareSlot<Noted>>>(mut ring: RingIn<Noted, S>, ops: &[OwnedOp], bomb: Option<usize>) {
    let capacity = ring.split().0.capacity() as usize;
    DROPPED.with_borrow_mut(Vec::clear);
    BOMB.set(bomb);
    let mut made = 0;
    let mut fresh = || {
        made += 1;
        Noted { id: made }
    };
    let mut ops = ops.iter().copied().peekable();
    // What is in the ring, those not published last.
    let mut inside = VecDeque::new();
    let mut unpublished = 0;
    while ops.peek().is_some() {
        let (mut producer, mut consumer) = ring.split();
        for op in ops.by_ref() {
            let seen = dropped_since(0).len();
            let free = capacity - inside.len();
            match op {
                OwnedOp::SplitAgain => break,
                OwnedOp::Push => {
                    let value = fresh();
                    let id = value.id;
                    let outcome = catch_unwind(AssertUnwindSafe(|| producer.push(value).is_ok()));
                    assert_eq!(outcome.unwrap_or(false), free > 0);
                    // A push that finds it full publishes what a forgotten batch left.
                    unpublished = 0;
                    if free > 0 {
                        inside.push_back(id);
                    } else {
                        assert_eq!(dropped_since(seen), [id], "the value comes back");
                    }
                }
                OwnedOp::BatchPush { count, forget: forgets } => {
                    let mut batch = producer.batch(u64::MAX);
                    for _ in 0..count.min(free as u64) {
                        let value = fresh();
                        inside.push_back(value.id);
                        batch.push(value).unwrap();
                    }
                    if forgets {
                        forget(batch);
                    } else {
                        drop(batch);
                    }
                    unpublished = inside.len() - consumer.refresh().unwrap() as usize;
                }
                OwnedOp::Reserve { count, write, forget: forgets } => {
                    let mut grant = producer.reserve(count.min(free as u64)).unwrap();
                    let mut ids = Vec::new();
                    for _ in 0..write.min(grant.len()) {
                        let value = fresh();
                        ids.push(value.id);
                        grant.write(value).map_err(|value| value.id).unwrap();
                    }
                    unpublished = if forgets { ids.len() } else { 0 };
                    inside.extend(ids);
                    if forgets {
                        forget(grant);
                    } else {
                        drop(grant);
                    }
                }
                OwnedOp::Pop => {
                    let outcome = catch_unwind(AssertUnwindSafe(|| consumer.pop().map(drop)));
                    assert_eq!(matches!(outcome, Ok(Err(PopError::Empty))), inside.len() == unpublished);
                    for id in dropped_since(seen) {
                        assert_eq!(inside.pop_front(), Some(id));
                    }
                }
                OwnedOp::Release { most, count } => {
                    let visible = inside.len() - unpublished;
                    let _ = catch_unwind(AssertUnwindSafe(|| consumer.peek(most).map(|chunk| chunk.release(count))));
                    let dropped = dropped_since(seen);
                    for id in &dropped {
                        assert_eq!(inside.pop_front(), Some(*id), "in order, and the one that panicked too");
                    }
                    let expected = (visible as u64).min(most).min(count) as usize;
                    let exploded = bomb.is_some_and(|bomb| seen < bomb && bomb <= seen + dropped.len());
                    assert!(dropped.len() == expected || exploded);
                }
            }
            assert_eq!(consumer.refresh().unwrap() as usize, inside.len() - unpublished);
        }
        // A dropped producer publishes what a forgotten grant or batch holds.
        unpublished = 0;
    }
    let before = dropped_since(0).len();
    let exploded = catch_unwind(AssertUnwindSafe(|| drop(ring))).is_err();
    let dropped = dropped_since(0);
    let once: HashSet<u64> = dropped.iter().copied().collect();
    assert_eq!(once.len(), dropped.len(), "dropped twice");
    assert!(dropped[before..].iter().eq(&inside), "in order, whichever drop panics");
    assert!(!exploded || bomb.is_some_and(|bomb| bomb > before && bomb <= dropped.len()));
    assert_eq!(once.len(), made as usize);
}

#[test]
fn an_iterator_that_panics_publishes_exactly_what_it_gave() {
    let mut ring = Ring::<u64, 4>::starting_at(u64::MAX - 1);
    let (mut producer, mut consumer) = ring.split();
    let mut given = 0;
    let values = std::iter::from_fn(|| {
        given += 1;
        if given == 4 {
            resume_unwind(Box::new("iterator"));
        }
        Some(given)
    });
    let outcome = catch_unwind(AssertUnwindSafe(|| producer.reserve(4).unwrap().fill(values)));
    assert!(outcome.is_err());
    assert_eq!(consumer.refresh(), Ok(3));
    assert_eq!([consumer.pop(), consumer.pop(), consumer.pop()], [Ok(1), Ok(2), Ok(3)]);
    assert_eq!(consumer.pop(), Err(PopError::Empty));
}

#[test]
fn a_written_slot_cannot_be_unwritten() {
    let mut ring = Ring::<u64, 4>::starting_at(u64::MAX);
    let (mut producer, mut consumer) = ring.split();
    let mut grant = producer.reserve(3).unwrap();
    grant.write(7).unwrap();
    for run in grant.as_mut_slices() {
        run.fill(MaybeUninit::new(0));
    }
    grant.commit();
    assert_eq!(consumer.pop(), Ok(7));
    assert_eq!(consumer.pop(), Err(PopError::Empty));
}

#[test]
fn a_push_that_does_not_fit_gives_the_value_back() {
    let mut ring = Ring::<String, 1>::starting_at(u64::MAX);
    let (mut producer, mut consumer) = ring.split();
    producer.push("first".into()).unwrap();
    assert_eq!(producer.push("second".into()).unwrap_err().into_inner(), "second");
    assert_eq!(producer.batch(8).push("third".into()).unwrap_err().into_inner(), "third");
    assert_eq!(consumer.pop().as_deref(), Ok("first"));
}

#[test]
fn a_grant_larger_than_the_ring_is_never_and_not_full() {
    let mut ring = Ring::<u8, 4>::new();
    let (mut producer, _consumer) = ring.split();
    for count in [5, u64::from(u32::MAX), u64::MAX] {
        assert_eq!(producer.reserve(count).map(drop), Err(ReserveError::TooLarge { capacity: 4 }));
    }
    assert_eq!(producer.reserve(4).map(|grant| grant.len()), Ok(4));
    producer.push(1).unwrap();
    assert_eq!(producer.reserve(4).map(drop), Err(ReserveError::Full { free: 3 }));
}

/// One slot, which a forgotten batch has filled, or emptied: neither end may wait for the other.
#[test]
fn a_forgotten_batch_does_not_stop_both_ends() {
    let mut ring = Ring::<u8, 2>::new();
    let (mut producer, mut consumer) = ring.split();
    for value in [1, 2] {
        let mut batch = producer.batch(9);
        // The first is published because the consumer is dry, the second by nobody.
        batch.push(value).unwrap();
        forget(batch);
    }
    assert_eq!(producer.push(3), Err(PushError::Full(3)));
    let mut batch = consumer.batch(9);
    assert_eq!((batch.pop(), batch.pop()), (Ok(1), Ok(2)));
    forget(batch);
    assert_eq!(producer.push(3), Err(PushError::Full(3)));
    assert_eq!(consumer.pop(), Err(PopError::Empty));
    assert_eq!(producer.push(3), Ok(()));
}

#[test]
fn a_forgotten_batch_does_not_stop_the_next_one() {
    let mut ring = Ring::<u64, 4>::starting_at(u64::MAX - 2);
    let (mut producer, mut consumer) = ring.split();
    let mut batch = producer.batch(u64::MAX);
    for value in 0..4 {
        batch.push(value).unwrap();
    }
    forget(batch);
    assert_eq!(producer.batch(u64::MAX).push(4), Err(PushError::Full(4)));
    assert_eq!(consumer.refresh(), Ok(4), "a full ring has been published");

    let mut batch = consumer.batch(u64::MAX);
    for value in 0..4 {
        assert_eq!(batch.pop(), Ok(value));
    }
    forget(batch);
    let mut batch = consumer.batch(u64::MAX);
    assert_eq!(batch.pop(), Err(PopError::Empty));
    assert_eq!(producer.refresh(), Ok(4), "a ring that was found empty has been released");
}
