use proptest::prelude::*;

use super::shadow::{Op, Shadow, Source};

fn op(number: u64) -> Op {
    let (kind, rest) = (number % 64, number >> 6);
    let (bits, which, stream) = (rest % 22, (rest >> 8) as u16, (rest >> 24) as u8);
    let bytes = (rest >> 32) as u32 & ((1 << bits) - 1);
    match kind {
        0..=28 => Op::Take { bytes, on: None },
        29..=31 => Op::Take { bytes, on: Some(stream) },
        32..=58 => Op::Give { which },
        59..=61 => Op::GiveQueued { which, stream },
        62 => Op::Synchronize { stream },
        _ => match stream % 4 {
            0 => Op::Trim { kib: which },
            1 => Op::Prewarm { bytes: which, count: stream },
            _ => Op::Check,
        },
    }
}

#[test]
fn many_random_operations_follow_the_model() {
    let mut number = 5_u64;
    let sources = [Source::Slabs, Source::Range, Source::ShortRange];
    for (steps, is_exact, source) in sources.into_iter().flat_map(|source| [(4, false, source), (1, true, source)]) {
        let mut shadow = Shadow::new(steps, is_exact, source);
        let operations = if source == Source::Slabs { 62_500 } else { 25_000 };
        for _ in 0..operations * crate::DEPTH {
            number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            shadow.step(op(number ^ number >> 31));
        }
        assert!(shadow.refused() > 50, "the pool was full at times");
        shadow.finish();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn short_random_sequences_follow_the_model(steps in 0..4_u32, is_exact: bool, source in 0..3_usize, numbers in prop::collection::vec(any::<u64>(), 0..300)) {
        let mut shadow = Shadow::new(1 << steps, is_exact, [Source::Slabs, Source::Range, Source::ShortRange][source]);
        for number in numbers {
            shadow.step(op(number));
            shadow.step(Op::Check);
        }
        shadow.finish();
    }
}
