//! `kernels!` in a module of safe code whose traits, constants and types have the names of an expansion: the kernels do what they declare.
#![forbid(unsafe_code)]

use ringmem::backend::host::HostBackend;
use ringmem::channel::Channel;
use ringmem::memory::{Device, GpuBuffer};
use ringmem::stream::Stream;
use ringmem_kernels::SharedLayout;

#[derive(Clone, Copy, Debug, PartialEq, SharedLayout)]
#[repr(C)]
#[layout(message = 1)]
pub struct Number {
    value: u64,
}

mod hostile {
    #![allow(dead_code, non_upper_case_globals, unused_variables)]

    use core::ops::Range;

    use ringmem_kernels::layouts::ControlBlock;
    use ringmem_kernels::{DevicePointer, Epoch, Index};

    use super::Number;

    /// A method that takes `self`, or borrows it where the other's is `&mut`, comes before a method of the type.
    trait Every: Sized {
        fn part(self) -> Range<usize> {
            1 << 45..(1 << 45) + 1
        }
        fn count(self) -> u64 {
            1 << 45
        }
        fn elements<T: Default>(&self) -> T {
            T::default()
        }
        fn all<T: Default>(&self) -> T {
            T::default()
        }
        fn value<T: Default>(&self) -> T {
            T::default()
        }
        fn arguments(self, _: &[u64]) -> Option<(DevicePointer<ControlBlock<u64>>, Epoch, u64, u64)> {
            None
        }
        fn entry(self, _: u64) {}
        fn on_each_lane(self, _: u64) -> bool {
            true
        }
        fn get(self, _: usize) {}
        fn get_mut(self, _: usize) {}
        fn skip(self, _: usize) {}
    }

    impl<T> Every for T {}

    const machine: u64 = 1;
    const lanes: u64 = 1;
    const host: u64 = 1;
    const words: u64 = 1;
    const controls: u64 = 1;
    const epoch: u64 = 1;
    const idle_ns: u64 = 1;
    const batch: u64 = 1;
    const groups: u64 = 1;
    const given: u64 = 1;
    const at: usize = 1;
    const index: usize = 1;
    const begin: usize = 1;
    const arguments: u64 = 1;
    const y_place: u64 = 1;
    const all_len: u64 = 1;
    static count: u64 = 1;
    static function: u64 = 1;
    type F = f32;
    type T = u32;

    ringmem_kernels::kernels! {
        pub grid fn safe(place: Index, x: &F, all: &[T], y: &mut u64, a: u64) {
            *y += u64::from(all[place.len() - 1]) + *x as u64 + a;
        }

        pub persistent fn double(now: &Number, then: &mut Number) {
            then.value = 2 * now.value;
        }

        pub grouped fn triple(last: &mut Option<&str>, now: &Number, then: &mut Number) {
            *last = Some("7");
            then.value = 3 * now.value;
        }
    }
}

/// A type means the same at each of its places, also if a name in it were one of the expansion's.
mod two_lengths {
    #![allow(dead_code, non_upper_case_globals)]

    const safe: u8 = 1;
    const __ringmem: u8 = 1;

    pub fn set(y: &mut [u8; 64]) {
        *y = [7; 64];
    }

    ringmem_kernels::kernels! {
        #[cfg_attr(all(), cfg(any()))]
        pub grid fn set(y: &mut [u8; match 0_u8 { safe => 1, _ => 64 }]) {}
    }
}

#[test]
fn kernels_among_names_of_their_expansion_do_what_they_declare() {
    let backend = HostBackend::builder().build().expect("a backend");
    let memory = Device::new(&backend, 0);
    let x = GpuBuffer::<f32>::from_slice(memory.clone(), &[1.0, 2.0, 3.0]).expect("room");
    let all = GpuBuffer::<u32>::from_slice(memory.clone(), &[10, 20, 30]).expect("room");
    let mut y = GpuBuffer::<u64>::from_slice(memory.clone(), &[100; 3]).expect("room");
    let stream = Stream::new(&backend, 0).expect("a stream");
    stream.run(hostile::SAFE, (&x, &all, &mut y, 1000)).expect("a launch");
    assert_eq!(y.to_vec().expect("a copy"), [1131, 1132, 1133]);
    for (kernel, factor) in [(hostile::DOUBLE, 2), (hostile::TRIPLE, 3)] {
        let mut channel = Channel::open(&backend, 0, kernel).expect("a channel");
        channel.send(Number { value: 7 }).expect("room");
        assert_eq!(channel.recv().expect("an answer"), Number { value: 7 * factor });
    }
    let mut blocks = GpuBuffer::<[u8; 64]>::from_slice(memory, &[[1; 64]; 2]).expect("room");
    stream.run(two_lengths::SET, (&mut blocks,)).expect("a launch");
    assert_eq!(blocks.to_vec().expect("a copy"), [[7; 64]; 2]);
}
