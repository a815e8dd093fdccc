//! [`MemoryManager`]: named buffers that grow.
//!
//! 1. A buffer has a name, elements of one type, and a [`BufferConfig`]. A name that is taken is refused, and so is another type: nobody gets
//!    another buffer than the one that was asked for.
//! 2. Growing copies the live elements from block to block on the device, and nothing else. Whatever fails, the buffer is as it was; of a
//!    group, every one.
//! 3. What all blocks and reservations have together is within the limit at every instant: also old and new while one is copied to the other, and
//!    what is freed until its last use is over.
//! 4. Nobody waits for anybody else's buffer. A lookup by [`BufferId`] takes no lock; one by name takes one for a look into a map; none is held
//!    while memory, clock or a closure is called. Who asks for a buffer that somebody else has gets [`Busy`](crate::Error::Busy) and does not wait.
//! 5. Nothing is freed behind anybody's back: [`cleanup`](MemoryManager::cleanup) takes what is idle, unleased and used by nothing that is queued, and
//!    says what that was.
//!
//! ```
//! # fn main() -> ringmem::Result<()> {
//! use ringmem::backend::host::HostBackend;
//! use ringmem::manager::{BufferConfig, MemoryManager};
//! use ringmem::memory::Device;
//!
//! let backend = HostBackend::builder().build()?;
//! let manager = MemoryManager::new(Device::new(&backend, 0));
//! let positions = manager.create::<[f32; 3]>("positions", 1000, BufferConfig::positions())?;
//! let forces = manager.create::<[f32; 3]>("forces", 1000, BufferConfig::forces())?;
//!
//! manager.lease_mut(positions)?.view_mut().copy_from(&[[1.0; 3]; 1000])?;
//! manager.resize_group([(positions.into(), 2000), (forces.into(), 2000)])?; // both or neither
//! manager.lease_mut(positions)?.extend_from_slice(&[[2.0; 3]; 5])?;
//!
//! let found = manager.find::<[f32; 3]>("positions")?;
//! let lease = manager.lease(found)?; // nobody moves or frees it meanwhile
//! assert_eq!((lease.len(), lease.slice(999..1000)?.to_vec()?, lease.slice(2004..)?.to_vec()?), (2005, vec![[1.0; 3]], vec![[2.0; 3]]));
//! # Ok(())
//! # }
//! ```

mod any;
mod append;
mod builder;
mod card;
mod cleanup;
mod config;
mod entry;
mod lease;
mod names;
mod queued;
mod resize;
mod statistics;

use core::fmt;
use std::boxed::Box;
use std::sync::Arc;
use std::vec::Vec;

use card::{Card, Element};
use entry::{Entry, Held};
use names::{Named, Names};
use resize::{Step, resize};
use statistics::Counts;

use crate::memory::{Budget, Buffer, Memory, Reservation};
use crate::registry::IdError;
use crate::registry::slots::{Exclusive, Index, Removed, Slots};
use crate::stream::Stream;
use crate::{DeviceBytes, Error, Result};

pub use any::AnyBuffer;
pub use append::Append;
pub use builder::Builder;
pub use card::BufferStatistics;
pub use cleanup::Freed;
pub use config::{BufferConfig, Growth};
pub use lease::{Lease, LeaseMut};
pub use statistics::Statistics;

pub use crate::registry::BufferId;

/// Named buffers in one memory. Clones are the same manager.
pub struct MemoryManager<M: Memory> {
    shared: Arc<Shared<M>>,
}

struct Shared<M: Memory> {
    /// Told apart from other managers and registries by it.
    number: u64,
    memory: M,
    slots: Arc<Slots<Entry<M>>>,
    names: Names,
    budget: Budget,
    clock: Arc<dyn Fn() -> u64 + Send + Sync>,
    counts: Counts,
}

impl<M: Memory + Clone> MemoryManager<M> {
    /// A manager with a limit of 6 GiB.
    #[must_use]
    pub fn new(memory: M) -> Self {
        Self::builder(memory).build()
    }

    /// A manager whose buffers have at most `limit` bytes together.
    #[must_use]
    pub fn with_limit(memory: M, limit: u64) -> Self {
        Self::builder(memory).limit(limit).build()
    }

    /// A manager to be, with every default.
    pub fn builder(memory: M) -> Builder<M> {
        Builder::new(memory)
    }

    fn of(builder: Builder<M>) -> Self {
        let Builder { memory, limit, clock } = builder;
        let shared = Shared {
            number: crate::registry::next_number(),
            memory,
            slots: Arc::new(Slots::new()),
            names: Names::default(),
            budget: Budget::new(limit),
            clock,
            counts: Counts::default(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// A buffer with `len` live elements, in which is what was in the memory, and the capacity that its configuration asks for at first.
    ///
    /// # Errors
    ///
    /// [`AlreadyExists`](Error::AlreadyExists), also for a name that another thread is giving just now; [`Config`](Error::Config) for a configuration that
    /// makes no sense; [`SizeMismatch`](Error::SizeMismatch) for elements of another size than it says; [`Size`](Error::Size) for more than it allows;
    /// [`Limit`](Error::Limit); what the memory refuses. Nothing was created.
    pub fn create<T: DeviceBytes>(&self, name: &str, len: usize, config: BufferConfig) -> Result<BufferId<T>> {
        self.make(name, len, config, None)
    }

    /// The same with bytes that were [reserved](Self::reserve), as many as the buffer takes; the rest stays reserved.
    ///
    /// # Errors
    ///
    /// As [`create`](Self::create); [`Size`](Error::Size) where the reservation is too short, [`Unsupported`](Error::Unsupported) where it is another manager's.
    pub fn create_in<T: DeviceBytes>(
        &self,
        reservation: &mut Reservation,
        name: &str,
        len: usize,
        config: BufferConfig,
    ) -> Result<BufferId<T>> {
        self.make(name, len, config, Some(reservation))
    }

    /// The buffer of that name, or a new one. One that is there stays as it is, with its own length.
    ///
    /// # Errors
    ///
    /// As [`create`](Self::create) and [`find`](Self::find); [`OtherConfig`](Error::OtherConfig) where the buffer is there with another configuration;
    /// [`AlreadyExists`](Error::AlreadyExists) while another thread is creating it.
    pub fn get_or_create<T: DeviceBytes>(&self, name: &str, len: usize, config: BufferConfig) -> Result<BufferId<T>> {
        match self.shared.names.find(name, |named| (named.index, Arc::clone(&named.card))) {
            None => self.create(name, len, config),
            Some((index, card)) => {
                card.element.check::<T>()?;
                if card.config != config {
                    return Err(Error::OtherConfig { name: name.into(), both: Box::new([card.config, config]) });
                }
                Ok(BufferId::new(self.shared.number, index))
            }
        }
    }

    fn make<T: DeviceBytes>(
        &self,
        name: &str,
        len: usize,
        config: BufferConfig,
        reservation: Option<&mut Reservation>,
    ) -> Result<BufferId<T>> {
        let shared = &*self.shared;
        let element = Element::of::<T>()?;
        config.validate()?;
        if let Some(expected) = config.bytes_per_element.filter(|&bytes| bytes as usize != element.size) {
            return Err(Error::SizeMismatch { expected: expected.into(), got: element.size as u64 });
        }
        let capacity = config.capacity_exact(len as u64, element.size as u64)? as usize;
        let bytes = element.layout(capacity)?.size() as u64;
        let coming = shared.names.take(name)?;
        let held = match reservation {
            None => {
                let reservation = shared.budget.reserve(bytes)?;
                Held::new(shared.block(&element, capacity, None)?, reservation)
            }
            // Its bytes count already: they are taken off when the memory is there.
            Some(from) => {
                if !from.is_of(&shared.budget) {
                    return Err(Error::Unsupported { what: "a reservation of another manager" });
                }
                if from.bytes() < bytes {
                    return Err(Error::Size { asked: bytes, least: 0, most: from.bytes() });
                }
                let block = shared.block(&element, capacity, None)?;
                Held::new(block, from.split(bytes)?)
            }
        };
        let card = Arc::new(Card::new(name, element, config, len, capacity, shared.now()));
        let entry = Entry { card: Arc::clone(&card), held };
        let index = shared.slots.insert(entry).map_err(crate::Rejected::into_error)?;
        coming.give(Named { index, card });
        shared.counts.created();
        Ok(BufferId::new(shared.number, index))
    }

    /// Gives buffers other lengths: all of them, or none. Those that must grow do so by their own growth; old and new blocks of the whole group
    /// are there together for a moment, and count so.
    ///
    /// # Errors
    ///
    /// As [`lease_mut`](Self::lease_mut) and [`LeaseMut::resize`], the first that there is; [`Busy`](Error::Busy) also for a buffer that is in the group
    /// twice. Every buffer has its length, its block and its contents, and the budget is as it was.
    pub fn resize_group(&self, group: impl IntoIterator<Item = (AnyBuffer, usize)>) -> Result<()> {
        self.resize_all(group, None)
    }

    /// The same in the order of a stream: all copies are queued there, and waited for.
    ///
    /// # Errors
    ///
    /// As [`resize_group`](Self::resize_group).
    pub fn resize_group_on(&self, group: impl IntoIterator<Item = (AnyBuffer, usize)>, stream: &Stream) -> Result<()> {
        self.resize_all(group, Some(stream))
    }

    fn resize_all(&self, group: impl IntoIterator<Item = (AnyBuffer, usize)>, on: Option<&Stream>) -> Result<()> {
        let taken = group.into_iter().map(|(buffer, len)| Ok((self.alone(buffer)?, len)));
        let mut taken: Vec<(Exclusive<'_, Entry<M>>, usize)> = taken.collect::<Result<_>>()?;
        let steps = taken.iter_mut().map(|(entry, len)| Step::grow(entry, *len, *len));
        let mut steps: Vec<Step<'_, M>> = steps.collect::<Result<_>>()?;
        let outcome = resize(&self.shared, &mut steps, on);
        let now = self.shared.now();
        taken.iter().for_each(|(entry, _)| entry.card.used_at(now));
        outcome
    }
}

impl<M: Memory> MemoryManager<M> {
    /// The buffer of that name.
    ///
    /// # Errors
    ///
    /// [`NotFound`](Error::NotFound); [`IdError::Elements`] where it has other elements, with both names.
    pub fn find<T: DeviceBytes>(&self, name: &str) -> Result<BufferId<T>> {
        match self.shared.names.find(name, |named| named.card.element.check::<T>().map(|()| named.index)) {
            Some(index) => Ok(BufferId::new(self.shared.number, index?)),
            None => Err(Error::NotFound { name: name.into() }),
        }
    }

    /// A lease to read with, beside others of its kind.
    ///
    /// # Errors
    ///
    /// [`Error::Id`] with what is wrong with the id, [`Error::Busy`] while somebody has the buffer to write.
    #[inline]
    pub fn lease<T: DeviceBytes>(&self, id: BufferId<T>) -> Result<Lease<'_, T, M>> {
        Lease::new(self.shared.slots.share(self.own(id.registry(), id.index())?)?)
    }

    /// The one lease to write and resize with.
    ///
    /// # Errors
    ///
    /// As [`lease`](Self::lease), and [`Error::Busy`] while the buffer has any lease.
    pub fn lease_mut<T: DeviceBytes>(&self, id: BufferId<T>) -> Result<LeaseMut<'_, T, M>> {
        LeaseMut::new(&self.shared, self.alone(id.into())?)
    }

    /// Whether a buffer can be had, now or when whoever has it is done. Takes nothing, and counts as no use.
    #[inline]
    #[must_use]
    pub fn contains<T>(&self, id: BufferId<T>) -> bool {
        self.own(id.registry(), id.index()).is_ok_and(|index| self.shared.slots.contains(index))
    }

    /// Frees a buffer, and its name: how many leases keep the memory. With none it is freed at once, else with the last of them.
    ///
    /// # Errors
    ///
    /// [`Error::Id`] with what is wrong with the id. What the driver said where the memory was freed now; it is gone all the same.
    pub fn free(&self, buffer: impl Into<AnyBuffer>) -> Result<u32> {
        let AnyBuffer { manager, index } = buffer.into();
        let index = self.own(manager, index)?;
        let removed = self.shared.slots.remove(index)?;
        self.shared.counts.freed();
        match removed {
            Removed::Value(entry) => {
                self.shared.names.free(&entry.card.name, index);
                entry.held.close().map(|()| 0)
            }
            Removed::Leased(leases) => {
                self.shared.names.free_of(index);
                Ok(leases)
            }
        }
    }

    /// Frees every buffer: how many. Those that are leased go with their last lease.
    pub fn clear(&self) -> u64 {
        let here = self.shared.names.all();
        here.into_iter().filter(|named| self.free(AnyBuffer { manager: self.shared.number, index: named.index }).is_ok()).count() as u64
    }

    /// Whether so many bytes could be had now. Another thread may have them by the time they are asked for: [reserve](Self::reserve) them instead.
    #[must_use]
    pub fn can_allocate(&self, bytes: u64) -> bool {
        self.shared.budget.has(bytes)
    }

    /// Takes bytes of the budget that nobody else gets: for buffers that are [created](Self::create_in) in them, or for memory that is allocated elsewhere
    /// and is to count, as long as this is kept.
    ///
    /// # Errors
    ///
    /// [`Limit`](Error::Limit).
    pub fn reserve(&self, bytes: u64) -> Result<Reservation> {
        self.shared.budget.reserve(bytes)
    }

    /// Who counts the bytes.
    #[must_use]
    pub fn budget(&self) -> &Budget {
        &self.shared.budget
    }

    /// What it has done and what it holds. What was only read since the last look is dated now.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        let Shared { names, budget, counts, .. } = &*self.shared;
        let now = self.shared.now();
        let buffers = names.all().iter().map(|named| named.card.read(now)).collect();
        let (used_bytes, peak_bytes, limit_bytes) = (budget.used(), budget.peak(), budget.limit());
        Statistics { buffers, used_bytes, peak_bytes, limit_bytes, ..counts.read() }
    }

    /// Dates what was only read since the last look: once a frame, and ages are exact to a frame.
    pub fn tick(&self) {
        let now = self.shared.now();
        for named in self.shared.names.all() {
            named.card.last_used(now);
        }
    }

    #[inline]
    fn own(&self, got: u64, index: Index) -> Result<Index> {
        let expected = self.shared.number;
        if got == expected { Ok(index) } else { Err(IdError::Foreign { expected, got }.into()) }
    }

    fn alone(&self, buffer: AnyBuffer) -> Result<Exclusive<'_, Entry<M>>> {
        self.shared.slots.exclusive(self.own(buffer.manager, buffer.index)?)
    }
}

impl<M: Memory> Shared<M> {
    fn now(&self) -> u64 {
        (self.clock)()
    }
}

impl<M: Memory + Clone> Shared<M> {
    /// Memory for so many elements.
    fn block(&self, element: &Element, capacity: usize, on: Option<&Stream>) -> Result<Buffer<u8, M>> {
        Buffer::bytes(self.memory.clone(), element.layout(capacity)?, on)
    }
}

impl<M: Memory> Clone for MemoryManager<M> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<M: Memory> fmt::Debug for MemoryManager<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryManager").field("budget", &self.shared.budget).field("counts", &self.shared.counts).finish_non_exhaustive()
    }
}
