//! The calls of `kernels!`, with explicit type arguments: the error of an unmet bound points at the argument.

use ringmem_layouts::{Machine, RingMessage};

use super::{Each, Fold, Handler, Launch, Typed, persistent, persistent_flagged};
use crate::Lanes;

/// # Safety
///
/// As [`persistent`].
#[inline(always)]
pub unsafe fn each<const FLAGGED: bool, M: Machine, L: Lanes, I: RingMessage, O: RingMessage, F: Fn(&I, &mut O)>(
    machine: &M,
    lanes: &L,
    launch: &Launch,
    step: F,
) {
    // SAFETY: the caller makes the promises of `persistent`; `run` requires the same.
    unsafe { run::<FLAGGED, M, L, _>(machine, lanes, launch, &mut Each::new(step)) }
}

/// # Safety
///
/// As [`persistent`].
#[inline(always)]
pub unsafe fn fold<const FLAGGED: bool, M: Machine, L: Lanes, S: Default, I: RingMessage, O: RingMessage, F: Fn(&mut S, &I, &mut O)>(
    machine: &M,
    lanes: &L,
    launch: &Launch,
    step: F,
) {
    // SAFETY: the caller makes the promises of `persistent`; `run` requires the same.
    unsafe { run::<FLAGGED, M, L, _>(machine, lanes, launch, &mut Fold::new(step)) }
}

/// # Safety
///
/// As [`persistent`].
#[inline(always)]
pub unsafe fn typed<const FLAGGED: bool, M: Machine, L: Lanes, I: RingMessage, O: RingMessage, H: Handler<M, L, Input = I, Output = O>>(
    machine: &M,
    lanes: &L,
    launch: &Launch,
    handler: H,
) {
    // SAFETY: the caller makes the promises of `persistent`; `run` requires the same.
    unsafe { run::<FLAGGED, M, L, _>(machine, lanes, launch, &mut Typed::new(handler)) }
}

/// # Safety
///
/// As [`persistent`], for flagged rings if `FLAGGED`.
#[inline(always)]
unsafe fn run<const FLAGGED: bool, M: Machine, L: Lanes, H: Handler<M, L>>(machine: &M, lanes: &L, launch: &Launch, handler: &mut H) {
    match FLAGGED {
        // SAFETY: the caller makes the promises of `persistent`, for flagged rings; `persistent_flagged` requires no more.
        true => unsafe { persistent_flagged(machine, lanes, launch, handler) },
        // SAFETY: the caller makes the promises of `persistent`, which are passed on unchanged.
        false => unsafe { persistent(machine, lanes, launch, handler) },
    }
}
