//! [`Report`] and [`Leak`].

use core::cmp::Reverse;
use core::fmt;
use core::panic::Location;
use core::time::Duration;
use std::backtrace::Backtrace;
use std::collections::HashMap;
use std::sync::Arc;
use std::vec::Vec;

use crate::backend::{MemoryLocation, StreamId};

/// A live block.
///
/// ```
/// use ringmem::backend::host::HostBackend;
/// use ringmem::memory::{Buffer, Device, Tracked};
///
/// let backend = HostBackend::builder().build()?;
/// let memory = Tracked::new(Device::new(&backend, 0));
/// let _live = Buffer::<u8, _>::new(memory.named("positions"), 100)?;
/// let leak = &memory.leaks()[0];
/// assert_eq!((leak.name.as_deref(), leak.bytes), (Some("positions"), 100));
/// println!("{} bytes, allocated at {}", leak.bytes, leak.caller);
/// # Ok::<(), ringmem::Error>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Leak {
    /// Number of the allocation, from 1.
    pub number: u64,
    /// Name in its [`MemoryManager`](crate::manager::MemoryManager), else of [`Tracked::named`](super::Tracked::named).
    pub name: Option<Arc<str>>,
    /// Requested bytes.
    pub bytes: u64,
    /// Alignment in bytes.
    pub align: u64,
    /// Location.
    pub location: MemoryLocation,
    /// Host address, or device address without host access.
    pub address: u64,
    /// Stream, if stream-ordered.
    pub stream: Option<StreamId>,
    /// Line that allocated it, or created its owner.
    pub caller: &'static Location<'static>,
    /// Time since the allocation.
    pub age: Duration,
    /// Backtrace, if [enabled](super::Tracked::backtraces).
    pub backtrace: Option<Arc<Backtrace>>,
}

/// The live blocks of one name.
///
/// ```
/// use ringmem::backend::host::HostBackend;
/// use ringmem::memory::{Buffer, Device, Tracked};
///
/// let backend = HostBackend::builder().build()?;
/// let memory = Tracked::new(Device::new(&backend, 0));
/// let frames = memory.named("frame");
/// let live = [Buffer::<u8, _>::new(frames.clone(), 100)?, Buffer::new(frames, 300)?];
/// let names = memory.report().names();
/// assert_eq!((names[0].name.as_deref(), names[0].blocks, names[0].bytes), (Some("frame"), 2, 400));
/// # drop(live);
/// # Ok::<(), ringmem::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Named {
    /// `None` for unnamed blocks.
    pub name: Option<Arc<str>>,
    /// Number of blocks.
    pub blocks: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// The live blocks, largest first.
///
/// The text has a line of sums, then one per size, name and source line, by total bytes:
///
/// ```text
/// 1002 live blocks, 4000000300 bytes; peak 4000001000 bytes
/// 1000 x 4000000 bytes "frame", Device, by src/main.rs:12:20, the oldest number 1, 1.5s ago
/// 200 bytes, Pinned on stream 3, by src/main.rs:40:9, number 1007, 40ms ago
/// 100 bytes "positions", Device, by src/main.rs:44:9, number 1008, 20ms ago
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Report {
    /// By descending bytes; of equal ones, oldest first.
    pub leaks: Vec<Leak>,
    /// Their bytes.
    pub bytes: u64,
    /// High-water mark of live bytes.
    pub peak: u64,
}

impl Report {
    pub(super) fn of(mut leaks: Vec<Leak>, peak: u64) -> Self {
        leaks.sort_unstable_by_key(|leak| (Reverse(leak.bytes), leak.number));
        let bytes = leaks.iter().map(|leak| leak.bytes).sum();
        Self { leaks, bytes, peak }
    }

    /// Returns true without live blocks.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.leaks.is_empty()
    }

    /// Returns the sums by name, by descending bytes.
    #[must_use]
    pub fn names(&self) -> Vec<Named> {
        let mut sums = HashMap::<_, (u64, u64)>::new();
        for leak in &self.leaks {
            let (blocks, bytes) = sums.entry(leak.name.as_ref()).or_default();
            *blocks += 1;
            *bytes += leak.bytes;
        }
        let named = |(name, (blocks, bytes)): (Option<&Arc<str>>, _)| Named { name: name.cloned(), blocks, bytes };
        let mut names: Vec<Named> = sums.into_iter().map(named).collect();
        names.sort_unstable_by(|one, other| other.bytes.cmp(&one.bytes).then_with(|| one.name.cmp(&other.name)));
        names
    }

    fn groups(&self) -> Vec<Group<'_>> {
        let mut groups = Vec::<Group<'_>>::new();
        let mut known = HashMap::new();
        for leak in &self.leaks {
            let index = *known.entry((leak.bytes, &leak.name, leak.location, leak.stream, leak.caller)).or_insert(groups.len());
            match groups.get_mut(index) {
                Some(group) => group.blocks += 1,
                None => groups.push(Group { blocks: 1, oldest: leak }),
            }
        }
        groups.sort_by_key(|group| Reverse(u128::from(group.blocks) * u128::from(group.oldest.bytes)));
        groups
    }
}

/// Blocks that differ only in number and age.
struct Group<'a> {
    blocks: u64,
    oldest: &'a Leak,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { leaks, bytes, peak } = self;
        match leaks.len() {
            0 => return write!(f, "no live blocks; peak {peak} bytes"),
            1 => f.write_str("1 live block")?,
            blocks => write!(f, "{blocks} live blocks")?,
        }
        write!(f, ", {bytes} bytes; peak {peak} bytes")?;
        self.groups().iter().try_for_each(|group| write!(f, "\n{group}"))
    }
}

impl fmt::Display for Group<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { blocks, oldest: Leak { number, name, bytes, location, stream, caller, age, backtrace, .. } } = self;
        if *blocks > 1 {
            write!(f, "{blocks} x ")?;
        }
        write!(f, "{bytes} bytes")?;
        if let Some(name) = name {
            write!(f, " {name:?}")?;
        }
        write!(f, ", {location:?}")?;
        if let Some(stream) = stream {
            write!(f, " on stream {}", stream.get())?;
        }
        let oldest = if *blocks > 1 { "the oldest " } else { "" };
        write!(f, ", by {caller}, {oldest}number {number}, ")?;
        if age.is_zero() {
            f.write_str("less than 10 ms ago")?
        } else {
            write!(f, "{age:?} ago")?
        }
        match backtrace {
            Some(backtrace) => write!(f, "\n{backtrace}"),
            None => Ok(()),
        }
    }
}
