use std::fmt;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Acquire;
use std::sync::atomic::fence;

use ringmem_layouts::attach::AttachError;
use ringmem_layouts::region::{self, MAX_ENTRIES, Plan, RegionEntry, kind};
use ringmem_layouts::ring::owner;

use super::mapping::{Mapping, RingMemory};
use super::memory::region_abi;
use super::{OwnerState, Side, liveness, private_file};
use crate::dump::Indices;
use crate::{HostWord, RegionHeader, Result, Word};

/// The ring of a [`Memory`](super::Memory) in a file, mapped read-only; it occupies neither end of the ring.
///
/// A process of the same user that truncates the file meanwhile ends this one by `SIGBUS`.
///
/// ```
/// use ringmem::shared::{Memory, OwnerState, View};
///
/// # let folder = std::env::temp_dir().join(format!("ringmem-view-{}", std::process::id()));
/// # std::fs::create_dir_all(&folder).unwrap();
/// # let path = folder.join("ring");
/// let memory = Memory::create_at::<u64>(&path, 64)?;
/// let mut producer = memory.producer::<u64>()?;
/// producer.push(7).unwrap();
/// // In another process of the same user:
/// let view = View::open(&path)?;
/// let figures = view.read()?;
/// assert_eq!((figures.indices.fill(), figures.producer, figures.consumer), (Ok(1), (OwnerState::Alive, 1), (OwnerState::NotYet, 0)));
/// # std::fs::remove_dir_all(&folder).unwrap();
/// # Ok::<(), ringmem::Error>(())
/// ```
pub struct View {
    file: OwnedFd,
    len: u64,
    ring: RingMemory,
}

/// The figures of a ring, unchecked: a hostile file may contain any values.
///
/// ```
/// use ringmem::shared::{Memory, OwnerState, View};
///
/// # let folder = std::env::temp_dir().join(format!("ringmem-figures-{}", std::process::id()));
/// # std::fs::create_dir_all(&folder).unwrap();
/// # let path = folder.join("ring");
/// let memory = Memory::create_at::<u64>(&path, 64)?;
/// drop(memory.consumer::<u64>()?);
/// let figures = View::open(&path)?.read()?;
/// assert_eq!((figures.slot_size, figures.indices.capacity), (8, 64));
/// assert_eq!(figures.consumer, (OwnerState::Left, 1)); // one owner so far
/// # std::fs::remove_dir_all(&folder).unwrap();
/// # Ok::<(), ringmem::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Figures {
    /// Consumer's and producer's index, and the capacity.
    pub indices: Indices,
    /// Size of a slot in bytes.
    pub slot_size: u64,
    /// State of the producer's owner, and the number of owners so far.
    pub producer: (OwnerState, u64),
    /// The same of the consumer.
    pub consumer: (OwnerState, u64),
}

impl View {
    /// Maps a file's region, without following symbolic links.
    ///
    /// # Errors
    ///
    /// [`Error::System`](crate::Error::System) if it cannot be opened, is no regular file, or another user owns it or has access;
    /// [`Error::Attach`](crate::Error::Attach) with the values found; [`Error::Map`](crate::Error::Map).
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let (file, len) = private_file::open(path.as_ref())?;
        let needed = Plan::new().size();
        if len < needed {
            return Err(AttachError::TooSmall { needed, got: len }.into());
        }
        let mapping = Arc::new(Mapping::read_only(file.as_fd(), len)?);
        let entry = entry(&mapping)?;
        let ring = RingMemory::new(mapping, &entry)?;
        Ok(Self { file, len, ring })
    }

    /// Reads the figures.
    ///
    /// # Errors
    ///
    /// [`Error::Attach`](crate::Error::Attach) for a truncated file.
    pub fn read(&self) -> Result<Figures> {
        let got = private_file::len(&self.file);
        if got < self.len {
            return Err(AttachError::TooSmall { needed: self.len, got }.into());
        }
        let header = self.ring.header();
        let [capacity, slot_size, mut head] =
            [&header.constants.capacity, &header.constants.slot_size, &header.consumer.head].map(Word::load);
        fence(Acquire);
        let tail = Word::load(&header.producer.tail);
        if tail.wrapping_sub(head) > capacity {
            // The consumer may have popped meanwhile.
            fence(Acquire);
            head = Word::load(&header.consumer.head);
        }
        let owner = |side: Side| {
            let (word, state) = liveness::owner_state_by(|| Word::load(side.owner(header)), side, self.file.as_fd());
            (state, owner::generation(word))
        };
        let (producer, consumer) = (owner(Side::Producer), owner(Side::Consumer));
        Ok(Figures { indices: Indices { head, tail, capacity }, slot_size, producer, consumer })
    }
}

/// As [`region::entries`], with relaxed loads, for the first shared ring.
fn entry(mapping: &Mapping) -> Result<RegionEntry<u64>, AttachError> {
    // SAFETY: at least the table is mapped, at a page's start. It consists of words, valid for any bytes.
    let header = unsafe { mapping.place().cast::<RegionHeader<HostWord>>().as_ref() };
    // SAFETY: the entries follow the header, within the table, which is mapped; they consist of words, valid for any bytes.
    let table: &[RegionEntry<HostWord>; MAX_ENTRIES] = unsafe { mapping.place().add(size_of::<RegionHeader<HostWord>>()).cast().as_ref() };
    let magic = Word::load(&header.magic);
    // SYNC POINT: region seen. Pairs with Plan::write.
    fence(Acquire);
    let [version, abi, count] = [&header.version, &header.abi, &header.count].map(Word::load);
    if magic != region::MAGIC {
        return Err(AttachError::Magic { expected: region::MAGIC, got: magic });
    }
    if version != region::VERSION {
        return Err(AttachError::Version { expected: region::VERSION, got: version });
    }
    if abi != region_abi() {
        return Err(AttachError::Abi { expected: region_abi(), got: abi });
    }
    if count > MAX_ENTRIES as u64 {
        return Err(AttachError::Count { got: count });
    }
    let entries = table.iter().take(count as usize).map(|entry| {
        let [kind, offset, size, _reserved] = [&entry.kind, &entry.offset, &entry.size, &entry._reserved].map(Word::load);
        RegionEntry { kind, offset, size, _reserved }
    });
    let mut first = 0;
    let found = entries
        .inspect(|entry| {
            if first == 0 {
                first = entry.kind
            }
        })
        .find(|entry| entry.kind == kind::SHARED_RING);
    found.ok_or(AttachError::Kind { expected: kind::SHARED_RING, got: first })
}

impl fmt::Debug for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("View").field("file", &self.file).finish_non_exhaustive()
    }
}
