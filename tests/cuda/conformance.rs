//! The suite that every backend passes.

use std::sync::Arc;

use ringmem::conformance::{CHECKS, Subject};
use ringmem_kernels::IMAGE;

use crate::rig::{self, Alone};

const MEMORY: u64 = 64 << 20;

fn subject() -> Subject {
    let backend = rig::open();
    let counted = Arc::clone(&backend);
    Subject::new(backend).with_image(IMAGE).counting(move || counted.counters().into())
}

fn run(path: &'static str, name: &str) {
    let alone = Alone::new(path).with("RINGMEM_DOUBLE_MEMORY", MEMORY);
    let check = CHECKS.iter().find(|check| check.name == name).expect("a check of that name");
    if name == "what_is_forgotten_is_never_freed_and_hurts_nobody" {
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
fn a_gauge_that_others_move_breaks_no_check() {
    let alone = Alone::new(concat!(module_path!(), "::a_gauge_that_others_move_breaks_no_check"));
    let check =
        CHECKS.iter().find(|check| check.name == "what_is_free_goes_down_by_what_is_taken_and_up_again").expect("a check of that name");
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

ringmem::for_each_check!(tests);
