//! Fault injection.
//!
//! 1. Failed calls count too; a fault at execution is decided at the call.
//! 2. A failing call has no effect, but a free frees, and a wait waits.
//! 3. A failing allocation is [`OutOfMemory`](Error::OutOfMemory), of host or pinned memory [`Map`](Error::Map). Other calls are
//!    [`Injected`](Error::Injected), or copies [succeed with a wrong bit](Fault::flipping).

use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Mutex, PoisonError};
use std::vec::Vec;

use crate::Error;

/// A backend's method.
///
/// ```
/// use ringmem::backend::host::{HostBackend, Verb};
/// use ringmem::memory::{Device, GpuBuffer};
///
/// let backend = HostBackend::builder().log(true).build()?;
/// GpuBuffer::<u32>::from_slice(Device::new(&backend, 0), &[1, 2, 3])?.to_vec()?;
/// assert_eq!(backend.calls(Verb::Copy), Some(2)); // to the device and back
/// # Ok::<(), ringmem::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Verb {
    /// [`allocate`](crate::backend::Backend::allocate).
    Allocate,
    /// [`free`](crate::backend::Backend::free).
    Free,
    /// [`copy`](crate::backend::Backend::copy) and [`copy_now`](crate::backend::Backend::copy_now).
    Copy,
    /// [`fill`](crate::backend::Backend::fill) and [`fill_now`](crate::backend::Backend::fill_now).
    Fill,
    /// [`publish`](crate::backend::Backend::publish) and [`publish_now`](crate::backend::Backend::publish_now).
    Publish,
    /// [`prefetch`](crate::backend::Backend::prefetch).
    Prefetch,
    /// [`launch`](crate::backend::Backend::launch).
    Launch,
    /// [`open_stream`](crate::backend::Backend::open_stream).
    OpenStream,
    /// [`stream_wait`](crate::backend::Backend::stream_wait).
    StreamWait,
    /// [`record_position`](crate::backend::Backend::record_position).
    RecordPosition,
    /// [`wait`](crate::backend::Backend::wait) and [`outcome`](crate::backend::Backend::outcome).
    Wait,
    /// [`synchronize`](crate::backend::Backend::synchronize).
    Synchronize,
    /// [`load`](crate::backend::Backend::load).
    Load,
    /// [`set_peer`](crate::backend::Backend::set_peer), to enable.
    EnablePeer,
    /// [`set_peer`](crate::backend::Backend::set_peer), to disable.
    DisablePeer,
    /// [`host_access`](crate::backend::Backend::host_access) to managed memory.
    HostAccess,
    /// [`record`](crate::backend::Backend::record).
    Record,
    /// [`reserve`](crate::backend::Backend::reserve).
    Reserve,
    /// [`map`](crate::backend::Backend::map).
    Map,
    /// [`remap`](crate::backend::Backend::remap).
    Remap,
}

impl Verb {
    /// Every verb.
    pub const ALL: [Self; 20] = [
        Self::Allocate,
        Self::Free,
        Self::Copy,
        Self::Fill,
        Self::Publish,
        Self::Prefetch,
        Self::Launch,
        Self::OpenStream,
        Self::StreamWait,
        Self::RecordPosition,
        Self::Wait,
        Self::Synchronize,
        Self::Load,
        Self::EnablePeer,
        Self::DisablePeer,
        Self::HostAccess,
        Self::Record,
        Self::Reserve,
        Self::Map,
        Self::Remap,
    ];

    /// Returns the name in errors.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Allocate => "allocate",
            Self::Free => "free",
            Self::Copy => "copy",
            Self::Fill => "fill",
            Self::Publish => "publish",
            Self::Prefetch => "prefetch",
            Self::Launch => "launch",
            Self::OpenStream => "open_stream",
            Self::StreamWait => "stream_wait",
            Self::RecordPosition => "record_position",
            Self::Wait => "wait",
            Self::Synchronize => "synchronize",
            Self::Load => "load",
            Self::EnablePeer => "enable_peer",
            Self::DisablePeer => "disable_peer",
            Self::HostAccess => "host_access",
            Self::Record => "record",
            Self::Reserve => "reserve",
            Self::Map => "map",
            Self::Remap => "remap",
        }
    }
}

/// A choice of calls that fail, and when.
///
/// ```
/// use ringmem::backend::host::{Fault, Faults, HostBackend, Verb};
/// use ringmem::memory::{Device, GpuBuffer};
///
/// let faults = Faults::new().on(Verb::Allocate, Fault::nth(2));
/// let backend = HostBackend::builder().faults(faults).build()?;
/// let memory = Device::new(&backend, 0);
/// assert!(GpuBuffer::<u8>::new(memory.clone(), 1).is_ok());
/// assert!(GpuBuffer::<u8>::new(memory.clone(), 1).is_err()); // the second allocation
/// assert!(GpuBuffer::<u8>::new(memory, 1).is_ok());
/// # Ok::<(), ringmem::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fault {
    which: Which,
    when_executed: bool,
    flips: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Which {
    Nth(u64),
    From(u64),
    Chance { below: u64, seed: u64 },
}

impl Fault {
    /// Fails the n-th call from now on, from 1.
    #[must_use]
    pub const fn nth(n: u64) -> Self {
        Self { which: Which::Nth(n), when_executed: false, flips: None }
    }

    /// Fails all calls from the n-th on.
    #[must_use]
    pub const fn from(n: u64) -> Self {
        Self { which: Which::From(n), when_executed: false, flips: None }
    }

    /// Fails each call with a probability from 0 to 1, repeatable by a seed.
    #[must_use]
    pub fn random(probability: f64, seed: u64) -> Self {
        let below = (probability * u64::MAX as f64) as u64;
        Self { which: Which::Chance { below, seed }, when_executed: false, flips: None }
    }

    /// Fails at execution, not at queueing; a blocking call fails at the call.
    #[must_use]
    pub const fn when_executed(self) -> Self {
        Self { when_executed: true, ..self }
    }

    /// Flips one bit of the byte at `at`, modulo the length, instead of failing; only for copies within the backend's memory.
    #[must_use]
    pub const fn flipping(self, at: u64) -> Self {
        Self { flips: Some(at), when_executed: true, ..self }
    }

    fn strikes(&self, verb: Verb, number: u64) -> bool {
        if self.flips.is_some() && !matches!(verb, Verb::Copy) {
            return false;
        }
        match self.which {
            Which::Nth(n) => number == n,
            Which::From(n) => number >= n,
            Which::Chance { below, seed } => split_mix(seed, number) < below,
        }
    }
}

/// A plan of faults, of which the first that applies counts.
///
/// ```
/// use ringmem::backend::host::{Fault, Faults, HostBackend, Verb};
/// use ringmem::memory::{Device, GpuBuffer};
///
/// let backend = HostBackend::builder().faults(Faults::new().on(Verb::Allocate, Fault::nth(2))).build()?;
/// let first = GpuBuffer::<u8>::new(Device::new(&backend, 0), 16)?;
/// assert!(GpuBuffer::<u8>::new(Device::new(&backend, 0), 16).is_err());
/// assert!(GpuBuffer::<u8>::new(Device::new(&backend, 0), 16).is_ok());
/// # drop(first);
/// # Ok::<(), ringmem::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Faults {
    rules: Vec<(Verb, Fault)>,
}

impl Faults {
    /// Returns an empty plan.
    #[must_use]
    pub const fn new() -> Self {
        Self { rules: Vec::new() }
    }

    /// Adds a fault of a method.
    #[must_use]
    pub fn on(mut self, verb: Verb, fault: Fault) -> Self {
        self.rules.push((verb, fault));
        self
    }
}

#[derive(Default)]
pub(super) struct Plan {
    calls: [AtomicU64; Verb::ALL.len()],
    is_armed: AtomicBool,
    rules: Mutex<Vec<(Verb, Fault, u64)>>,
}

#[derive(Clone, Copy)]
pub(super) struct Struck {
    pub when_executed: bool,
    pub flips: Option<u64>,
    verb: Verb,
    number: u64,
}

impl Plan {
    pub fn set(&self, faults: &Faults) {
        let mut rules = self.rules.lock().unwrap_or_else(PoisonError::into_inner);
        *rules = faults.rules.iter().map(|&(verb, fault)| (verb, fault, self.calls(verb))).collect();
        self.is_armed.store(!rules.is_empty(), Relaxed);
    }

    pub fn calls(&self, verb: Verb) -> u64 {
        self.calls[verb as usize].load(Relaxed)
    }

    pub fn next(&self, verb: Verb) -> Option<Struck> {
        let number = self.calls[verb as usize].fetch_add(1, Relaxed) + 1;
        if !self.is_armed.load(Relaxed) {
            return None;
        }
        let rules = self.rules.lock().unwrap_or_else(PoisonError::into_inner);
        let (_, fault, _) =
            rules.iter().find(|(of, fault, before)| *of == verb && number > *before && fault.strikes(verb, number - before))?;
        Some(Struck { when_executed: fault.when_executed, flips: fault.flips, verb, number })
    }
}

impl Struck {
    pub fn error(&self) -> Error {
        Error::Injected { call: self.verb.name(), number: self.number }
    }
}

/// SplitMix64 (Steele, Lea and Flood, 2014).
fn split_mix(seed: u64, number: u64) -> u64 {
    let mut z = seed.wrapping_add(number.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verb_numbers_are_their_positions() {
        for (place, verb) in Verb::ALL.into_iter().enumerate() {
            assert_eq!(verb as usize, place, "{verb:?}");
        }
    }

    #[test]
    fn split_mix_matches_its_published_values() {
        let expected = [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423];
        assert_eq!([1, 2, 3].map(|number| split_mix(1_234_567, number)), expected);
    }
}
