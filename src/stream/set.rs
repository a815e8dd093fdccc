use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::Relaxed;
use core::time::Duration;
use std::boxed::Box;
use std::sync::Arc;
use std::time::Instant;
use std::vec::Vec;

use super::Stream;
use crate::backend::Backend;
use crate::error::debug_with_causes;
use crate::{Error, Result};

/// The role of a stream.
///
/// ```
/// use ringmem::backend::host::HostBackend;
/// use ringmem::stream::{Role, StreamSet};
///
/// let backend = HostBackend::builder().build()?;
/// let streams = StreamSet::new(&backend, 0, 2)?;
/// assert_ne!(streams.role(Role::Compute).id(), streams.role(Role::Memory).id());
/// # Ok::<(), ringmem::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Role {
    /// Kernels.
    Compute,
    /// Transfers.
    Memory,
    /// Processing of results.
    Analysis,
}

impl Role {
    /// Every role.
    pub const ALL: [Self; 3] = [Self::Compute, Self::Memory, Self::Analysis];
}

/// A stream for each role, and others used round-robin.
///
/// ```
/// use ringmem::backend::host::HostBackend;
/// use ringmem::stream::{Role, StreamSet};
///
/// # fn main() -> ringmem::Result<()> {
/// let backend = HostBackend::builder().build()?;
/// let streams = StreamSet::new(&backend, 0, 4)?;
/// let memory = streams.role(Role::Memory);
/// assert_ne!(memory.id(), streams.role(Role::Compute).id());
/// assert_ne!(streams.next().id(), streams.next().id());
/// streams.synchronize()?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[doc(alias = "MultiStreamManager")]
pub struct StreamSet {
    roles: [Stream; Role::ALL.len()],
    others: Box<[Stream]>,
    turn: AtomicU32,
}

/// Errors of a set's streams, at least one.
///
/// ```
/// use ringmem::backend::host::{Fault, Faults, HostBackend, Verb};
/// use ringmem::memory::{Device, GpuBuffer};
/// use ringmem::stream::{Role, StreamSet};
///
/// let faults = Faults::new().on(Verb::Fill, Fault::nth(1).when_executed());
/// let backend = HostBackend::builder().faults(faults).build()?;
/// let streams = StreamSet::new(&backend, 0, 2)?;
/// let buffer = GpuBuffer::<u8>::new(Device::new(&backend, 0), 100)?;
/// drop(streams.role(Role::Memory).fill(buffer, .., 7)?); // nobody waits for it
/// let failures = streams.synchronize().unwrap_err();
/// assert!(failures.iter().map(|(index, _)| index).eq([1])); // the second stream of `iter`
/// # Ok::<(), ringmem::Error>(())
/// ```
pub struct Failures(Vec<(usize, Error)>);

impl StreamSet {
    /// Opens a stream for each role, and `others` more.
    ///
    /// # Errors
    ///
    /// As [`Stream::new`].
    pub fn new<B: Backend + ?Sized>(backend: &Arc<B>, device: u32, others: u32) -> Result<Self> {
        let open = || Stream::new(backend, device);
        let roles = [open()?, open()?, open()?];
        let others = (0..others).map(|_| open()).collect::<Result<_>>()?;
        Ok(Self { roles, others, turn: AtomicU32::new(0) })
    }

    /// Returns the stream of a role.
    #[must_use]
    pub const fn role(&self, role: Role) -> &Stream {
        match role {
            Role::Compute => &self.roles[0],
            Role::Memory => &self.roles[1],
            Role::Analysis => &self.roles[2],
        }
    }

    /// Returns the streams without a role round-robin; without any, the kernels' stream.
    #[allow(clippy::should_implement_trait, reason = "it has no end")]
    pub fn next(&self) -> &Stream {
        let count = self.others.len() as u32;
        if count == 0 {
            return self.role(Role::Compute);
        }
        // A wrapping counter skips a stream unless the count is a power of two.
        let turn = self.turn.fetch_update(Relaxed, Relaxed, |turn| Some((turn + 1) % count)).unwrap_or_else(|turn| turn);
        &self.others[turn as usize]
    }

    /// Iterates over all streams, those in [`Role::ALL`] first.
    pub fn iter(&self) -> impl Iterator<Item = &Stream> {
        self.roles.iter().chain(&self.others)
    }

    /// Orders later operations of `stream` after those queued on the others.
    ///
    /// # Errors
    ///
    /// As [`Stream::wait_for`].
    pub fn join(&self, stream: &Stream) -> Result<()> {
        self.iter().filter(|other| other.id() != stream.id()).try_for_each(|other| stream.wait_for(other))
    }

    /// Waits until all operations are complete, even after a failure.
    ///
    /// # Errors
    ///
    /// Each stream's unreported error.
    pub fn synchronize(&self) -> Result<(), Failures> {
        let failures: Vec<_> = self.iter().enumerate().filter_map(|(index, stream)| Some((index, stream.synchronize().err()?))).collect();
        if failures.is_empty() { Ok(()) } else { Err(Failures(failures)) }
    }

    /// As [`synchronize`](Self::synchronize), for at most `timeout` in all. Returns whether the operations that were queued before this call are complete.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use ringmem::backend::host::HostBackend;
    /// use ringmem::memory::{Device, GpuBuffer};
    /// use ringmem::stream::{Role, StreamSet};
    ///
    /// let backend = HostBackend::builder().build()?;
    /// let streams = StreamSet::new(&backend, 0, 2)?;
    /// let filled = streams.role(Role::Memory).fill(GpuBuffer::<u32>::new(Device::new(&backend, 0), 1000)?, .., 7)?;
    /// assert!(streams.synchronize_timeout(Duration::from_secs(10))?);
    /// # drop(filled);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The unreported errors of the streams whose operations are complete, even if others are not.
    pub fn synchronize_timeout(&self, timeout: Duration) -> Result<bool, Failures> {
        let begun = Instant::now();
        // All before the first wait, which may take long.
        let positions: Vec<_> = self.iter().map(Stream::record).collect();
        let (mut are_complete, mut failures) = (true, Vec::new());
        for (index, position) in positions.into_iter().enumerate() {
            match position.and_then(|position| position.wait_timeout(timeout.saturating_sub(begun.elapsed()))) {
                Ok(is_complete) => are_complete &= is_complete,
                Err(error) => failures.push((index, error)),
            }
        }
        if failures.is_empty() { Ok(are_complete) } else { Err(Failures(failures)) }
    }
}

debug_with_causes! { Failures }

impl core::fmt::Display for Failures {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let numbers: Vec<_> = self.0.iter().map(|(index, _)| *index).collect();
        write!(f, "streams {numbers:?} of the set failed")
    }
}

impl core::error::Error for Failures {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        self.0.first().map(|(_, error)| error as _)
    }
}

impl From<Failures> for Error {
    fn from(failures: Failures) -> Self {
        failures.into_first()
    }
}

impl Failures {
    /// Iterates over errors, with their streams' indices in [`StreamSet::iter`].
    pub fn iter(&self) -> impl Iterator<Item = (usize, &Error)> {
        self.0.iter().map(|(index, error)| (*index, error))
    }

    /// Returns the first error.
    #[must_use]
    pub fn into_first(self) -> Error {
        self.0.into_iter().next().map_or(Error::Closed { what: "stream" }, |(_, error)| error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::host::HostBackend;

    #[test]
    fn the_turn_counter_stays_within_the_streams() {
        let backend = HostBackend::builder().build().expect("a backend");
        let streams = StreamSet::new(&backend, 0, 3).expect("streams");
        for (index, expected) in streams.others.iter().enumerate().cycle().take(10) {
            assert_eq!(streams.turn.load(Relaxed), index as u32);
            assert_eq!(streams.next().id(), expected.id());
        }
    }
}
