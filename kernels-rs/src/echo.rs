//! `echo`: answers each message with itself.

use ringmem_layouts::{Machine, RingMessage, layout_table};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::{Batch, Handler, Lanes, Launch, persistent};

/// A message of one cache line, its bytes the sender's business.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(64))]
pub struct Echo {
    /// Eight words.
    pub words: [u64; 8],
}

layout_table! {
    Echo: size 64, align 64;
    0 words: [u64; 8], "the sender";
}

impl RingMessage for Echo {
    const KIND: u64 = 1;
}

struct Handle;

impl<M: Machine, L: Lanes> Handler<M, L> for Handle {
    type Input = Echo;
    type Output = Echo;

    #[inline(always)]
    fn answer(&mut self, lanes: &L, batch: &Batch<'_, '_, Echo, Echo, M>) -> u64 {
        let mut index = u64::from(lanes.lane());
        while index < batch.len() {
            let copy = |message: &Echo, answer: &mut Echo| {
                // All loads before the first store: only then four wide ones each.
                let [a, b, c, d, e, f, g, h] = message.words;
                answer.words = [a, b, c, d, e, f, g, h];
            };
            // SAFETY: below the length; the lanes take turns, so no other is here.
            unsafe { batch.exchange(index, copy) };
            index += u64::from(L::WIDTH);
        }
        0
    }
}

/// The kernel, for any machine.
///
/// # Safety
///
/// As [`persistent`].
#[inline(always)]
pub unsafe fn echo<M: Machine, L: Lanes>(machine: &M, lanes: &L, launch: &Launch) {
    // SAFETY: the caller's promise.
    unsafe { persistent(machine, lanes, launch, &mut Handle) }
}
