use std::fmt::Debug;
use std::ptr::NonNull;

use ringmem::backend::{Address, Copy, Options};
use ringmem::memory::{Buffer, Unified, UnifiedBuffer};
use ringmem::{CacheLineAligned, DeviceBytes, Error};

use super::Subject;
use super::subject::{done, pattern};

pub fn copies_of_every_size_and_offset_preserve_their_neighbours(subject: &Subject) {
    const BEFORE: u8 = 0xA5;
    let stream = subject.stream();
    for size in [1, 7, 64, 4096, 65_537] {
        for offset in [0, 1, 63, 4096] {
            let source = pattern(size);
            let mut expected = vec![BEFORE; offset + size + 16];
            expected[offset..offset + size].copy_from_slice(&source);

            let (mut blocking, mut queued) = (subject.gpu::<u8>(expected.len()), subject.gpu::<u8>(expected.len()));
            blocking.fill(BEFORE).expect("a fill");
            queued.fill(BEFORE).expect("a fill");
            blocking.copy_from_at(offset, &source).expect("within");
            let (_, queued) = done(stream.copy_range(subject.pinned_of(&source), .., queued, offset).expect("within"));
            for buffer in [&blocking, &queued] {
                assert!(buffer.to_vec().expect("a copy") == expected, "{size} bytes at {offset}");
                let mut back = vec![0; size];
                buffer.copy_to_at(offset, &mut back).expect("within");
                assert!(back == source, "{size} bytes from {offset}");
            }
            let into = subject.pinned_of(&vec![0; size + 2]);
            let (_, into) = done(stream.copy_range(queued, offset..offset + size, into, 1).expect("within"));
            let into = into.as_slice().expect("nothing is queued");
            assert!(into[1..=size] == source && into[0] == 0 && into[size + 1] == 0, "{size} bytes from {offset}, queued");
        }
    }
}

pub fn copies_of_no_bytes_succeed_between_all_memories(subject: &Subject) {
    let (stream, device, pinned) = (subject.stream(), subject.gpu::<u8>(16), subject.pinned::<u8>(16));
    let mut pageable = [7_u8; 16];
    let ends = [
        Address::Device(device.device_address().expect("device memory")),
        Address::Host(NonNull::from(&pinned.as_slice().expect("nothing is queued")[0])),
        Address::Host(NonNull::from(&mut pageable).cast()),
    ];
    for (to, from) in ends.into_iter().flat_map(|to| ends.map(|from| (to, from))) {
        let copy = Copy { to, from, bytes: 0 };
        // SAFETY: no byte is accessed.
        unsafe { subject.backend.copy_now(&copy) }.unwrap_or_else(|error| panic!("{copy:?}: {error}"));
        // SAFETY: as above.
        let ticket = unsafe { subject.backend.copy(&copy, stream.id()) }.unwrap_or_else(|error| panic!("{copy:?}, queued: {error}"));
        assert!(subject.backend.wait(ticket, None).expect("no deadline"));
    }
    assert_eq!(pageable, [7; 16]);
}

pub fn fills_of_every_size_set_only_their_range(subject: &Subject) {
    fn check<T: DeviceBytes + PartialEq + Debug>(subject: &Subject, outside: T, inside: T) {
        let stream = subject.stream();
        let (mut buffer, mut expected) = (subject.gpu::<T>(100), vec![outside; 100]);
        subject.changes(
            "blocking fills",
            |figures| figures.fills += 2,
            || {
                buffer.fill(outside).expect("a fill");
                buffer.slice_mut(10..30).expect("within").fill(inside).expect("a fill");
            },
        );
        expected[10..30].fill(inside);
        assert_eq!(buffer.to_vec().expect("a copy"), expected);
        let buffer =
            subject.changes("a queued fill", |figures| figures.fills += 1, || done(stream.fill(buffer, 50..=60, inside).expect("within")));
        expected[50..=60].fill(inside);
        assert_eq!(buffer.to_vec().expect("a copy"), expected);
        let mut pinned = subject.pinned::<T>(20);
        pinned.slice_mut(1..19).expect("within").fill(inside).expect("a fill");
        assert_eq!(pinned.as_slice().expect("nothing is queued")[1..19], [inside; 18]);
    }
    check::<u8>(subject, 1, 2);
    check::<u16>(subject, 0x0102, 0x0304);
    check::<i32>(subject, -1, 0x0102_0304);
    check::<f32>(subject, 0.0, core::f32::consts::PI);
    check::<u64>(subject, 1, 0x0102_0304_0506_0708);
    check::<[u8; 4]>(subject, [1, 2, 3, 4], [5, 6, 7, 8]);
    let mut buffer = subject.gpu_of(&[[7_u32; 3]; 10]);
    buffer.slice_mut(2..5).expect("within").zero().expect("a fill");
    let zeroed: Vec<_> = (0..10).map(|i| if (2..5).contains(&i) { [0; 3] } else { [7; 3] }).collect();
    assert_eq!(buffer.to_vec().expect("a copy"), zeroed);
}

pub fn fills_accept_elements_of_any_size(subject: &Subject) {
    fn check<T: DeviceBytes + PartialEq + Debug>(subject: &Subject, outside: T, inside: T) {
        let stream = subject.stream();
        for len in [0, 1, 2, 3, 5, 64, 100] {
            let (mut blocking, mut expected) = (subject.gpu::<T>(len + 4), vec![outside; len + 4]);
            blocking.fill(outside).expect("a fill");
            let queued = done(stream.fill(subject.gpu::<T>(len + 4), .., outside).expect("within"));
            blocking.slice_mut(2..len + 2).expect("within").fill(inside).expect("a fill");
            let queued = done(stream.fill(queued, 2..len + 2, inside).expect("within"));
            expected[2..len + 2].fill(inside);
            for buffer in [blocking, queued] {
                assert_eq!(buffer.to_vec().expect("a copy"), expected, "{len} of {} bytes", size_of::<T>());
            }
            let mut pinned = subject.pinned::<T>(len);
            pinned.fill(inside).expect("a fill");
            assert_eq!(pinned.as_slice().expect("nothing is queued"), vec![inside; len]);
        }
    }
    check::<[f32; 3]>(subject, [0.0; 3], [1.0, -2.0, 3.5]);
    check::<[u8; 3]>(subject, [1, 2, 3], [9; 3]);
    check::<[u64; 2]>(subject, [1, 2], [u64::MAX, 0]);
    check::<[u64; 2]>(subject, [1, 2], [7, 7]);
    check::<[f32; 4]>(subject, [0.0; 4], [1.0, -2.0, 3.5, 0.0]);
    check::<[u8; 16]>(subject, [1; 16], core::array::from_fn(|i| i as u8));
    check::<[u32; 8]>(subject, [1, 2, 3, 4, 1, 2, 3, 4], [1, 2, 3, 4, 5, 6, 7, 8]);
    check::<[f64; 4]>(subject, [1.0; 4], [1.0, 2.0, 3.0, 4.0]);
    let line = |byte: u8| CacheLineAligned::new(core::array::from_fn::<u8, 128, _>(|i| byte.wrapping_add(i as u8)));
    check(subject, line(0), line(7));
}

pub fn copies_between_device_buffers_stay_on_the_device(subject: &Subject) {
    let (from, mut to) = (subject.gpu_of(&pattern(1000)), subject.gpu::<u8>(1000));
    let stream = subject.stream();
    let (from, to) = subject.changes(
        "three copies on the device",
        |figures| figures.device_copies += 3,
        || {
            to.as_view_mut().copy_from_view(from.as_view()).expect("as many");
            to.slice_mut(..100).expect("within").copy_from_view(from.slice(900..).expect("within")).expect("as many");
            done(stream.copy_range(from, 500..600, to, 100).expect("within"))
        },
    );
    let mut expected = pattern(1000);
    expected.copy_within(900.., 0);
    expected[100..200].copy_from_slice(&pattern(1000)[500..600]);
    assert_eq!(to.to_vec().expect("a copy"), expected);
    assert_eq!(from.to_vec().expect("a copy"), pattern(1000));
}

pub fn a_copy_within_a_buffer_moves_its_bytes(subject: &Subject) {
    let mut buffer = subject.gpu_of(&pattern(300));
    subject.changes(
        "copies on the device",
        |figures| figures.device_copies += 2,
        || {
            buffer.copy_within(0..100, 200).expect("apart");
            buffer.copy_within(100..150, 50).expect("side by side");
        },
    );
    let mut expected = pattern(300);
    expected.copy_within(0..100, 200);
    expected.copy_within(100..150, 50);
    assert_eq!(buffer.to_vec().expect("a copy"), expected);
}

pub fn one_buffer_and_one_staging_buffer_serve_a_thousand_batches(subject: &Subject) {
    let (mut gpu, mut pinned, stream) = (subject.gpu::<u32>(64), subject.pinned::<u32>(64), subject.stream());
    let gpu = subject.changes(
        "a thousand batches",
        |figures| figures.uploads += 1000,
        || {
            for batch in 0..1000 {
                pinned.as_mut_slice().expect("nothing is queued").fill(batch);
                (pinned, gpu) = done(stream.copy(pinned, gpu).expect("as many"));
            }
            (gpu, pinned)
        },
    );
    assert_eq!(gpu.0.to_vec().expect("a copy"), [999; 64]);
}

pub fn both_sides_access_managed_memory_without_a_copy(subject: &Subject) {
    if !subject.backend.capabilities(0).expect("device 0").unified {
        let error = UnifiedBuffer::<u8>::new(Unified::new(&subject.backend, 0), 8).expect_err("there is none");
        assert!(matches!(error, Error::Unsupported { .. }), "{error}");
        return;
    }
    let (stream, module) = (subject.stream(), subject.module());
    let memory = Unified::new(&subject.backend, 0).with(Options::ZEROED);
    let mut buffer = Buffer::<u8, _>::new(memory, 1000).expect("managed memory");
    buffer.as_mut_slice().expect("nothing is queued").copy_from_slice(&pattern(1000));
    let address = buffer.device_address().expect("it has one").get();
    assert_eq!(buffer.as_ptr().map(|first| first.as_ptr().addr() as u64), Some(address), "one address on both sides");
    subject.changes(
        "a launch",
        |figures| figures.launches += 1,
        || {
            // SAFETY: the buffer's bytes, not accessed before the wait.
            done(unsafe { stream.launch(&module, "increment", &[address, 1000]) }.expect("a launch"));
        },
    );
    let expected: Vec<_> = pattern(1000).iter().map(|byte| byte.wrapping_add(1)).collect();
    assert!(buffer.as_slice().expect("nothing is queued") == expected);
}
