//! `Debug` of the rings' ends: which it is, and where it stands. What lies in the slots is nobody's business here, and may be being written.

use core::fmt;

use super::drain::Take;
#[cfg(any(target_has_atomic = "64", feature = "portable-atomic"))]
use super::{BareSlot, Storage, WordSlot};
use super::{Drain, Policed, Push, Slot, flagged, framed, lossy, mailbox, mpmc, mpsc, spsc};
use crate::{Machine, RingMessage, RmwWord};

/// A type, its name, and the methods whose answers are shown.
macro_rules! shown {
    ($([$($generic:tt)*] $type:ty: $name:literal $($what:ident)*;)+) => {$(
        impl<$($generic)*> fmt::Debug for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct($name)$(.field(stringify!($what), &self.$what()))*.finish_non_exhaustive()
            }
        }
    )+};
}

shown! {
    [T, M: Machine] spsc::Producer<'_, T, M>: "spsc::Producer" tail free capacity;
    [T, M: Machine] spsc::Consumer<'_, T, M>: "spsc::Consumer" head available capacity;
    [T, M: Machine] spsc::Grant<'_, '_, T, M>: "spsc::Grant" len;
    [T, M: Machine] spsc::Chunk<'_, '_, T, M>: "spsc::Chunk" len;
    [T, M: Machine] spsc::BatchProducer<'_, '_, T, M>: "spsc::BatchProducer";
    [T, M: Machine] spsc::BatchConsumer<'_, '_, T, M>: "spsc::BatchConsumer";

    [T, M: Machine] flagged::Producer<'_, T, M>: "flagged::Producer" tail free capacity;
    [T, M: Machine] flagged::Consumer<'_, T, M>: "flagged::Consumer" head capacity;
    [T, M: Machine] flagged::Grant<'_, '_, T, M>: "flagged::Grant" len;
    [T, M: Machine] flagged::Chunk<'_, '_, T, M>: "flagged::Chunk" len;
    [T, M: Machine] flagged::BatchProducer<'_, '_, T, M>: "flagged::BatchProducer";
    [T, M: Machine] flagged::BatchConsumer<'_, '_, T, M>: "flagged::BatchConsumer";

    [M: Machine] framed::Producer<'_, M>: "framed::Producer" tail free capacity;
    [M: Machine] framed::Consumer<'_, M>: "framed::Consumer" head available capacity;
    [M: Machine] framed::Message<'_, M>: "framed::Message" len;
    [M: Machine] framed::Frame<'_, '_, M>: "framed::Frame";
    [M: Machine] framed::Grant<'_, '_, M>: "framed::Grant" len;
    [M: Machine] framed::Chunk<'_, '_, M>: "framed::Chunk";
    [M: Machine] framed::BatchProducer<'_, '_, M>: "framed::BatchProducer";
    [M: Machine] framed::BatchConsumer<'_, '_, M>: "framed::BatchConsumer";

    [T: RingMessage, M: Machine] lossy::Writer<'_, T, M>: "lossy::Writer" tail capacity;
    [T: RingMessage, M: Machine] lossy::Reader<'_, T, M>: "lossy::Reader" head capacity;
    [T: RingMessage, M: Machine] lossy::BatchWriter<'_, '_, T, M>: "lossy::BatchWriter";

    [T, M: Machine] mailbox::Writer<'_, T, M>: "mailbox::Writer";
    [T, M: Machine] mailbox::Reader<'_, T, M>: "mailbox::Reader";

    [T, M: Machine<Word: RmwWord>, const KIND: u64] mpmc::ManyProducer<'_, T, M, KIND>: "Producer" capacity;
    [T, M: Machine<Word: RmwWord>] mpmc::Consumer<'_, T, M>: "mpmc::Consumer" capacity;
    [T, M: Machine] mpmc::Taken<'_, '_, T, M>: "mpmc::Taken";
    [T, M: Machine<Word: RmwWord>] mpmc::Grant<'_, '_, T, M>: "Grant" len;
    [T, M: Machine<Word: RmwWord>] mpmc::BatchProducer<'_, '_, T, M>: "BatchProducer";
    [T, M: Machine<Word: RmwWord>] mpsc::Consumer<'_, T, M>: "mpsc::Consumer" capacity;
    [T, M: Machine<Word: RmwWord>] mpsc::Chunk<'_, '_, T, M>: "mpsc::Chunk" len;
    [T, M: Machine<Word: RmwWord>] mpsc::BatchConsumer<'_, '_, T, M>: "mpsc::BatchConsumer";

    [C: Take] Drain<'_, C>: "Drain" len;
    [E: Push] Policed<E>: "Policed" counts;
    [W, C] Slot<W, C>: "Slot";
}

// What has words or slots of the host's.
#[cfg(any(target_has_atomic = "64", feature = "portable-atomic"))]
shown! {
    [T, S: Storage<BareSlot<T>>] spsc::RingIn<T, S>: "spsc::Ring";
    [T, S: Storage<WordSlot<T>>] flagged::RingIn<T, S>: "flagged::Ring";
    [S: Storage<BareSlot<u64>>] framed::RingIn<S>: "framed::Ring";
    [T, S: Storage<crate::HostWord>] lossy::RingIn<T, S>: "lossy::Ring";
    [T, const N: usize] mailbox::Mailbox<T, N>: "Mailbox";
    [T, S: Storage<WordSlot<T>>] mpmc::RingIn<T, S>: "mpmc::Ring";
    [T, S: Storage<WordSlot<T>>] mpsc::RingIn<T, S>: "mpsc::Ring";
    [T] crate::host::HostCell<T>: "HostCell";
}

// Between processes an MCU's fallback is no atomic.
#[cfg(target_has_atomic = "64")]
shown! {
    [T] spsc::untrusted::Producer<'_, T>: "spsc::untrusted::Producer" tail free capacity;
    [T] spsc::untrusted::Consumer<'_, T>: "spsc::untrusted::Consumer" head available capacity;
}

#[cfg(test)]
mod tests {
    use std::format;

    use super::spsc;

    #[test]
    fn an_end_shows_where_it_stands_and_nothing_of_what_it_holds() {
        let mut ring = spsc::Ring::<&str, 8>::new();
        let (mut producer, consumer) = ring.split();
        assert!(producer.push("secret").is_ok());
        assert_eq!(format!("{producer:?}"), "spsc::Producer { tail: 1, free: 7, capacity: 8, .. }");
        assert_eq!(format!("{consumer:?}"), "spsc::Consumer { head: 0, available: 0, capacity: 8, .. }");
        let grant = producer.reserve(2).unwrap();
        assert_eq!(format!("{grant:?}"), "spsc::Grant { len: 2, .. }");
    }
}
