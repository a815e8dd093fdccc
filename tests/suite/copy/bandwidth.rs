use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use ringmem::Error;
use ringmem::backend::Backend;
use ringmem::backend::host::{Fault, Faults, HostBackend, Verb};
use ringmem::copy::{Bandwidth, Rate, bandwidth};
use ringmem::stream::Stream;

use super::{Clean, backend, modelled};

#[test]
fn rates_use_the_clock_of_the_backend() {
    let looks = AtomicU64::new(0);
    let clock = Arc::new(move || 1000 * looks.fetch_add(1, Relaxed));
    let backend = Clean::build(HostBackend::builder().device_memory(1 << 20).clock(clock));
    let stream = Stream::new(&backend, 0).expect("a stream");
    let Bandwidth { upload, download, pageable_upload, pageable_download, on_device, .. } = bandwidth(&stream, 24_000).expect("room");
    assert_eq!([upload, download, pageable_upload, pageable_download, on_device], [Rate { bytes: 24_000, ns: 1000 }; 5]);
    assert_eq!(upload.gb_per_s(), Some(24.0));
}

#[test]
fn rates_use_the_virtual_time_of_a_link_model() {
    let backend = Clean::build(modelled());
    let stream = Stream::new(&backend, 0).expect("a stream");
    let ns = |rate: Rate| {
        assert_eq!(rate.bytes, 1_000_000);
        rate.ns
    };
    let Bandwidth { upload, download, pageable_upload, pageable_download, on_device, is_pinned } =
        bandwidth(&stream, 1_000_000).expect("room");
    assert_eq!([upload, download, pageable_upload, pageable_download, on_device].map(ns), [101_000, 101_000, 201_000, 201_000, 10_000]);
    let locked = ringmem::memory::PinnedBuffer::<u8>::new(super::pinned(&backend), 1_000_000).expect("room").is_pinned();
    assert_eq!(is_pinned, locked, "as the system says of as many bytes");
    assert_eq!(backend.now_ns(), backend.model_now().expect("a model"));
}

#[test]
fn a_failed_measurement_is_an_error_and_leaks_nothing() {
    let backend = backend();
    let stream = Stream::new(&backend, 0).expect("a stream");
    assert!(matches!(bandwidth(&stream, 0), Err(Error::Size { asked: 0, .. })));
    assert!(matches!(bandwidth(&stream, 64 << 20), Err(Error::OutOfMemory { .. })));
    for call in 1..=25 {
        backend.set_faults(&Faults::new().on(Verb::Copy, Fault::nth(call)));
        assert!(matches!(bandwidth(&stream, 100), Err(Error::Injected { .. })), "copy {call}");
    }
    backend.set_faults(&Faults::new());
    bandwidth(&stream, 100).expect("no fault");
}
