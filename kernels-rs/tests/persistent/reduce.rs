use ringmem_kernels::reduce::{Number, Reduce, Reduced, Rows, reference};
use ringmem_layouts::control::{Command, Fault, State};

use crate::histogram::noise;
use crate::machine::unmapped;
use crate::memory::{Bytes, Device};
use crate::rig::{Rig, Shape};

pub fn words(len: usize, number: Number) -> Vec<u64> {
    let chance = noise(len * 8, len as u64);
    let chance = chance.chunks(8).map(|bytes| u64::from_le_bytes(bytes.try_into().expect("eight")));
    match number {
        Number::Whole => chance.collect(),
        Number::Float => chance.map(|word| ((word as i64 >> 20) as f64 * 2_f64.powi((word & 63) as i32 - 32)).to_bits()).collect(),
    }
}

pub fn slow(words: &[u64], number: Number) -> Reduced {
    let rows = |row: usize| words.iter().copied().skip(row).step_by(32);
    let sum = match number {
        Number::Whole => words.iter().fold(0, |sum: u64, word| sum.wrapping_add(*word)),
        Number::Float => {
            let sum = |row: usize| rows(row).fold(0.0, |sum, word| sum + f64::from_bits(word));
            let sums: f64 = (1..words.len().min(32)).fold(if words.is_empty() { 0.0 } else { sum(0) }, |all, row| all + sum(row));
            if sums.is_nan() { f64::NAN.to_bits() } else { sums.to_bits() }
        }
    };
    let mut sorted = words.to_vec();
    match number {
        Number::Whole => sorted.sort_unstable(),
        Number::Float => sorted.sort_by(|a, b| f64::from_bits(*a).total_cmp(&f64::from_bits(*b))),
    }
    let [least, greatest] = [sorted.first(), sorted.last()].map(|word| word.copied().unwrap_or_default());
    Reduced { id: 0, status: 0, count: words.len() as u64, sum, least, greatest, _reserved: [0; 2] }
}

fn answers(data: &[u64], chunks: &[Reduce]) -> Vec<Reduced> {
    let bytes: Vec<u8> = data.iter().flat_map(|word| word.to_le_bytes()).collect();
    let shape = Shape::default();
    let (memory, ground, rows) = (shape.memory::<Reduce, Reduced>(), Bytes::of(&bytes), Bytes::zeroed(size_of::<Rows>()));
    let device = Device::new([memory.range(), ground.range(), rows.range()]);
    let mut rig = Rig::<Reduce, Reduced>::new(&memory, shape);
    let arguments = [ground.address(), bytes.len() as u64, rows.address()];
    let answers = rig.run_image("reduce", &arguments, &device, |rig| {
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
    answers
}

#[test]
fn reduce_returns_sum_minimum_and_maximum() {
    for number in [Number::Whole, Number::Float] {
        for len in (0..=70).chain([1000, 10_007]) {
            let data = words(len, number);
            let given = answers(&data, &[Reduce { id: 9, offset: 0, length: len as u64 * 8, number: number as u64 }]);
            let expected = Reduced { id: 9, ..slow(&data, number) };
            assert_eq!(given, [expected], "{len} of {number:?}");
            assert_eq!(Reduced { id: 9, ..reference(&data, number) }, expected);
        }
    }
}

#[test]
fn reduce_handles_signed_zero_infinity_and_nan() {
    let float = |values: &[f64]| {
        let words: Vec<u64> = values.iter().map(|value| value.to_bits()).collect();
        let given = answers(&words, &[Reduce { id: 0, offset: 0, length: words.len() as u64 * 8, number: 1 }]);
        assert_eq!(given, [slow(&words, Number::Float)]);
        [given[0].sum, given[0].least, given[0].greatest].map(f64::from_bits)
    };
    assert_eq!(float(&[0.0, -0.0]).map(f64::to_bits), [0.0, -0.0, 0.0].map(f64::to_bits));
    assert_eq!(
        float(&[f64::INFINITY, -1.0, f64::NEG_INFINITY]).map(f64::to_bits),
        [f64::NAN, f64::NEG_INFINITY, f64::INFINITY].map(f64::to_bits)
    );
    assert_eq!(float(&[5e-324, -5e-324, f64::MAX, f64::MIN]), [0.0, f64::MIN, f64::MAX]);
    let [sum, least, greatest] = float(&[1.0, f64::NAN, 2.0]);
    assert!(sum.is_nan() && greatest.is_nan() && least == 1.0);
}

#[test]
fn partial_results_join_in_chunk_order() {
    for number in [Number::Whole, Number::Float] {
        let data = words(5000, number);
        let parts: Vec<Reduced> = data.chunks(640).map(|part| reference(part, number)).collect();
        let all = parts.iter().fold(Reduced::NONE, |all, part| all.join(number, *part));
        let whole = slow(&data, number);
        assert_eq!((all.count, all.least, all.greatest), (whole.count, whole.least, whole.greatest));
        let sum = match number {
            Number::Whole => whole.sum,
            Number::Float => parts.iter().skip(1).fold(f64::from_bits(parts[0].sum), |sum, part| sum + f64::from_bits(part.sum)).to_bits(),
        };
        assert_eq!(all.sum, sum, "{number:?}");
        assert_eq!(all.join(number, Reduced::NONE), all);
        let corrupt = Reduced { count: u64::MAX, ..all };
        assert_eq!(corrupt.join(number, all).count, all.count.wrapping_sub(1), "no bits of an answer panic");
    }
}

#[test]
fn invalid_ranges_and_number_types_are_rejected() {
    let data = words(64, Number::Whole);
    let good = Reduce { id: 0, offset: 0, length: 512, number: 0 };
    let bad = [
        Reduce { offset: 8, ..good },
        Reduce { length: 513, ..good },
        Reduce { length: 511, ..good },
        Reduce { offset: 4, length: 8, ..good },
        Reduce { offset: u64::MAX - 7, length: 8, ..good },
        Reduce { number: 2, ..good },
    ];
    let chunks: Vec<Reduce> = bad.iter().enumerate().map(|(id, chunk)| Reduce { id: id as u64, ..*chunk }).collect();
    let expected: Vec<Reduced> = chunks.iter().map(|chunk| Reduced { id: chunk.id, status: 1, ..Reduced::NONE }).collect();
    assert_eq!(answers(&data, &chunks), expected);
}

#[test]
fn unmapped_data_or_rows_are_an_address_fault() {
    let (ground, rows) = (Bytes::zeroed(4096), Bytes::zeroed(size_of::<Rows>() + 64));
    let shape = Shape::default();
    let (data, work) = (ground.address(), rows.address());
    let wrong = [[0, 4096, work], [data + 4, 8, work], [data, 4096, 0], [data, 4096, work + 64]];
    for arguments in wrong.into_iter().chain(unmapped([[data, 4097, work]])) {
        let memory = shape.memory::<Reduce, Reduced>();
        let device = Device::new([memory.range(), ground.range(), rows.range()]);
        let mut rig = Rig::<Reduce, Reduced>::new(&memory, shape);
        rig.run_image("reduce", &arguments, &device, |_| {});
        assert_eq!(rig.end(), (State::Faulted, 1, Some(Fault::Address)), "{arguments:?}");
    }
}
