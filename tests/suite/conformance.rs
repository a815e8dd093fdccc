#[macro_use]
#[path = "../conformance/mod.rs"]
mod checks;
mod minimal;

use std::sync::Arc;

use ringmem::backend::host::HostBackend;
use ringmem::memory::{Arena, Device, Pinned};

use checks::{CHECKS, Subject};

fn plain() -> Subject {
    let backend = HostBackend::builder().device_memory(4 << 20).mapping_granularity(Some(64 << 10)).build().expect("a backend");
    let counted = Arc::clone(&backend);
    Subject::new(backend).counting(move || counted.counters().into())
}

fn least() -> Subject {
    let backend = HostBackend::builder().device_memory(4 << 20).build().expect("a backend");
    let counted = Arc::clone(&backend);
    Subject::new(Arc::new(minimal::Minimal(backend))).counting(move || counted.counters().into())
}

fn over_arenas() -> Subject {
    let backend = HostBackend::builder().device_memory(4 << 20).mapping_granularity(Some(64 << 10)).build().expect("a backend");
    let device = Arena::new(Device::new(&backend, 0), 2 << 20, 4096).expect("room");
    let pinned = Arena::new(Pinned::new(&backend, 0), 2 << 20, 4096).expect("room");
    Subject { device: Arc::new(device), pinned: Arc::new(pinned), ..Subject::new(backend) }
}

macro_rules! tests {
    ($($name:ident,)*) => {
        mod plain_memory {
            $(#[test] fn $name() { super::run(super::plain(), stringify!($name)); })*
        }
        mod required_methods {
            $(#[test] fn $name() { super::run(super::least(), stringify!($name)); })*
        }
        mod arena_memory {
            $(#[test] fn $name() { super::run(super::over_arenas(), stringify!($name)); })*
        }
    };
}

fn run(subject: Subject, name: &str) {
    CHECKS.iter().find(|check| check.name == name).expect("a check of that name").run(subject);
}

for_each_check!(tests);
