use std::sync::atomic::Ordering::Relaxed;

use ringmem_kernels::echo::Echo;
use ringmem_layouts::control::{Command, State};

use crate::memory::Device;
use crate::rig::{Rig, Shape};

pub fn message(id: u64) -> Echo {
    Echo { words: std::array::from_fn(|word| id.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(word as u32) ^ id) }
}

fn converse(rig: &mut Rig<'_, Echo, Echo>, count: u64) {
    rig.command(Command::ACTIVATE);
    let (mut sent, mut answered) = (0, 0);
    while answered < count {
        let answer = rig.receive_sending(|sender| {
            while sent < count && sender.push(message(sent)).is_ok() {
                sent += 1;
            }
        });
        assert_eq!(answer, message(answered), "answer {answered}");
        answered += 1;
    }
    rig.command(Command::DRAIN);
    rig.until_state(State::Terminated);
    assert_eq!(rig.received(), []);
    assert_eq!(rig.snapshot().processed, count);
}

#[test]
fn each_batch_size_answers_messages_in_order() {
    for batch in [1, 8, 32, 128] {
        for capacity in [1, 2, 64, 256] {
            let shape = Shape { batch, input: capacity, output: capacity, ..Shape::default() };
            let memory = shape.memory::<Echo, Echo>();
            let mut rig = Rig::<Echo, Echo>::new(&memory, shape);
            rig.run_image("echo", &[], &Device::new([memory.range()]), |rig| converse(rig, 500));
            assert_eq!(rig.end(), (State::Terminated, 0, None));
        }
    }
}

#[test]
fn a_drain_answers_batches_across_the_ring_end() {
    let counts = [1, 31, 33, 127, 128, 129, 255, 256, 300].map(|count| ("echo", count));
    for (kernel, count) in counts.into_iter().chain([("echo_bare", 300)]) {
        let shape = Shape { batch: 512, input: 512, output: 512, start: u64::MAX - 100 };
        let memory = shape.memory::<Echo, Echo>();
        let mut rig = Rig::<Echo, Echo>::new(&memory, shape);
        (0..count).for_each(|id| rig.send(message(id)));
        rig.run_image(kernel, &[], &Device::new([memory.range()]), |rig| {
            rig.command(Command::DRAIN);
        });
        assert_eq!(rig.received(), (0..count).map(message).collect::<Vec<_>>(), "{count} messages");
    }
}

#[test]
fn rings_of_different_capacities_lose_no_message() {
    for (input, output) in [(1, 64), (64, 1), (2, 8), (8, 2)] {
        let shape = Shape { batch: 32, input, output, ..Shape::default() };
        let memory = shape.memory::<Echo, Echo>();
        let mut rig = Rig::<Echo, Echo>::new(&memory, shape);
        rig.run_image("echo", &[], &Device::new([memory.range()]), |rig| converse(rig, 300));
    }
}

#[test]
fn indices_wrap_past_u64_max() {
    for capacity in [1, 4, 128] {
        for start in [u64::MAX, u64::MAX - 3, u64::MAX - 100] {
            let shape = Shape { batch: 8, input: capacity, output: capacity, start };
            let memory = shape.memory::<Echo, Echo>();
            let mut rig = Rig::<Echo, Echo>::new(&memory, shape);
            rig.run_image("echo", &[], &Device::new([memory.range()]), |rig| converse(rig, 300));
            assert_eq!(rig.sender.tail(), start.wrapping_add(300));
            assert_eq!(rig.receiver.head(), start.wrapping_add(300));
        }
    }
}

/// Hosts change these words by read-modify-writes.
#[test]
fn the_kernel_never_writes_waiting_or_owner() {
    let shape = Shape { input: 4, output: 4, ..Shape::default() };
    let memory = shape.memory::<Echo, Echo>();
    let mut rig = Rig::<Echo, Echo>::new(&memory, shape);
    let lines = [rig.input, rig.output].map(|header| (&header.producer, &header.consumer));
    let words = lines.map(|(producer, consumer)| [&producer.waiting, &producer.owner, &consumer.waiting, &consumer.owner]);
    words.as_flattened().iter().for_each(|word| word.store(0x5eed, Relaxed));
    rig.run_image("echo", &[], &Device::new([memory.range()]), |rig| converse(rig, 100));
    assert!(words.as_flattened().iter().all(|word| word.load(Relaxed) == 0x5eed), "{:?} {:?}", rig.input, rig.output);
}

#[test]
fn a_batch_size_of_zero_means_one() {
    let shape = Shape { batch: 0, ..Shape::default() };
    let memory = shape.memory::<Echo, Echo>();
    let mut rig = Rig::<Echo, Echo>::new(&memory, shape);
    rig.run_image("echo", &[], &Device::new([memory.range()]), |rig| converse(rig, 20));
}
