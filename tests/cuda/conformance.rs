#[macro_use]
#[path = "../conformance/mod.rs"]
mod checks;

use std::sync::Arc;

use ringmem_kernels::IMAGE;

use checks::{CHECKS, Subject};

use crate::rig::{self, Alone};

const MEMORY: u64 = 64 << 20;

fn subject() -> Subject {
    let backend = rig::open();
    let counted = Arc::clone(&backend);
    Subject { image: IMAGE, ..Subject::new(backend).counting(move || counted.counters().into()) }
}

fn run(path: &'static str, name: &str) {
    let alone = Alone::new(path).with("RINGMEM_DOUBLE_MEMORY", MEMORY);
    let check = CHECKS.iter().find(|check| check.name == name).expect("a check of that name");
    if name == "forgotten_buffers_and_streams_are_never_freed" {
        if alone.is_here() {
            check.run(subject())
        } else {
            drop(alone.run())
        }
        return;
    }
    rig::clean(&alone, || check.run(subject()));
}

#[test]
fn the_free_memory_check_tolerates_other_processes() {
    let alone = Alone::new(concat!(module_path!(), "::the_free_memory_check_tolerates_other_processes"));
    let check = CHECKS.iter().find(|check| check.name == "memory_info_follows_allocations_and_frees").expect("a check of that name");
    rig::clean(&alone.with("RINGMEM_DOUBLE_TABLES", 128 << 10), || check.run(subject()));
}

macro_rules! tests {
    ($($name:ident,)*) => {
        $(
            #[test]
            fn $name() {
                run(concat!(module_path!(), "::", stringify!($name)), stringify!($name));
            }
        )*
    };
}

for_each_check!(tests);
