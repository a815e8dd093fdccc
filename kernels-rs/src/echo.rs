//! `echo`: returns each message, over each kind of ring.

use ringmem_layouts::{Machine, SharedLayout};

use crate::{Batch, Handler, Lanes, Launch, Pairs, WarpLanes, persistent_paired};

/// A message of one cache line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, SharedLayout)]
#[repr(C, align(64))]
#[layout(size = 64, message = 1, writer = "the sender")]
pub struct Echo {
    /// Eight words.
    pub words: [u64; 8],
}

#[cfg(not(target_os = "cuda"))]
pub use crate::kernel_list::{ECHO, ECHO_BARE, ECHO_BLOCK, ECHO_FLAGGED, ECHO_GROUPED, ECHO_PAIRED};

/// Returns each message; `ACCOUNTS` as in [`Handler`].
pub struct Handle<const ACCOUNTS: bool>;

impl<const ACCOUNTS: bool, M: Machine, L: Lanes> Handler<M, L> for Handle<ACCOUNTS> {
    type Input = Echo;
    type Output = Echo;
    const ACCOUNTS: bool = ACCOUNTS;

    #[inline(always)]
    unsafe fn answer(&mut self, lanes: &L, batch: &mut Batch<'_, '_, Echo, Echo, M>) -> u64 {
        // SAFETY: every lane does this, and nothing else, with this batch.
        unsafe { batch.return_all(lanes) };
        0
    }
}

/// Runs `echo_paired` on any machine.
///
/// # Safety
///
/// As [`persistent_paired`].
#[inline(always)]
pub unsafe fn echo_paired<M: Pairs, L: WarpLanes>(machine: &M, lanes: &L, launch: &Launch) {
    // SAFETY: the caller promises that every lane calls this once with an equal `launch`, and that control block, paired rings and telemetry are live until
    // this returns, accessed by their protocols only, with one host side and no other kernel.
    unsafe { persistent_paired(machine, lanes, launch, &mut Handle::<true>) }
}
