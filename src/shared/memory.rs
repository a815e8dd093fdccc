use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use ringmem_layouts::align::PAGE;
use ringmem_layouts::attach::AttachError;
use ringmem_layouts::region::{self, Plan, RegionEntry, kind};
use rustix::fs::{self, AtFlags, FallocateFlags, FileType, MemfdFlags, Mode, OFlags, SealFlags};
use rustix::io::{Errno, retry_on_intr};

use super::mapping::{Mapping, RingMemory};
use super::{Consumer, MessageFacts, OwnerState, Producer, Side, UntypedConsumer, UntypedProducer, liveness};
use crate::sys::file::set_length;
use crate::sys::path::folder_of;
use crate::{Error, HostWord, LAYOUTS, Result, RingLayout, RingMessage, set_hash};

/// Memory with one ring, which other processes map too.
///
/// Its [`AsFd`] descriptor is for [`from_fd`](Self::from_fd) in another process. It is closed on `exec`; a child inherits a duplicate.
///
/// ```
/// use ringmem::shared::{Memory, OwnerState, Side};
///
/// let memory = Memory::create::<u64>(64)?;
/// let mut producer = memory.producer::<u64>()?;
/// producer.push(7).unwrap();
/// assert_eq!((memory.state(Side::Producer), memory.state(Side::Consumer)), (OwnerState::Alive, OwnerState::NotYet));
/// assert_eq!(memory.indices(), (0, 1));
/// # Ok::<(), ringmem::Error>(())
/// ```
pub struct Memory {
    fd: OwnedFd,
    ring: RingMemory,
}

/// No other process can change size or seals.
const SEALS: [(SealFlags, &str); 3] =
    [(SealFlags::SHRINK, "F_SEAL_SHRINK"), (SealFlags::GROW, "F_SEAL_GROW"), (SealFlags::SEAL, "F_SEAL_SEAL")];

const UNSEALED: &str = "check of the memfd's seals";

/// The file system of memfds without huge pages.
const TMPFS: u64 = 0x0102_1994;

const PRIVATE: Mode = Mode::RUSR.union(Mode::WUSR);

fn uncreated(path: &Path, errno: Errno) -> Error {
    let answer = match errno {
        Errno::EXIST => io::Error::new(io::ErrorKind::AlreadyExists, "it exists: open it, or remove it"),
        _ => errno.into(),
    };
    Error::of_file("create", path, answer)
}

pub(super) fn failed(call: &'static str) -> impl Fn(Errno) -> Error {
    move |errno| Error::System { call, path: None, answer: errno.into() }
}

impl Memory {
    /// Creates a ring of `capacity` messages `T` in a sealed memfd.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] for a capacity that is too large or no power of two, [`Error::Align`] for a `T` aligned beyond 4096 bytes,
    /// [`Error::System`], also beyond the limit of a file's size (`ulimit -f`), [`Error::Map`].
    pub fn create<T: RingMessage>(capacity: u64) -> Result<Self> {
        Planned::new(MessageFacts::of::<T>(), align_of::<T>(), capacity)?.create()
    }

    /// Creates a ring of `capacity` messages `T` in a new private file with reserved blocks, complete once it appears (on file systems with
    /// `O_TMPFILE`).
    ///
    /// A process that shrinks it kills this one at the next access beyond its end (`SIGBUS`): permissions of file and directory must prevent that.
    ///
    /// # Errors
    ///
    /// As [`create`](Self::create), and [`Error::System`] if the file exists or the disk is full.
    pub fn create_at<T: RingMessage>(path: impl AsRef<Path>, capacity: u64) -> Result<Self> {
        Planned::new(MessageFacts::of::<T>(), align_of::<T>(), capacity)?.create_at(path.as_ref())
    }

    /// As [`create`](Self::create), for messages of which this program has no type.
    ///
    /// ```
    /// use ringmem::shared::{Memory, MessageFacts};
    ///
    /// // As another program describes its messages.
    /// let facts = MessageFacts::of::<[u32; 4]>();
    /// let memory = Memory::create_untyped(facts, 4, 64)?;
    /// memory.untyped_producer()?.push(&[1; 16]).expect("room");
    /// assert_eq!(memory.consumer::<[u32; 4]>()?.pop(), Ok([0x0101_0101; 4]));
    /// # Ok::<(), ringmem::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`create`](Self::create), and [`Error::Config`] for a size of 0, or an alignment that is no power of two or does not divide the size.
    pub fn create_untyped(message: MessageFacts, align: usize, capacity: u64) -> Result<Self> {
        Planned::new(message, align, capacity)?.create()
    }

    /// As [`create_at`](Self::create_at), for messages of which this program has no type.
    ///
    /// # Errors
    ///
    /// As [`create_untyped`](Self::create_untyped) and [`create_at`](Self::create_at).
    pub fn create_untyped_at(path: impl AsRef<Path>, message: MessageFacts, align: usize, capacity: u64) -> Result<Self> {
        Planned::new(message, align, capacity)?.create_at(path.as_ref())
    }

    /// Opens memory that another process formatted in a file, trusted as in [`create_at`](Self::create_at). A path to a memfd, such as
    /// `/proc/PID/fd/N`, requires seals.
    ///
    /// # Errors
    ///
    /// [`Error::System`], [`Error::Attach`] with the values found, [`Error::Map`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let failed = |errno| Error::of_file("open", path, errno);
        let fd = fs::open(path, OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY, Mode::empty()).map_err(failed)?;
        let stat = fs::fstat(&fd).map_err(failed)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(Error::of_file("open", path, io::Error::other("not a regular file")));
        }
        // A memfd, or a file that permissions closed to others.
        if stat.st_nlink == 0 {
            return Self::from_fd(fd);
        }
        Self::map(fd)
    }

    /// Opens memory that another process formatted in a memfd.
    ///
    /// # Errors
    ///
    /// [`Error::System`] without seals against shrinking, growing and further seals; [`Error::Unsupported`] for huge pages (`MFD_HUGETLB`);
    /// [`Error::Attach`] with the values found; [`Error::Map`].
    pub fn from_fd(fd: OwnedFd) -> Result<Self> {
        let seals = match fs::fcntl_get_seals(&fd) {
            Ok(seals) => seals,
            Err(Errno::INVAL) => SealFlags::empty(),
            Err(errno) => return Err(failed("fcntl(F_GET_SEALS)")(errno)),
        };
        let missing: Vec<_> = SEALS.into_iter().filter(|&(seal, _)| !seals.contains(seal)).map(|(_, name)| name).collect();
        if !missing.is_empty() {
            let answer = std::io::Error::other(std::format!("missing {}", missing.join(", ")));
            return Err(Error::System { call: UNSEALED, path: None, answer });
        }
        // A peer can punch holes despite the seals: tmpfs fills them at the next access, without a size limit under memfds. Huge pages raise SIGBUS
        // if their pool is empty; the handler belongs to the program.
        if fs::fstatfs(&fd).map_err(failed("fstatfs"))?.f_type as u64 != TMPFS {
            return Err(Error::Unsupported { what: "a shared ring in a memfd of huge pages" });
        }
        Self::map(fd)
    }

    fn map(fd: OwnedFd) -> Result<Self> {
        let stat = fs::fstat(&fd).map_err(failed("fstat"))?;
        let (least, len) = (Plan::new().size(), u64::try_from(stat.st_size).unwrap_or(0));
        if len < least {
            return Err(AttachError::TooSmall { needed: least, got: len }.into());
        }
        let mapping = Arc::new(Mapping::new(fd.as_fd(), len)?);
        // SAFETY: so many bytes are mapped, initialised by the kernel. The region consists of words, valid for any bytes.
        let entries = unsafe { region::entries::<HostWord>(mapping.place(), len, region_abi())? };
        let Some(entry) = entries.iter().find(|entry| entry.kind == kind::SHARED_RING) else {
            return Err(AttachError::Kind { expected: kind::SHARED_RING, got: entries.first().map_or(0, |entry| entry.kind) }.into());
        };
        let ring = RingMemory::new(mapping, entry)?;
        Ok(Self { fd, ring })
    }

    /// Takes the producer's end. Its lock is on the file opened again through `/proc/self/fd`: take the ends before dropping rights to the file.
    ///
    /// # Errors
    ///
    /// [`Error::Busy`] while it has an owner, [`Error::Attach`] for other messages or invalid indices, [`Error::System`] without `/proc` or without
    /// permission to read and write the file.
    pub fn producer<T: RingMessage>(&self) -> Result<Producer<T>> {
        Producer::new(self.fd.as_fd(), &self.ring)
    }

    /// Takes the consumer's end.
    ///
    /// # Errors
    ///
    /// As [`producer`](Self::producer).
    pub fn consumer<T: RingMessage>(&self) -> Result<Consumer<T>> {
        Consumer::new(self.fd.as_fd(), &self.ring)
    }

    /// Takes the producer's end, for messages as bytes.
    ///
    /// # Errors
    ///
    /// As [`producer`](Self::producer), for messages of any type.
    pub fn untyped_producer(&self) -> Result<UntypedProducer> {
        UntypedProducer::new(self.fd.as_fd(), &self.ring, None)
    }

    /// Takes the producer's end of a ring of these messages as bytes. Each slot is aligned to `align`.
    ///
    /// # Errors
    ///
    /// As [`producer`](Self::producer). An attempt that fails leaves the end's state and generation unchanged.
    pub fn untyped_producer_of(&self, message: MessageFacts, align: usize) -> Result<UntypedProducer> {
        UntypedProducer::new(self.fd.as_fd(), &self.ring, Some((message, align)))
    }

    /// Takes the consumer's end, for messages as bytes.
    ///
    /// # Errors
    ///
    /// As [`untyped_producer`](Self::untyped_producer).
    pub fn untyped_consumer(&self) -> Result<UntypedConsumer> {
        UntypedConsumer::new(self.fd.as_fd(), &self.ring, None)
    }

    /// Takes the consumer's end of a ring of these messages as bytes. Each slot is aligned to `align`.
    ///
    /// # Errors
    ///
    /// As [`untyped_producer_of`](Self::untyped_producer_of).
    pub fn untyped_consumer_of(&self, message: MessageFacts, align: usize) -> Result<UntypedConsumer> {
        UntypedConsumer::new(self.fd.as_fd(), &self.ring, Some((message, align)))
    }

    /// Returns the state of an end's owner, for an observer.
    #[must_use]
    pub fn state(&self, side: Side) -> OwnerState {
        liveness::owner_state(self.ring.header(), side, self.fd.as_fd()).1
    }

    /// Returns the number of an end's owners so far.
    #[must_use]
    pub fn generation(&self, side: Side) -> u64 {
        liveness::generation(self.ring.header(), side)
    }

    /// Returns the consumer's, then the producer's index, unchecked.
    #[must_use]
    pub fn indices(&self) -> (u64, u64) {
        use crate::Word;
        let header = self.ring.header();
        let head = header.consumer.head.load_acquire();
        (head, header.producer.tail.load_acquire())
    }
}

impl AsFd for Memory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

pub(super) const fn region_abi() -> u64 {
    set_hash(LAYOUTS)
}

/// A ring of messages, typed or untyped, before its memory exists.
struct Planned {
    message: MessageFacts,
    plan: Plan,
    layout: RingLayout,
    entry: RegionEntry<u64>,
}

impl Planned {
    fn new(message: MessageFacts, align: usize, capacity: u64) -> Result<Self> {
        let layout = RingLayout::of_size(message.size as u64, align as u64, capacity)?;
        // The next multiple of a larger alignment differs between processes.
        if layout.align() > PAGE {
            return Err(Error::Align { asked: layout.align(), most: PAGE });
        }
        let mut plan = Plan::new();
        let offset = plan.place(kind::SHARED_RING, layout.size(), layout.align())?;
        Ok(Self { message, plan, layout, entry: RegionEntry { kind: kind::SHARED_RING, offset, size: layout.size(), _reserved: 0 } })
    }

    fn create(&self) -> Result<Memory> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = match fs::memfd_create(c"ringmem", flags | MemfdFlags::NOEXEC_SEAL) {
            // Before Linux 6.3. Later systems may refuse executable memfds.
            Err(Errno::INVAL) => fs::memfd_create(c"ringmem", flags),
            made => made,
        };
        let fd = fd.map_err(failed("memfd_create"))?;
        set_length(&fd, self.plan.size()).map_err(failed("ftruncate"))?;
        let seals = SEALS.into_iter().fold(SealFlags::empty(), |seals, (seal, _)| seals | seal);
        fs::fcntl_add_seals(&fd, seals).map_err(failed("fcntl(F_ADD_SEALS)"))?;
        self.lay_out(fd)
    }

    fn create_at(&self, path: &Path) -> Result<Memory> {
        self.unnamed(path).unwrap_or_else(|| self.named(path))
    }

    /// Names the complete file. `None` where that is impossible.
    fn unnamed(&self, path: &Path) -> Option<Result<Memory>> {
        // Before its blocks are reserved.
        if fs::lstat(path).is_ok() {
            return Some(Err(uncreated(path, Errno::EXIST)));
        }
        let fd = fs::open(folder_of(path), OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC, PRIVATE).ok()?;
        let made = self.reserve(fd, path);
        let Ok(memory) = made else { return Some(made) };
        let unnamed = std::format!("/proc/self/fd/{}", memory.fd.as_raw_fd());
        match fs::linkat(fs::CWD, unnamed, fs::CWD, path, AtFlags::SYMLINK_FOLLOW) {
            Ok(()) => Some(Ok(memory)),
            Err(Errno::EXIST) => Some(Err(uncreated(path, Errno::EXIST))),
            Err(_) => None,
        }
    }

    fn named(&self, path: &Path) -> Result<Memory> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let fd = fs::open(path, flags, PRIVATE).map_err(|errno| uncreated(path, errno))?;
        self.reserve(fd, path).inspect_err(|_| {
            let _ = fs::unlink(path);
        })
    }

    fn reserve(&self, fd: OwnedFd, path: &Path) -> Result<Memory> {
        let wanted = self.plan.size();
        set_length(&fd, wanted).map_err(|errno| uncreated(path, errno))?;
        match retry_on_intr(|| fs::fallocate(&fd, FallocateFlags::empty(), 0, wanted)) {
            // Without reserved blocks, a full disk raises SIGBUS.
            Ok(()) | Err(Errno::OPNOTSUPP) => self.lay_out(fd),
            Err(errno) => {
                let answer = io::Error::from(errno);
                Err(Error::of_file("create", path, io::Error::new(answer.kind(), std::format!("{answer}: the ring takes {wanted} bytes"))))
            }
        }
    }

    fn lay_out(&self, fd: OwnedFd) -> Result<Memory> {
        let mapping = Arc::new(Mapping::new(fd.as_fd(), self.plan.size())?);
        let ring = RingMemory::new(Arc::clone(&mapping), &self.entry)?;
        // SAFETY: without a magic number, no process has attached. A process that writes anyway corrupts only its own messages.
        unsafe { ring.header().format_untyped(&self.layout, self.message.kind, self.message.abi, 0) };
        // SAFETY: the mapping has the plan's size, zeroed by the kernel; without a magic number, no other process has attached.
        unsafe { self.plan.write::<HostWord>(mapping.place(), mapping.len(), region_abi())? };
        Ok(Memory { fd, ring })
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory").field("fd", &self.fd).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_system_without_unnamed_files_has_rings() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ring");
        let planned = Planned::new(MessageFacts::of::<u64>(), 8, 4).unwrap();
        drop(planned.named(&path).unwrap());
        assert!(Memory::open(&path).unwrap().consumer::<u64>().is_ok());
        let error = planned.named(&path).map(drop).expect_err("it exists");
        assert!(error.to_string().ends_with(": it exists: open it, or remove it"), "{error}");
        assert!(path.exists());
    }

    #[test]
    fn a_sealed_memfd_of_huge_pages_is_rejected() {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let memfd = |more| {
            let fd = fs::memfd_create(c"huge", flags | more)?;
            fs::ftruncate(&fd, 1 << 30)?;
            SEALS.into_iter().try_for_each(|(seal, _)| fs::fcntl_add_seals(&fd, seal))?;
            Ok::<_, Errno>(fd)
        };
        assert!(matches!(Memory::from_fd(memfd(MemfdFlags::empty()).unwrap()), Err(Error::Attach(_))), "pages of the system's size");
        // Without huge pages, no peer can create such a memfd.
        let Ok(fd) = memfd(MemfdFlags::HUGETLB) else { return };
        let refused = Memory::from_fd(fd).err();
        assert!(matches!(refused, Some(Error::Unsupported { .. })), "{refused:?}");
    }

    #[test]
    fn a_hole_punched_by_a_peer_reads_as_zeros() {
        let memory = Memory::create::<u64>(4).unwrap();
        let (mut producer, mut consumer) = (memory.producer::<u64>().unwrap(), memory.consumer::<u64>().unwrap());
        producer.push(7).unwrap();
        assert_eq!(consumer.refresh(), Ok(1));
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fs::fallocate(&memory, flags, 0, fs::fstat(&memory).unwrap().st_size as u64).unwrap();
        assert_eq!((memory.indices(), consumer.pop()), ((0, 0), Ok(0)), "the index was seen before, the slot is a hole");
        assert!(producer.push(8).is_ok());
    }

    #[test]
    fn a_memfd_with_missing_seals_is_an_error_with_their_names() {
        let memfd = || {
            let fd = fs::memfd_create(c"unsealed", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
            fs::ftruncate(&fd, 1 << 16).unwrap();
            fd
        };
        for present in 0..8_usize {
            let fd = memfd();
            let mut missing = Vec::new();
            for (place, (seal, name)) in SEALS.into_iter().enumerate() {
                if present >> place & 1 == 1 {
                    fs::fcntl_add_seals(&fd, seal).unwrap();
                } else {
                    missing.push(name);
                }
            }
            match Memory::from_fd(fd) {
                Err(Error::System { call: UNSEALED, answer, .. }) => {
                    assert_eq!(answer.to_string(), std::format!("missing {}", missing.join(", ")));
                }
                Err(Error::Attach(AttachError::Magic { .. })) => assert!(missing.is_empty()),
                other => panic!("{present:03b}: {:?}", other.err()),
            }
        }
        let fd = memfd();
        let by_path = Memory::open(std::format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&fd))).err().unwrap().to_string();
        assert!(by_path.contains("F_SEAL_SHRINK"), "{by_path}");
    }
}
