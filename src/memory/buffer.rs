#![allow(clippy::result_large_err, reason = "what comes back is as large as what went in")]

use core::alloc::Layout;
use core::fmt;
use core::marker::PhantomData;
use core::mem::{ManuallyDrop, replace};
use core::ptr::{self, NonNull};

use ringmem_layouts::kernel::DevicePointer;

use super::bounds::recount;
use super::compact::Compact;
use super::listed::Listed;
use super::view::View;
use super::{DeviceReadable, Memory};
use crate::DeviceBytes;
use crate::backend::fill::alignment;
use crate::backend::{Address, Block, DeviceAddress, MemoryLocation, StreamId, Taints, Ticket, Uses};
use crate::stream::Stream;
use crate::{Error, Rejected, Result};

/// `len` elements in a memory, freed after the buffer's drop and its uses.
///
/// ```
/// # fn main() -> ringmem::Result<()> {
/// use ringmem::backend::host::HostBackend;
/// use ringmem::memory::{Device, GpuBuffer};
///
/// let backend = HostBackend::builder().build()?;
/// let mut buffer = GpuBuffer::<f32>::new(Device::new(&backend, 0), 1000)?;
/// buffer.fill(1.5)?;
/// buffer.copy_from_at(10, &[7.0; 4])?;
/// assert_eq!(buffer.slice(8..12)?.to_vec()?, [1.5, 1.5, 7.0, 7.0]);
/// # Ok(())
/// # }
/// ```
/// ```compile_fail
/// fn read(buffer: &ringmem::memory::GpuBuffer<u8>) -> &[u8] {
///     buffer.as_slice().unwrap() // device memory
/// }
/// ```
#[doc(alias = "PooledBuffer")]
pub struct Buffer<T, M: Memory> {
    memory: ManuallyDrop<M>,
    // INVARIANT: allocated from `memory`, not freed, as long as `len` elements; or empty, and `len` elements have no bytes.
    block: Compact,
    len: usize,
    uses: Listed,
    _elements: PhantomData<T>,
}

// Bounds are on the functions: the compiler then reports the remedy for a `T` that is not `DeviceBytes`, or memory that is not `HostReadable`.
impl<T, M: Memory> Buffer<T, M> {
    /// Allocates `len` elements, unspecified in device memory, zeroed in host-readable memory unless it reuses bytes, as an
    /// [`Arena`](super::Arena) does.
    ///
    /// # Errors
    ///
    /// [`Size`](Error::Size) for more bytes than an address spans; the memory's error.
    #[track_caller]
    #[inline(always)]
    pub fn new(memory: M, len: usize) -> Result<Self>
    where
        T: DeviceBytes,
    {
        Self::allocate(memory, len, None)
    }

    /// As [`new`](Self::new), in stream order. Uses elsewhere wait for the allocation.
    #[track_caller]
    pub fn new_on(memory: M, len: usize, stream: &Stream) -> Result<Self>
    where
        T: DeviceBytes,
    {
        Self::allocate(memory, len, Some(stream))
    }

    /// Allocates `len` elements of zeros.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new) and [`fill`](Self::fill).
    #[track_caller]
    #[doc(alias = "alloc_zeros")]
    pub fn zeroed(memory: M, len: usize) -> Result<Self>
    where
        T: DeviceBytes,
    {
        let mut buffer = Self::new(memory, len)?;
        buffer.fill(T::zeroed())?;
        Ok(buffer)
    }

    /// Allocates a buffer and copies elements in.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new) and [`copy_from`](Self::copy_from).
    #[track_caller]
    pub fn from_slice(memory: M, elements: &[T]) -> Result<Self>
    where
        T: DeviceBytes,
    {
        let mut buffer = Self::new(memory, elements.len())?;
        buffer.copy_from(elements)?;
        Ok(buffer)
    }
}

impl<T: DeviceBytes, M: Memory> Buffer<T, M> {
    #[track_caller]
    // Inlined: buffers are built in place, not moved out of results.
    #[inline(always)]
    fn allocate(memory: M, len: usize, on: Option<&Stream>) -> Result<Self> {
        let layout = layout::<T>(len)?;
        Self::of_layout(memory, layout, len, on)
    }

    #[track_caller]
    #[inline(always)]
    fn of_layout(memory: M, layout: Layout, len: usize, on: Option<&Stream>) -> Result<Self> {
        if layout.size() == 0 {
            let block = Compact::of(&Block::empty(MemoryLocation::Host, layout.align()));
            return Ok(Self { memory: ManuallyDrop::new(memory), block, len, uses: Listed::NONE, _elements: PhantomData });
        }
        let block = memory.alloc(layout, on)?;
        if !Taints::are_none() || block.ready.is_some() {
            // SAFETY: the start is within the block.
            Self::reuse(&memory, unsafe { block.address_at(0) }, block.layout.size() as u64, block.ready);
        }
        let uses = block.ready.map_or(Listed::NONE, |ticket| Listed::new(Uses::of(ticket)));
        Ok(Self { memory: ManuallyDrop::new(memory), block: Compact::of(&block), len, uses, _elements: PhantomData })
    }

    /// Forgets operations that failed on a new block's previous contents.
    #[cold]
    #[inline(never)]
    fn reuse(memory: &M, place: Option<Address>, bytes: u64, ready: Option<Ticket>) {
        let (Some(taints), Some(place)) = (memory.backend().taints(), place) else { return };
        taints.reuse(place, bytes, ready, |ticket| memory.backend().is_complete(ticket));
    }

    /// Reinterprets the bytes as elements of another type.
    ///
    /// # Errors
    ///
    /// The buffer, with [`Cast`](Error::Cast) for a partial or misaligned element.
    pub fn cast<U: DeviceBytes>(self) -> Result<Buffer<U, M>, Rejected<Self>> {
        let bytes = self.size_bytes();
        match recount::<U>(bytes, self.block.align()) {
            // SAFETY: checked just now.
            Ok(_) => Ok(unsafe { self.retyped() }),
            Err(error) => Err(Rejected { error, value: self }),
        }
    }
}

/// Returns the alignment of elements in a buffer, which suffices for fills.
pub(crate) const fn align<T>() -> usize {
    let (of_fills, align) = (alignment(size_of::<T>()), align_of::<T>());
    if of_fills > align { of_fills } else { align }
}

pub(crate) fn layout<T: DeviceBytes>(len: usize) -> Result<Layout> {
    const { T::CHECKED };
    Layout::array::<T>(len).and_then(|layout| layout.align_to(align::<T>())).map_err(|_| {
        let asked = (len as u64).saturating_mul(size_of::<T>() as u64);
        Error::Size { what: "size in bytes", asked, least: 0, most: isize::MAX as u64 }
    })
}

impl<T, M: Memory> Buffer<T, M> {
    /// # Safety
    ///
    /// The block is of `memory`, ready except for `uses`, and freed only by the buffer; it is as long as `len` elements, aligned for them.
    #[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "only CUDA adopts memory"))]
    pub(crate) unsafe fn of_block(memory: M, block: &Block, len: usize, uses: Uses) -> Self {
        Self { memory: ManuallyDrop::new(memory), block: Compact::of(block), len, uses: Listed::new(uses), _elements: PhantomData }
    }
}

impl<M: Memory> Buffer<u8, M> {
    pub(crate) fn bytes(memory: M, layout: Layout, on: Option<&Stream>) -> Result<Self> {
        Self::of_layout(memory, layout, layout.size(), on)
    }
}

impl<T, M: Memory> Buffer<T, M> {
    /// Returns the number of elements.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Returns true if empty.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns [`len`](Self::len).
    #[must_use]
    pub const fn capacity(&self) -> usize {
        self.len
    }

    /// Returns the size in bytes.
    #[must_use]
    pub const fn size_bytes(&self) -> usize {
        // Cannot overflow: it was a layout.
        self.len * size_of::<T>()
    }

    /// Returns its memory.
    #[must_use]
    pub fn memory(&self) -> &M {
        &self.memory
    }

    /// Returns its memory's kind; [`MemoryLocation::Host`] without bytes.
    #[must_use]
    pub const fn location(&self) -> MemoryLocation {
        self.block.location()
    }

    /// Returns true if page-locked.
    #[must_use]
    pub const fn is_pinned(&self) -> bool {
        self.block.is_pinned()
    }

    /// Returns true on a real device, not a [simulated](crate::backend::Backend::is_simulated) one.
    #[must_use]
    pub fn is_device_backed(&self) -> bool {
        matches!(self.block.location(), MemoryLocation::Device) && !self.memory.backend().is_simulated()
    }

    /// Returns its device address; `None` without bytes.
    #[must_use]
    pub fn device_address(&self) -> Option<DeviceAddress>
    where
        M::Visibility: DeviceReadable,
    {
        self.block.device_address()
    }

    /// As [`device_address`](Self::device_address), for a [typed launch](crate::stream::Stream::start).
    #[must_use]
    pub fn device_pointer(&self) -> Option<DevicePointer<T>>
    where
        M::Visibility: DeviceReadable,
    {
        self.block.device_address().map(DeviceAddress::pointer)
    }

    /// Frees it after its uses. A drop counts an error as unreported.
    ///
    /// # Errors
    ///
    /// The driver's error.
    pub fn close(self) -> Result<()> {
        let (memory, block, uses) = self.into_parts();
        // SAFETY: of this memory by the invariant, with its uses listed, and not used again.
        unsafe { give_back(&memory, &block, &uses) }
    }

    /// Waits for its uses.
    ///
    /// # Errors
    ///
    /// The first failed use's error, or the driver's if the wait fails: that use stays listed.
    pub fn settle(&mut self) -> Result<()> {
        let backend = self.memory.backend();
        let outcome = self.uses.settle(&**backend);
        // After a failed wait, the operation may be in flight.
        self.uses.retain(|ticket| outcome.is_err() && !backend.is_complete(ticket));
        outcome
    }

    /// Makes later operations of a stream wait for the buffer's uses: for a launch by address.
    ///
    /// # Errors
    ///
    /// [`OtherBackend`](Error::OtherBackend), or the driver's error, perhaps with waits for some uses.
    pub fn ready_on(&self, stream: &Stream) -> Result<()> {
        self.ready_for(stream.on(&**self.memory.backend())?)
    }

    /// As [`ready_on`](Self::ready_on), for a stream of the buffer's backend.
    pub(crate) fn ready_for(&self, id: StreamId) -> Result<()> {
        let backend = self.memory.backend();
        self.uses().iter().filter(|ticket| ticket.stream != id).try_for_each(|ticket| backend.stream_wait(ticket, id))
    }

    /// Lists the operations queued on a stream so far as a use, for a launch by address: the memory outlives them, and later operations on the
    /// buffer wait for them.
    ///
    /// Blocking copies then wait for a persistent kernel to end. For memory that it shares, use
    /// [`Channel::keep_alive`](crate::channel::Channel::keep_alive).
    ///
    /// # Errors
    ///
    /// [`OtherBackend`](Error::OtherBackend), the driver's error; nothing is listed.
    pub fn used_by(&mut self, stream: &Stream) -> Result<()> {
        let backend = self.memory.backend();
        stream.on(&**backend)?;
        self.uses.uses_mut().add_after(stream.record_position()?, &**backend)
    }

    /// As [`used_by`](Self::used_by), for a stream of the buffer's backend.
    pub(crate) fn used_until_now(&mut self, id: StreamId) -> Result<()> {
        let backend = self.memory.backend();
        self.uses.uses_mut().add_after(backend.record_position(id)?, &**backend)
    }

    /// The uses stay listed.
    pub(crate) fn give_back(&mut self) -> Result<()> {
        let empty = Compact::of(&Block::empty(self.block.location(), 1));
        let block = replace(&mut self.block, empty);
        // SAFETY: of this memory by the invariant, with its uses listed; an empty block has taken its place, so it is freed once.
        unsafe { give_back(&*self.memory, &block, &self.uses) }
    }

    fn into_parts(self) -> (M, Compact, Listed) {
        let this = ManuallyDrop::new(self);
        // SAFETY: `this` is not dropped, and its memory is not used again.
        let memory = ManuallyDrop::into_inner(unsafe { ptr::read(&raw const this.memory) });
        // SAFETY: `this` is not dropped, and its uses are not used again.
        let uses = unsafe { ptr::read(&raw const this.uses) };
        (memory, this.block, uses)
    }

    /// # Safety
    ///
    /// The bytes are whole elements with bytes, aligned for them.
    pub(crate) unsafe fn retyped<U>(self) -> Buffer<U, M> {
        let len = self.size_bytes() / size_of::<U>();
        let (memory, block, uses) = self.into_parts();
        Buffer { memory: ManuallyDrop::new(memory), block, len, uses, _elements: PhantomData }
    }

    pub(crate) fn block(&self) -> Block {
        self.block.block()
    }

    /// # Safety
    ///
    /// The caller owns the block, of the buffer's memory, ready, with the old one's layout and visibility. The old one's uses are complete.
    pub(crate) unsafe fn put_in(&mut self, block: Block) -> Block {
        replace(&mut self.block, Compact::of(&block)).block()
    }

    /// For a caller that writes all elements.
    #[inline]
    pub(crate) fn forget_contents(&self) {
        if !Taints::are_none() {
            self.with_taints(|taints, place, bytes| taints.remove(place, bytes));
        }
    }

    #[cold]
    fn with_taints(&self, change: impl FnOnce(&Taints, Address, u64)) {
        // SAFETY: the start is within the block.
        let place = unsafe { self.block.address_at(0) };
        if let (Some(taints), Some(place)) = (self.memory.backend().taints(), place) {
            change(taints, place, self.block.bytes as u64);
        }
    }

    pub(crate) fn view(&self) -> View<'_, M> {
        View { memory: &self.memory, block: &self.block, uses: &self.uses, offset: 0 }
    }

    pub(crate) fn uses(&self) -> &Uses {
        self.uses.uses()
    }

    /// For an operation that is ordered after the listed uses.
    pub(crate) fn used(&mut self, ticket: Ticket) {
        *self.uses.uses_mut() = Uses::of(ticket);
    }

    /// For an operation that is not ordered after the others. Returns the ticket if the list is full.
    pub(crate) fn used_too(&mut self, ticket: Ticket) -> core::result::Result<(), Ticket> {
        let uses = self.uses.uses_mut();
        uses.add(ticket).or_else(|ticket| {
            let backend = self.memory.backend();
            uses.retain(|listed| !backend.is_complete(listed));
            uses.add(ticket)
        })
    }

    pub(crate) fn settled(&mut self, ticket: Ticket) {
        if self.uses.any().is_some() {
            self.uses.uses_mut().remove(ticket);
        }
    }
}

impl<T, M: Memory> Drop for Buffer<T, M> {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: not used again.
        let memory = unsafe { ManuallyDrop::take(&mut self.memory) };
        let Compact { host, device_address, bytes, tag, facts } = self.block;
        // Whole words, as `Compact` requires: short enough to be inlined, so the buffer is read where it was written.
        // SAFETY: of this memory by the invariant, with its uses listed, and not used again.
        unsafe { dispose(memory, host, device_address, bytes, tag, facts, replace(&mut self.uses, Listed::NONE)) };
    }
}

/// # Safety
///
/// As [`Memory::free`], for a block of these fields.
#[inline(never)]
unsafe fn dispose<M: Memory>(memory: M, host: Option<NonNull<u8>>, device_address: u64, bytes: usize, tag: u64, facts: u64, uses: Listed) {
    // SAFETY: the caller promises that a block of these fields is of this memory and freed once, and that only the listed operations use
    // it.
    if let Err(error) = unsafe { give_back(&memory, &Compact { host, device_address, bytes, tag, facts }, &uses) } {
        memory.backend().unreported(error);
    }
}

/// # Safety
///
/// As [`Memory::free`].
#[inline(always)]
unsafe fn give_back<M: Memory>(memory: &M, block: &Compact, uses: &Listed) -> Result<()> {
    if block.bytes == 0 {
        return Ok(());
    }
    match uses.any() {
        // SAFETY: the caller promises that the block is of this memory and freed once; nothing is listed, so nothing uses it.
        None => unsafe { memory.free(&block.block(), &Uses::NONE) },
        // SAFETY: the caller promises that the block is of this memory and freed once, and that only `uses` still use it.
        Some(uses) => unsafe { give_back_after(memory, block, uses) },
    }
}

/// # Safety
///
/// As [`Memory::free`].
#[cold]
#[inline(never)]
unsafe fn give_back_after<M: Memory>(memory: &M, block: &Compact, uses: &Uses) -> Result<()> {
    // SAFETY: the caller promises that the block is of this memory and freed once, and that only `uses` still use it.
    unsafe { memory.free(&block.block(), uses) }
}

impl<T, M: Memory> fmt::Debug for Buffer<T, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer")
            .field("type", &core::any::type_name::<T>())
            .field("len", &self.len)
            .field("location", &self.block.location())
            .field("address", &self.block.device_address())
            .finish_non_exhaustive()
    }
}
