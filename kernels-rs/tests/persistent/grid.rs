use std::ptr::NonNull;
use std::thread;

use ringmem_kernels::{LONGEST_NAP_NS, Lanes, Simulated, back_off_ns, grid};
use ringmem_layouts::image::KernelHost;
use ringmem_layouts::kernel::DevicePointer;

use crate::machine::{run_image, unmapped};
use crate::memory::{Bytes, Device};
use crate::simulated_warp::{Lane, WIDTH, on_a_warp};

const MARGIN: usize = 64;

struct Group<'a> {
    device: &'a Device,
    number: u64,
    groups: u64,
}

impl KernelHost for Group<'_> {
    fn translate(&self, address: u64, bytes: u64) -> Option<NonNull<u8>> {
        self.device.translate(address, bytes)
    }
    fn now_ns(&self) -> u64 {
        self.device.now_ns()
    }
    fn group(&self) -> u64 {
        self.number
    }
    fn groups(&self) -> u64 {
        self.groups
    }
    fn pause(&self, _: u32) {}
}

fn on_groups(groups: u64, name: &str, arguments: &[u64], device: &Device) {
    thread::scope(|scope| {
        for number in 0..groups {
            scope.spawn(move || run_image(name, arguments, &Group { device, number, groups }));
        }
    });
}

fn bytes_of(memory: &Bytes, length: usize) -> Vec<u8> {
    let place: NonNull<u8> = memory.place(0);
    // SAFETY: `length` initialised bytes; no kernel runs.
    unsafe { std::slice::from_raw_parts(place.as_ptr(), length) }.to_vec()
}

fn noise(length: usize) -> Vec<u8> {
    (0..length as u64).map(|i| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}

#[test]
fn copy_writes_exactly_the_given_bytes() {
    for groups in [1, 3] {
        for (length, to, from) in [
            (0, 0, 0),
            (1, 0, 0),
            (15, 0, 0),
            (16, 0, 0),
            (1000, 0, 0),
            (1000, 16, 32),
            (1000, 1, 0),
            (333, 8, 3),
            (4096, 0, 0),
            (4097, 48, 0),
        ] {
            let source = noise(length + 2 * MARGIN);
            let (target, data) = (Bytes::of(&vec![0xee; length + 2 * MARGIN]), Bytes::of(&source));
            let device = Device::new([target.range(), data.range()]);
            on_groups(groups, "copy", &[target.address() + to, data.address() + from, length as u64], &device);
            let mut expected = vec![0xee; length + 2 * MARGIN];
            expected[to as usize..][..length].copy_from_slice(&source[from as usize..][..length]);
            assert_eq!(bytes_of(&target, expected.len()), expected, "{length} bytes to {to} from {from}, {groups} groups");
        }
    }
}

#[test]
fn fill_writes_exactly_the_given_words() {
    let value = 0x0123_4567_89ab_cdef_u64;
    for groups in [1, 3] {
        for (count, to) in [(0, 0), (1, 0), (1, 8), (2, 0), (2, 8), (3, 8), (64, 0), (64, 8), (1001, 0), (1001, 8)] {
            let target = Bytes::of(&vec![0xee; count * 8 + 2 * MARGIN]);
            on_groups(groups, "fill", &[target.address() + to, count as u64, value], &Device::new([target.range()]));
            let mut expected = vec![0xee; count * 8 + 2 * MARGIN];
            expected[to as usize..][..count * 8].copy_from_slice(&value.to_le_bytes().repeat(count));
            assert_eq!(bytes_of(&target, expected.len()), expected, "{count} words to {to}, {groups} groups");
        }
    }
}

fn floats(count: usize, factor: f32) -> Vec<u8> {
    (0..count).flat_map(|i| (i as f32 * factor).to_le_bytes()).collect()
}

#[test]
fn vector_add_writes_exactly_the_given_elements() {
    for groups in [1, 3] {
        for (count, at) in [(0, 0), (1, 0), (3, 0), (4, 0), (7, 4), (1003, 0), (1003, 4)] {
            let (a, b) = (Bytes::of(&floats(count + 16, 1.0)), Bytes::of(&floats(count + 16, 0.5)));
            let sums = Bytes::of(&vec![0xee; count * 4 + 2 * MARGIN]);
            let device = Device::new([sums.range(), a.range(), b.range()]);
            on_groups(groups, "vector_add", &[sums.address() + at, a.address(), b.address(), count as u64], &device);
            let mut expected = vec![0xee; count * 4 + 2 * MARGIN];
            expected[at as usize..][..count * 4].copy_from_slice(&floats(count, 1.5));
            assert_eq!(bytes_of(&sums, expected.len()), expected, "{count} elements to {at}, {groups} groups");
        }
    }
}

#[test]
fn vector_add_uses_wide_accesses_when_aligned() {
    const COUNT: usize = 1001;
    for (to, left, right, is_wide) in
        [(0, 0, 0, true), (16, 32, 48, true), (4, 0, 0, false), (0, 8, 0, false), (0, 0, 12, false), (4, 4, 4, false)]
    {
        let (a, b) = (Bytes::of(&floats(COUNT + 16, 1.0)), Bytes::of(&floats(COUNT + 16, 0.5)));
        let sums = Bytes::of(&vec![0xee; COUNT * 4 + 2 * MARGIN]);
        let device = Device::new([sums.range(), a.range(), b.range()]);
        let places = [sums.address() + to, a.address() + left, b.address() + right];
        let add = |machine: &Simulated<'_>, lanes: &Lane<'_>| {
            // SAFETY: all outlive the warp, which alone accesses them.
            unsafe {
                grid::vector_add(
                    machine,
                    lanes,
                    DevicePointer::new(places[0]),
                    DevicePointer::new(places[1]),
                    DevicePointer::new(places[2]),
                    COUNT as u64,
                )
            }
        };
        on_a_warp(&device, [0, 1], |machine: &Simulated<'_>, lanes: &Lane<'_>| {
            if lanes.lane() == 0 {
                add(machine, lanes);
            }
        });
        let written = |index: usize| bytes_of(&sums, COUNT * 4 + 2 * MARGIN)[to as usize + index * 4..][..4] != [0xee; 4];
        let (width, whole) = (WIDTH, if is_wide { COUNT / 4 * 4 } else { 0 });
        let of_lane_0 = |index: usize| (if index < whole { index / 4 } else { index - whole }).is_multiple_of(width);
        let wrong = (0..COUNT).find(|&index| written(index) != of_lane_0(index));
        assert_eq!(wrong, None, "to {to} of {left} and {right}");
        on_a_warp(&device, [0, 1], add);
        let expected: Vec<u8> = (0..COUNT)
            .map(|index| (index as u64 + left / 4) as f32 + (index as u64 + right / 4) as f32 * 0.5)
            .flat_map(f32::to_le_bytes)
            .collect();
        assert_eq!(bytes_of(&sums, COUNT * 4 + 2 * MARGIN)[to as usize..][..COUNT * 4], expected, "to {to} of {left} and {right}");
    }
}

#[test]
fn vector_add_works_in_place() {
    let (a, b) = (Bytes::of(&floats(100, 1.0)), Bytes::of(&floats(100, 0.5)));
    let device = Device::new([a.range(), b.range()]);
    run_image("vector_add", &[a.address(), a.address(), b.address(), 100], &device);
    assert_eq!(bytes_of(&a, 400), floats(100, 1.5));
}

#[test]
fn the_lanes_of_a_warp_complete_one_copy() {
    for (length, offset) in [(5000, 0), (777, 1)] {
        let source = noise(length);
        let (target, data) = (Bytes::zeroed(length + MARGIN), Bytes::of(&source));
        let device = Device::new([target.range(), data.range()]);
        let (to, from) = (target.address() + offset, data.address());
        // SAFETY: both ranges live as long as this closure, nothing else accesses them, and they do not overlap.
        let kernel = |machine: &Simulated<'_>, lanes: &Lane<'_>| unsafe {
            grid::copy(machine, lanes, DevicePointer::new(to), DevicePointer::new(from), length as u64)
        };
        assert_eq!(on_a_warp(&device, [0, 1], kernel), 0);
        assert_eq!(bytes_of(&target, length + MARGIN)[offset as usize..][..length], source);
    }
}

#[test]
fn unmapped_and_misaligned_arguments_write_nothing() {
    let memory = Bytes::of(&[0xee; 256]);
    let (device, at) = (Device::new([memory.range()]), memory.address());
    let (past, misaligned) = (at + memory.range().1 - 8, at + 2);
    for (name, outside) in unmapped([("copy", [at, past, 16]), ("copy", [past, at, 16]), ("fill", [past, 2, 0])]) {
        run_image(name, &outside, &device);
    }
    unmapped([[at, past, at, 4]]).for_each(|outside| run_image("vector_add", &outside, &device));
    run_image("fill", &[misaligned, 2, 0], &device);
    run_image("fill", &[at, 1 << 61, 0], &device);
    run_image("vector_add", &[misaligned, at, at, 2], &device);
    run_image("vector_add", &[at, at, at, 1 << 62], &device);
    assert_eq!(bytes_of(&memory, 256), [0xee; 256]);
}

#[test]
fn back_off_grows_up_to_its_bound() {
    let naps = [0, 1, 31, 32, 100, 1023, 1024, u32::MAX].map(back_off_ns);
    assert!(naps.is_sorted() && naps[0] == 0, "{naps:?}");
    assert_eq!(naps.last(), Some(&LONGEST_NAP_NS));
    assert!((0..5000).all(|times| back_off_ns(times) <= LONGEST_NAP_NS));
}
