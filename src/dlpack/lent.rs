//! [`Lent`]: a buffer as a tensor.
#![allow(clippy::result_large_err, reason = "what comes back is as large as what went in")]

use core::any::TypeId;
use core::ffi::c_void;
use core::fmt;
use core::mem::ManuallyDrop;
use core::ptr::{self, NonNull};

use super::managed::{Extents, device_of, managed};
use super::{DlDevice, DlManagedTensorVersioned, DlTensor, Element};
use crate::backend::{Block, MemoryLocation, StreamId, Taints};
use crate::error::TensorError;
use crate::memory::{Buffer, DeviceOnly, Memory};
use crate::{Error, Rejected, Result};

/// A tensor that owns a buffer.
///
/// Its drop frees the buffer. After [`into_raw`](Self::into_raw), the tensor's deleter does.
///
/// ```
/// use ringmem::backend::host::HostBackend;
/// use ringmem::dlpack::{DlDevice, DlManagedTensorVersioned, Lent};
/// use ringmem::memory::{Pinned, PinnedBuffer};
///
/// let backend = HostBackend::builder().build()?;
/// let lent = Lent::new(PinnedBuffer::<u8>::new(Pinned::new(&backend, 0), 24)?, &[2, 3, 4])?;
/// assert_eq!(lent.tensor().device, DlDevice::HOST); // of a simulated device
/// let tensor = lent.into_raw();
/// // SAFETY: live, and used by nothing.
/// unsafe { DlManagedTensorVersioned::delete(tensor) };
/// # Ok::<(), ringmem::Error>(())
/// ```
#[must_use = "a drop frees the buffer"]
pub struct Lent {
    // INVARIANT: from `managed`, and not deleted.
    tensor: NonNull<DlManagedTensorVersioned>,
}

// SAFETY: the owner in the tensor is `Send`, by the bound of `managed`.
unsafe impl Send for Lent {}
// SAFETY: a shared reference allows reads of the structure only, which nothing writes.
unsafe impl Sync for Lent {}

impl Lent {
    /// Waits for the buffer's uses, and makes it a tensor of this shape. No dimensions are one element.
    ///
    /// When the consumer calls the deleter, its work is complete.
    ///
    /// # Errors
    ///
    /// The buffer, with [`Tensor`](Error::Tensor) for a shape of another length; [`Unsupported`](Error::Unsupported) for memory of a simulated device;
    /// [`Busy`](Error::Busy) for managed memory that the host cannot access under a kernel; [`Tainted`](Error::Tainted); the error of a use.
    pub fn new<T: Element, M: Memory>(buffer: Buffer<T, M>, shape: &[u64]) -> Result<Self, Rejected<Buffer<T, M>>> {
        Self::lend(buffer, shape, None)
    }

    /// Makes the buffer a tensor whose consumer queues its work on a stream of the buffer's backend, also of another library.
    ///
    /// The stream waits for the buffer's uses, on the device. When the consumer calls the deleter, its work is queued there or complete: the memory is freed
    /// or reused after that. Close the stream after the deleter; a deleter that finds it closed leaks the buffer.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new); [`Unsupported`](Error::Unsupported) for memory that only the host can access; [`Closed`](Error::Closed) for a closed stream or
    /// that of another backend; the driver's error, perhaps with waits for some uses.
    pub fn new_on<T: Element, M: Memory>(buffer: Buffer<T, M>, shape: &[u64], stream: StreamId) -> Result<Self, Rejected<Buffer<T, M>>> {
        Self::lend(buffer, shape, Some(stream))
    }

    fn lend<T: Element, M: Memory>(
        mut buffer: Buffer<T, M>,
        shape: &[u64],
        stream: Option<StreamId>,
    ) -> Result<Self, Rejected<Buffer<T, M>>> {
        match describe(&mut buffer, shape, stream) {
            Ok((data, device, extents)) => {
                let owner = Owner { buffer: ManuallyDrop::new(buffer), stream };
                Ok(Self { tensor: managed(owner, data, device, T::DATA_TYPE, extents) })
            }
            Err(error) => Err(Rejected { error, value: buffer }),
        }
    }

    /// Returns the tensor, whose consumer calls the deleter once, in any thread. A tensor that nobody takes is leaked.
    ///
    /// A capsule owns it until its consumer renames the capsule: see the [module](super).
    #[must_use = "the tensor is leaked unless its deleter is called"]
    pub fn into_raw(self) -> NonNull<DlManagedTensorVersioned> {
        ManuallyDrop::new(self).tensor
    }

    /// Returns the description of the elements.
    #[must_use]
    pub fn tensor(&self) -> &DlTensor {
        // SAFETY: live by the invariant, and not written while `self` is borrowed.
        unsafe { &(*self.tensor.as_ptr()).dl_tensor }
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        // SAFETY: live by the invariant, and not used again.
        unsafe { DlManagedTensorVersioned::delete(self.tensor) };
    }
}

impl fmt::Debug for Lent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Lent").field(self.tensor()).finish()
    }
}

struct Owner<T, M: Memory> {
    buffer: ManuallyDrop<Buffer<T, M>>,
    stream: Option<StreamId>,
}

impl<T, M: Memory> Drop for Owner<T, M> {
    fn drop(&mut self) {
        // Without the position, work of the consumer may still use the memory: then it is leaked.
        if let Some(stream) = self.stream
            && let Err(error) = self.buffer.used_until_now(stream)
        {
            return self.buffer.memory().backend().unreported(error);
        }
        // SAFETY: not used again.
        drop(unsafe { ManuallyDrop::take(&mut self.buffer) });
    }
}

fn describe<T: Element, M: Memory>(
    buffer: &mut Buffer<T, M>,
    shape: &[u64],
    stream: Option<StreamId>,
) -> Result<(*mut c_void, DlDevice, Extents)> {
    if let Some((dimension, &size)) = shape.iter().enumerate().find(|(_, size)| i64::try_from(**size).is_err()) {
        return Err(TensorError::TooLarge { dimension, size }.into());
    }
    let extents = Extents::new(shape.iter().map(|&size| size as i64))?;
    let (elements, len) = (extents.elements(), buffer.len() as u64);
    if elements != len {
        return Err(TensorError::Len { elements, len }.into());
    }
    let mut block = buffer.block();
    if len == 0 && TypeId::of::<M::Visibility>() == TypeId::of::<DeviceOnly>() {
        // An empty buffer has no location. Its tensor is on the device, as a consumer combines it with others there.
        block = Block { device: buffer.memory().device(), ..Block::empty(MemoryLocation::Device, 1) };
    }
    let device = device_of(&block, &**buffer.memory().backend())?;
    match stream {
        Some(_) if device.device_type == DlDevice::CPU => {
            return Err(Error::Unsupported { what: "a stream for a tensor in memory of the host alone" });
        }
        Some(stream) => {
            // Now, so that a closed stream is this call's error, not that of the deleter.
            buffer.memory().backend().record_position(stream)?;
            buffer.ready_for(stream)?;
        }
        None => buffer.settle()?,
    }
    let backend = buffer.memory().backend();
    if stream.is_none() && block.location == MemoryLocation::Unified {
        backend.host_access(&block)?;
    }
    // SAFETY: the start is within the block.
    if let (false, Some(taints), Some(place)) = (Taints::are_none(), backend.taints(), unsafe { block.address_at(0) }) {
        taints.check(place, block.layout.size() as u64)?;
    }
    let data = match (block.host, block.device_address) {
        (Some(host), _) => host.as_ptr().cast(),
        (None, address) => ptr::without_provenance_mut(address.map_or(0, |address| address.get() as usize)),
    };
    Ok((data, device, extents))
}
