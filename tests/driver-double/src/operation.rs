//! [`Operation`]: a stream's work; owns the memory that it names.

use std::sync::{Arc, OnceLock};
use std::time::Instant;

use crate::block::{Block, Kind, Span};
use crate::driver::Driver;
use crate::held_steps::{self, Step};
use crate::host_function::HostFunction;
use crate::kernel::Launch;
use crate::stream::Ticket;
use crate::wait_value::Condition;

pub enum Operation {
    Allocate(Arc<Block>),
    Free {
        address: u64,
        block: Arc<Block>,
    },
    Copy {
        to: Span,
        from: Span,
    },
    Fill {
        to: Span,
        byte: u8,
    },
    FillWords {
        to: Span,
        value: u32,
    },
    /// After all earlier work if `ordered`.
    Write {
        to: Span,
        value: u64,
        ordered: bool,
    },
    Wait {
        of: Span,
        condition: Condition,
    },
    Launch(Launch),
    Call(HostFunction),
    Stamp(Arc<OnceLock<Instant>>),
    Mark(Option<Span>),
}

impl Operation {
    pub fn note(&self, driver: &Driver, ticket: &Ticket) {
        let (one, other) = match self {
            Self::Allocate(block) => {
                if let Some(ordered) = &block.ordered {
                    ordered.made_at(ticket);
                }
                return;
            }
            Self::Free { block, .. } => {
                if let Some(wrong) = block.freed_by(ticket) {
                    driver.violations.of_call(&wrong);
                }
                return;
            }
            Self::Copy { to, from } => (Some(to), Some(from)),
            Self::Fill { to, .. } | Self::FillWords { to, .. } | Self::Write { to, .. } | Self::Wait { of: to, .. } => (Some(to), None),
            Self::Mark(span) => (span.as_ref(), None),
            Self::Launch(launch) => {
                launch.note(driver, ticket);
                (None, None)
            }
            Self::Call(_) | Self::Stamp(_) => (None, None),
        };
        for wrong in [one, other].into_iter().flatten().flat_map(Span::blocks).filter_map(|block| block.used_by(ticket)) {
            driver.violations.of_call(&wrong);
        }
    }

    pub fn tells_host(&self) -> bool {
        match self {
            Self::Write { to, .. } => matches!(to.block.kind, Kind::Pinned | Kind::Registered),
            Self::Call(_) => true,
            _ => false,
        }
    }

    /// A broken context executes only what others wait for.
    pub fn execute(self, driver: &'static Driver, device: u32, ticket: &Ticket) {
        let is_broken = || driver.devices[device as usize].context.is_broken();
        match self {
            Self::Stamp(at) => drop(at.set(Instant::now())),
            Self::Allocate(block) => block.ordered.iter().for_each(|ordered| ordered.get_ready()),
            Self::Free { address, block } => driver.free_ordered(address, &block),
            _ if is_broken() => {}
            Self::Copy { to, from } => held_steps::step(Step::Copy, || to.copy_from(&from)),
            Self::Fill { to, byte } => to.fill(byte),
            Self::FillWords { to, value } => to.fill_words(value),
            Self::Write { to, value, ordered } => to.write(value, ordered),
            Self::Wait { of, condition } => condition.wait(driver, device, &of),
            Self::Launch(launch) => launch.execute(driver, device, ticket),
            Self::Call(function) => held_steps::step(Step::Function, || function.call(&driver.engine)),
            Self::Mark(_) => {}
        }
    }
}
