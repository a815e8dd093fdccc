//! Tensors of this library: the structure, its sizes and its owner in one allocation.

use core::ffi::c_void;
use core::ptr::{self, NonNull};
use std::boxed::Box;
use std::vec::Vec;

use super::layout::{DlDataType, DlDevice, DlManagedTensorVersioned, DlPackVersion, DlTensor};
use crate::backend::{Backend, Block, MemoryLocation};
use crate::error::TensorError;
use crate::sys::panic::caught;
use crate::{Error, Result};

/// The sizes and strides of a compact row-major tensor.
#[derive(Debug)]
pub struct Extents {
    // INVARIANT: at most 64 sizes, then as many strides, none of them negative.
    values: Vec<i64>,
    elements: u64,
}

impl Extents {
    /// Most dimensions of a tensor. NumPy and PyTorch have the same limit.
    pub const MOST: usize = 64;

    /// Returns the extents of a tensor with these sizes.
    ///
    /// # Errors
    ///
    /// [`Dimensions`](TensorError::Dimensions), [`Extent`](TensorError::Extent); [`TooLarge`](TensorError::TooLarge) if the product of the sizes other than 0
    /// exceeds `i64::MAX`.
    pub fn new(sizes: impl ExactSizeIterator<Item = i64>) -> Result<Self, TensorError> {
        let dimensions = sizes.len();
        if dimensions > Self::MOST {
            return Err(TensorError::Dimensions { dimensions: dimensions as i64, most: Self::MOST });
        }
        let mut values: Vec<i64> = sizes.collect();
        values.resize(2 * dimensions, 0);
        let (sizes, strides) = values.split_at_mut(dimensions);
        let mut stride = 1_i64;
        for (dimension, (&mut size, place)) in sizes.iter_mut().zip(strides).enumerate().rev() {
            if size < 0 {
                return Err(TensorError::Extent { dimension, size });
            }
            *place = stride;
            stride = stride.checked_mul(size.max(1)).ok_or(TensorError::TooLarge { dimension, size: size.unsigned_abs() })?;
        }
        let elements = if sizes.contains(&0) { 0 } else { stride.unsigned_abs() };
        Ok(Self { values, elements })
    }

    /// Returns the number of elements: the product of the sizes, 1 without dimensions.
    #[must_use]
    pub const fn elements(&self) -> u64 {
        self.elements
    }

    pub(super) fn sizes(&self) -> &[i64] {
        self.values.split_at(self.dimensions()).0
    }

    pub(super) fn strides(&self) -> &[i64] {
        self.values.split_at(self.dimensions()).1
    }

    pub(super) fn dimensions(&self) -> usize {
        self.values.len() / 2
    }
}

// INVARIANT: made by `managed` on the heap, and freed by `delete` of the same owner. The tensor is first, so that both have one address.
#[repr(C)]
struct Managed<O> {
    tensor: DlManagedTensorVersioned,
    /// `tensor` points to its values.
    _extents: Extents,
    owner: O,
}

/// Returns a writable tensor, whose deleter drops `owner` and may be called in any thread. A panic of that drop ends there.
///
/// `data` is ignored without elements.
pub fn managed<O: Send + 'static>(
    owner: O,
    data: *mut c_void,
    device: DlDevice,
    dtype: DlDataType,
    mut extents: Extents,
) -> NonNull<DlManagedTensorVersioned> {
    let dimensions = extents.dimensions();
    // The values are on the heap, and stay there while `extents` moves.
    let (shape, strides) = extents.values.split_at_mut(dimensions);
    let (shape, strides) = (shape.as_mut_ptr(), strides.as_mut_ptr());
    let dl_tensor = DlTensor {
        data: if extents.elements == 0 { ptr::null_mut() } else { data },
        device,
        // At most 64.
        ndim: dimensions as i32,
        dtype,
        shape,
        strides,
        byte_offset: 0,
    };
    let tensor = DlManagedTensorVersioned {
        version: DlPackVersion::OURS,
        manager_ctx: ptr::null_mut(),
        deleter: Some(delete::<O>),
        flags: 0,
        dl_tensor,
    };
    NonNull::from(Box::leak(Box::new(Managed { tensor, _extents: extents, owner }))).cast()
}

/// # Safety
///
/// Null, or from `managed` with an owner of this type, and used by nothing now or later.
unsafe extern "C" fn delete<O>(tensor: *mut DlManagedTensorVersioned) {
    if tensor.is_null() {
        return;
    }
    // SAFETY: from `Box::leak`, with this type, and used by nothing else now or later: the caller's promise.
    let managed = unsafe { Box::from_raw(tensor.cast::<Managed<O>>()) };
    // No panic may enter the consumer's code.
    let _ = caught(move || drop(managed.owner));
}

/// Returns the device of a tensor in a block.
///
/// # Errors
///
/// [`Unsupported`](Error::Unsupported) for device memory of another backend than CUDA's.
pub fn device_of(block: &Block, backend: &dyn Backend) -> Result<DlDevice> {
    let is_cuda = backend.name() == "cuda";
    let device_type = match block.location {
        MemoryLocation::Device if !is_cuda => {
            return Err(Error::Unsupported { what: "a tensor in simulated device memory, whose addresses are no pointers," });
        }
        MemoryLocation::Device => {
            let none = |_| Error::NoDevice { asked: block.device, devices: backend.devices() };
            return Ok(DlDevice { device_type: DlDevice::CUDA, device_id: i32::try_from(block.device).map_err(none)? });
        }
        MemoryLocation::Pinned if is_cuda && block.is_pinned => DlDevice::CUDA_HOST,
        MemoryLocation::Unified if is_cuda => DlDevice::CUDA_MANAGED,
        MemoryLocation::Host | MemoryLocation::Pinned | MemoryLocation::Unified => DlDevice::CPU,
    };
    // DLPack numbers no host memory.
    Ok(DlDevice { device_type, device_id: 0 })
}
