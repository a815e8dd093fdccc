use proptest::prelude::{ProptestConfig, prop_assert, prop_assert_eq, proptest};
use ringmem::stream::Kind;

use super::*;

fn verified(strategy: Strategy) -> Options {
    Options { verify: true, ..with(strategy) }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn verify_detects_one_flipped_bit_in_any_chunk(strategy in 0_usize..4, copy in 1_u64..=22, at in 0_u64..10_100) {
        let strategy = STRATEGIES[strategy];
        let copies = match strategy {
            Strategy::Direct => 1,
            Strategy::Staged { .. } => 22,
            _ => 11,
        };
        let backend = build(two());
        let mut peers = peers(&backend);
        peers.enable(0, 1).expect("it can");
        let (source, mut target) = (gpu(&backend, 0, &pattern(1)), gpu(&backend, 1, &pattern(2)));
        backend.set_faults(&Faults::new().on(Verb::Copy, Fault::nth(1 + copy % copies).flipping(at)));
        let error = peers.copy_with(&source, &mut target, verified(strategy), |_| {}).expect_err("one bit is wrong");
        let is_named = matches!(error, Error::Corrupted { offset: 0, len, expected, got } if len == BYTES as u64 && expected != got);
        prop_assert!(is_named, "{}", error);
        prop_assert_eq!(Kind::of(&error), Kind::Other, "another try may do");
        backend.set_faults(&Faults::new());
        let wrong = target.to_vec().expect("a download").iter().zip(pattern(1)).filter(|(got, sent)| *got != sent).count();
        prop_assert_eq!(wrong, 1, "what the plan said");
        peers.copy_with(&source, &mut target, verified(strategy), |_| {}).expect("no fault any more");
    }
}

#[test]
fn verify_reports_the_first_corrupted_chunk() {
    const MIB: usize = 1 << 20;
    let backend = build(two().device_memory(32 << 20));
    let peers = peers(&backend);
    let bytes: Vec<u8> = (0..9 * MIB + 5).map(|i| (i * 31 + i / 251) as u8).collect();
    let (source, mut target) = (gpu(&backend, 0, &bytes), gpu(&backend, 1, &bytes));
    peers.verify(&source, &target).expect("they are equal");
    for (wrong, offset, len) in [(9 * MIB + 4, 8 * MIB, MIB + 5), (8 * MIB - 1, 4 * MIB, 4 * MIB), (0, 0, 4 * MIB)] {
        target.copy_from_at(wrong, &[bytes[wrong] ^ 0x80]).expect("within");
        let error = peers.verify(&source, &target).expect_err("one bit is wrong");
        let facts = matches!(error, Error::Corrupted { offset: o, len: l, .. } if (o, l) == (offset as u64, len as u64));
        assert!(facts, "{wrong}: {error}");
        assert!(error.to_string().starts_with(&format!("corrupted copy: {len} bytes at offset {offset} ")), "{error}");
    }
}

#[test]
fn verify_reads_back_every_byte_of_both_buffers() {
    let backend = build(two());
    let peers = peers(&backend);
    let (source, target) = (gpu(&backend, 0, &pattern(1)), gpu(&backend, 1, &pattern(1)));
    let (counted, ()) = moves(&backend, || peers.verify(&source, &target).expect("they are equal"));
    assert_eq!(counted, [(0, 0), (2, 2 * BYTES as u64), (0, 0), (0, 0)]);
    for copy in [1, 2] {
        backend.set_faults(&Faults::new().on(Verb::Copy, Fault::nth(copy).flipping(77)));
        assert!(matches!(peers.verify(&source, &target), Err(Error::Corrupted { .. })), "{copy}");
    }
    backend.set_faults(&Faults::new());
    assert!(matches!(peers.verify(&source, &gpu(&backend, 1, &[1; 7])), Err(Error::Size { what: "length in elements", least: 7, .. })));
}

#[test]
fn a_flipping_fault_flips_one_bit_of_one_copy() {
    let backend = build(two());
    let stream = Stream::new(&backend, 0).expect("a stream");
    let mut device = gpu(&backend, 0, &[0; 10]);
    backend.set_faults(&Faults::new().on(Verb::Copy, Fault::nth(2).flipping(23)).on(Verb::Fill, Fault::from(1).flipping(1)));
    device.copy_from(&[4; 10]).expect("the first");
    assert_eq!(device.to_vec().expect("the second, to memory that is not the backend's"), [4; 10]);
    backend.set_faults(&Faults::new().on(Verb::Copy, Fault::nth(1).flipping(23)).on(Verb::Fill, Fault::from(1).flipping(1)));
    device.copy_from(&[4; 10]).expect("nobody is told");
    assert_eq!(device.to_vec().expect("a download"), [4, 4, 4, 5, 4, 4, 4, 4, 4, 4]);
    let device = stream.fill(device, .., 6).expect("it is queued").wait().expect("no copy");
    assert_eq!(device.to_vec().expect("a download"), [6; 10]);
    let other = gpu(&backend, 0, &[0; 10]);
    backend.set_faults(&Faults::new().on(Verb::Copy, Fault::nth(1).flipping(0)));
    let (_, other) = stream.copy(device, other).expect("it is queued").wait().expect("nobody is told");
    assert_eq!(other.to_vec().expect("a download"), [7, 6, 6, 6, 6, 6, 6, 6, 6, 6]);
}
