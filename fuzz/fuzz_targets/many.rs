//! Rings of fixed-size messages with several handles, against the model of
//! `layouts/tests/suite/models/queue.rs`.

#![no_main]

#[path = "../../layouts/tests/suite/count.rs"]
mod count;
#[path = "../../layouts/tests/suite/models/queue.rs"]
mod queue;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use queue::{End, Op, Value, flagged_follows_the_model, mpmc_follows_the_model, mpsc_follows_the_model, spsc_follows_the_model};

#[derive(Arbitrary, Debug)]
struct Input {
    ring: Ring,
    message: Message,
    doublings: u8,
    start: Start,
    operations: Vec<(bool, Operation)>,
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Ring {
    Mpmc,
    Mpsc,
    Flagged,
    Spsc,
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Message {
    Byte,
    Word,
    Odd,
    Nothing,
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Start {
    Near(u8),
    NearTheEnd(u8),
    Any(u64),
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Operation {
    Push,
    Pop,
    PushSlice(u8),
    PopSlice(u8),
    Reserve { count: u8, write: u8, end: Leave },
    ReserveAny(usize),
    BatchPush { every: u8, count: u8, pops: u16, end: Leave },
    InPlace { most: u8, count: u8, end: Leave },
    BatchPop { every: u8, count: u8, end: Leave },
    SplitAgain,
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Leave {
    Drop,
    Explicit,
    Forget,
}

impl From<Leave> for End {
    fn from(leave: Leave) -> Self {
        match leave {
            Leave::Drop => Self::Drop,
            Leave::Explicit => Self::Explicit,
            Leave::Forget => Self::Forget,
        }
    }
}

impl From<Operation> for Op {
    fn from(operation: Operation) -> Self {
        let small = |number: u8| usize::from(number % 16);
        match operation {
            Operation::Push => Self::Push,
            Operation::Pop => Self::Pop,
            Operation::PushSlice(count) => Self::PushSlice(small(count)),
            Operation::PopSlice(count) => Self::PopSlice(small(count)),
            Operation::Reserve { count, write, end } => Self::Reserve { count: small(count), write: small(write), end: end.into() },
            Operation::ReserveAny(count) => Self::Reserve { count, write: 1, end: End::Drop },
            Operation::BatchPush { every, count, pops, end } => {
                Self::BatchPush { every: every.into(), count: small(count), pops, end: end.into() }
            }
            Operation::InPlace { most, count, end } => Self::InPlace { most: most.into(), count: count.into(), end: end.into() },
            Operation::BatchPop { every, count, end } => Self::BatchPop { every: small(every), count: small(count), end: end.into() },
            Operation::SplitAgain => Self::SplitAgain,
        }
    }
}

fn run<T: Value>(input: &Input) {
    match input.doublings % 4 {
        0 => at_capacity::<T, 1>(input),
        1 => at_capacity::<T, 2>(input),
        2 => at_capacity::<T, 4>(input),
        _ => at_capacity::<T, 8>(input),
    }
}

fn at_capacity<T: Value, const N: usize>(input: &Input) {
    let start = match input.start {
        Start::Near(start) => start.into(),
        Start::NearTheEnd(back) => u64::MAX - u64::from(back),
        Start::Any(start) => start,
    };
    let ops: Vec<(usize, Op)> = input.operations.iter().map(|(who, operation)| (usize::from(*who), (*operation).into())).collect();
    match input.ring {
        Ring::Mpmc => mpmc_follows_the_model::<T, N>(start, &ops),
        Ring::Mpsc => mpsc_follows_the_model::<T, N>(start, &ops),
        Ring::Flagged => flagged_follows_the_model::<T, N>(start, &ops),
        Ring::Spsc => spsc_follows_the_model::<T, N>(start, &ops),
    }
}

fuzz_target!(|input: Input| {
    match input.message {
        Message::Byte => run::<u8>(&input),
        Message::Word => run::<u64>(&input),
        Message::Odd => run::<[u8; 5]>(&input),
        Message::Nothing => run::<()>(&input),
    }
});
