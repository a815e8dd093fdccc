//! [`Pair`]: the two rings of a direction, and who moves between them.

use core::mem::ManuallyDrop;
use std::boxed::Box;
use std::sync::Arc;

use super::carrier::Carrier;
use super::far::{Far, Line};
use super::near::Near;
use crate::Result;
use crate::backend::Uses;
use crate::dump::Indices;
use crate::wait::wake_sleepers;

/// Both rings live until what was queued between them is over. Dropped after the near ring's end that the bridge is.
pub(super) struct Pair {
    pub near: Arc<Near>,
    pub far: ManuallyDrop<Far>,
    pub carrier: Carrier,
}

impl Pair {
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
        // That the bridge is gone has been said; one of these is slept at by whoever is its other end.
        let header = self.near.header();
        wake_sleepers(&header.producer.waiting);
        wake_sleepers(&header.consumer.waiting);
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
