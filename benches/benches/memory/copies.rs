use std::hint::black_box;
use std::ptr::NonNull;

use ringmem::backend::{Address, Backend, Copy, Fill};
use ringmem::memory::{Buffer, Device};
use ringmem_benches::{Subject, Workload};

use crate::host::{backend, each};

type Line = [u64; 8];

pub fn copy_from(copies: u64) -> f64 {
    let mut buffer = Buffer::<u64, Device>::new(Device::new(&backend(), 0), 8).expect("room");
    let took = each(copies, || {
        for number in 0..copies {
            buffer.copy_from(black_box(&[number; 8])).expect("as long");
        }
    });
    assert_eq!(buffer.to_vec().expect("live"), [copies - 1; 8]);
    took
}

pub fn copy_to(copies: u64) -> f64 {
    let buffer = Buffer::<u64, Device>::from_slice(Device::new(&backend(), 0), &[7; 8]).expect("room");
    each(copies, || {
        for _ in 0..copies {
            let mut line: Line = [0; 8];
            buffer.copy_to(black_box(&mut line)).expect("as long");
            assert_eq!(black_box(line), [7; 8]);
        }
    })
}

pub fn bare_from(copies: u64) -> f64 {
    let backend = backend();
    let buffer = Buffer::<u64, Device>::new(Device::new(&backend, 0), 8).expect("room");
    let to = Address::Device(buffer.device_address().expect("it has bytes"));
    let took = each(copies, || {
        for number in 0..copies {
            let line: Line = [number; 8];
            now(&*backend, to, Address::Host(NonNull::from(black_box(&line)).cast()));
        }
    });
    assert_eq!(buffer.to_vec().expect("live"), [copies - 1; 8]);
    took
}

pub fn bare_to(copies: u64) -> f64 {
    let backend = backend();
    let buffer = Buffer::<u64, Device>::from_slice(Device::new(&backend, 0), &[7; 8]).expect("room");
    let from = Address::Device(buffer.device_address().expect("it has bytes"));
    each(copies, || {
        for _ in 0..copies {
            let mut line: Line = [0; 8];
            now(&*backend, Address::Host(NonNull::from(black_box(&mut line)).cast()), from);
            assert_eq!(black_box(line), [7; 8]);
        }
    })
}

pub fn fill(fills: u64) -> f64 {
    let mut buffer = Buffer::<u64, Device>::new(Device::new(&backend(), 0), 8).expect("room");
    let took = each(fills, || {
        for number in 0..fills {
            buffer.fill(black_box(number)).expect("live");
        }
    });
    assert_eq!(buffer.to_vec().expect("live"), [fills - 1; 8]);
    took
}

pub fn bare_fill(fills: u64) -> f64 {
    let backend = backend();
    let buffer = Buffer::<u64, Device>::new(Device::new(&backend, 0), 8).expect("room");
    let to = Address::Device(buffer.device_address().expect("it has bytes"));
    let took = each(fills, || {
        for number in 0..fills {
            // SAFETY: the buffer's own elements, otherwise unused.
            unsafe { backend.fill_now(&Fill::of(to, black_box(number), 8)) }.expect("live");
        }
    });
    assert_eq!(buffer.to_vec().expect("live"), [fills - 1; 8]);
    took
}

fn now(backend: &dyn Backend, to: Address, from: Address) {
    // SAFETY: callers pass their own line and a buffer of one line, otherwise unused.
    unsafe { backend.copy_now(&Copy { to, from, bytes: size_of::<Line>() as u64 }) }.expect("live");
}

pub fn workloads() -> Vec<Workload> {
    let workload =
        |name, subjects: Vec<Subject>| Workload { unit: "ns/copy", aim_added_ns: Some(10.0), ..Workload::one(name, 1.15, subjects) };
    vec![
        workload("copy-from-64", vec![("ringmem Buffer", copy_from), ("backend", bare_from)]),
        workload("copy-to-64", vec![("ringmem Buffer", copy_to), ("backend", bare_to)]),
        workload("fill-64", vec![("ringmem Buffer", fill), ("backend", bare_fill)]),
    ]
}
