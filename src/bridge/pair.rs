use core::mem::ManuallyDrop;
use core::ptr::NonNull;
use std::boxed::Box;
use std::sync::Arc;

use super::carrier::Carrier;
use super::far::{Far, Index, Line};
use super::near::Near;
use crate::backend::{Place, Uses};
use crate::dump::Indices;
use crate::{HostWord, Result};

/// Both rings outlive their operations and the bridge's end of the near ring.
pub(super) struct Pair {
    pub near: Arc<Near>,
    pub far: ManuallyDrop<Far>,
    pub carrier: Carrier,
}

pub(super) struct Direct {
    // INVARIANT: first slots of both rings, and the far headers' words; live as long as the pair.
    pub near: NonNull<u8>,
    pub far: NonNull<u8>,
    pub theirs: NonNull<HostWord>,
    pub ours: NonNull<HostWord>,
    pub slot_size: u64,
}

// SAFETY: the pair's memory, shared by the ring's protocol.
unsafe impl Send for Direct {}

impl Pair {
    /// `None` with queued operations, or if the far ring is not all mapped. The kernel writes `theirs`.
    pub fn direct(&self, theirs: Line, ours: Line) -> Result<Option<Direct>> {
        let (Some(far), false) = (self.far.slots(), self.carrier.is_queued()) else { return Ok(None) };
        let (Index::Seen(theirs), Place::Host(ours)) = (self.far.read(theirs)?, self.far.written(ours)?) else { return Ok(None) };
        Ok(Some(Direct { near: self.near.slots(), far, theirs, ours: ours.cast(), slot_size: self.near.layout.slot_size() }))
    }

    pub const fn new(near: Arc<Near>, far: Far, carrier: Carrier) -> Self {
        Self { near, far: ManuallyDrop::new(far), carrier }
    }

    pub fn far_indices(&self, theirs: Line) -> Result<Indices> {
        let index = |line| {
            let word = if line == theirs { self.far.read(line)?.place() } else { self.far.written(line)? };
            self.carrier.read_now(word)
        };
        Ok(Indices { head: index(Line::Head)?, tail: index(Line::Tail)?, capacity: self.near.layout.capacity() })
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        self.near.wake();
        // SAFETY: not used again.
        let far = unsafe { ManuallyDrop::take(&mut self.far) };
        let backend = self.carrier.backend();
        match self.carrier.last().filter(|last| !backend.reached(*last)) {
            // Queued operations use both.
            Some(last) => backend.keep(Box::new((far, Arc::clone(&self.near))), &Uses::of(last), None),
            None => drop(far),
        }
    }
}
