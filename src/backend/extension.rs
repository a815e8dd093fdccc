use core::task::Waker;
use core::time::Duration;
use std::sync::OnceLock;
use std::time::Instant;

use super::{Block, DeviceAddress, Prefetch, StreamId, Taints, Ticket};
use crate::{Error, Result};

/// Optional features of a [`Backend`](super::Backend), absent by default.
///
/// ```
/// use ringmem::backend::{DeviceAddress, Extension, Prefetch, StreamId};
///
/// /// The features of a backend with a clock of its own.
/// struct Timed;
///
/// impl Extension for Timed {
///     fn now_ns(&self) -> u64 {
///         7_000
///     }
/// }
///
/// assert_eq!(Timed.now_ns(), 7_000);
/// let prefetch = Prefetch { address: DeviceAddress::new(4096), bytes: 64, to: Some(0) };
/// assert!(Timed.prefetch(&prefetch, StreamId::next()).is_err()); // not supported, by default
/// ```
#[allow(unused_variables, reason = "a default ignores its arguments")]
pub trait Extension {
    /// Returns the ns since an unspecified start, of the process's or simulated clock.
    fn now_ns(&self) -> u64 {
        static BEGUN: OnceLock<Instant> = OnceLock::new();
        u64::try_from(BEGUN.get_or_init(Instant::now).elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Like [`mark`](super::Backend::mark), but timed, if the backend supports it. Release it with [`forget`](Self::forget).
    /// [Waiting](super::Backend::wait) returns the stream's first unreported error.
    ///
    /// # Errors
    ///
    /// As [`mark`](super::Backend::mark).
    fn record(&self, stream: StreamId) -> Result<Option<Ticket>> {
        Ok(None)
    }

    /// Returns the time between recorded tickets of any streams; zero if `to` came first.
    ///
    /// # Errors
    ///
    /// [`Operation`](Error::Operation) for a ticket not reached, or failed; [`Unsupported`](Error::Unsupported) unless recorded.
    fn elapsed(&self, from: Ticket, to: Ticket) -> Result<Duration> {
        Err(Error::Unsupported { what: "the time of a ticket without a recorded event" })
    }

    /// Releases the timestamp of a recorded ticket.
    fn forget(&self, ticket: Ticket) {}

    /// Wakes a task when a ticket is reached, without further calls.
    ///
    /// # Errors
    ///
    /// The waker, if the backend cannot.
    fn notify(&self, ticket: Ticket, waker: Waker) -> Result<(), Waker> {
        Err(waker)
    }

    /// Returns true if freeing this live block now would be deferred: it would synchronise with a kernel.
    fn defers_free(&self, block: &Block) -> bool {
        false
    }

    /// Returns true if a freed, unused block, or one around it, is not free yet: its free is [deferred](Self::defers_free), or a
    /// [kept](super::Backend::keep) value lives.
    fn is_deferred(&self, block: &Block) -> bool {
        false
    }

    /// Frees deferred blocks and drops kept values that are due.
    fn free_deferred(&self) {}

    /// Returns the bytes of the longest free range of a device's memory, if known, as if the ranges `freeable`, by address and size, were freed.
    ///
    /// A device that maps its memory page by page has none: there, any free bytes serve an allocation.
    fn largest_free(&self, device: u32, freeable: &[(DeviceAddress, u64)]) -> Option<u64> {
        None
    }

    /// Returns the memory that failed operations left invalid, if tracked; operations check and update it at execution, on
    /// CUDA at queueing.
    fn taints(&self) -> Option<&Taints> {
        None
    }

    /// Checks that the host may access a managed block now.
    ///
    /// # Errors
    ///
    /// [`Busy`](Error::Busy) under a kernel without [`concurrent_managed_access`](super::Capabilities::concurrent_managed_access).
    fn host_access(&self, block: &Block) -> Result<()> {
        Ok(())
    }

    /// Queues the move of managed memory to a device or the host: a hint.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](Error::Unsupported) for a device without prefetches or other memory; as [`copy`](super::Backend::copy).
    fn prefetch(&self, prefetch: &Prefetch, on: StreamId) -> Result<Ticket> {
        Err(Error::Unsupported { what: "a prefetch" })
    }

    /// Enables or disables a device's access to another's memory; before disabling, wait for its uses.
    ///
    /// # Errors
    ///
    /// [`NoDevice`](Error::NoDevice); [`Unsupported`](Error::Unsupported) for other [peers](super::Capabilities::peers); the driver's
    /// error.
    fn set_peer(&self, device: u32, peer: u32, enabled: bool) -> Result<()> {
        if device == peer { Ok(()) } else { Err(Error::Unsupported { what: "peer access between these devices" }) }
    }
}

impl Extension for () {}
