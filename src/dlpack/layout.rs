//! The structures of `dlpack.h`, version 1.

use core::ffi::c_void;
use core::fmt;
use core::mem::offset_of;
use core::ptr::NonNull;

/// The version of a tensor's structure. Another major version has another layout; a minor version adds codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct DlPackVersion {
    /// Version of the layout.
    pub major: u32,
    /// Version of the codes.
    pub minor: u32,
}

impl DlPackVersion {
    /// The version of lent tensors: the lowest one with this layout.
    pub const OURS: Self = Self { major: 1, minor: 0 };
}

/// A kind of memory, and the number of its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct DlDevice {
    /// [`CPU`](Self::CPU), [`CUDA`](Self::CUDA), [`CUDA_HOST`](Self::CUDA_HOST), [`CUDA_MANAGED`](Self::CUDA_MANAGED), or of another API.
    pub device_type: i32,
    /// 0, except for [`CUDA`](Self::CUDA).
    pub device_id: i32,
}

impl DlDevice {
    /// Pageable host memory.
    pub const CPU: i32 = 1;
    /// Memory of a CUDA device.
    pub const CUDA: i32 = 2;
    /// Page-locked host memory.
    pub const CUDA_HOST: i32 = 3;
    /// Managed memory.
    pub const CUDA_MANAGED: i32 = 13;

    /// Pageable host memory.
    pub const HOST: Self = Self { device_type: Self::CPU, device_id: 0 };
}

/// The type of an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct DlDataType {
    /// [`INT`](Self::INT), [`UINT`](Self::UINT), [`FLOAT`](Self::FLOAT), [`BFLOAT`](Self::BFLOAT), [`COMPLEX`](Self::COMPLEX),
    /// [`BOOL`](Self::BOOL), or another code.
    pub code: u8,
    /// Size in bits.
    pub bits: u8,
    /// Values of that type in an element: 1, except for vectors.
    pub lanes: u16,
}

impl DlDataType {
    /// Signed integers.
    pub const INT: u8 = 0;
    /// Unsigned integers.
    pub const UINT: u8 = 1;
    /// IEEE 754 binary numbers.
    pub const FLOAT: u8 = 2;
    /// The upper bits of IEEE 754 binary numbers.
    pub const BFLOAT: u8 = 4;
    /// Pairs of real and imaginary part.
    pub const COMPLEX: u8 = 5;
    /// Truth values in bytes.
    pub const BOOL: u8 = 6;
}

impl fmt::Display for DlDataType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.code {
            Self::INT => "int",
            Self::UINT => "uint",
            Self::FLOAT => "float",
            Self::BFLOAT => "bfloat",
            Self::COMPLEX => "complex",
            Self::BOOL => "bool",
            code => return write!(f, "type {code} with {} bits and {} lanes", self.bits, self.lanes),
        };
        write!(f, "{name}{}", self.bits)?;
        if self.lanes == 1 { Ok(()) } else { write!(f, " with {} lanes", self.lanes) }
    }
}

/// Memory, and how a tensor lies in it.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct DlTensor {
    /// Address of the memory; null without elements. For CUDA, a device address.
    pub data: *mut c_void,
    /// Kind and device of the memory.
    pub device: DlDevice,
    /// Number of dimensions.
    pub ndim: i32,
    /// Type of the elements.
    pub dtype: DlDataType,
    /// `ndim` sizes.
    pub shape: *mut i64,
    /// `ndim` distances, in elements; null for a compact row-major tensor.
    pub strides: *mut i64,
    /// Distance of the first element from `data`.
    pub byte_offset: u64,
}

/// A tensor with its owner.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct DlManagedTensorVersioned {
    /// Version of this structure. With another major version, `manager_ctx` and `deleter` are valid, and nothing else.
    pub version: DlPackVersion,
    /// A value of the producer.
    pub manager_ctx: *mut c_void,
    /// Frees the tensor, including this structure. `None` if there is nothing to free.
    pub deleter: Option<unsafe extern "C" fn(*mut DlManagedTensorVersioned)>,
    /// [`READ_ONLY`](Self::READ_ONLY), [`IS_COPIED`](Self::IS_COPIED).
    pub flags: u64,
    /// The tensor.
    pub dl_tensor: DlTensor,
}

impl DlManagedTensorVersioned {
    /// The consumer must not write the elements.
    pub const READ_ONLY: u64 = 1;
    /// The producer made a copy, which is the consumer's alone.
    pub const IS_COPIED: u64 = 2;

    /// Calls the deleter, also for another major version.
    ///
    /// # Safety
    ///
    /// The tensor is live, and used by nothing now or later.
    pub unsafe fn delete(this: NonNull<Self>) {
        // SAFETY: the caller promises a live tensor. Every version has the deleter at this place.
        let deleter = unsafe { (&raw const (*this.as_ptr()).deleter).read() };
        if let Some(deleter) = deleter {
            // SAFETY: the producer's deleter for this tensor. The caller promises that it is live and not used again, so the deleter is called once.
            unsafe { deleter(this.as_ptr()) };
        }
    }
}

// The offsets and sizes of `dlpack.h` with 8-byte pointers and C's `int` of 4 bytes.
#[cfg(target_pointer_width = "64")]
const _: () = {
    assert!(size_of::<DlPackVersion>() == 8 && size_of::<DlDevice>() == 8 && size_of::<DlDataType>() == 4);
    assert!(offset_of!(DlDevice, device_id) == 4 && offset_of!(DlDataType, bits) == 1 && offset_of!(DlDataType, lanes) == 2);
    assert!(offset_of!(DlTensor, data) == 0 && offset_of!(DlTensor, device) == 8 && offset_of!(DlTensor, ndim) == 16);
    assert!(offset_of!(DlTensor, dtype) == 20 && offset_of!(DlTensor, shape) == 24 && offset_of!(DlTensor, strides) == 32);
    assert!(offset_of!(DlTensor, byte_offset) == 40 && size_of::<DlTensor>() == 48 && align_of::<DlTensor>() == 8);
    assert!(offset_of!(DlManagedTensorVersioned, version) == 0 && offset_of!(DlManagedTensorVersioned, manager_ctx) == 8);
    assert!(offset_of!(DlManagedTensorVersioned, deleter) == 16 && offset_of!(DlManagedTensorVersioned, flags) == 24);
    assert!(offset_of!(DlManagedTensorVersioned, dl_tensor) == 32 && size_of::<DlManagedTensorVersioned>() == 80);
};
