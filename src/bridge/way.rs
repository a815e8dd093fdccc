use std::boxed::Box;
use std::sync::Arc;

use super::carrier::Carrier;
use super::end::NearEnd;
use super::far::{Far, RingAddresses};
use super::metrics::{Count, Counts, Metrics};
use super::mover::Mover;
use super::near::Near;
use super::{Placement, TransferStrategy};
use crate::Result;
use crate::backend::{Backend, Ticket, Uses};
use crate::barrier::{Barrier, Full};
use crate::dump::Indices;

pub(super) struct Way<E: NearEnd> {
    pub near: Arc<Near>,
    pub counts: Arc<Counts>,
    pub mover: Option<Mover<E>>,
    /// The ring's first index.
    start: u64,
}

impl<E: NearEnd> Way<E> {
    /// # Safety
    ///
    /// Once for a ring; the other end is the user's.
    pub unsafe fn open(
        backend: &Arc<dyn Backend>,
        device: u32,
        strategy: TransferStrategy,
        placement: Placement,
        near: Arc<Near>,
        start: u64,
    ) -> Result<Self> {
        let counts = Arc::<Counts>::default();
        let mut way = Self { near, counts, mover: None, start };
        if !strategy.shares() {
            let far = Far::new::<E::Message>(backend, device, placement, way.near.layout.capacity(), start)?;
            let carrier = Carrier::new(backend, device, strategy, Arc::clone(&way.counts))?;
            // SAFETY: the caller's promise; the far ring's other end is the kernel.
            way.mover = Some(unsafe { Mover::new(Arc::clone(&way.near), far, carrier) }?);
        }
        Ok(way)
    }

    pub fn addresses(&self) -> Result<RingAddresses> {
        if let Some(mover) = &self.mover {
            return mover.pair.far.addresses();
        }
        let own = self.near.pages.address()?.get();
        Ok(RingAddresses { own, peer: own, slots: own + self.near.layout.slots_offset() })
    }

    pub fn used(&mut self, backend: &dyn Backend, ticket: Ticket) -> Result<()> {
        match &mut self.mover {
            Some(mover) => mover.pair.far.used(ticket)?,
            None => backend.keep(Box::new(Arc::clone(&self.near)), &Uses::of(ticket), None),
        }
        Ok(())
    }

    /// For shared rings: makes the host's stores visible; returns the messages.
    pub fn flush(&mut self) -> Result<u64> {
        if let Some(mover) = &mut self.mover {
            return mover.flush();
        }
        fenced::<Full>(&self.counts.fences);
        let Indices { head, tail, capacity } = self.indices();
        // For a pump, which has the counters alone.
        self.counts.messages.set(tail.wrapping_sub(self.start));
        Ok(tail.wrapping_sub(head).min(capacity))
    }

    /// In a shared ring a message has arrived once it is published: the ring's index counts them, flushed or not.
    pub fn metrics(&self) -> Metrics {
        let counted = self.counts.read();
        match self.mover {
            Some(_) => counted,
            None => Metrics { messages: self.indices().tail.wrapping_sub(self.start), ..counted },
        }
    }

    pub fn pending(&self) -> u64 {
        self.mover.as_ref().map_or(0, Mover::pending)
    }

    pub fn failing(&self) -> u32 {
        self.mover.as_ref().map_or(0, Mover::failing)
    }

    pub fn indices(&self) -> Indices {
        self.near.indices::<E::Message>()
    }
}

/// Orders the host's earlier stores to a shared ring before its later loads.
fn fenced<B: Barrier>(fences: &Count) {
    B::often();
    fences.add(1);
}

#[cfg(test)]
mod tests {
    use loom::sync::Arc;
    use loom::sync::atomic::{Ordering, fence};
    use loom::thread;

    use super::*;
    use crate::Word;
    use crate::barrier::tests::{Both, Weakened};
    use crate::loom_machine::{LoomWord, STRONG};

    /// Host and device each store, fence and load.
    fn scene<B: Barrier>() {
        loom::model(|| {
            let words = Arc::new((LoomWord::<STRONG>::new(0), LoomWord::<STRONG>::new(0)));
            let device = thread::spawn({
                let words = Arc::clone(&words);
                move || {
                    words.1.store(1);
                    fence(Ordering::SeqCst);
                    words.0.load() == 1
                }
            });
            words.0.store_release(1);
            fenced::<B>(&Count::default());
            let is_seen = words.1.load() == 1;
            assert!(device.join().unwrap() | is_seen, "neither side sees the other's store");
        });
    }

    #[test]
    fn a_counted_fence_puts_a_message_before_later_loads() {
        scene::<Both>();
    }

    #[test]
    #[should_panic(expected = "neither side sees")]
    fn without_the_fence_neither_side_may_see_the_other() {
        scene::<Weakened>();
    }
}
