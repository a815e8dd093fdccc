use std::alloc::Layout;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use ringmem::backend::{Block, MemoryLocation, Options, Request, Uses};
use ringmem::memory::{Buffer, Device, Host, HostReadable, Memory, Pinned};
use ringmem::stream::Stream;
use ringmem::{DeviceBytes, Error};

use super::Subject;
use super::subject::{done, eventually};

const LOCATIONS: [MemoryLocation; 4] = [MemoryLocation::Host, MemoryLocation::Device, MemoryLocation::Pinned, MemoryLocation::Unified];

impl Subject {
    fn has(&self, location: MemoryLocation) -> bool {
        location != MemoryLocation::Unified || self.backend.capabilities(0).expect("device 0").unified
    }

    fn request(&self, location: MemoryLocation, bytes: usize, align: usize, options: Options) -> Result<Block, Error> {
        let layout = Layout::from_size_align(bytes, align).expect("a layout");
        self.backend.allocate(&Request { location, device: 0, layout, options }, None)
    }

    fn free(&self, block: &Block) {
        // SAFETY: each block is freed once, and unused.
        unsafe { self.backend.free(block, &block.ready.map_or(Uses::NONE, Uses::of)) }.expect("a live block");
    }
}

pub fn blocks_have_the_requested_size_alignment_and_location(subject: &Subject) {
    for location in LOCATIONS.into_iter().filter(|&location| subject.has(location)) {
        for (bytes, align) in [(1, 1), (100, 128), (4096, 4096), (5000, 256)] {
            let what = format!("{bytes} bytes aligned to {align}, {location:?}");
            let block = subject.changes(
                &what,
                |figures| (figures.allocations, figures.live_bytes) = (figures.allocations + 1, figures.live_bytes + bytes as u64),
                || subject.request(location, bytes, align, Options::empty()).expect("room"),
            );
            assert_eq!((block.layout.size(), block.layout.align(), block.location, block.device), (bytes, align, location, 0), "{what}");
            assert_eq!(block.host.is_some(), location != MemoryLocation::Device, "{what}");
            assert_eq!(block.device_address.is_some(), location != MemoryLocation::Host, "{what}");
            let address = block.device_address.map_or(0, |address| address.get());
            let host = block.host.map_or(0, |host| host.as_ptr().addr());
            assert!(address.is_multiple_of(align as u64) && host.is_multiple_of(align), "{what}: {block:?}");
            assert!(!block.is_pinned || location == MemoryLocation::Pinned, "{what} says it is pinned");
            subject.changes(
                &what,
                |figures| (figures.frees, figures.live_bytes) = (figures.frees + 1, figures.live_bytes - bytes as u64),
                || subject.free(&block),
            );
        }
    }
}

pub fn options_take_effect_or_are_errors(subject: &Subject) {
    for (option, name) in Options::all().iter().map(|option| (option, format!("{option:?}"))) {
        for location in LOCATIONS.into_iter().filter(|&location| subject.has(location)) {
            let belongs = option == Options::ZEROED || location == MemoryLocation::Pinned;
            match subject.request(location, 100, 8, option) {
                Ok(block) => {
                    assert!(belongs, "{name} was ignored for {location:?}");
                    assert!(block.is_pinned || option != Options::MUST_PIN, "{name} gave what is not pinned");
                    subject.free(&block);
                }
                Err(error) => {
                    assert!(matches!(error, Error::Unsupported { .. }), "{name} for {location:?}: {error}");
                    assert_ne!(option, Options::ZEROED, "every location can be zeroed");
                }
            }
        }
    }
    let unknown = Options::from_bits_retain(1 << 31) | Options::ZEROED;
    for location in LOCATIONS.into_iter().filter(|&location| subject.has(location)) {
        let error = subject.request(location, 100, 8, unknown).expect_err("an unknown bit");
        assert!(matches!(error, Error::Unsupported { .. }), "{location:?}: {error}");
    }
    let memory = Device::new(&subject.backend, 0).with(Options::ZEROED);
    for _ in 0..3 {
        let mut buffer = Buffer::<u8, _>::new(memory.clone(), 5000).expect("room");
        assert!(buffer.to_vec().expect("a copy").iter().all(|&byte| byte == 0), "device memory asked to be zeroed");
        buffer.fill(0xFF).expect("a fill"); // for who gets it next
    }
}

pub fn invalid_sizes_alignments_and_devices_are_errors(subject: &Subject) {
    let largest = subject.backend.capabilities(0).expect("device 0").largest_align;
    subject.nothing("refusals", || {
        for location in LOCATIONS.into_iter().filter(|&location| subject.has(location)) {
            let error = subject.request(location, 0, 1, Options::empty()).expect_err("no bytes");
            assert!(matches!(error, Error::Size { asked: 0, least: 1, .. }), "{location:?}: {error}");
        }
        if let Some(asked) = largest.checked_mul(2).and_then(|align| usize::try_from(align).ok()) {
            let error = subject.request(MemoryLocation::Device, 64, asked, Options::empty()).expect_err("too much");
            assert!(matches!(error, Error::Align { asked: a, most, .. } if a == asked as u64 && most == largest), "{error}");
        }
        let error = Buffer::<u64, _>::new(subject.device.clone(), usize::MAX).expect_err("more than an address spans");
        assert!(matches!(error, Error::Size { asked: u64::MAX, .. }), "{error}");

        let (devices, layout) = (subject.backend.devices(), Layout::new::<u64>());
        let request = Request { location: MemoryLocation::Device, device: devices, layout, options: Options::empty() };
        let refused = [
            subject.backend.capabilities(devices).err(),
            subject.backend.memory_info(devices).err(),
            subject.backend.allocate(&request, None).err(),
            Stream::new(&subject.backend, devices).err(),
        ];
        for error in refused {
            assert!(matches!(error, Some(Error::NoDevice { asked, devices: d }) if (asked, d) == (devices, devices)), "{error:?}");
        }
    });
}

pub fn out_of_memory_has_figures_and_ends_after_frees(subject: &Subject) {
    let Some(info) = subject.backend.memory_info(0).expect("device 0") else { return };
    let mut first = Buffer::<u8, _>::new(Device::new(&subject.backend, 0), 4096).expect("room");
    first.fill(7).expect("a fill");
    let (mut kept, mut bytes) = (Vec::new(), info.free as usize);
    while bytes >= 4096 {
        match subject.request(MemoryLocation::Device, bytes, 1, Options::empty()) {
            Ok(block) => kept.push(block),
            Err(Error::OutOfMemory { requested, largest, .. }) => {
                assert_eq!(requested, bytes as u64);
                assert!(largest < requested, "{largest} bytes in one piece would do for {requested}");
                bytes /= 2;
            }
            Err(error) => panic!("{bytes} bytes: {error}"),
        }
        assert!(kept.len() < 100_000, "there is no end to it");
    }
    assert!(!kept.is_empty(), "nothing could be had of {info:?}");
    assert!(first.to_vec().expect("a copy").iter().all(|&byte| byte == 7), "what was there stays");
    kept.iter().for_each(|block| subject.free(block));
    Buffer::<u8, _>::new(Device::new(&subject.backend, 0), bytes.max(4096)).expect("room again");
}

pub fn memory_info_follows_allocations_and_frees(subject: &Subject) {
    const BYTES: u64 = 40_000;
    let info = || subject.backend.memory_info(0).expect("device 0");
    let Some(before) = info() else { return };
    assert_eq!(before.total.checked_sub(before.free), Some(before.used()), "{before:?}");
    let buffer = Buffer::<f32, _>::new(Device::new(&subject.backend, 0), BYTES as usize / 4).expect("room");
    let during = info().expect("known before");
    drop(buffer);
    let after = info().expect("known before");
    let has_all_back = during.free.checked_add(BYTES).is_some_and(|free| after.free >= free);
    assert!([during.total, after.total] == [before.total; 2] && has_all_back, "{before:?}, {during:?}, then {after:?}");
    if subject.backend.is_simulated() {
        assert!(
            before.free.checked_sub(during.free).is_some_and(|taken| taken >= BYTES) && after == before,
            "{before:?}, {during:?}, then {after:?}"
        );
    }
}

pub fn host_visible_memory_is_zeroed(subject: &Subject) {
    fn check(memory: impl Memory<Visibility: HostReadable> + Clone) {
        for len in [1, 100, 20_000] {
            for _ in 0..3 {
                let mut buffer = Buffer::<u32, _>::new(memory.clone(), len).expect("room");
                assert!(buffer.as_slice().expect("nothing is queued").iter().all(|&word| word == 0), "{buffer:?}");
                buffer.as_mut_slice().expect("nothing is queued").fill(u32::MAX);
            }
        }
    }
    check(Pinned::new(&subject.backend, 0));
    check(Host::new(&subject.backend, 0));
}

pub fn a_buffer_is_freed_once_even_when_unwinding(subject: &Subject) {
    let memory = Device::new(&subject.backend, 0);
    let comes_and_goes = |figures: &mut super::Figures| (figures.allocations, figures.frees) = (figures.allocations + 1, figures.frees + 1);
    subject.changes("dropped", comes_and_goes, || drop(Buffer::<u16, _>::new(memory.clone(), 77)));
    subject.changes("closed", comes_and_goes, || Buffer::<u16, _>::new(memory.clone(), 77).expect("room").close().expect("freed"));
    subject.changes("unwound", comes_and_goes, || {
        let buffer = Buffer::<u16, _>::new(memory.clone(), 77).expect("room");
        let owner = AssertUnwindSafe(|| {
            let _owned = buffer;
            resume_unwind(Box::new(()));
        });
        catch_unwind(owner).expect_err("it unwinds");
    });
    subject.changes("cast", comes_and_goes, || {
        let buffer = Buffer::<u64, _>::new(memory.clone(), 77).expect("room");
        drop(buffer.cast::<u8>().expect("bytes").cast::<u32>().expect("as aligned as it was"));
    });
}

pub fn an_empty_buffer_makes_no_calls(subject: &Subject) {
    fn check<T: DeviceBytes + PartialEq + std::fmt::Debug>(subject: &Subject, elements: &[T], stream: &Stream) {
        let what = std::any::type_name::<T>();
        subject.nothing(what, || {
            let len = elements.len();
            let (mut gpu, pinned) = (subject.gpu::<T>(len), subject.pinned_of::<T>(elements));
            assert_eq!((gpu.len(), gpu.size_bytes(), gpu.device_address()), (len, 0, None), "{what}");
            gpu.copy_from(elements).expect("nothing");
            gpu.zero().expect("nothing");
            gpu.copy_within(..len, 0).expect("nothing");
            assert_eq!(gpu.slice(len..).expect("an empty tail").to_vec().expect("nothing"), []);
            assert_eq!(gpu.to_vec().expect("nothing"), elements);
            assert_eq!(pinned.as_slice().expect("nothing is queued"), elements);
            gpu.update(|staged| assert_eq!(staged, elements)).expect("nothing");
            let (_, gpu) = done(stream.copy(pinned, gpu).expect("nothing"));
            gpu.close().expect("nothing");
        });
    }
    let stream = subject.stream();
    check::<u64>(subject, &[], &stream);
    check::<[u8; 0]>(subject, &[[]; 5], &stream);
    check::<[u64; 0]>(subject, &[[]; 3], &stream);
}

pub fn stream_ordered_memory_is_usable_on_other_streams(subject: &Subject) {
    let (stream, other) = (subject.stream(), subject.stream());
    let buffer = Buffer::<u32, _>::new_on(subject.device.clone(), 100, &stream).expect("room");
    let buffer = other.fill(buffer, .., 3).expect("a fill").detach();
    let buffer = done(stream.fill(buffer, ..50, 4).expect("a fill"));
    assert_eq!(buffer.to_vec().expect("a copy"), [[4; 50], [3; 50]].concat());
    let mut held = subject.hold(&stream);
    let before = subject.live_bytes();
    drop(stream.fill(buffer, .., 5).expect("a fill"));
    assert_eq!(subject.live_bytes(), before, "freed before its last use");
    let pending = held.take();
    drop(held);
    done(pending);
    eventually("its memory goes", || subject.live_bytes().is_none_or(|live| Some(live) < before));
}
