use super::end::Bounded;
use crate::ring::kind::{OneConsumer, OneProducer};
use crate::ring::{Consumer, Producer, framed, lossy, mpmc};
use crate::{Machine, RingMessage, RmwWord};

macro_rules! bounded {
    ($([$($generic:tt)*] $end:ty;)+) => {$(
        impl<$($generic)*> Bounded for $end {
            fn capacity(&self) -> usize {
                <$end>::capacity(self)
            }
            fn len(&self) -> usize {
                <$end>::len(self)
            }
        }
    )+};
}

bounded! {
    [K: OneProducer<T, M>, T, M: Machine] Producer<'_, K, T, M>;
    [K: OneConsumer<T, M>, T, M: Machine] Consumer<'_, K, T, M>;
    [T, M: Machine<Word: RmwWord>, const KIND: u64, const FILLS: bool] mpmc::Handle<'_, T, M, KIND, FILLS>;
    [M: Machine, const FILLS: bool] framed::End<'_, M, FILLS>;
    [T: RingMessage, M: Machine] lossy::Writer<'_, T, M>;
    [T: RingMessage, M: Machine] lossy::Reader<'_, T, M>;
}
