//! [`Streams`]: the streams of C callers, by their handles.
//!
//! | handle | CUDA | simulated devices |
//! |---|---|---|
//! | 0 | the legacy default stream of the device | a stream of the device that the library opens |
//! | of [`create`](Streams::create) | the driver's handle of a stream that the library owns | the number of such a stream |
//! | another | a stream of the caller, adopted at its first use | unknown: an error; where [any handle](Streams::with_any_handle) is one, opened at its first use |
//!
//! An adopted stream is used for positions and waits, never for other operations: see [`Backend::record_position`]. An event that stands for a position is
//! recorded when something asks for it, perhaps long after the call. So a caller that destroys such a stream [forgets](Streams::forget) it first.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};

use ringmem::__process::Process;
use ringmem::backend::cuda::CudaBackend;
use ringmem::backend::host::HostBackend;
use ringmem::backend::{Backend, StreamId};

use crate::status::{Failure, Status};

/// The handle of a stream, as a number.
pub(crate) type Raw = usize;

pub(crate) struct Streams {
    backend: AnyBackend,
    process: Process,
    has_any_handle: bool,
    known: RwLock<HashMap<(u32, Raw), Known, foldhash::fast::RandomState>>,
    listeners: Mutex<Vec<Weak<dyn Listener>>>,
}

pub(crate) enum AnyBackend {
    Cuda(Arc<CudaBackend>),
    Simulated(Arc<HostBackend>),
}

/// Learns of each stream of a device that is forgotten: it may have memory for it.
pub(crate) trait Listener: Send + Sync {
    fn device(&self) -> u32;

    /// All work of the stream is complete.
    fn stream_is_forgotten(&self, stream: StreamId);
}

#[derive(Clone, Copy)]
struct Known {
    id: StreamId,
    is_created: bool,
}

impl Streams {
    pub fn new(backend: AnyBackend) -> Self {
        Self { backend, process: Process::this(), has_any_handle: false, known: RwLock::default(), listeners: Mutex::default() }
    }

    /// Takes each handle for a stream of simulated devices: those of a program whose other calls are not simulated.
    pub fn with_any_handle(mut self) -> Self {
        self.has_any_handle = true;
        self
    }

    pub fn backend(&self) -> Arc<dyn Backend> {
        match &self.backend {
            AnyBackend::Cuda(backend) => Arc::clone(backend).erased(),
            AnyBackend::Simulated(backend) => Arc::clone(backend).erased(),
        }
    }

    /// The legacy default stream of CUDA has two handles, 0 and 1.
    const fn without_alias(&self, raw: Raw) -> Raw {
        if matches!(self.backend, AnyBackend::Cuda(_)) && raw == 1 { 0 } else { raw }
    }

    /// Returns the backend's number of a stream.
    ///
    /// # Safety
    ///
    /// The handle is 0, 1, of [`create`](Self::create), or of a stream of the device's primary context that lives until it is forgotten.
    pub unsafe fn id(&self, device: u32, raw: Raw) -> Result<StreamId, Failure> {
        self.check_process()?;
        let raw = self.without_alias(raw);
        if let Some(known) = self.known.read().unwrap_or_else(PoisonError::into_inner).get(&(device, raw)) {
            return Ok(known.id);
        }
        let backend = self.backend();
        backend.capabilities(device)?;
        let mut table = self.known.write().unwrap_or_else(PoisonError::into_inner);
        // Another thread may have been first.
        if let Some(known) = table.get(&(device, raw)) {
            return Ok(known.id);
        }
        let id = match &self.backend {
            AnyBackend::Cuda(backend) if raw == 0 => backend.adopt_default_stream(device)?,
            AnyBackend::Cuda(backend) => {
                let handle = core::ptr::without_provenance_mut(raw);
                // SAFETY: the stream lives until it is forgotten, which closes the adoption.
                unsafe { backend.adopt_raw_stream(device, handle, Box::new(())) }?
            }
            AnyBackend::Simulated(backend) if raw == 0 || self.has_any_handle => backend.open_stream(device)?,
            AnyBackend::Simulated(_) => {
                let text = format!("no stream {raw:#x} of simulated device {device}: create it with `ringmem_stream_create`");
                return Err(Failure::new(Status::Invalid, text));
            }
        };
        table.insert((device, raw), Known { id, is_created: false });
        Ok(id)
    }

    /// Opens a stream of a device; returns its handle.
    pub fn create(&self, device: u32) -> Result<Raw, Failure> {
        self.check_process()?;
        let id = self.backend().open_stream(device)?;
        let raw = match &self.backend {
            AnyBackend::Cuda(backend) => backend.raw_stream(id)?.addr(),
            AnyBackend::Simulated(_) => id.get() as Raw,
        };
        let mut table = self.known.write().unwrap_or_else(PoisonError::into_inner);
        table.insert((device, raw), Known { id, is_created: true });
        Ok(raw)
    }

    /// Returns the number of a stream, if it was created here.
    pub fn created(&self, device: u32, raw: Raw) -> Result<Option<StreamId>, Failure> {
        self.check_process()?;
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner).get(&(device, raw)).copied();
        Ok(known.filter(|known| known.is_created).map(|known| known.id))
    }

    /// Adds a listener for as long as it lives.
    pub fn add_listener(&self, listener: Weak<dyn Listener>) {
        let mut listeners = self.listeners.lock().unwrap_or_else(PoisonError::into_inner);
        listeners.retain(|other| other.strong_count() > 0);
        listeners.push(listener);
    }

    /// Waits for a stream's work, and removes it from all tables: its handle may stand for another stream then. Closes it if it was created here; an adopted
    /// stream that nothing has used is no error.
    ///
    /// The order matters. Until the work is complete, the stream stays in the tables: a free meanwhile still gets a position in it. From the close on, a
    /// position in it is an error, which means that there is nothing to wait for. If the work's completion cannot be seen, nothing is forgotten.
    pub fn forget(&self, device: u32, raw: Raw, is_created: bool) -> Result<(), Failure> {
        self.check_process()?;
        let raw = self.without_alias(raw);
        let invalid = |text: String| Err(Failure::new(Status::Invalid, text));
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner).get(&(device, raw)).copied();
        let id = match known {
            Some(known) if known.is_created == is_created => known.id,
            None if !is_created => return Ok(()),
            Some(_) if is_created => return invalid(format!("stream {raw:#x} was not created here")),
            Some(_) => return invalid(format!("stream {raw:#x} was created here: destroy it")),
            None => return invalid(format!("no stream {raw:#x} of device {device}")),
        };
        let backend = self.backend();
        let position = backend.record_position(id)?;
        let outcome = backend.synchronize(id);
        if !backend.is_complete(position) {
            return Err(outcome.err().map_or_else(|| Failure::new(Status::Busy, "the stream's work is not complete"), Failure::from));
        }
        // No pool may begin to use the stream between these two.
        self.known.write().unwrap_or_else(PoisonError::into_inner).remove(&(device, raw));
        let listeners = self.listeners.lock().unwrap_or_else(PoisonError::into_inner).clone();
        listeners
            .iter()
            .filter_map(Weak::upgrade)
            .filter(|listener| listener.device() == device)
            .for_each(|listener| listener.stream_is_forgotten(id));
        backend.close_stream(id);
        // A free of a block with many streams may have made this one wait for others. From the close on, none does. `Closed`: all is complete.
        let _ = backend.synchronize(id);
        Ok(outcome?)
    }

    /// Returns the streams of a device in use.
    pub fn all(&self, device: u32) -> Vec<StreamId> {
        let table = self.known.read().unwrap_or_else(PoisonError::into_inner);
        table.iter().filter(|((of, _), _)| *of == device).map(|(_, known)| known.id).collect()
    }

    /// In a forked process, a lock may be held by a thread that does not exist there.
    fn check_process(&self) -> Result<(), Failure> {
        if self.process.is_this() {
            return Ok(());
        }
        Err(Failure::new(Status::Unsupported, "the devices belong to the parent process: after a fork, open others"))
    }

    /// Frees the memory that the driver's own pool keeps idle.
    pub fn trim(&self, device: u32) {
        if let AnyBackend::Cuda(backend) = &self.backend {
            // While a kernel of this library runs, it stays.
            let _ = backend.trim(device);
        }
    }

    /// Lets a device access the memory of another, also memory that is mapped later.
    pub fn enable_peer(&self, device: u32, peer: u32) -> Result<(), Failure> {
        self.check_process()?;
        Ok(self.backend().set_peer(device, peer, true)?)
    }
}

impl Drop for Streams {
    fn drop(&mut self) {
        let backend = self.backend();
        for known in self.known.get_mut().unwrap_or_else(PoisonError::into_inner).values() {
            backend.close_stream(known.id);
        }
    }
}
