//! [`Report`]: what is out, as data and as text.

use core::cmp::Reverse;
use core::fmt;
use core::panic::Location;
use core::time::Duration;
use std::backtrace::Backtrace;
use std::collections::HashMap;
use std::sync::Arc;
use std::vec::Vec;

use crate::backend::{MemoryLocation, StreamId};

/// A block that has not come back.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Leak {
    /// Blocks are numbered as they are given, from 1.
    pub number: u64,
    /// The buffer's name in its [`MemoryManager`](crate::manager::MemoryManager); for other blocks the name given to [`Tracked::named`](super::Tracked::named).
    pub name: Option<Arc<str>>,
    /// Bytes, as asked for.
    pub bytes: u64,
    /// To what it is aligned, in bytes.
    pub align: u64,
    /// Where it is.
    pub location: MemoryLocation,
    /// Its address for kernels, or for the host where no kernel sees it.
    pub address: u64,
    /// The stream in whose order it was allocated.
    pub stream: Option<StreamId>,
    /// The line that allocated it, or that created the value that allocated it.
    pub caller: &'static Location<'static>,
    /// How long ago that was.
    pub age: Duration,
    /// The calls that led there, if [asked for](super::Tracked::backtraces).
    pub backtrace: Option<Arc<Backtrace>>,
}

/// All blocks of a name that have not come back.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Named {
    /// `None` for all that have no name.
    pub name: Option<Arc<str>>,
    /// How many they are.
    pub blocks: u64,
    /// Their bytes together.
    pub bytes: u64,
}

/// What has not come back, the largest first.
///
/// As text it has a line with the sums, then one for each size, name and place, those first that have the most bytes together:
///
/// ```text
/// 1002 blocks have not come back, 4000000300 bytes; at most 4000001000 were out
/// 1000 x 4000000 bytes "frame", Device, by src/main.rs:12:20, the oldest number 1, 1.5s ago
/// 200 bytes, Pinned on stream 3, by src/main.rs:40:9, number 1007, 40ms ago
/// 100 bytes "positions", Device, by src/main.rs:44:9, number 1008, 20ms ago
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Report {
    /// The blocks, by their bytes; of equal ones the oldest first.
    pub leaks: Vec<Leak>,
    /// Their bytes together.
    pub bytes: u64,
    /// The most bytes that were out at once.
    pub peak: u64,
}

impl Report {
    pub(super) fn of(mut leaks: Vec<Leak>, peak: u64) -> Self {
        leaks.sort_unstable_by_key(|leak| (Reverse(leak.bytes), leak.number));
        let bytes = leaks.iter().map(|leak| leak.bytes).sum();
        Self { leaks, bytes, peak }
    }

    /// Whether nothing is out.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.leaks.is_empty()
    }

    /// The sums of each name, those first that have the most bytes.
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

/// Blocks that differ in number and age alone.
struct Group<'a> {
    blocks: u64,
    oldest: &'a Leak,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { leaks, bytes, peak } = self;
        match leaks.len() {
            0 => return write!(f, "every block has come back; at most {peak} bytes were out"),
            1 => f.write_str("1 block has")?,
            blocks => write!(f, "{blocks} blocks have")?,
        }
        write!(f, " not come back, {bytes} bytes; at most {peak} were out")?;
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
        write!(f, ", by {caller}, {oldest}number {number}, {age:?} ago")?;
        match backtrace {
            Some(backtrace) => write!(f, "\n{backtrace}"),
            None => Ok(()),
        }
    }
}
