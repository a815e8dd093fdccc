use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use ringmem::__file::{read_own, replace_own};
use ringmem::AbiHash;
use ringmem::shared::{Memory, UntypedConsumer, UntypedProducer};

use crate::{Error, RingType, Sink, Source};

fn identity(memory: &Memory) -> Result<u64, Error> {
    let facts = memory.as_fd().try_clone_to_owned().and_then(|fd| File::from(fd).metadata());
    let (inode, created) = facts.and_then(|facts| Ok((facts.ino(), facts.created()?))).map_err(Error::Identity)?;
    let created = created.duration_since(UNIX_EPOCH).unwrap_or_default();
    Ok(AbiHash::new().number(inode).number(created.as_secs()).number(created.subsec_nanos().into()).finish())
}

/// The consumer's end of a ring between processes. Unacknowledged messages stay in the ring for the next process.
pub struct SharedSource {
    end: UntypedConsumer,
    ring: RingType,
    stream: u64,
    taken: u64,
}

impl SharedSource {
    /// Opens the ring in the file at `path`, of any message type.
    ///
    /// # Errors
    ///
    /// [`Error::Ring`] if there is no ring or its consumer has an owner; [`Error::Identity`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        Self::new(&Memory::open(path)?)
    }

    /// Takes the consumer's end of `memory`.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open).
    pub fn new(memory: &Memory) -> Result<Self, Error> {
        let end = memory.untyped_consumer()?;
        let ring = RingType::untyped(end.message());
        Ok(Self { end, ring, stream: identity(memory)?, taken: 0 })
    }
}

impl Source for SharedSource {
    fn ring(&self) -> &RingType {
        &self.ring
    }

    fn stream(&self) -> u64 {
        self.stream
    }

    fn first(&self) -> u64 {
        self.end.head()
    }

    fn take(&mut self, most: usize, into: &mut Vec<u8>) -> Result<u32, Error> {
        let size = self.end.message().size;
        let available = self.end.refresh()?.saturating_sub(self.taken);
        let count = available.min((most / size).max(1) as u64).min(u32::MAX.into());
        let begin = into.len();
        into.resize(begin + count as usize * size, 0);
        let found = self.end.peek(self.taken, &mut into[begin..])?;
        into.truncate(begin + found as usize * size);
        self.taken += found;
        Ok(found as u32)
    }

    fn unreleased(&mut self) -> Result<u64, Error> {
        Ok(self.end.refresh()?)
    }

    fn seek(&mut self, count: u64) -> Result<bool, Error> {
        let found = count <= self.end.refresh()?;
        if found {
            self.taken = count;
        }
        Ok(found)
    }

    fn release(&mut self, count: u64) {
        let count = count.min(self.taken);
        self.end.release(count);
        self.taken -= count;
    }

    fn limit(&self) -> usize {
        self.end.capacity() as usize * self.end.message().size
    }
}

/// States have some hundred bytes.
const LONGEST_STATE: u64 = 64 << 10;

fn read_state(path: &Path) -> Result<Option<Vec<u8>>, Error> {
    read_own(path, LONGEST_STATE).map_err(|source| Error::State { action: "read", path: path.to_owned(), source })
}

/// The producer's end of a ring between processes.
pub struct SharedSink {
    end: UntypedProducer,
    ring: RingType,
    identity: u64,
    state: Option<PathBuf>,
}

impl SharedSink {
    /// Opens the ring in the file at `path`, of any message type. The file `path` with `.relay` appended keeps the state: some hundred bytes, written
    /// when the source changes. Only this user may read and write it.
    ///
    /// # Errors
    ///
    /// [`Error::Ring`] if there is no ring or its producer has an owner; [`Error::Identity`]; [`Error::State`] if the state is a link, no regular
    /// file, longer than 64 KiB, or another user's.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        let mut state = path.as_ref().as_os_str().to_owned();
        state.push(".relay");
        let state = PathBuf::from(state);
        // A state that cannot be read is an error before the end has an owner.
        read_state(&state)?;
        Ok(Self { state: Some(state), ..Self::new(&Memory::open(path)?)? })
    }

    /// Takes the producer's end of `memory`. Stores no state: after a restart the sequence begins at the source's first message.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open).
    pub fn new(memory: &Memory) -> Result<Self, Error> {
        let end = memory.untyped_producer()?;
        let ring = RingType::untyped(end.message());
        Ok(Self { end, ring, identity: identity(memory)?, state: None })
    }
}

impl Sink for SharedSink {
    fn ring(&self) -> &RingType {
        &self.ring
    }

    fn push(&mut self, messages: &[u8]) -> Result<(u64, usize), Error> {
        let count = self.end.push(messages)?;
        Ok((count, count as usize * self.end.message().size))
    }

    fn tail(&self) -> u64 {
        self.end.tail()
    }

    fn load(&self) -> Result<Option<Vec<u8>>, Error> {
        let Some(path) = &self.state else { return Ok(None) };
        let bytes = read_state(path)?;
        Ok(bytes.and_then(|bytes| bytes.strip_prefix(&self.identity.to_le_bytes()).map(<[u8]>::to_vec)))
    }

    fn save(&mut self, state: &[u8]) -> Result<(), Error> {
        let Some(path) = &self.state else { return Ok(()) };
        // Renamed when complete: a killed process leaves the old state or the new one.
        let written = replace_own(path, &[&self.identity.to_le_bytes(), state].concat());
        written.map_err(|source| Error::State { action: "write", path: path.clone(), source })
    }
}
