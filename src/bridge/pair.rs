//! [`Pair`]: the two rings of a direction, and who moves between them.

use core::mem::ManuallyDrop;
use std::boxed::Box;
use std::sync::Arc;

use super::carrier::Carrier;
use super::far::Far;
use super::near::Near;
use crate::backend::Uses;

/// Both rings live until what was queued between them is over.
pub(super) struct Pair {
    pub near: Arc<Near>,
    pub far: ManuallyDrop<Far>,
    pub carrier: Carrier,
}

impl Pair {
    pub const fn new(near: Arc<Near>, far: Far, carrier: Carrier) -> Self {
        Self { near, far: ManuallyDrop::new(far), carrier }
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
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
