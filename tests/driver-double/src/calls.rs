//! What the library exports, by kind.

pub mod context;
pub mod copy;
pub mod device;
pub mod event;
pub mod memory;
pub mod module;
pub mod stream;

/// Every symbol of the driver API that is here.
pub fn symbols() -> impl Iterator<Item = &'static str> {
    let all = [device::SYMBOLS, context::SYMBOLS, module::SYMBOLS, memory::SYMBOLS, copy::SYMBOLS, stream::SYMBOLS, event::SYMBOLS];
    all.into_iter().flatten().copied()
}
