use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

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

/// The producer's end of a ring between processes.
pub struct SharedSink {
    end: UntypedProducer,
    ring: RingType,
    identity: u64,
    state: Option<PathBuf>,
}

impl SharedSink {
    /// Opens the ring in the file at `path`, of any message type. The file `path` with `.relay` appended keeps the state: some hundred bytes, written
    /// when the source changes.
    ///
    /// # Errors
    ///
    /// [`Error::Ring`] if there is no ring or its producer has an owner; [`Error::Identity`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        let mut state = path.as_ref().as_os_str().to_owned();
        state.push(".relay");
        Ok(Self { state: Some(state.into()), ..Self::new(&Memory::open(path)?)? })
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
        match fs::read(path) {
            Ok(bytes) => Ok(bytes.strip_prefix(&self.identity.to_le_bytes()).map(<[u8]>::to_vec)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(Error::State { action: "read", path: path.clone(), source }),
        }
    }

    fn save(&mut self, state: &[u8]) -> Result<(), Error> {
        let Some(path) = &self.state else { return Ok(()) };
        let mut new = path.clone().into_os_string();
        new.push(".new");
        // Renamed when complete: a killed process leaves the old state or the new one.
        let written = File::create(&new)
            .and_then(|mut file| file.write_all(&self.identity.to_le_bytes()).and_then(|()| file.write_all(state)))
            .and_then(|()| fs::rename(&new, path));
        written.map_err(|source| Error::State { action: "write", path: path.clone(), source })
    }
}
