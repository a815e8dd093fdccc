use ringmem::backend::Backend;
use ringmem::backend::host::HostBackend;
use ringmem::memory::{Device, GpuBuffer, Pinned, PinnedBuffer};
use ringmem::stream::{Module, Stream};
use ringmem::{Abi, Error, Image, LAYOUTS, set_hash};

use super::subject::{done, pattern};
use super::{IMAGE, Subject};

const OUTSIDE: [(usize, usize); 4] = [(0, 101), (100, 1), (usize::MAX, 2), (1 << 62, 1)];

pub fn a_mismatch_is_an_error_without_effects(subject: &Subject) {
    let mut buffer = subject.gpu::<u32>(100);
    buffer.fill(7).expect("a fill");
    subject.nothing("mismatches", || {
        for got in [0, 99, 101] {
            let mut elements = vec![0; got as usize];
            for error in [buffer.copy_from(&elements), buffer.copy_to(&mut elements)] {
                let error = error.expect_err("another number of elements");
                let facts = matches!(error, Error::Size { what: "length in elements", least: 100, asked, .. } if asked == got);
                assert!(facts, "{got} elements: {error}");
            }
        }
        for (at, len) in OUTSIDE {
            let mut elements = vec![0; len];
            let refused = [
                buffer.copy_from_at(at, &elements).err(),
                buffer.copy_to_at(at, &mut elements).err(),
                buffer.slice(at..at.saturating_add(len)).err().filter(|_| at <= 100),
                buffer.copy_within(..len.min(100), at).err().filter(|_| len <= 100),
            ];
            assert!(refused[0].is_some() && refused[1].is_some(), "{len} elements at {at}");
            for error in refused.into_iter().flatten() {
                let facts =
                    matches!(error, Error::Range { offset, len: l, size: 100, element_bytes: 4 } if (offset, l) == (at as u64, len as u64));
                assert!(facts, "{len} elements at {at}: {error}");
            }
        }
        #[allow(clippy::reversed_empty_ranges, reason = "refused, too")]
        for range in [0..101, 101..101, 101..3, usize::MAX..0] {
            assert!(matches!(buffer.slice(range.clone()), Err(Error::Range { size: 100, .. })), "{range:?}");
            assert!(matches!(buffer.slice_mut(range.clone()), Err(Error::Range { size: 100, .. })), "{range:?}");
        }
        #[allow(clippy::reversed_empty_ranges, reason = "refused, too")]
        for range in [2..1, 100..0] {
            assert!(matches!(buffer.slice(range.clone()), Err(Error::Size { what: "range end", .. })), "{range:?}");
            assert!(matches!(buffer.slice_mut(range.clone()), Err(Error::Size { what: "range end", .. })), "{range:?}");
        }
        assert!(matches!(buffer.slice(..=usize::MAX), Err(Error::Range { .. })));
        assert!(matches!(buffer.as_view().split_at(101), Err(Error::Range { .. })));
        assert!(matches!(buffer.as_view_mut().split_at(101), Err(Error::Range { .. })));
        for to in [1, 49, 50 - 1] {
            let error = buffer.copy_within(0..50, to).expect_err("they overlap");
            assert!(matches!(error, Error::Overlap { from: 0, to: t, len: 200 } if t == to as u64 * 4), "{error}");
        }
    });
    assert_eq!(buffer.to_vec().expect("a copy"), [7; 100]);
}

pub fn a_rejected_operation_returns_its_buffers_unchanged(subject: &Subject) {
    let (stream, mut gpu, mut pinned) = (subject.stream(), subject.gpu_of(&pattern(100)), subject.pinned_of(&[9_u8; 99]));
    let (gpu, pinned) = subject.nothing("refusals", || {
        let rejected = stream.copy(pinned, gpu).expect_err("another number");
        assert!(matches!(rejected.error, Error::Size { what: "length in elements", least: 100, asked: 99, .. }), "{rejected}");
        (pinned, gpu) = rejected.value;
        for (from, at) in [(0..100, 0), (0..99, 2), (0..1, 100), (0..1, usize::MAX)] {
            let rejected = stream.copy_range(pinned, from.clone(), gpu, at).expect_err("outside");
            assert!(matches!(rejected.error, Error::Range { .. }), "{from:?} to {at}: {rejected}");
            (pinned, gpu) = rejected.value;
        }
        let rejected = stream.fill(gpu, 1..101, 0).expect_err("outside");
        assert!(matches!(rejected.error, Error::Range { offset: 1, len: 100, size: 100, element_bytes: 1 }), "{rejected}");
        stream.synchronize().expect("nothing is queued");
        (rejected.value, pinned)
    });
    assert_eq!(gpu.to_vec().expect("a copy"), pattern(100));
    assert_eq!(pinned.as_slice().expect("nothing is queued"), [9; 99]);
}

pub fn objects_of_another_backend_are_rejected(subject: &Subject) {
    let other = HostBackend::builder().device_memory(1 << 16).build().expect("a backend");
    let mut theirs = GpuBuffer::<u8>::new(Device::new(&other, 0), 8).expect("room");
    let (their_stream, their_module) = (Stream::new(&other, 0).expect("a stream"), Module::load(&other, &IMAGE, &IMAGE.abi));
    let their_module = their_module.expect("our ABI");
    let (stream, ours, mut gpu) = (subject.stream(), subject.pinned_of(&[1_u8; 8]), subject.gpu_of(&[2_u8; 8]));
    assert_ne!(subject.backend.id(), other.id());
    let is_foreign = |error: &Error| matches!(error, Error::OtherBackend { .. });
    let ours = subject.nothing("foreign memory", || {
        let rejected = stream.copy(ours, theirs).expect_err("a foreign target");
        assert!(is_foreign(&rejected.error), "{rejected}");
        let (ours, back) = rejected.value;
        let rejected = stream.copy(back, ours).expect_err("a foreign source");
        assert!(is_foreign(&rejected.error), "{rejected}");
        let (back, ours) = rejected.value;
        let rejected = stream.fill(back, .., 0).expect_err("foreign memory");
        assert!(is_foreign(&rejected.error), "{rejected}");
        theirs = rejected.value;
        let refused = [
            theirs.as_view_mut().copy_from_view(gpu.as_view()).err(),
            gpu.used_by(&their_stream).err(),
            stream.wait_for(&their_stream).err(),
            PinnedBuffer::<u8>::new_on(Pinned::new(&subject.backend, 0), 8, &their_stream).err(),
            // SAFETY: it is not launched.
            unsafe { stream.launch(&their_module, "hold", &[0]) }.err(),
        ];
        for (i, error) in refused.into_iter().enumerate() {
            assert!(error.as_ref().is_some_and(is_foreign), "refusal {i}: {error:?}");
        }
        ours
    });
    let (_, gpu) = done(stream.copy(ours, gpu).expect("all ours"));
    assert_eq!(gpu.to_vec().expect("a copy"), [1; 8]);
}

pub fn unknown_kernels_and_wrong_argument_counts_are_errors(subject: &Subject) {
    let (stream, module) = (subject.stream(), subject.module());
    assert!(module.names().any(|name| name == "increment"), "{module:?}");
    subject.nothing("kernels that cannot be launched", || {
        // SAFETY: it is not launched.
        let error = unsafe { stream.launch(&module, "grow", &[]) }.expect_err("there is none");
        assert!(
            matches!(&error, Error::NotFound { what: "kernel", name, known } if *name == Box::from("grow") && known.len() == module.names().len())
        );
        assert!(error.to_string().contains("no kernel `grow` among"), "{error}");
        for given in [0, 1, 3] {
            // SAFETY: it is not launched.
            let error = unsafe { stream.launch(&module, "increment", &[0; 3][..given]) }.expect_err("it takes two");
            assert!(matches!(error, Error::Arguments { name: "increment", expected: 2, got } if got == given), "{error}");
        }
        stream.synchronize().expect("nothing is in the way");
    });
}

pub fn loading_an_image_of_another_abi_has_both_layouts(subject: &Subject) {
    const LESS: Abi = Abi::of(LAYOUTS.split_at(1).1);
    let own = subject.image.abi;
    let turned: Vec<_> = own.layouts.iter().rev().copied().collect();
    let turned = Abi { hash: set_hash(&turned), ..own };
    let error = Module::load(&subject.backend, &Image { abi: LESS, ..IMAGE }, &IMAGE.abi).expect_err("other layouts");
    assert!(matches!(error, Error::Abi { expected, got } if (expected, got) == (IMAGE.abi, LESS)), "{error}");
    let message = error.to_string();
    assert!(message.contains(LAYOUTS[0].name) && message.contains("nothing of that name"), "{message}");
    assert_eq!(turned.hash, subject.module().abi().hash);
    Module::load(&subject.backend, &subject.image, &turned).expect("the same layouts in another order");
}
