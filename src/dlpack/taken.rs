//! [`Taken`]: a tensor of another library.
//!
//! Its structure is read once, in [`Taken::from_raw`]. What is checked is a copy, which the producer cannot change later.

use core::fmt;
use core::ptr::NonNull;
use core::slice;
use std::sync::Arc;

use super::managed::Extents;
use super::{DlDevice, DlManagedTensorVersioned, DlPackVersion, DlTensor, Element};
use crate::error::TensorError;
use crate::memory::layout;

/// A tensor of another library, with elements `T`.
///
/// The tensor's deleter is called once, at the drop, or after the uses of the buffer that `into_buffer`, with the feature `cuda`, makes of it.
pub struct Taken<T> {
    #[allow(dead_code, reason = "to be dropped")]
    pub(super) owned: Arc<Owned>,
    // INVARIANT: `len` elements of `device` from here on, aligned, until `owned` is dropped. Only a number if the host cannot access them.
    first: NonNull<T>,
    extents: Extents,
    pub(super) device: DlDevice,
    is_read_only: bool,
}

// SAFETY: the elements are `Send`, and no one else accesses them: the promise of `from_raw`.
unsafe impl<T: Element> Send for Taken<T> {}
// SAFETY: a shared reference allows reads only, and the elements are `Sync`.
unsafe impl<T: Element> Sync for Taken<T> {}

/// Calls the deleter when it is dropped.
// INVARIANT: a live tensor that nothing else owns.
pub(super) struct Owned(NonNull<DlManagedTensorVersioned>);

// SAFETY: used for the deleter only, which may be called in any thread: the promise of `Taken::from_raw`.
unsafe impl Send for Owned {}
// SAFETY: a shared reference gives access to nothing.
unsafe impl Sync for Owned {}

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: live and not owned elsewhere, by the invariant, and not used again.
        unsafe { DlManagedTensorVersioned::delete(self.0) };
    }
}

impl<T: Element> Taken<T> {
    /// Takes a tensor. After an error it is still the caller's.
    ///
    /// Rename its capsule to `used_dltensor_versioned` afterwards, before any other Python code runs.
    ///
    /// # Errors
    ///
    /// The reason: another version, type or device, a shape that is negative or too large, strides of another order, a null pointer, a misaligned address.
    ///
    /// # Safety
    ///
    /// 1. The tensor is live. If its major version is 1, its fields are initialised, and `shape`, and `strides` unless null, are valid for reads of `ndim`
    ///    numbers if `ndim` is from 1 to 64.
    /// 2. Until the deleter is called, the elements that the fields describe are memory of that device. If that is host memory, pinned or managed, they are
    ///    initialised, and the host may access them.
    /// 3. Until then, nothing else writes them; unless the tensor is read-only, nothing else reads them either. Queued work of the producer is complete, or
    ///    ordered before the stream that is passed to `into_buffer`.
    /// 4. After a success, the caller does not use the tensor, and does not call the deleter. The deleter may be called in any thread, does not unwind, and
    ///    does not wait for a thread that waits for this library: with ctypes, call the library through `CDLL`, not `PyDLL`, which keeps Python's lock.
    pub unsafe fn from_raw(tensor: NonNull<DlManagedTensorVersioned>) -> Result<Self, TensorError> {
        // SAFETY: the tensor is live, and each version of the structure begins with its version.
        let got = unsafe { (&raw const (*tensor.as_ptr()).version).read() };
        if got.major != DlPackVersion::OURS.major {
            return Err(TensorError::Version { got });
        }
        // SAFETY: the caller promises a live tensor, whose fields are initialised, because it has this major version.
        let DlManagedTensorVersioned { flags, dl_tensor, .. } = unsafe { tensor.read() };
        let DlTensor { data, device, dtype, byte_offset, .. } = dl_tensor;
        if dtype != T::DATA_TYPE {
            return Err(TensorError::Elements { expected: T::DATA_TYPE, got: dtype });
        }
        if !is_on_the_host(device) && device.device_type != DlDevice::CUDA {
            return Err(TensorError::Device { call: "from_raw", got: device });
        }
        // SAFETY: the caller promises that `shape`, and `strides` unless null, are valid for reads of `ndim` numbers if `ndim` is from 1 to 64. The fields are
        // initialised, as the read above requires.
        let extents = unsafe { extents_of(&dl_tensor) }?;
        let layout = usize::try_from(extents.elements()).ok().and_then(|len| layout::<T>(len).ok());
        let size = extents.sizes().first().map_or(1, |size| size.unsigned_abs());
        let layout = layout.ok_or(TensorError::TooLarge { dimension: 0, size })?;
        let (bytes, align) = (layout.size() as u64, layout.align() as u64);
        let first = if bytes == 0 {
            NonNull::dangling()
        } else if data.is_null() {
            return Err(TensorError::Null { name: "data" });
        } else {
            let address = data.addr() as u64;
            let start = address.checked_add(byte_offset).filter(|start| start.is_multiple_of(align));
            let end = start.and_then(|start| start.checked_add(bytes)).and_then(|end| usize::try_from(end).ok());
            // Not above the end, which is an address; not null, since `data` is not.
            let first = end.and_then(|_| NonNull::new(data.wrapping_byte_add(byte_offset as usize).cast()));
            first.ok_or(TensorError::Address { address, byte_offset, bytes, align })?
        };
        let is_read_only = flags & DlManagedTensorVersioned::READ_ONLY != 0;
        Ok(Self { owned: Arc::new(Owned(tensor)), first, extents, device, is_read_only })
    }

    /// Returns the elements, in row-major order.
    ///
    /// # Errors
    ///
    /// [`Device`](TensorError::Device) for device memory.
    pub fn as_slice(&self) -> Result<&[T], TensorError> {
        self.on_the_host("as_slice")?;
        // SAFETY: so many aligned elements by the invariant, in memory of the host. They are initialised, and not written meanwhile: the promises of
        // `from_raw`.
        Ok(unsafe { slice::from_raw_parts(self.first.as_ptr(), self.len()) })
    }

    /// As [`as_slice`](Self::as_slice), for writes.
    ///
    /// # Errors
    ///
    /// [`Device`](TensorError::Device) for device memory, [`ReadOnly`](TensorError::ReadOnly).
    pub fn as_mut_slice(&mut self) -> Result<&mut [T], TensorError> {
        self.on_the_host("as_mut_slice")?;
        self.writable()?;
        // SAFETY: so many aligned elements by the invariant, in memory of the host. They are initialised, and, as the tensor is not read-only, not accessed by
        // anything else: the promises of `from_raw`.
        Ok(unsafe { slice::from_raw_parts_mut(self.first.as_ptr(), self.len()) })
    }

    fn on_the_host(&self, call: &'static str) -> Result<(), TensorError> {
        if is_on_the_host(self.device) { Ok(()) } else { Err(TensorError::Device { call, got: self.device }) }
    }
}

impl<T> Taken<T> {
    /// Returns the number of elements.
    #[must_use]
    pub const fn len(&self) -> usize {
        // A `usize`, since the elements have addresses.
        self.extents.elements() as usize
    }

    /// Returns true without elements.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.extents.elements() == 0
    }

    /// Returns the sizes.
    pub fn shape(&self) -> impl ExactSizeIterator<Item = u64> + '_ {
        self.extents.sizes().iter().map(|size| size.unsigned_abs())
    }

    /// Returns the device.
    #[must_use]
    pub const fn device(&self) -> DlDevice {
        self.device
    }

    /// Returns true if the elements must not be written.
    #[must_use]
    pub const fn is_read_only(&self) -> bool {
        self.is_read_only
    }

    pub(super) const fn writable(&self) -> Result<(), TensorError> {
        if self.is_read_only { Err(TensorError::ReadOnly) } else { Ok(()) }
    }

    #[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "only CUDA adopts memory"))]
    pub(super) fn address(&self) -> u64 {
        self.first.as_ptr().addr() as u64
    }
}

impl<T> fmt::Debug for Taken<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Taken")
            .field("type", &core::any::type_name::<T>())
            .field("shape", &self.extents.sizes())
            .field("device", &self.device)
            .field("is_read_only", &self.is_read_only)
            .finish_non_exhaustive()
    }
}

const fn is_on_the_host(device: DlDevice) -> bool {
    matches!(device.device_type, DlDevice::CPU | DlDevice::CUDA_HOST | DlDevice::CUDA_MANAGED)
}

/// Checks sizes and strides. The strides of sizes below 2 lead to no other element, and those of a tensor without elements to none: they are not checked.
///
/// # Safety
///
/// The first promise of [`Taken::from_raw`].
unsafe fn extents_of(tensor: &DlTensor) -> Result<Extents, TensorError> {
    let Ok(dimensions) = usize::try_from(tensor.ndim) else {
        return Err(TensorError::Dimensions { dimensions: tensor.ndim.into(), most: Extents::MOST });
    };
    if dimensions > 0 && tensor.shape.is_null() {
        return Err(TensorError::Null { name: "shape" });
    }
    let number = |numbers: *mut i64, index: usize| {
        // SAFETY: below `ndim`, which is at most 64, since `Extents` reads no more sizes, and has no more strides: the caller's promise.
        unsafe { numbers.add(index).read_unaligned() }
    };
    let extents = Extents::new((0..dimensions).map(|dimension| number(tensor.shape, dimension)))?;
    if tensor.strides.is_null() || extents.elements() == 0 {
        return Ok(extents);
    }
    for (dimension, (&size, &expected)) in extents.sizes().iter().zip(extents.strides()).enumerate() {
        let got = number(tensor.strides, dimension);
        if size > 1 && got != expected {
            return Err(TensorError::Strides { dimension, expected, got });
        }
    }
    Ok(extents)
}
