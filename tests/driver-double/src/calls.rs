//! The functions of the driver, a file for each subject.

pub mod context;
pub mod copy;
pub mod device;
pub mod event;
pub mod managed;
pub mod memory;
pub mod module;
pub mod peer;
pub mod pointer;
pub mod pool;
pub mod stream;
pub mod virtual_memory;

use crate::symbol::Symbol;

/// Returns the driver API symbols of the double.
pub fn symbols() -> impl Iterator<Item = &'static str> {
    all().map(|symbol| symbol.name)
}

pub fn all() -> impl Iterator<Item = &'static Symbol> {
    let memory = [memory::SYMBOLS, pool::SYMBOLS, virtual_memory::SYMBOLS, managed::SYMBOLS, pointer::SYMBOLS, copy::SYMBOLS];
    let all =
        [device::SYMBOLS, peer::SYMBOLS, context::SYMBOLS, module::SYMBOLS, stream::SYMBOLS, event::SYMBOLS].into_iter().chain(memory);
    all.flatten().copied()
}
