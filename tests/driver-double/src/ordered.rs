//! Stream-ordered memory and its violations. Rules, not the actual execution, define the order: every run finds a violation.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, MutexGuard, OnceLock, PoisonError};

use crate::block::{Block, Kind};
use crate::pool::Pool;
use crate::stream::{Point, Ticket};

const FEW: usize = 8;

pub struct Ordered {
    pub pool: Arc<Pool>,
    /// The bytes that the pool counts as used for it; 0 once they are returned, or another block's.
    charge: AtomicU64,
    made: OnceLock<Point>,
    is_ready: AtomicBool,
    freed: OnceLock<Ticket>,
}

impl Ordered {
    pub const fn new(pool: Arc<Pool>, charge: u64) -> Self {
        Self { pool, charge: AtomicU64::new(charge), made: OnceLock::new(), is_ready: AtomicBool::new(false), freed: OnceLock::new() }
    }

    pub fn take_charge(&self) -> u64 {
        self.charge.swap(0, AcqRel)
    }

    pub fn made_at(&self, ticket: &Ticket) {
        let _ = self.made.set(ticket.at.clone());
    }

    pub fn get_ready(&self) {
        self.is_ready.store(true, Release);
    }

    pub fn is_ready(&self) -> bool {
        self.is_ready.load(Acquire)
    }

    pub fn is_freed(&self) -> bool {
        self.freed.get().is_some()
    }
}

impl Block {
    pub fn used_by(&self, ticket: &Ticket) -> Option<String> {
        if matches!(self.kind, Kind::Pageable | Kind::Global) {
            return None;
        }
        let mut uses = self.list();
        match uses.iter_mut().find(|point| point.is_of(&ticket.at)) {
            Some(point) => *point = ticket.at.clone(),
            None => {
                if uses.len() >= FEW {
                    uses.retain(|point| !(point.is_done() && point.is_observed()));
                }
                uses.push(ticket.at.clone());
            }
        }
        drop(uses);
        let ordered = self.ordered.as_ref()?;
        let by = ticket.at.stream();
        match (ordered.made.get(), ordered.freed.get()) {
            (Some(made), _) if !ticket.follows(made) => {
                Some(format!("stream {by} uses memory of stream {}, and nothing orders that after its allocation", made.stream()))
            }
            (_, Some(freed)) if !freed.follows(&ticket.at) => {
                Some(format!("stream {by} uses memory that stream {} frees, and nothing orders that before", freed.at.stream()))
            }
            _ => None,
        }
    }

    pub fn freed_by(&self, ticket: &Ticket) -> Option<String> {
        let ordered = self.ordered.as_ref()?;
        let made = ordered.made.get().cloned();
        let _ = ordered.freed.set(ticket.clone());
        let first = self.list().iter().chain(&made).find(|point| !ticket.follows(point))?.stream();
        Some(format!("stream {} frees memory that stream {first} has work on, and nothing orders the free after that", ticket.at.stream()))
    }

    pub fn is_in_flight(&self) -> bool {
        self.list().iter().any(|point| !point.is_done())
    }

    fn list(&self) -> MutexGuard<'_, Vec<Point>> {
        self.uses.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
