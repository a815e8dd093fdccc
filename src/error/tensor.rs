use crate::dlpack::{DlDataType, DlDevice, DlPackVersion};

/// Why a buffer cannot be lent, or a tensor cannot be taken.
///
/// ```
/// use ringmem::Error;
/// use ringmem::backend::host::HostBackend;
/// use ringmem::dlpack::{Lent, TensorError};
/// use ringmem::memory::{Buffer, Host};
///
/// let buffer = Buffer::<f32, _>::new(Host::new(&HostBackend::builder().build()?, 0), 12)?;
/// let rejected = Lent::new(buffer, &[3, 5]).expect_err("15 elements");
/// assert!(matches!(rejected.error, Error::Tensor(TensorError::Len { elements: 15, len: 12 })));
/// assert_eq!(rejected.value.len(), 12); // the buffer is returned
/// # Ok::<(), ringmem::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TensorError {
    /// A structure of another major version.
    #[error("DLPack {}.{} is not supported: request version 1", got.major, got.minor)]
    Version {
        /// Version of the tensor.
        got: DlPackVersion,
    },
    /// Other elements.
    #[error("type mismatch: the tensor has elements {got}, requested {expected}")]
    Elements {
        /// Requested type.
        expected: DlDataType,
        /// Type of the tensor.
        got: DlDataType,
    },
    /// Memory that the call cannot use.
    #[error("{call} cannot use memory of DLPack device type {}, number {}", got.device_type, got.device_id)]
    Device {
        /// Function.
        call: &'static str,
        /// Device of the tensor.
        got: DlDevice,
    },
    /// A negative number of dimensions, or too many.
    #[error("invalid shape: {dimensions} dimensions, at most {most} are supported")]
    Dimensions {
        /// Number of dimensions.
        dimensions: i64,
        /// Largest possible number.
        most: usize,
    },
    /// A negative size.
    #[error("invalid shape: dimension {dimension} has size {size}")]
    Extent {
        /// Number of the dimension, from 0.
        dimension: usize,
        /// Its size.
        size: i64,
    },
    /// More elements than addresses.
    #[error("invalid shape: from dimension {dimension} on, of size {size}, the tensor exceeds the address space")]
    TooLarge {
        /// Number of the dimension, from 0, with which the product of the sizes is too large.
        dimension: usize,
        /// Its size.
        size: u64,
    },
    /// Elements that are not adjacent, or in another order.
    #[error("dimension {dimension} has stride {got}, a compact row-major tensor has {expected}: copy it first")]
    Strides {
        /// Number of the dimension, from 0.
        dimension: usize,
        /// Stride of a compact row-major tensor, in elements.
        expected: i64,
        /// Stride of the tensor, in elements.
        got: i64,
    },
    /// A null pointer to sizes or elements.
    #[error("`{name}` of the tensor is a null pointer")]
    Null {
        /// Name of the field.
        name: &'static str,
    },
    /// A first element that is misaligned, or an end beyond the address space.
    #[error("invalid address {address:#x} with byte offset {byte_offset}: expected {bytes} bytes aligned to {align}")]
    Address {
        /// Address of the memory.
        address: u64,
        /// Offset of the first element.
        byte_offset: u64,
        /// Size of the elements together.
        bytes: u64,
        /// Required alignment.
        align: u64,
    },
    /// A shape for another number of elements.
    #[error("the shape has {elements} elements, the buffer {len}")]
    Len {
        /// Product of the sizes.
        elements: u64,
        /// Length of the buffer.
        len: u64,
    },
    /// Mutable access to a read-only tensor.
    #[error("the tensor is read-only")]
    ReadOnly,
}
