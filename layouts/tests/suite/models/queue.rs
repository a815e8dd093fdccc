//! The model of the rings of messages of one size, `spsc`, `flagged`, `mpsc` and `mpmc`: a queue, with each end's reservations and batches.

use std::collections::VecDeque;
use std::fmt::Debug;
use std::mem::{MaybeUninit, forget};

use crate::count::Count;
use ringmem_layouts::Local;
use ringmem_layouts::ring::mpmc::{BatchProducer, ManyProducer};
use ringmem_layouts::ring::{BareSlot, PopError, PushError, ReserveError, Storage, WordSlot, mpmc, mpsc};

#[derive(Clone, Copy, Debug)]
pub enum End {
    Drop,
    Explicit,
    Forget,
}

#[derive(Clone, Copy, Debug)]
pub enum Op {
    Push,
    PushSlice(usize),
    Reserve { count: usize, write: usize, end: End },
    BatchPush { every: usize, count: usize, pops: u16, end: End },
    Pop,
    PopSlice(usize),
    InPlace { most: usize, count: usize, end: End },
    BatchPop { every: usize, count: usize, end: End },
    SplitAgain,
}

pub trait Value: Copy + PartialEq + Debug {
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

impl Value for () {
    fn of(_: u64) -> Self {}
}

pub fn dirty<C, const N: usize>() -> [MaybeUninit<C>; N] {
    let mut memory = [const { MaybeUninit::uninit() }; N];
    // SAFETY: this array's bytes; any are valid.
    unsafe { memory.as_mut_ptr().write_bytes(0xFF, N) };
    memory
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum At<T> {
    Claimed,
    Written(T),
    Full(T),
    GivenUp,
}

pub struct Turns<T> {
    capacity: usize,
    slots: VecDeque<At<T>>,
    popped: usize,
    next: u64,
}

impl<T: Value> Turns<T> {
    fn fresh(&mut self) -> T {
        self.next += 1;
        T::of(self.next)
    }
    fn free(&self, most: usize) -> usize {
        let is_free = |place: &usize| {
            let before = (self.slots.len() + place).checked_sub(self.capacity);
            before.is_none_or(|before| self.slots[before] == At::GivenUp)
        };
        (0..most.min(self.capacity)).take_while(is_free).count()
    }
    fn waiting(&mut self, most: usize) -> usize {
        while self.slots.get(self.popped) == Some(&At::GivenUp) {
            self.release();
            self.slots.pop_front();
        }
        let most = most.min(self.capacity);
        self.slots.iter().skip(self.popped).take(most).take_while(|slot| matches!(slot, At::Full(_))).count()
    }
    fn pop(&mut self) -> Option<T> {
        if self.waiting(1) == 0 {
            return None;
        }
        let At::Full(value) = self.slots[self.popped] else { unreachable!("it waits") };
        self.popped += 1;
        Some(value)
    }
    fn release(&mut self) {
        self.slots.drain(..self.popped);
        self.popped = 0;
    }
    fn len(&self) -> usize {
        self.capacity.min(self.slots.len())
    }
    fn publish(&mut self) {
        for slot in &mut self.slots {
            if let At::Written(value) = *slot {
                *slot = At::Full(value);
            }
        }
    }
    fn give_up(&mut self) {
        for slot in &mut self.slots {
            if *slot == At::Claimed {
                *slot = At::GivenUp;
            }
        }
    }
}

pub trait Drain<T: Value> {
    fn len(&self) -> usize;
    fn is_empty(&self) -> bool;
    fn pop(&mut self) -> Result<T, PopError>;
    fn pop_slice(&mut self, values: &mut [T]) -> usize;
    fn in_place(&mut self, model: &mut Turns<T>, most: usize, count: usize, end: End);
    fn batch(&mut self, model: &mut Turns<T>, every: usize, count: usize, end: End);
}

impl<T: Value> Drain<T> for mpmc::Consumer<'_, T, Local> {
    fn len(&self) -> usize {
        self.len()
    }
    fn is_empty(&self) -> bool {
        self.is_empty()
    }
    fn pop(&mut self) -> Result<T, PopError> {
        self.pop()
    }
    fn pop_slice(&mut self, values: &mut [T]) -> usize {
        self.pop_slice(values)
    }
    fn in_place(&mut self, model: &mut Turns<T>, most: usize, count: usize, _: End) {
        let seen = if most == 0 { 0 } else { model.waiting(most) };
        match self.take(most) {
            Err(refused) => assert_eq!((refused, seen), (PopError::Empty, 0)),
            Ok(mut taken) => {
                assert_eq!(taken.len(), seen);
                for _ in 0..count.min(seen) {
                    assert_eq!(taken.next(), model.pop());
                }
                if count > seen {
                    assert_eq!(taken.next(), None);
                }
            }
        }
        model.popped = seen;
        model.release();
    }
    fn batch(&mut self, model: &mut Turns<T>, _: usize, count: usize, end: End) {
        self.in_place(model, count, usize::MAX, end);
    }
}

impl<T: Value> Drain<T> for mpsc::Consumer<'_, T, Local> {
    fn len(&self) -> usize {
        self.len()
    }
    fn is_empty(&self) -> bool {
        self.is_empty()
    }
    fn pop(&mut self) -> Result<T, PopError> {
        self.pop()
    }
    fn pop_slice(&mut self, values: &mut [T]) -> usize {
        self.pop_slice(values)
    }
    fn in_place(&mut self, model: &mut Turns<T>, most: usize, count: usize, end: End) {
        let seen = if most == 0 { 0 } else { model.waiting(most) };
        match self.peek(most) {
            Err(refused) => {
                assert_eq!((refused, seen), (PopError::Empty, 0));
                model.release();
            }
            Ok(chunk) => {
                assert_eq!(chunk.len(), seen);
                for offset in 0..seen {
                    let expected = model.slots[model.popped + offset];
                    assert_eq!(chunk.with(offset, |value| At::Full(*value)), Some(expected));
                }
                assert_eq!(chunk.with(seen, |value| *value), None);
                match end {
                    End::Drop | End::Forget => {}
                    End::Explicit => {
                        chunk.release(count);
                        model.popped += count.min(seen);
                        model.release();
                    }
                }
            }
        }
    }
    fn batch(&mut self, model: &mut Turns<T>, every: usize, count: usize, end: End) {
        let mut batch = self.batch(every);
        for _ in 0..count {
            match model.pop() {
                Some(value) => {
                    assert_eq!(batch.pop(), Ok(value));
                    if model.popped >= every.max(1) {
                        model.release();
                    }
                }
                None => {
                    assert_eq!(batch.pop(), Err(PopError::Empty));
                    model.release();
                }
            }
        }
        match end {
            End::Drop => drop(batch),
            End::Explicit => batch.flush(),
            End::Forget => return forget(batch),
        }
        model.release();
    }
}

fn turn<T: Value, C: Drain<T>, const KIND: u64>(
    producer: &mut ManyProducer<'_, T, Local, KIND>,
    consumer: &mut C,
    model: &mut Turns<T>,
    op: Op,
) {
    let capacity = model.capacity;
    match op {
        Op::Push => {
            let value = model.fresh();
            if model.free(1) == 0 {
                assert_eq!(producer.push(value), Err(PushError::Full(value)));
            } else {
                assert_eq!(producer.push(value), Ok(()));
                model.slots.push_back(At::Full(value));
            }
        }
        Op::PushSlice(count) => {
            let values: Vec<T> = (0..count).map(|_| model.fresh()).collect();
            let taken = producer.push_slice(&values);
            assert_eq!(taken, model.free(count));
            model.slots.extend(values[..taken].iter().map(|value| At::Full(*value)));
        }
        Op::Reserve { count, write, end } => match producer.reserve(count) {
            Err(refused) if count > capacity => assert_eq!(refused, ReserveError::TooLarge { capacity }),
            Err(refused) => {
                let free = model.free(count);
                assert!(free < count);
                assert_eq!(refused, ReserveError::Full { free });
            }
            Ok(mut grant) => {
                assert_eq!(model.free(count), count);
                assert_eq!((grant.len(), grant.is_empty()), (count, count == 0));
                let values: Vec<T> = (0..write).map(|_| model.fresh()).collect();
                let written = count.min(write);
                assert_eq!(grant.fill(values.iter().copied()), written);
                assert_eq!(grant.written(), written);
                if written == count {
                    assert_eq!(grant.write(T::of(0)), Err(T::of(0)));
                }
                model.slots.extend(values[..written].iter().map(|value| At::Full(*value)));
                if written > 0 {
                    pop(consumer, model);
                }
                if let End::Explicit = end {
                    grant.commit()
                } else {
                    drop(grant)
                }
                model.slots.extend((written..count).map(|_| At::GivenUp));
            }
        },
        Op::BatchPush { every, count, pops, end } => {
            let mut batch = producer.batch(every);
            for number in 0..count {
                batch_push(&mut batch, model, every);
                if pops >> number & 1 == 1 {
                    pop(consumer, model);
                }
            }
            if let End::Explicit = end {
                batch.flush();
                model.publish();
                model.give_up();
                batch_push(&mut batch, model, every);
            }
            drop(batch);
            model.publish();
            model.give_up();
        }
        Op::Pop => pop(consumer, model),
        Op::PopSlice(count) => {
            let mut values = vec![T::of(0); count];
            let taken = consumer.pop_slice(&mut values);
            let expected = if count == 0 { 0 } else { model.waiting(count) };
            assert_eq!(taken, expected);
            for value in &values[..taken] {
                assert_eq!(Some(*value), model.pop());
            }
            if count > 0 {
                model.release();
            }
        }
        Op::InPlace { most, count, end } => consumer.in_place(model, most, count, end),
        Op::BatchPop { every, count, end } => consumer.batch(model, every, count, end),
        Op::SplitAgain => unreachable!("the caller's"),
    }
    assert_eq!((producer.len(), producer.free()), (model.len(), capacity - model.len()));
    assert_eq!((consumer.len(), consumer.is_empty()), (model.len(), model.len() == 0));
    assert_eq!(producer.is_empty(), model.slots.is_empty());
}

fn pop<T: Value, C: Drain<T>>(consumer: &mut C, model: &mut Turns<T>) {
    let expected = model.pop();
    assert_eq!(consumer.pop(), expected.ok_or(PopError::Empty));
    model.release();
}

fn batch_push<T: Value>(batch: &mut BatchProducer<'_, '_, T, Local>, model: &mut Turns<T>, every: usize) {
    let value = model.fresh();
    if !model.slots.contains(&At::Claimed) {
        let free = model.free(every.max(1));
        if free == 0 {
            return assert_eq!(batch.push(value), Err(PushError::Full(value)));
        }
        model.slots.extend((0..free).map(|_| At::Claimed));
    }
    assert_eq!(batch.push(value), Ok(()));
    let place = model.slots.iter().position(|slot| *slot == At::Claimed).unwrap();
    model.slots[place] = At::Written(value);
    let first = model.slots.iter().position(|slot| matches!(slot, At::Written(_))).unwrap();
    if first == 0 || !model.slots.contains(&At::Claimed) {
        model.publish();
    }
}

pub fn mpmc_follows_the_model<T: Value, const N: usize>(start: u64, ops: &[(usize, Op)]) {
    mpmc_follows(mpmc::Ring::<T, N>::starting_at(start), N, ops);
    mpmc_follows(mpmc::RingIn::<T, _>::over_starting_at(&mut dirty::<_, N>()[..], start).unwrap(), N, ops);
}

fn mpmc_follows<T: Value, S: Storage<WordSlot<T>>>(ring: mpmc::RingIn<T, S>, capacity: usize, ops: &[(usize, Op)]) {
    let mut model = Turns { capacity, slots: VecDeque::new(), popped: 0, next: 0 };
    let mut handles = [ring.split(), ring.split()];
    for (who, op) in ops.iter().copied() {
        if let Op::SplitAgain = op {
            let (producer, consumer) = &handles[who];
            handles[1 - who] = (producer.clone(), consumer.clone());
            continue;
        }
        let [(one, _), (_, other)] = &mut handles;
        turn(one, other, &mut model, op);
        if who == 1 {
            handles.reverse();
        }
    }
}

pub fn mpsc_follows_the_model<T: Value, const N: usize>(start: u64, ops: &[(usize, Op)]) {
    mpsc_follows(mpsc::Ring::<T, N>::starting_at(start), N, ops);
    mpsc_follows(mpsc::RingIn::<T, _>::over_starting_at(&mut dirty::<_, N>()[..], start).unwrap(), N, ops);
}

fn mpsc_follows<T: Value, S: Storage<WordSlot<T>>>(mut ring: mpsc::RingIn<T, S>, capacity: usize, ops: &[(usize, Op)]) {
    let mut model = Turns { capacity, slots: VecDeque::new(), popped: 0, next: 0 };
    let mut ops = ops.iter().copied().peekable();
    while ops.peek().is_some() {
        let (producer, mut consumer) = ring.split();
        let mut producers = [producer.clone(), producer];
        for (who, op) in ops.by_ref() {
            if let Op::SplitAgain = op {
                break;
            }
            turn(&mut producers[who], &mut consumer, &mut model, op);
        }
        model.release();
    }
}

pub struct Pair<T> {
    slots: VecDeque<T>,
    popped: usize,
    unpublished: usize,
    next: u64,
}

impl<T: Value> Pair<T> {
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

macro_rules! pairs {
    ($($follows:ident, $module:ident: $ring:ident over $slot:ident { $($only:item)+ })+) => {$(
        pub use $module::follows as $follows;

        mod $module {
            use ringmem_layouts::ring::$ring::{Chunk, Consumer, Grant, Producer, Ring, RingIn};

            use super::*;

            $($only)+

            pub fn follows<T: Value, const N: usize>(start: u64, ops: &[(usize, Op)]) {
                follow(Ring::<T, N>::starting_at(start), ops);
                follow(RingIn::<T, _>::over_starting_at(&mut dirty::<_, N>()[..], start).unwrap(), ops);
            }

            fn follow<T: Value, S: Storage<$slot<T>>>(mut ring: RingIn<T, S>, ops: &[(usize, Op)]) {
                let mut model = Pair { slots: VecDeque::new(), popped: 0, unpublished: 0, next: 0 };
                let mut ops = ops.iter().copied().peekable();
                while ops.peek().is_some() {
                    let (mut producer, mut consumer) = ring.split();
                    let mut dies = false;
                    for (who, op) in ops.by_ref() {
                        if let Op::SplitAgain = op {
                            dies = who == 1;
                            break;
                        }
                        if who == 1 {
                            let free = producer.capacity() - model.slots.len();
                            assert_eq!((producer.refresh(), producer.free()), (Ok(free), free));
                            look(&mut consumer, model.visible());
                        }
                        step(&mut producer, &mut consumer, &mut model, op, who == 1);
                        assert_eq!(consumer.len(), model.visible());
                        assert_eq!(consumer.is_empty(), model.visible() == 0);
                        assert_eq!((producer.len(), producer.is_empty()), (model.slots.len(), model.slots.is_empty()));
                        assert_eq!(producer.tail().wrapping_sub(consumer.head()), (model.slots.len() - model.popped) as u64);
                    }
                    if dies {
                        forget((producer, consumer));
                        model.popped = 0;
                        model.slots.truncate(model.slots.len() - model.unpublished);
                    } else {
                        model.release();
                    }
                    model.unpublished = 0;
                }
            }

            fn step<T: Value>(
                producer: &mut Producer<'_, T, Local>,
                consumer: &mut Consumer<'_, T, Local>,
                model: &mut Pair<T>,
                op: Op,
                by_slices: bool,
            ) {
                let capacity = producer.capacity();
                let free = capacity - model.slots.len();
                match op {
                    Op::Push => {
                        let value = model.fresh();
                        if free == 0 {
                            assert_eq!(producer.push(value), Err(PushError::Full(value)));
                        } else {
                            assert_eq!(producer.push(value), Ok(()));
                            model.slots.push_back(value);
                        }
                        // Otherwise the consumer of a full ring would wait forever.
                        model.unpublished = 0;
                    }
                    Op::PushSlice(count) => {
                        let values: Vec<T> = (0..count).map(|_| model.fresh()).collect();
                        let taken = producer.push_slice(&values).unwrap();
                        assert_eq!(taken, free.min(count));
                        model.slots.extend(&values[..taken]);
                        model.unpublished = 0;
                    }
                    Op::Reserve { count, write, end } => {
                        if producer.free() < count && count <= capacity {
                            model.unpublished = 0;
                        }
                        match producer.reserve(count) {
                            Err(refused) if count > capacity => assert_eq!(refused, ReserveError::TooLarge { capacity }),
                            Err(refused) => {
                                assert!(count > free);
                                assert_eq!(refused, ReserveError::Full { free });
                            }
                            Ok(mut grant) => {
                                assert!(count <= free);
                                assert_eq!((grant.len(), grant.is_empty()), (count, count == 0));
                                let values: Vec<T> = (0..write).map(|_| model.fresh()).collect();
                                let written = count.min(write);
                                if by_slices {
                                    fill_slices(&mut grant, &values[..written]);
                                } else {
                                    assert_eq!(grant.fill(values.iter().copied()), written);
                                }
                                assert_eq!(grant.written(), written);
                                if written == count {
                                    assert_eq!(grant.write(T::of(0)), Err(T::of(0)));
                                }
                                model.slots.extend(&values[..written]);
                                if GRANTS_PUBLISH {
                                    model.unpublished = 0;
                                }
                                match end {
                                    End::Drop => drop(grant),
                                    End::Explicit => grant.commit(),
                                    End::Forget => {
                                        model.unpublished += written;
                                        return forget(grant);
                                    }
                                }
                                model.unpublished = 0;
                            }
                        }
                    }
                    Op::BatchPush { every, count, pops, end } => {
                        let mut known = producer.free();
                        let mut batch = producer.batch(every);
                        model.unpublished = 0;
                        for number in 0..count {
                            let value = model.fresh();
                            if known == 0 {
                                model.unpublished = 0;
                                known = capacity - model.slots.len();
                            }
                            if model.slots.len() == capacity {
                                assert_eq!(batch.push(value), Err(PushError::Full(value)));
                            } else {
                                assert_eq!(batch.push(value), Ok(()));
                                known -= 1;
                                model.slots.push_back(value);
                                model.unpublished += 1;
                                let dry = model.slots.len() == model.unpublished;
                                if dry || known == 0 || model.unpublished >= every.max(1) {
                                    model.unpublished = 0;
                                }
                            }
                            assert_eq!(consumer.len(), model.visible());
                            if pops >> number & 1 == 1
                                && let Some(value) = model.pop()
                            {
                                assert_eq!(consumer.pop(), Ok(value));
                                model.release();
                            }
                        }
                        match end {
                            End::Drop => drop(batch),
                            End::Explicit => batch.flush(),
                            End::Forget => return forget(batch),
                        }
                        model.unpublished = 0;
                    }
                    Op::Pop => {
                        assert_eq!(consumer.pop(), model.pop().ok_or(PopError::Empty));
                        model.release();
                    }
                    Op::PopSlice(count) => {
                        let mut values = vec![T::of(0); count];
                        let taken = consumer.pop_slice(&mut values).count();
                        assert_eq!(taken, model.visible().min(count));
                        for value in &values[..taken] {
                            assert_eq!(Some(*value), model.pop());
                        }
                        model.release();
                    }
                    Op::InPlace { most, count, end } => match consumer.peek(most) {
                        Err(refused) => {
                            assert_eq!(refused, PopError::Empty);
                            assert!(most == 0 || model.visible() == 0);
                            model.release();
                        }
                        Ok(chunk) => {
                            let seen = most.min(model.visible());
                            assert_eq!(chunk.len(), seen);
                            let expected: Vec<T> = model.slots.iter().skip(model.popped).take(seen).copied().collect();
                            for (offset, value) in expected.iter().enumerate() {
                                assert_eq!(chunk.with(offset, |seen| *seen), Some(*value));
                            }
                            assert_eq!(chunk.with(seen, |value| *value), None);
                            slices(&chunk, &expected);
                            match end {
                                End::Drop | End::Forget => {}
                                End::Explicit => {
                                    chunk.release(count);
                                    model.popped += count.min(seen);
                                    model.release();
                                }
                            }
                        }
                    },
                    Op::BatchPop { every, count, end } => {
                        let mut batch = consumer.batch(every);
                        model.release();
                        for _ in 0..count {
                            match model.pop() {
                                Some(value) => {
                                    assert_eq!(batch.pop(), Ok(value));
                                    if model.popped >= every.max(1) {
                                        model.release();
                                    }
                                }
                                None => {
                                    assert_eq!(batch.pop(), Err(PopError::Empty));
                                    model.release();
                                }
                            }
                            assert_eq!(producer.len(), model.slots.len());
                        }
                        match end {
                            End::Drop => drop(batch),
                            End::Explicit => batch.flush(),
                            End::Forget => return forget(batch),
                        }
                        model.release();
                    }
                    Op::SplitAgain => unreachable!("the caller's"),
                }
            }
        }
    )+};
}

pairs! {
    spsc_follows_the_model, spsc_model: spsc over BareSlot {
        const GRANTS_PUBLISH: bool = true;

        fn look<T: Value>(consumer: &mut Consumer<'_, T, Local>, visible: usize) {
            assert_eq!((consumer.refresh(), consumer.available()), (Ok(visible), visible));
        }

        fn slices<T: Value>(chunk: &Chunk<'_, '_, T, Local>, expected: &[T]) {
            assert_eq!(chunk.as_slices().concat(), expected);
        }

        fn fill_slices<T: Value>(grant: &mut Grant<'_, '_, T, Local>, values: &[T]) {
            if let Some(first) = values.first() {
                grant.write(*first).unwrap();
            }
            let rest = grant.len() - usize::from(!values.is_empty());
            let runs = grant.as_mut_slices();
            assert_eq!(runs[0].len() + runs[1].len(), rest, "what is written cannot be unwritten");
            for (slot, value) in runs.into_iter().flatten().zip(values.iter().skip(1)) {
                slot.write(*value);
            }
            // SAFETY: one by `write`, the rest above.
            unsafe { grant.assume_written(values.len()) };
        }
    }
    flagged_follows_the_model, flagged_model: flagged over WordSlot {
        const GRANTS_PUBLISH: bool = false;

        fn look<T: Value>(_: &mut Consumer<'_, T, Local>, _: usize) {}

        fn slices<T: Value>(_: &Chunk<'_, '_, T, Local>, _: &[T]) {}

        fn fill_slices<T: Value>(grant: &mut Grant<'_, '_, T, Local>, values: &[T]) {
            values.iter().for_each(|value| grant.write(*value).unwrap());
        }
    }
}
