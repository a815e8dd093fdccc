//! `echo`: answers each message with itself, over each kind of ring.

use ringmem_layouts::kernel::{DevicePointer, Epoch, Kernel};
use ringmem_layouts::ring::aggregate::Aggregate;
use ringmem_layouts::{ControlBlock, Counter, Machine, RingHeader, SharedLayout};

use crate::{Batch, Handler, Lanes, Launch, persistent, persistent_aggregated, persistent_flagged};

/// A message of one cache line, its bytes the sender's business.
#[derive(Clone, Copy, Debug, PartialEq, Eq, SharedLayout)]
#[repr(C, align(64))]
#[layout(size = 64, message = 1, writer = "the sender")]
pub struct Echo {
    /// Eight words.
    pub words: [u64; 8],
}

/// What every persistent kernel takes first: the first control block of a row, one for each group; epoch; idle nanoseconds; most messages a batch.
pub const ECHO: Kernel<(Controls, Epoch, u64, u64)> = Kernel::new("echo");
/// [`ECHO`]'s, then the addresses of a [`Split`](crate::Split): input peer header, input slots, output peer header, output slots.
pub const ECHO_SPLIT: Kernel<SplitArguments> = Kernel::new("echo_split");
/// As [`ECHO`], between rings with a flag in each slot.
pub const ECHO_FLAGGED: Kernel<(Controls, Epoch, u64, u64)> = Kernel::new("echo_flagged");
/// [`ECHO`]'s, then what the groups share who all answer into one ring.
pub const ECHO_AGGREGATED: Kernel<AggregatedArguments> = Kernel::new("echo_aggregated");
/// As [`ECHO`], without counters, clock, heartbeat and telemetry while there is work: what those cost is the difference.
pub const ECHO_BARE: Kernel<(Controls, Epoch, u64, u64)> = Kernel::new("echo_bare");

type Controls = DevicePointer<ControlBlock<u64>>;
type Header = DevicePointer<RingHeader<u64>>;
type AggregatedArguments = (Controls, Epoch, u64, u64, DevicePointer<Aggregate<u64>>);
type SplitArguments = (Controls, Epoch, u64, u64, Header, DevicePointer<Echo>, Header, DevicePointer<Echo>);

struct Handle<const ACCOUNTS: bool>;

impl<const ACCOUNTS: bool, M: Machine, L: Lanes> Handler<M, L> for Handle<ACCOUNTS> {
    type Input = Echo;
    type Output = Echo;
    const ACCOUNTS: bool = ACCOUNTS;

    #[inline(always)]
    fn answer(&mut self, lanes: &L, batch: &Batch<'_, '_, Echo, Echo, M>) -> u64 {
        // SAFETY: every lane is here, and none does anything else with this batch.
        unsafe { batch.return_all(lanes) };
        0
    }
}

/// The kernels [`ECHO`] and [`ECHO_SPLIT`], for any machine.
///
/// # Safety
///
/// As [`persistent`].
#[inline(always)]
pub unsafe fn echo<M: Machine, L: Lanes>(machine: &M, lanes: &L, launch: &Launch) {
    // SAFETY: the caller's promise.
    unsafe { persistent(machine, lanes, launch, &mut Handle::<true>) }
}

/// The kernel [`ECHO_BARE`], for any machine.
///
/// # Safety
///
/// As [`persistent`].
#[inline(always)]
pub unsafe fn echo_bare<M: Machine, L: Lanes>(machine: &M, lanes: &L, launch: &Launch) {
    // SAFETY: the caller's promise.
    unsafe { persistent(machine, lanes, launch, &mut Handle::<false>) }
}

/// The kernel [`ECHO_FLAGGED`], for any machine.
///
/// # Safety
///
/// As [`persistent_flagged`].
#[inline(always)]
pub unsafe fn echo_flagged<M: Machine, L: Lanes>(machine: &M, lanes: &L, launch: &Launch) {
    // SAFETY: the caller's promise.
    unsafe { persistent_flagged(machine, lanes, launch, &mut Handle::<true>) }
}

/// The kernel [`ECHO_AGGREGATED`], for any machine.
///
/// # Safety
///
/// As [`persistent_aggregated`].
#[inline(always)]
pub unsafe fn echo_aggregated<M: Machine<Word: Counter>, L: Lanes>(machine: &M, lanes: &L, launch: &Launch, shared: u64) {
    // SAFETY: the caller's promise.
    unsafe { persistent_aggregated(machine, lanes, launch, shared, &mut Handle::<true>) }
}
