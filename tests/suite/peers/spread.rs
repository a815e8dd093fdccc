use proptest::prelude::{ProptestConfig, any, prop, prop_assert_eq, proptest};

use super::*;

fn zeroes(backend: &Arc<HostBackend>, device: u32, len: usize) -> GpuBuffer<u16> {
    let mut buffer = GpuBuffer::new(Device::new(backend, device), len).expect("room");
    buffer.zero().expect("a fill");
    buffer
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn scatter_and_gather_preserve_the_elements(parts in prop::collection::vec((0_u32..3, 0_usize..700), 0..8), peer in any::<bool>()) {
        let backend = build(HostBackend::builder().devices(3).device_memory(1 << 20).peer(0, 1));
        let mut peers = peers(&backend);
        if peer {
            peers.enable(0, 1).expect("it can");
        }
        let len = parts.iter().map(|(_, len)| len).sum();
        let elements: Vec<u16> = (0..len).map(|i| (i * 7 + 1) as u16).collect();
        let whole = GpuBuffer::<u16>::from_slice(Device::new(&backend, 0), &elements).expect("room");
        let mut scattered: Vec<_> = parts.iter().map(|&(device, len)| zeroes(&backend, device, len)).collect();
        peers.scatter(&whole, &mut scattered).expect("as long together");
        let mut at = 0;
        for part in &scattered {
            prop_assert_eq!(&part.to_vec().expect("a download"), &elements[at..at + part.len()]);
            at += part.len();
        }
        let mut gathered = zeroes(&backend, 2, len);
        peers.gather(&scattered, &mut gathered).expect("as long together");
        prop_assert_eq!(gathered.to_vec().expect("a download"), elements);
    }
}

#[test]
fn parts_of_a_wrong_total_length_are_errors_without_calls() {
    let backend = build(two().log(true));
    let peers = peers(&backend);
    let mut whole = zeroes(&backend, 0, 10);
    let calls = || Verb::ALL.map(|verb| backend.calls(verb).expect("watched"));
    for lengths in [vec![], vec![9], vec![4, 7]] {
        let mut parts: Vec<_> = lengths.iter().map(|&len| zeroes(&backend, 1, len)).collect();
        let before = calls();
        let expected = lengths.iter().sum::<usize>() as u64;
        let error = peers.scatter(&whole, &mut parts).expect_err("another length");
        assert!(matches!(error, Error::Size { what: "length in elements", least: e, asked: 10, .. } if e == expected), "{error}");
        let error = peers.gather(&parts, &mut whole).expect_err("another length");
        assert!(matches!(error, Error::Size { what: "length in elements", least: 10, asked: got, .. } if got == expected), "{error}");
        assert_eq!(calls(), before);
    }
}

#[test]
fn scatter_stops_at_the_first_failed_part() {
    let backend = build(two());
    let peers = peers(&backend);
    let whole = GpuBuffer::<u16>::from_slice(Device::new(&backend, 0), &[7; 30]).expect("room");
    let mut parts = [0; 3].map(|_| zeroes(&backend, 1, 10));
    backend.set_faults(&Faults::new().on(Verb::Copy, Fault::nth(3)));
    let error = peers.scatter(&whole, &mut parts).expect_err("planned");
    assert!(matches!(error, Error::Injected { call: "copy", .. }), "{error}");
    backend.set_faults(&Faults::new());
    assert_eq!(parts.map(|part| part.to_vec().expect("a download")[0]), [7, 0, 0]);
    backend.set_faults(&Faults::new().on(Verb::Copy, Fault::from(1)));
    let mut parts = [0; 3].map(|_| GpuBuffer::<u16>::new(Device::new(&backend, 1), 10).expect("room"));
    peers.scatter(&whole, &mut parts).expect_err("all of them");
    backend.set_faults(&Faults::new());
}
