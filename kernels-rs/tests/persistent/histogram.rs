use ringmem_kernels::histogram::{self, Chunk, Counted, LONGEST, Work};
use ringmem_layouts::control::{Command, Fault, State};

use crate::machine::unmapped;
use crate::memory::{Bytes, Device};
use crate::rig::{Rig, Shape};

fn scatter(x: u64) -> u64 {
    let mut z = x.wrapping_add(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d049bb133111eb);
    z ^ (z >> 31)
}

pub fn slow(data: &[u8], first_word: u64) -> (Vec<u64>, u64) {
    let mut counts = vec![0; 256];
    for &byte in data {
        counts[usize::from(byte)] += 1;
    }
    let mut sum = 0_u64;
    for (index, run) in data.chunks(8).enumerate() {
        let mut word = [0; 8];
        word[..run.len()].copy_from_slice(run);
        sum = sum.wrapping_add(scatter(u64::from_le_bytes(word) ^ scatter(first_word.wrapping_add(index as u64))));
    }
    (counts, sum)
}

pub fn noise(len: usize, seed: u64) -> Vec<u8> {
    (0..len as u64).map(|i| (scatter(seed ^ i) >> 56) as u8).collect()
}

pub struct Ground {
    pub data: Bytes,
    pub length: u64,
    pub work: Bytes,
}

impl Ground {
    pub fn new(data: &[u8]) -> Self {
        Self { data: Bytes::of(data), length: data.len() as u64, work: Bytes::zeroed(size_of::<Work>()) }
    }

    pub fn arguments(&self) -> [u64; 3] {
        [self.data.address(), self.length, self.work.address()]
    }

    pub fn totals(&mut self) -> Vec<u64> {
        // SAFETY: within the memory; the kernel has exited.
        let work: &Work = unsafe { self.work.place::<Work>(0).as_ref() };
        assert!(work.tables.as_flattened().iter().all(|&count| count == 0), "a table was not emptied");
        work.totals.to_vec()
    }
}

fn answers(ground: &Ground, shape: Shape, chunks: &[Chunk]) -> (Vec<Counted>, u64) {
    let memory = shape.memory::<Chunk, Counted>();
    let device = Device::new([memory.range(), ground.data.range(), ground.work.range()]);
    let mut rig = Rig::<Chunk, Counted>::new(&memory, shape);
    let answers = rig.run_image("histogram", &ground.arguments(), &device, |rig| {
        rig.command(Command::ACTIVATE);
        let (mut answers, mut sent) = (Vec::new(), 0);
        while answers.len() < chunks.len() {
            answers.push(rig.receive_sending(|sender| {
                while sent < chunks.len() && sender.push(chunks[sent]).is_ok() {
                    sent += 1;
                }
            }));
        }
        rig.command(Command::DRAIN);
        answers
    });
    assert_eq!(rig.end(), (State::Terminated, 0, None));
    let seen = rig.telemetry.snapshot().expect("nobody writes any more");
    assert_eq!(seen.processed, chunks.len() as u64);
    (answers, seen.dropped)
}

#[test]
fn splitmix64_matches_the_published_vector() {
    let published = [0xe220a8397b1dcdaf, 0x6e789e6aa1b965f4, 0x06c45d188009454f, 0xf88bb8a8724c81ec];
    for (step, expected) in published.into_iter().enumerate() {
        let state = 0x9e3779b97f4a7c15_u64.wrapping_mul(step as u64);
        assert_eq!((histogram::splitmix64(state), scatter(state)), (expected, expected));
    }
}

#[test]
fn chunks_of_any_length_are_counted() {
    for length in (0..=40).chain([4095, 4096, 1_000_003]) {
        let data = noise(length, length as u64);
        for first_word in [0, 1, 123_456_789, u64::MAX - 1] {
            let mut ground = Ground::new(&data);
            let chunk = Chunk { id: 9, offset: 0, length: length as u64, first_word };
            let (given, dropped) = answers(&ground, Shape::default(), &[chunk]);
            let (counts, checksum) = slow(&data, first_word);
            assert_eq!(given, [Counted { id: 9, status: 0, bytes: length as u64, checksum }], "{length} bytes from word {first_word}");
            assert_eq!((ground.totals(), dropped), (counts, 0));
        }
    }
}

#[test]
fn runs_of_equal_bytes_are_all_counted() {
    for byte in [0, 1, 127, 255] {
        let data = vec![byte; 10_007];
        let mut ground = Ground::new(&data);
        let (given, _) = answers(&ground, Shape::default(), &[Chunk { id: 0, offset: 0, length: 10_007, first_word: 0 }]);
        let (counts, checksum) = slow(&data, 0);
        assert_eq!((given[0].checksum, ground.totals()), (checksum, counts));
    }
}

#[test]
fn reordered_chunks_have_the_total_histogram() {
    let data = noise(100_001, 5);
    let (counts, checksum) = slow(&data, 0);
    for (batch, capacity) in [(1, 1), (8, 4), (128, 64)] {
        let mut chunks: Vec<Chunk> = (0..data.len() as u64)
            .step_by(4096)
            .map(|offset| Chunk { id: offset / 4096, offset, length: (data.len() as u64 - offset).min(4096), first_word: offset / 8 })
            .collect();
        chunks.rotate_left(7);
        chunks.swap(0, 3);
        let mut ground = Ground::new(&data);
        let shape = Shape { batch, input: capacity, output: capacity, ..Shape::default() };
        let (given, _) = answers(&ground, shape, &chunks);
        let mut bytes = 0;
        for (chunk, answer) in chunks.iter().zip(&given) {
            bytes += chunk.length;
            assert_eq!((answer.id, answer.status, answer.bytes), (chunk.id, 0, bytes), "answers come in the order of the messages");
        }
        assert_eq!((given.last().map(|last| last.checksum), ground.totals()), (Some(checksum), counts.clone()));
    }
}

#[test]
fn rejected_chunks_leave_the_histogram_unchanged() {
    let data = noise(4096, 1);
    let good = |id| Chunk { id, offset: 0, length: 4096, first_word: 0 };
    let bad = [
        Chunk { offset: 8, ..good(0) },
        Chunk { length: 4097, ..good(0) },
        Chunk { offset: 4096, length: 1, ..good(0) },
        Chunk { offset: 4104, length: 0, ..good(0) },
        Chunk { offset: u64::MAX - 7, length: 8, ..good(0) },
        Chunk { offset: u64::MAX - 7, length: 16, ..good(0) },
        Chunk { length: u64::MAX, ..good(0) },
        Chunk { offset: 4, length: 8, ..good(0) },
        Chunk { offset: 1, length: 0, ..good(0) },
    ];
    let mut chunks = vec![good(100)];
    chunks.extend(bad.iter().enumerate().map(|(id, chunk)| Chunk { id: id as u64, ..*chunk }));
    chunks.push(Chunk { offset: 4096, length: 0, ..good(101) });
    let mut ground = Ground::new(&data);
    let (given, dropped) = answers(&ground, Shape::default(), &chunks);
    let (counts, checksum) = slow(&data, 0);
    let expected: Vec<Counted> =
        chunks.iter().map(|chunk| Counted { id: chunk.id, status: u64::from(chunk.id < 100), bytes: 4096, checksum }).collect();
    assert_eq!(given, expected);
    assert_eq!((dropped, ground.totals()), (bad.len() as u64, counts));
}

#[test]
fn chunks_that_could_overflow_counters_are_rejected() {
    let mut ground = Ground::new(&[7; 16]);
    ground.length = LONGEST * 2;
    let shape = Shape::default();
    let memory = shape.memory::<Chunk, Counted>();
    // Claims to map all of it: a refused chunk is never read.
    let device = Device::new([memory.range(), (ground.data.address(), ground.length), ground.work.range()]);
    let mut rig = Rig::<Chunk, Counted>::new(&memory, shape);
    rig.run_image("histogram", &ground.arguments(), &device, |rig| {
        rig.command(Command::ACTIVATE);
        rig.send(Chunk { id: 1, offset: 0, length: LONGEST + 1, first_word: 0 });
        assert_eq!(rig.receive(), Counted { id: 1, status: 1, bytes: 0, checksum: 0 });
        rig.command(Command::TERMINATE);
    });
    assert_eq!(ground.totals(), [0; 256]);
}

#[test]
fn unmapped_data_or_work_is_an_address_fault() {
    let ground = Ground::new(&noise(4096, 2));
    let shape = Shape::default();
    let [data, length, work] = ground.arguments();
    let wrong = [
        ("no data", [0, length, work]),
        ("misaligned data", [data + 1, 8, work]),
        ("no work", [data, length, 0]),
        ("misaligned work", [data, length, work + 64]),
    ];
    let outside = [
        ("data elsewhere", [data ^ (1 << 62), length, work]),
        ("more data than is mapped", [data, length + 1, work]),
        ("work elsewhere", [data, length, work ^ (1 << 62)]),
        ("less work than is needed", [data, length, data]),
    ];
    for (what, arguments) in wrong.into_iter().chain(unmapped(outside)) {
        let memory = shape.memory::<Chunk, Counted>();
        let device = Device::new([memory.range(), ground.data.range(), ground.work.range()]);
        let mut rig = Rig::<Chunk, Counted>::new(&memory, shape);
        rig.run_image("histogram", &arguments, &device, |_| {});
        assert_eq!(rig.end(), (State::Faulted, 1, Some(Fault::Address)), "{what}");
    }
}

#[test]
fn the_single_pass_reference_matches_the_model() {
    for length in [0, 1, 7, 8, 9, 4095, 100_003] {
        let data = noise(length, 3);
        let mut words = vec![0_u64; length.div_ceil(8)];
        for (word, run) in words.iter_mut().zip(data.chunks(8)) {
            let mut bytes = [0; 8];
            bytes[..run.len()].copy_from_slice(run);
            *word = u64::from_le_bytes(bytes).to_le();
        }
        let mut work: Work = ringmem_layouts::DeviceBytes::zeroed();
        let checksum = histogram::reference(&words, length, 77, &mut work);
        assert_eq!((work.totals.to_vec(), checksum), slow(&data, 77));
    }
}
