//! [`DeviceRing`]: the kernel's ring of one direction, where the kernel polls it fastest.
//!
//! It has one header, or a second one to which the kernel publishes, so that the host polls its own memory ([`Placement::peer_header`]).

use core::mem::offset_of;
use core::ptr::NonNull;
use std::sync::Arc;
use std::vec;

use super::Placement;
use crate::backend::{Address, Backend, Ticket};
use crate::memory::{Page, Pages};
use crate::ring::{ConsumerLine, ProducerLine};
use crate::{Error, HostWord, Result, RingHeader, RingLayout, RingMessage, Word};

/// Device addresses of a ring.
///
/// ```
/// use ringmem::backend::host::HostBackend;
/// use ringmem::bridge::{Options, RingBufferBridge, TransferStrategy};
/// use ringmem_kernels::echo::Echo;
///
/// let backend = HostBackend::builder().build()?;
/// let options = Options::new(TransferStrategy::Async);
/// let opened = RingBufferBridge::<Echo, Echo>::open(&backend, 0, &options)?;
/// let [input, output] = opened.bridge.addresses()?;
/// let arguments = [input.own, input.peer, input.slots, output.own, output.peer, output.slots]; // of a launch
/// assert!(!arguments.contains(&0));
/// # Ok::<(), ringmem::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingAddresses {
    /// Header that the kernel polls.
    pub own: u64,
    /// Header that it publishes to; may be the same.
    pub peer: u64,
    /// Slots.
    pub slots: u64,
}

/// How the host reads an index that the kernel writes.
#[derive(Clone, Copy)]
pub(super) enum IndexWord {
    /// By a load.
    // INVARIANT: the word lives as long as its ring.
    Mapped(NonNull<HostWord>),
    /// By a copy: the host does not map the device's memory.
    Remote(Address),
}

// SAFETY: a word with atomic accesses only.
unsafe impl Send for IndexWord {}

pub(super) struct DeviceRing {
    /// Header and slots. The kernel polls this header.
    ring: Pages,
    /// The second header, if there is one. The kernel publishes to it.
    peer: Option<Pages>,
    layout: RingLayout,
}

/// One of a ring's two indices, each in a cache line of its own.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Line {
    /// The consumer's.
    Head,
    /// The producer's.
    Tail,
}

impl Line {
    const fn offset(self) -> u64 {
        let offset = match self {
            Self::Tail => offset_of!(RingHeader<HostWord>, producer) + offset_of!(ProducerLine<HostWord>, tail),
            Self::Head => offset_of!(RingHeader<HostWord>, consumer) + offset_of!(ConsumerLine<HostWord>, head),
        };
        offset as u64
    }
}

impl DeviceRing {
    pub fn new<T: RingMessage>(backend: &Arc<dyn Backend>, device: u32, placement: Placement, capacity: u64, start: u64) -> Result<Self> {
        let layout = RingLayout::of::<T>(capacity)?;
        let formatted = |mut pages: Pages| {
            let mut image = vec![Page { bytes: [0; 4096] }; 1];
            let [page] = image.as_mut_slice() else { return Ok(pages) };
            // SAFETY: an aligned page, longer than a header, without other references.
            let header = unsafe { NonNull::from(page).cast::<RingHeader<HostWord>>().as_ref() };
            // SAFETY: the page is aligned, longer than a header and without other references, so nothing is attached to the ring.
            unsafe { header.format::<T>(&layout, start) };
            pages.copy_from(&image)?;
            Ok::<_, Error>(pages)
        };
        let ring = formatted(Pages::new(backend, device, placement.slots, layout.size())?)?;
        let header = size_of::<RingHeader<HostWord>>() as u64;
        let peer = match placement.peer_header {
            Some(location) => Some(formatted(Pages::new(backend, device, location, header)?)?),
            None => None,
        };
        Ok(Self { ring, peer, layout })
    }

    pub fn addresses(&self) -> Result<RingAddresses> {
        let own = self.ring.address()?.get();
        let peer = self.peer.as_ref().map_or(Ok(own), |peer| peer.address().map(|address| address.get()))?;
        Ok(RingAddresses { own, peer, slots: own + self.layout.slots_offset() })
    }

    /// Returns the index word that the bridge writes and the kernel polls.
    pub fn written(&self, line: Line) -> Result<Address> {
        self.address_at(line.offset())
    }

    /// Returns the first slot, if the host maps the ring.
    pub fn slots(&self) -> Option<NonNull<u8>> {
        // SAFETY: the pages hold header and slots.
        self.ring.host().map(|base| unsafe { base.add(self.layout.slots_offset() as usize) })
    }

    fn address_at(&self, offset: u64) -> Result<Address> {
        match self.ring.host() {
            // SAFETY: the pages hold header and slots, and `offset` is of a word of the header or of a slot.
            Some(base) => Ok(Address::Host(unsafe { base.add(offset as usize) })),
            None => self.ring.address_at(offset),
        }
    }

    /// Returns the index word that the kernel writes and the bridge polls.
    pub fn read(&self, line: Line) -> Result<IndexWord> {
        let pages = self.peer.as_ref().unwrap_or(&self.ring);
        match pages.host() {
            // SAFETY: the pages begin with a header.
            Some(base) => Ok(IndexWord::Mapped(unsafe { base.add(line.offset() as usize) }.cast())),
            None => pages.address_at(line.offset()).map(IndexWord::Remote),
        }
    }

    pub fn slot(&self, index: u64) -> Result<Address> {
        self.address_at(self.layout.slots_offset() + (index & (self.layout.capacity() - 1)) * self.layout.slot_size())
    }

    /// Keeps the memory until a launch is complete.
    pub fn used(&mut self, ticket: Ticket) -> Result<()> {
        self.ring.used(ticket)?;
        self.peer.as_mut().map_or(Ok(()), |peer| peer.used(ticket))
    }
}

impl IndexWord {
    pub fn address(self) -> Address {
        match self {
            Self::Mapped(word) => Address::Host(word.cast()),
            Self::Remote(address) => address,
        }
    }

    /// Loads a mapped word.
    pub fn load(self) -> Option<u64> {
        match self {
            // SAFETY: by the invariant the word lives as long as the ring, which the caller holds.
            // SYNC POINT: slot published, slot released: by a kernel. Pairs with its publish_all.
            Self::Mapped(word) => Some(unsafe { word.as_ref() }.load_acquire()),
            Self::Remote(_) => None,
        }
    }
}
