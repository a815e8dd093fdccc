use super::Reborrow;
use crate::ring::kind::{OneConsumer, OneProducer};
use crate::ring::{Consumer, Producer, framed, lossy, mailbox, mpmc};
use crate::{Local, RingMessage};

macro_rules! lent {
    ($([$($generic:tt)*] $($end:ident)::+ [$($argument:tt)*];)+) => {$(
        // SAFETY: the lifetime is that of the ring; `with` and `end` lend the end for at most that long, and `shortened` proves covariance.
        unsafe impl<'a, $($generic)*> Reborrow for $($end)::+<'a, $($argument)*> {
            type At<'r> = $($end)::+<'r, $($argument)*>;
        }

        const _: () = {
            #[allow(dead_code, reason = "compiles only if the end is covariant")]
            fn shortened<'r, 'a: 'r, $($generic)*>(end: &'r $($end)::+<'a, $($argument)*>) -> &'r $($end)::+<'r, $($argument)*> {
                end
            }
        };
    )+};
}

lent! {
    [K: OneProducer<T, Local> + 'static, T: 'static] Producer [K, T, Local];
    [K: OneConsumer<T, Local> + 'static, T: 'static] Consumer [K, T, Local];
    [T: 'static, const KIND: u64, const FILLS: bool] mpmc::Handle [T, Local, KIND, FILLS];
    [const FILLS: bool] framed::End [Local, FILLS];
    [T: RingMessage + 'static] lossy::Writer [T, Local];
    [T: RingMessage + 'static] lossy::Reader [T, Local];
    [T: RingMessage + 'static] mailbox::Writer [T, Local];
    [T: RingMessage + 'static] mailbox::Reader [T, Local];
}
