//! Stores that cost traffic over the bus: the values that the host reads do not show how often they were stored.

use ringmem_kernels::echo::Echo;
use ringmem_layouts::HostWord;
use ringmem_layouts::control::{Command, State};

use crate::echo::message;
use crate::machine::recorded;
use crate::memory::Device;
use crate::rig::{Rig, Shape};

fn address(word: &HostWord) -> u64 {
    (&raw const *word).addr() as u64
}

#[test]
fn a_batch_publishes_each_index_once() {
    let shape = Shape { batch: 8, ..Shape::default() };
    let memory = shape.memory::<Echo, Echo>();
    let mut rig = Rig::<Echo, Echo>::new(&memory, shape);
    (0..40).for_each(|id| rig.sender.push(message(id)).expect("room"));
    let (tail, head) = (address(&rig.output.producer.tail), address(&rig.input.consumer.head));
    let (((), heads), tails) =
        recorded(tail, || recorded(head, || rig.run_image("echo", &[], &Device::new([memory.range()]), |rig| rig.command(Command::DRAIN))));
    assert_eq!((&tails[..], &heads[..]), (&[8, 16, 24, 32, 40][..], &[8, 16, 24, 32, 40][..]));
}

#[test]
fn an_idle_kernel_beats_once_in_sixteen_rounds_with_their_number() {
    let memory = Shape::default().memory::<Echo, Echo>();
    let mut rig = Rig::<Echo, Echo>::new(&memory, Shape::default());
    let (heartbeat, device) = (address(&rig.block.heartbeat), Device::new([memory.range()]));
    let ((), beats) = recorded(heartbeat, || {
        rig.run_image("echo", &[], &device, |rig| {
            rig.until_state(State::Ready);
            rig.until_beats(100);
            rig.command(Command::TERMINATE);
        });
    });
    assert!(beats.len() > 6 && beats.iter().zip(0..).all(|(beat, number)| *beat == 16 * number), "{beats:?}");
}
