//! [`Operation`]: what a stream executes.

use std::sync::{Arc, OnceLock};
use std::time::Instant;

use crate::block::Span;
use crate::driver::Driver;
use crate::kernel::Launch;

/// It holds on to all memory that it names.
pub enum Operation {
    Copy {
        to: Span,
        from: Span,
    },
    Fill {
        to: Span,
        byte: u8,
    },
    /// A word, after everything before it if `ordered`.
    Write {
        to: Span,
        value: u64,
        ordered: bool,
    },
    Launch(Launch),
    /// An event is reached.
    Stamp(Arc<OnceLock<Instant>>),
    /// Nothing: what matters is what it waits for.
    Mark,
}

impl Operation {
    /// On the stream's thread. In a broken context nothing is executed but what others wait for.
    pub fn execute(self, driver: &'static Driver) {
        let broken = driver.context.is_broken();
        match self {
            Self::Stamp(at) => drop(at.set(Instant::now())),
            _ if broken => {}
            Self::Copy { to, from } => to.copy_from(&from),
            Self::Fill { to, byte } => to.fill(byte),
            Self::Write { to, value, ordered } => to.write(value, ordered),
            Self::Launch(launch) => launch.execute(driver),
            Self::Mark => {}
        }
    }
}
