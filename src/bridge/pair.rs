//! [`Pair`]: the two rings of a direction, and who moves between them.

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

/// Both rings live until what was queued between them is over. Dropped after the near ring's end that the bridge is.
pub(super) struct Pair {
    pub near: Arc<Near>,
    pub far: ManuallyDrop<Far>,
    pub carrier: Carrier,
}

/// A pair of which this thread sees both rings, and moves messages by itself: nothing is queued. Apart from the pair, and all that a flush asks of it.
pub(super) struct Direct {
    // INVARIANT: where the slots begin, and two words of the far ring's headers: live as long as the pair.
    pub near: NonNull<u8>,
    pub far: NonNull<u8>,
    /// What the kernel writes, and what the host does.
    pub theirs: NonNull<HostWord>,
    pub ours: NonNull<HostWord>,
    pub slot_size: u64,
}

// SAFETY: pointers into memory that the pair beside it owns, which is shared by the ring's protocol.
unsafe impl Send for Direct {}

impl Pair {
    /// `None` where something is queued, or the host does not see all of the far ring, of which the kernel is `theirs`.
    pub fn direct(&self, theirs: Line, ours: Line) -> Result<Option<Direct>> {
        let (Some(far), false) = (self.far.slots(), self.carrier.is_queued()) else { return Ok(None) };
        let (Index::Seen(theirs), Place::Host(ours)) = (self.far.read(theirs)?, self.far.written(ours)?) else { return Ok(None) };
        Ok(Some(Direct { near: self.near.slots(), far, theirs, ours: ours.cast(), slot_size: self.near.layout.slot_size() }))
    }

    pub const fn new(near: Arc<Near>, far: Far, carrier: Carrier) -> Self {
        Self { near, far: ManuallyDrop::new(far), carrier }
    }

    /// Where the far ring's two ends are, of which the kernel is `theirs`: looked at now, and nothing that is queued is waited for.
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
            // What is queued still reads one ring and writes the other.
            Some(last) => backend.keep(Box::new((far, Arc::clone(&self.near))), &Uses::of(last)),
            None => drop(far),
        }
    }
}
