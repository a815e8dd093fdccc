use ringmem_kernels::transform::{Applied, Apply, Operation};
use ringmem_layouts::control::{Command, Fault, State};

use crate::histogram::noise;
use crate::machine::unmapped;
use crate::memory::{Bytes, Device};
use crate::rig::{Rig, Shape};

pub fn bytes(data: &Bytes, length: usize) -> Vec<u8> {
    // SAFETY: within the memory; the kernel has exited.
    (0..length as u64).map(|offset| unsafe { data.place::<u8>(offset).read() }).collect()
}

pub fn slow(byte: u8, operation: Operation) -> u8 {
    match operation {
        Operation::Add(operand) => ((u32::from(byte) + u32::from(operand)) % 256) as u8,
        Operation::Xor(operand) => (byte | operand) & !(byte & operand),
    }
}

fn answers(data: &[u8], chunks: &[Apply]) -> (Vec<Applied>, Vec<u8>) {
    let shape = Shape::default();
    let (memory, ground) = (shape.memory::<Apply, Applied>(), Bytes::of(data));
    let device = Device::new([memory.range(), ground.range()]);
    let mut rig = Rig::<Apply, Applied>::new(&memory, shape);
    let answers = rig.run_image("transform", &[ground.address(), data.len() as u64], &device, |rig| {
        rig.command(Command::ACTIVATE);
        let answers = chunks
            .iter()
            .map(|&chunk| {
                rig.send(chunk);
                rig.receive()
            })
            .collect();
        rig.command(Command::DRAIN);
        answers
    });
    assert_eq!(rig.end(), (State::Terminated, 0, None));
    (answers, bytes(&ground, data.len()))
}

#[test]
fn apply_to_eight_matches_apply_of_each_byte() {
    for operand in 0..=255 {
        for operation in [Operation::Add(operand), Operation::Xor(operand)] {
            assert_eq!(Operation::of(operation.word()), Some(operation));
            for first in (0..=255_u8).step_by(5) {
                let eight: [u8; 8] = std::array::from_fn(|place| first.wrapping_add(31 * place as u8));
                let expected = eight.map(|byte| slow(byte, operation));
                assert_eq!(operation.apply_to_eight(u64::from_le_bytes(eight)).to_le_bytes(), expected, "{operation:?} of {eight:?}");
                assert_eq!(eight.map(|byte| operation.apply(byte)), expected);
            }
        }
    }
}

#[test]
fn transform_changes_exactly_the_given_bytes() {
    for length in (0..=40).chain([4095, 4096, 100_003]) {
        let data = noise(length + 64, length as u64);
        for operation in [Operation::Add(7), Operation::Add(255), Operation::Xor(0x5a)] {
            let chunk = Apply { id: 3, offset: 32, length: length as u64, operation: operation.word() };
            let (given, after) = answers(&data, &[chunk]);
            assert_eq!(given, [Applied { id: 3, status: 0 }]);
            let within = |place: usize| (32..32 + length).contains(&place);
            let expected: Vec<u8> =
                data.iter().enumerate().map(|(place, &byte)| if within(place) { slow(byte, operation) } else { byte }).collect();
            assert!(after == expected, "{length} bytes, {operation:?}");
        }
    }
}

#[test]
fn rejected_operations_leave_the_data_unchanged() {
    let data = noise(4096, 1);
    let good = Apply { id: 0, offset: 0, length: 4096, operation: Operation::Xor(0).word() };
    let bad = [
        Apply { offset: 16, ..good },
        Apply { length: 4097, ..good },
        Apply { offset: 8, length: 16, ..good },
        Apply { offset: u64::MAX - 15, length: 16, ..good },
        Apply { length: u64::MAX, ..good },
        Apply { operation: 0, ..good },
        Apply { operation: 7, ..good },
        Apply { operation: 3 << 8, ..good },
        Apply { operation: u64::MAX, ..good },
        Apply { operation: 1 << 9 | 1 << 40, ..good },
    ];
    let chunks: Vec<Apply> = bad.iter().enumerate().map(|(id, chunk)| Apply { id: id as u64, ..*chunk }).chain([good]).collect();
    let (given, after) = answers(&data, &chunks);
    let expected: Vec<Applied> =
        chunks.iter().enumerate().map(|(place, chunk)| Applied { id: chunk.id, status: u64::from(place < bad.len()) }).collect();
    assert_eq!(given, expected);
    assert!(after == data);
}

#[test]
fn unmapped_data_is_an_address_fault() {
    let ground = Bytes::of(&noise(4096, 2));
    let shape = Shape::default();
    let wrong = [("no data", [0, 4096]), ("misaligned", [ground.address() + 8, 8])];
    for (what, arguments) in wrong.into_iter().chain(unmapped([("too much", [ground.address(), 4097])])) {
        let memory = shape.memory::<Apply, Applied>();
        let device = Device::new([memory.range(), ground.range()]);
        let mut rig = Rig::<Apply, Applied>::new(&memory, shape);
        rig.run_image("transform", &arguments, &device, |_| {});
        assert_eq!(rig.end(), (State::Faulted, 1, Some(Fault::Address)), "{what}");
    }
}
