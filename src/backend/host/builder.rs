//! [`Builder`]: what a host backend will be.

use core::fmt;
use std::sync::Arc;
use std::vec::Vec;

use super::faults::Faults;
use super::link::Link;
use super::pinned::{host_memory, pinned_budget};
use super::shared::Shared;
use super::{Clock, HostBackend};
use crate::backend::Capabilities;
use crate::{Error, Result};

/// More devices than any machine has.
const DEVICES: u32 = 64;

/// What a host backend will be.
#[derive(Clone)]
#[must_use]
pub struct Builder {
    /// Each device's memory, where they differ; else so many have `device_memory`.
    pub(super) memories: Vec<u64>,
    device_memory: u64,
    devices: u32,
    /// Of every device, but for the peers.
    pub(super) capabilities: Capabilities,
    pub(super) peers: Vec<(u32, u32)>,
    /// None for nobody asks.
    pub(super) faults: Option<Faults>,
    pub(super) log: bool,
    pub(super) link: Option<Link>,
    pub(super) clock: Option<Clock>,
    pub(super) page: u64,
    pinned_budget: Option<u64>,
    host_memory: Option<u64>,
    pub(super) knows_memory: bool,
    pub(super) resident_groups: u32,
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
            resident_groups: u32::MAX,
        }
    }

    /// Each device's memory in bytes; 256 MiB unless set. The process pays for the pages that allocations touch, not for this.
    pub const fn device_memory(mut self, bytes: u64) -> Self {
        self.device_memory = bytes;
        self
    }

    /// How many devices, at most 64; 1 unless set.
    pub const fn devices(mut self, devices: u32) -> Self {
        self.devices = devices;
        self
    }

    /// A device for each of these, with a memory of so many bytes: instead of [`device_memory`](Self::device_memory) and [`devices`](Self::devices).
    pub fn device_memories(mut self, bytes: impl IntoIterator<Item = u64>) -> Self {
        self.memories = bytes.into_iter().collect();
        self
    }

    /// How many groups of one launch a device can run at once: a launch of more is refused before it is queued, since groups may wait for each
    /// other. Any number unless set; then a launch that gets not as many threads fails when it is executed.
    pub const fn resident_groups(mut self, groups: u32) -> Self {
        self.resident_groups = groups;
        self
    }

    /// Device `from` can reach the memory of device `to`, which says nothing of the way back; none can unless set.
    pub fn peer(mut self, from: u32, to: u32) -> Self {
        self.peers.push((from, to));
        self
    }

    /// Calls that fail; none unless set. With a plan, also one of nothing, [calls are counted](HostBackend::calls).
    pub fn faults(mut self, faults: Faults) -> Self {
        self.faults = Some(faults);
        self
    }

    /// Whether every call is [written down](HostBackend::call_log); not unless set. It costs a lock and about a hundred bytes for each.
    pub const fn log(mut self, log: bool) -> Self {
        self.log = log;
        self
    }

    /// A link whose time is modelled; none unless set. What is queued is remembered, eight bytes for each operation.
    pub fn link(mut self, link: Link) -> Self {
        self.link = Some(link);
        self
    }

    /// What time it is for kernels and the log, in ns; that since the backend was built unless set. It must not call the backend.
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Bytes of a page of managed memory; 64 KiB unless set.
    pub const fn page_size(mut self, bytes: u64) -> Self {
        self.page = bytes;
        self
    }

    /// Bytes that may be pinned at once; what [`pinned_budget`] says of the machine's memory unless set.
    pub const fn pinned_budget(mut self, bytes: u64) -> Self {
        self.pinned_budget = Some(bytes);
        self
    }

    /// The machine's memory, for the default of [`pinned_budget`](Self::pinned_budget); what the system says unless set.
    pub const fn host_memory(mut self, bytes: u64) -> Self {
        self.host_memory = Some(bytes);
        self
    }

    /// Whether devices have managed memory; they do unless set.
    pub const fn unified(mut self, unified: bool) -> Self {
        self.capabilities.unified = unified;
        self
    }

    /// Whether the host may touch managed memory while a kernel runs; it may unless set.
    pub const fn concurrent_managed_access(mut self, concurrent: bool) -> Self {
        self.capabilities.concurrent_managed_access = concurrent;
        self
    }

    /// Whether stores to pinned memory are visible to the other side while a kernel runs; they are unless set. Only what is said: here they always are.
    pub const fn system_scope(mut self, system_scope: bool) -> Self {
        self.capabilities.system_scope = system_scope;
        self
    }

    /// Whether atomics of both sides on one word are atomic; they are unless set. Only what is said: here they always are.
    pub const fn host_native_atomics(mut self, native: bool) -> Self {
        self.capabilities.host_native_atomics = native;
        self
    }

    /// Whether host and devices share one memory, so that pages of managed memory never move; they do not unless set. Device memory stays apart,
    /// and a copy to it a copy.
    pub const fn shared_memory(mut self, shared: bool) -> Self {
        self.capabilities.shared_memory = shared;
        self
    }

    /// Whether nobody knows how much memory a device has; the backend does unless set.
    pub const fn unknown_memory_info(mut self, unknown: bool) -> Self {
        self.knows_memory = !unknown;
        self
    }

    /// The backend.
    ///
    /// # Errors
    ///
    /// [`Size`](crate::Error::Size) for a memory or a page of nothing or above 1 TiB and for more than 64 devices, [`NoDevice`](crate::Error::NoDevice) for none or a
    /// peer that is none, [`Map`](crate::Error::Map) where the system has no room for it.
    pub fn build(mut self) -> Result<Arc<HostBackend>> {
        let devices = if self.memories.is_empty() { self.devices } else { u32::try_from(self.memories.len()).unwrap_or(u32::MAX) };
        if devices > DEVICES {
            return Err(Error::Size { what: "number of devices", asked: devices.into(), least: 1, most: DEVICES.into() });
        }
        if self.memories.is_empty() {
            self.memories = (0..self.devices).map(|_| self.device_memory).collect();
        }
        Ok(Arc::new(HostBackend { shared: Arc::new(Shared::new(&self)?) }))
    }

    /// Bytes that may be pinned at once.
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
