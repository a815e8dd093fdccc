//! The calls of `kernels!`, with explicit type arguments: the error of an unmet bound points at the argument.

use ringmem_layouts::kernel::DevicePointer;
use ringmem_layouts::ring::groups::Groups;
use ringmem_layouts::{Counter, Machine, RingMessage};

use super::{Actor, Each, Fold, Handler, Launch, Typed, persistent, persistent_flagged, persistent_grouped};
use crate::{Lanes, WarpLanes};

/// The kind of a kernel's rings, as `kernels!` writes it.
pub trait Kind<M: Machine, L: Lanes> {
    /// The argument of its entry after those of every persistent kernel.
    type Argument: Copy;

    /// # Safety
    ///
    /// As [`persistent`], for rings of this kind; for [`GroupedRings`], as [`persistent_grouped`].
    unsafe fn run<H: Handler<M, L>>(machine: &M, lanes: &L, launch: &Launch, argument: Self::Argument, handler: &mut H);
}

/// A `persistent fn`.
pub struct IndexedRings;

impl<M: Machine, L: Lanes> Kind<M, L> for IndexedRings {
    type Argument = ();

    #[inline(always)]
    unsafe fn run<H: Handler<M, L>>(machine: &M, lanes: &L, launch: &Launch, (): (), handler: &mut H) {
        // SAFETY: the caller promises that every lane calls this once with an equal `launch`, and that control block, rings and telemetry are live until this
        // returns, accessed by their protocols only, with one host side and no other kernel.
        unsafe { persistent(machine, lanes, launch, handler) }
    }
}

/// A `flagged fn`.
pub struct FlaggedRings;

impl<M: Machine, L: WarpLanes> Kind<M, L> for FlaggedRings {
    type Argument = ();

    #[inline(always)]
    unsafe fn run<H: Handler<M, L>>(machine: &M, lanes: &L, launch: &Launch, (): (), handler: &mut H) {
        // SAFETY: the caller promises that every lane calls this once with an equal `launch`, and that control block, flagged rings and telemetry are live
        // until this returns, accessed by their protocols only, with one host side and no other kernel.
        unsafe { persistent_flagged(machine, lanes, launch, handler) }
    }
}

/// A `grouped fn`.
pub struct GroupedRings;

impl<M: Machine<Word: Counter>, L: Lanes> Kind<M, L> for GroupedRings {
    type Argument = DevicePointer<Groups<u64>>;

    #[inline(always)]
    unsafe fn run<H: Handler<M, L>>(machine: &M, lanes: &L, launch: &Launch, shared: DevicePointer<Groups<u64>>, handler: &mut H) {
        // SAFETY: the caller promises that every lane of all groups of this launch calls this once, at the same time, with equal arguments. Control block,
        // rings and telemetry are live until this returns, accessed by their protocols only, with one host side and no other kernel. Only these groups access
        // `shared`, which is live, and zeroed or of an earlier epoch's launch that has returned.
        unsafe { persistent_grouped(machine, lanes, launch, shared.address(), handler) }
    }
}

/// # Safety
///
/// As [`persistent`]; for a `grouped fn`, as [`persistent_grouped`].
#[inline(always)]
pub unsafe fn each<K: Kind<M, L>, M: Machine, L: Lanes, I: RingMessage, O: RingMessage, F: Fn(&I, &mut O)>(
    machine: &M,
    lanes: &L,
    launch: &Launch,
    argument: K::Argument,
    step: F,
) {
    // SAFETY: the caller promises that every lane calls this once with equal arguments, and that control block, rings of this kind and telemetry are live until
    // this returns, accessed by their protocols only, with one host side and no other kernel. For a `grouped fn`, all groups call it at the same time; only
    // they access `argument`, which is live, and zeroed or of an earlier epoch's launch that has returned.
    unsafe { K::run(machine, lanes, launch, argument, &mut Each::new(step)) }
}

/// # Safety
///
/// As [`persistent`]; for a `grouped fn`, as [`persistent_grouped`].
#[inline(always)]
pub unsafe fn fold<K: Kind<M, L>, M: Machine, L: Lanes, S: Default, I: RingMessage, O: RingMessage, F: Fn(&mut S, &I, &mut O)>(
    machine: &M,
    lanes: &L,
    launch: &Launch,
    argument: K::Argument,
    step: F,
) {
    // SAFETY: the caller promises that every lane calls this once with equal arguments, and that control block, rings of this kind and telemetry are live until
    // this returns, accessed by their protocols only, with one host side and no other kernel. For a `grouped fn`, all groups call it at the same time; only
    // they access `argument`, which is live, and zeroed or of an earlier epoch's launch that has returned.
    unsafe { K::run(machine, lanes, launch, argument, &mut Fold::new(step)) }
}

/// # Safety
///
/// As [`persistent`].
#[inline(always)]
pub unsafe fn actor<M: Machine, L: Lanes, S: Default, I: RingMessage, O: RingMessage, F: Fn(&mut S, Option<&I>) -> Option<O>>(
    machine: &M,
    lanes: &L,
    launch: &Launch,
    step: F,
) {
    // SAFETY: the caller promises that every lane calls this once with an equal `launch`, and that control block, rings and telemetry are live until this
    // returns, accessed by their protocols only, with one host side and no other kernel.
    unsafe { persistent(machine, lanes, launch, &mut Actor::new(step)) }
}

/// # Safety
///
/// As [`persistent`]; for a `grouped fn`, as [`persistent_grouped`].
#[inline(always)]
pub unsafe fn typed<K: Kind<M, L>, M: Machine, L: Lanes, I: RingMessage, O: RingMessage, H: Handler<M, L, Input = I, Output = O>>(
    machine: &M,
    lanes: &L,
    launch: &Launch,
    argument: K::Argument,
    handler: H,
) {
    // SAFETY: the caller promises that every lane calls this once with equal arguments, and that control block, rings of this kind and telemetry are live until
    // this returns, accessed by their protocols only, with one host side and no other kernel. For a `grouped fn`, all groups call it at the same time; only
    // they access `argument`, which is live, and zeroed or of an earlier epoch's launch that has returned.
    unsafe { K::run(machine, lanes, launch, argument, &mut Typed::new(handler)) }
}
