use core::fmt;
use std::sync::Arc;
use std::vec::Vec;

use ringmem_layouts::image::LANES;

use super::faults::Faults;
use super::inner::Inner;
use super::link::Link;
use super::pinned::{host_memory, pinned_budget};
use super::{Clock, HostBackend};
use crate::backend::Capabilities;
use crate::{Error, Result};

const DEVICES: u32 = 64;

/// The configuration of a host backend.
///
/// ```
/// use ringmem::backend::Backend;
/// use ringmem::backend::host::HostBackend;
///
/// let backend = HostBackend::builder().devices(2).device_memory(64 << 20).peer(0, 1).log(true).build()?;
/// assert_eq!(backend.devices(), 2);
/// # Ok::<(), ringmem::Error>(())
/// ```
#[derive(Clone)]
#[must_use]
pub struct Builder {
    /// If they differ; else `devices` have `device_memory`.
    pub(super) memories: Vec<u64>,
    device_memory: u64,
    devices: u32,
    pub(super) capabilities: Capabilities,
    pub(super) peers: Vec<(u32, u32)>,
    pub(super) faults: Option<Faults>,
    pub(super) log: bool,
    pub(super) link: Option<Link>,
    pub(super) clock: Option<Clock>,
    pub(super) page: u64,
    pinned_budget: Option<u64>,
    host_memory: Option<u64>,
    pub(super) knows_memory: bool,
    pub(super) poisons: bool,
    resident_groups: Option<u32>,
    pub(super) thread_per_lane: bool,
}

impl Builder {
    pub(super) const fn new() -> Self {
        Self {
            memories: Vec::new(),
            device_memory: 256 << 20,
            devices: 1,
            capabilities: Capabilities {
                unified: true,
                concurrent_managed_access: true,
                system_scope: true,
                host_native_atomics: true,
                shared_memory: false,
                stream_ordered: false,
                largest_align: super::arena::ALIGN,
                mapping_granularity: if cfg!(target_os = "linux") { Some(super::arena::ALIGN) } else { None },
                peers: Vec::new(),
            },
            peers: Vec::new(),
            faults: None,
            log: false,
            link: None,
            clock: None,
            page: 64 << 10,
            pinned_budget: None,
            host_memory: None,
            knows_memory: true,
            poisons: true,
            resident_groups: None,
            thread_per_lane: false,
        }
    }

    /// Sets the bytes of each device, committed on first access; default 256 MiB.
    pub const fn device_memory(mut self, bytes: u64) -> Self {
        self.device_memory = bytes;
        self
    }

    /// Sets the number of devices, at most 64; default 1.
    pub const fn devices(mut self, devices: u32) -> Self {
        self.devices = devices;
        self
    }

    /// Sets one device per element, with that many bytes.
    pub fn device_memories(mut self, bytes: impl IntoIterator<Item = u64>) -> Self {
        self.memories = bytes.into_iter().collect();
        self
    }

    /// Sets the blocks that a launch may have: each is a thread, as all of them run at once. Default 4096. If [each lane](Self::thread_per_lane) is a
    /// thread, it is the number of their warps, and 128 by default. If the system has fewer threads, the launch fails at execution; beyond the limits of the
    /// process, its runtime may abort.
    pub const fn resident_groups(mut self, groups: u32) -> Self {
        self.resident_groups = Some(groups);
        self
    }

    /// Sets whether each of the 32 lanes of a warp is a thread; default false: one thread acts as all warps of a block. It is for tests of kernels that depend
    /// on the number of lanes, and slow: at each exchange between lanes, their threads wait for each other. Kernels over buffers have no lanes, and an
    /// [`Entry`](ringmem_layouts::image::Entry) that is not of `kernels!` runs on one thread.
    pub const fn thread_per_lane(mut self, threads: bool) -> Self {
        self.thread_per_lane = threads;
        self
    }

    /// Lets device `from` access the memory of device `to`; default none.
    pub fn peer(mut self, from: u32, to: u32) -> Self {
        self.peers.push((from, to));
        self
    }

    /// Sets the calls that fail, and [counts calls](HostBackend::calls).
    pub fn faults(mut self, faults: Faults) -> Self {
        self.faults = Some(faults);
        self
    }

    /// Enables the [log](HostBackend::call_log), at a lock and about 100 bytes per call; default off.
    pub const fn log(mut self, log: bool) -> Self {
        self.log = log;
        self
    }

    /// Sets a link whose time is modelled.
    pub fn link(mut self, link: Link) -> Self {
        self.link = Some(link);
        self
    }

    /// Sets the clock in ns, which must not call the backend; default: time since building.
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Sets the page size of managed memory; default 64 KiB.
    pub const fn page_size(mut self, bytes: u64) -> Self {
        self.page = bytes;
        self
    }

    /// Sets the bytes that may be pinned at once; default: [`pinned_budget`] of the memory.
    pub const fn pinned_budget(mut self, bytes: u64) -> Self {
        self.pinned_budget = Some(bytes);
        self
    }

    /// Sets the machine's memory for the default [`pinned_budget`](Self::pinned_budget); default: the system's.
    pub const fn host_memory(mut self, bytes: u64) -> Self {
        self.host_memory = Some(bytes);
        self
    }

    /// Sets whether devices have managed memory; default true.
    pub const fn unified(mut self, unified: bool) -> Self {
        self.capabilities.unified = unified;
        self
    }

    /// Sets [`concurrent_managed_access`](Capabilities::concurrent_managed_access); default true.
    pub const fn concurrent_managed_access(mut self, concurrent: bool) -> Self {
        self.capabilities.concurrent_managed_access = concurrent;
        self
    }

    /// Sets the reported [`system_scope`](Capabilities::system_scope); default true; stores are always visible.
    pub const fn system_scope(mut self, system_scope: bool) -> Self {
        self.capabilities.system_scope = system_scope;
        self
    }

    /// Sets the reported [`host_native_atomics`](Capabilities::host_native_atomics); default true; they always are.
    pub const fn host_native_atomics(mut self, native: bool) -> Self {
        self.capabilities.host_native_atomics = native;
        self
    }

    /// Sets whether managed pages never migrate; default false.
    pub const fn shared_memory(mut self, shared: bool) -> Self {
        self.capabilities.shared_memory = shared;
        self
    }

    /// Sets the [unit of mapped memory](Capabilities::mapping_granularity), a power of two from the system's page to 2 MiB, or `None` for devices without
    /// [address ranges](crate::backend::AddressRange); default 2 MiB on Linux, else `None`.
    pub const fn mapping_granularity(mut self, bytes: Option<u64>) -> Self {
        self.capabilities.mapping_granularity = bytes;
        self
    }

    /// Sets whether device memory is [overwritten](super::POISON) when it is allocated and freed; default true. Otherwise its bytes are unspecified, and
    /// those that are never accessed take no memory of this machine: an allocator can be tried with devices of 1 TiB.
    pub const fn poison(mut self, poisons: bool) -> Self {
        self.poisons = poisons;
        self
    }

    /// Sets whether `memory_info` is unknown; default false.
    pub const fn unknown_memory_info(mut self, unknown: bool) -> Self {
        self.knows_memory = !unknown;
        self
    }

    /// Builds the backend.
    ///
    /// # Errors
    ///
    /// [`Size`](crate::Error::Size) for a memory or page size of 0 or above 1 TiB, or above 64 devices;
    /// [`Align`](crate::Error::Align) for a granularity; [`NoDevice`](crate::Error::NoDevice) for none, or an unknown peer; [`Map`](crate::Error::Map) for the
    /// memory; [`Config`](crate::Error::Config) unless each rate of the [`Link`] is positive.
    pub fn build(mut self) -> Result<Arc<HostBackend>> {
        let devices = if self.memories.is_empty() { self.devices } else { u32::try_from(self.memories.len()).unwrap_or(u32::MAX) };
        if devices > DEVICES {
            return Err(Error::Size { what: "number of devices", asked: devices.into(), least: 1, most: DEVICES.into() });
        }
        self.link.as_ref().map_or(Ok(()), Link::check)?;
        if self.memories.is_empty() {
            self.memories = (0..self.devices).map(|_| self.device_memory).collect();
        }
        Ok(Arc::new(HostBackend { inner: Arc::new(Inner::new(&self)?) }))
    }

    pub(super) fn most_groups(&self) -> u32 {
        self.resident_groups.unwrap_or(if self.thread_per_lane { 4096 / LANES as u32 } else { 4096 })
    }

    pub(super) fn budget(&self) -> u64 {
        self.pinned_budget.unwrap_or_else(|| pinned_budget(self.host_memory.or_else(host_memory)))
    }
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("devices", &self.devices)
            .field("device_memory", &self.device_memory)
            .field("memories", &self.memories)
            .field("capabilities", &self.capabilities)
            .field("peers", &self.peers)
            .field("faults", &self.faults)
            .field("log", &self.log)
            .field("link", &self.link)
            .finish_non_exhaustive()
    }
}
