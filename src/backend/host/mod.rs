//! The host backend: simulated devices in this process, for machines without one and for tests.
//!
//! 1. Device memory is an address space of its own. Its addresses are in no mapping of the process, so host code that follows one
//!    faults; only copies and kernels reach the bytes.
//! 2. Device memory holds [`POISON`] when it is allocated and again when it is freed. Host-visible memory is zeroed.
//! 3. A stream is a thread. It executes what was queued in order, and reads a source when it executes, not before.
//! 4. An address that is in no live memory is an error at the call that names it: after a free, of another backend, past the end.
//! 5. Every allocation, free, copy, fill and launch is in the [`Counters`], once, when it has been done.
//!
//! 6. What goes wrong, and when, can be [planned](Faults); what happened can be [read](Call). A run's every call can be made to fail, one after the other.
//! 7. Several devices may reach each other's memory or not, in each direction. Copies between two that do not go over the host, and count so.
//! 8. Managed memory has pages that a device [holds](HostBackend::occupied) as part of its memory, and that give way.
//! 9. In a process that was forked from its own nothing is freed, and nothing is dropped that is kept for its uses: that is the parent's.
//!
//! How long a copy would take is asked of a [model](Link), which nobody waits for: a copy is a `memcpy`. What a host pointer into pinned or managed
//! memory means after the free is not seen: those pages are unmapped, or somebody else's.

mod allocation;
mod arena;
mod backend;
mod builder;
mod deferred;
mod extension;
mod faults;
mod link;
mod log;
mod mapping;
mod operation;
mod pager;
mod peers;
pub(crate) mod pinned;
mod queue;
mod queueing;
mod shared;
mod tasks;

use core::fmt;
use std::sync::Arc;

use std::vec::Vec;

use crate::Result;
use crate::backend::{Backend, Block, Options, Ticket};
use shared::Shared;

pub use crate::backend::counters::{Counters, Live, Tally};
pub use arena::POISON;
pub use builder::Builder;
pub use faults::{Fault, Faults, Verb};
pub use link::{KernelTime, Link};
pub use log::{Call, Phase};
pub use pinned::{host_memory, pinned_budget};

/// What time it is, in ns.
pub type Clock = Arc<dyn Fn() -> u64 + Send + Sync>;

/// Simulated devices. It goes when the last reference to it, and all that was made of it, have gone.
pub struct HostBackend {
    shared: Arc<Shared>,
}

impl HostBackend {
    /// A backend to be, with every default.
    pub const fn builder() -> Builder {
        Builder::new()
    }

    /// What has been done so far. Memory whose uses are over has been given back, also where a stream was about to. In a fork nobody is
    /// waited for.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.shared.deferred.catch_up(&self.shared);
        let counters = self.shared.counts.read();
        Counters { unreported: counters.unreported + self.shared.ended.untold(), ..counters }
    }

    /// How often a verb was called, whatever came of it. Calls are counted where somebody watches them: in a backend that was built with
    /// [faults](Builder::faults), a [log](Builder::log) or a [link](Builder::link), and from [`set_faults`](Self::set_faults) on. `None` where nobody does.
    #[must_use]
    pub fn calls(&self, verb: Verb) -> Option<u64> {
        self.shared.is_watched().then(|| self.shared.plan.calls(verb))
    }

    /// Another plan instead of the one in force. Its calls are counted from now on.
    pub fn set_faults(&self, faults: &Faults) {
        self.shared.set_faults(faults);
    }

    /// What happened so far, if it was to be [written down](Builder::log).
    #[must_use]
    pub fn call_log(&self) -> Vec<Call> {
        self.shared.calls()
    }

    /// What a live block was asked to be; `None` for what is none.
    #[must_use]
    pub fn options_of(&self, block: &Block) -> Option<Options> {
        self.shared.ranges.options(block)
    }

    /// What allocations and resident pages of managed memory hold of a device's memory, together.
    ///
    /// # Errors
    ///
    /// [`NoDevice`](crate::Error::NoDevice).
    pub fn occupied(&self, device: u32) -> Result<Live> {
        Ok(self.shared.arena(device)?.occupied())
    }

    /// What time it is for the host in the [model](Builder::link) of the link, in ns from 0; `None` without one.
    #[must_use]
    pub fn model_now(&self) -> Option<u64> {
        self.shared.model.as_ref().map(link::Model::now)
    }

    /// When an operation is over in the model of the link, whether or not anybody has waited for it; `None` without one.
    #[must_use]
    pub fn model_end(&self, ticket: Ticket) -> Option<u64> {
        self.shared.model.as_ref().map(|model| model.end(ticket))
    }

    /// The host works for so many ns in the model of the link.
    pub fn model_work(&self, ns: u64) {
        if let Some(model) = &self.shared.model {
            model.work(ns);
        }
    }
}

impl fmt::Debug for HostBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostBackend").field("id", &self.id()).field("devices", &self.devices()).finish_non_exhaustive()
    }
}
