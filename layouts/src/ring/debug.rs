//! `Debug` of the rings' ends: which it is, and where it stands. What lies in the slots is nobody's business here, and may be being written.

use core::fmt;

use super::kind::{InPlace, OneConsumer, OneProducer};
#[cfg(any(target_has_atomic = "64", feature = "portable-atomic"))]
use super::{BareSlot, RingIn, Storage, host_ring::HostKind};
use super::{BatchConsumer, BatchProducer, Chunk, Consumer, Drain, Grant, Policed, Producer, Push, Slot};
use super::{framed, lossy, mailbox, mpmc};
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
    [K: OneProducer<T, M>, T, M: Machine] Producer<'_, K, T, M>: "Producer" kind tail free capacity;
    [K: OneConsumer<T, M>, T, M: Machine] Consumer<'_, K, T, M>: "Consumer" kind head len capacity;
    [K: OneProducer<T, M>, T, M: Machine] Grant<'_, '_, K, T, M>: "Grant" len;
    [K: OneConsumer<T, M> + InPlace, T, M: Machine] Chunk<'_, '_, K, T, M>: "Chunk" len;
    [K: OneConsumer<T, M>, T, M: Machine] Drain<'_, '_, K, T, M>: "Drain" len;
    [K: OneProducer<T, M>, T, M: Machine] BatchProducer<'_, '_, K, T, M>: "BatchProducer";
    [K: OneConsumer<T, M>, T, M: Machine] BatchConsumer<'_, '_, K, T, M>: "BatchConsumer";


    [M: Machine, const FILLS: bool] framed::End<'_, M, FILLS>: "framed::End" len capacity;
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

    [T, M: Machine<Word: RmwWord>, const KIND: u64, const FILLS: bool] mpmc::Handle<'_, T, M, KIND, FILLS>: "Handle" len capacity;
    [T, M: Machine] mpmc::Taken<'_, '_, T, M>: "mpmc::Taken";
    [T, M: Machine<Word: RmwWord>] mpmc::Grant<'_, '_, T, M>: "Grant" len;
    [T, M: Machine<Word: RmwWord>] mpmc::BatchProducer<'_, '_, T, M>: "BatchProducer";

    [E: Push] Policed<E>: "Policed" counts;
    [W, C] Slot<W, C>: "Slot";
}

// What has words or slots of the host's.
#[cfg(any(target_has_atomic = "64", feature = "portable-atomic"))]
shown! {
    [K: HostKind<T>, T, S: Storage<K::Slot>] RingIn<K, T, S>: "Ring";
    [S: Storage<BareSlot<u64>>] framed::RingIn<S>: "framed::Ring";
    [T, S: Storage<crate::HostWord>] lossy::RingIn<T, S>: "lossy::Ring";
    [T, const N: usize] mailbox::Mailbox<T, N>: "Mailbox";
    [T] crate::host::HostCell<T>: "HostCell";
}

#[cfg(test)]
mod tests {
    use std::format;

    use crate::ring::spsc;

    #[test]
    fn an_end_shows_where_it_stands_and_nothing_of_what_it_holds() {
        let mut ring = spsc::Ring::<&str, 8>::new();
        let (mut producer, consumer) = ring.split();
        assert!(producer.push("secret").is_ok());
        assert_eq!(format!("{producer:?}"), "Producer { kind: RingFlags(SPSC), tail: 1, free: 7, capacity: 8, .. }");
        assert_eq!(format!("{consumer:?}"), "Consumer { kind: RingFlags(SPSC), head: 0, len: 1, capacity: 8, .. }");
        let grant = producer.reserve(2).unwrap();
        assert_eq!(format!("{grant:?}"), "Grant { len: 2, .. }");
    }
}
