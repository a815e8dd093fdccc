//! DLPack: buffers as tensors of NumPy, PyTorch, CuPy and others, and their tensors here. Nothing is copied.
//!
//! [`Lent`] makes a [`Buffer`](crate::memory::Buffer) a [`DlManagedTensorVersioned`], which owns it. [`Taken`] owns a tensor of another library.
//!
//! 1. A tensor is freed once, by its [deleter](DlManagedTensorVersioned::deleter), which its owner calls. Deleters of this library may be called in any
//!    thread, and no panic leaves them.
//! 2. A rejected buffer is returned. A tensor that [`Taken::from_raw`] rejects is still the caller's.
//! 3. Tensors are compact and row-major, with one number for each [`Element`].
//! 4. Queued work is ordered with a consumer on the device by a stream, else by a wait on the host.
//!
//! | memory | device type | consumers |
//! |---|---|---|
//! | [`Device`](crate::memory::Device) of CUDA | 2, with its number | PyTorch, CuPy, JAX |
//! | [`Pinned`](crate::memory::Pinned) of CUDA | 3 | NumPy, CuPy |
//! | [`Unified`](crate::memory::Unified) of CUDA | 13 | NumPy, CuPy |
//! | [`Host`](crate::memory::Host), and pinned or managed memory of simulated devices | 1 | all |
//! | [`Device`](crate::memory::Device) of simulated devices | none: [`Unsupported`](crate::Error::Unsupported) | |
//!
//! # Streams
//!
//! In Python, a consumer passes its stream to `__dlpack__(stream=..)`. The producer makes that stream wait for its own work.
//!
//! | `stream` | meaning | here |
//! |---|---|---|
//! | `None` | on a CUDA device as 1, else none | as 1, or [`Lent::new`] |
//! | 1 | the legacy default stream | [`Lent::new_on`] with a stream of `CudaBackend::adopt_default_stream` |
//! | 2 | the per-thread default stream | not supported |
//! | -1 | no wait | [`Lent::new_on`] with the stream of the buffer's last use |
//! | larger | a stream's handle | [`Lent::new_on`] with a stream of `CudaBackend::adopt_raw_stream` |
//!
//! A consumer may call the deleter while its work is still queued on that stream: the memory is reused after it.
//!
//! # Alignment
//!
//! DLPack demands `data` aligned to 256 bytes, with the rest of the address in `byte_offset`. PyTorch ignores `byte_offset`, and most producers ignore the
//! alignment. So lent tensors have `byte_offset` 0, and the alignment of their buffer: [`Aligned`](crate::memory::Aligned) memory or a driver's allocation
//! has 256. Taken tensors need that of their elements.
//!
//! # Capsules
//!
//! Python moves a tensor in a capsule with the name `dltensor_versioned`. Its consumer renames the capsule to `used_dltensor_versioned`, and from then on
//! owns the tensor; the destructor of a capsule that was not renamed calls the deleter. A consumer that does not pass `max_version=(1, 0)` expects the
//! structure of version 0, which this module does not have.
//!
//! ```
//! # fn main() -> ringmem::Result<()> {
//! use ringmem::backend::host::HostBackend;
//! use ringmem::dlpack::{Lent, Taken};
//! use ringmem::memory::{Buffer, Host};
//!
//! let backend = HostBackend::builder().build()?;
//! let buffer = Buffer::from_slice(Host::new(&backend, 0), &[1.0_f32, 2.0, 3.0, 4.0, 5.0, 6.0])?;
//! let tensor = Lent::new(buffer, &[2, 3])?.into_raw(); // for a capsule
//!
//! // SAFETY: a valid tensor, which nothing else uses; its deleter may be called in any thread.
//! let mut taken = unsafe { Taken::<f32>::from_raw(tensor) }?;
//! taken.as_mut_slice()?[5] = 60.0;
//! assert!(taken.shape().eq([2, 3]));
//! assert_eq!(taken.as_slice()?, [1.0, 2.0, 3.0, 4.0, 5.0, 60.0]);
//! drop(taken); // calls the deleter, which frees the buffer
//! # Ok(())
//! # }
//! ```

#[cfg(feature = "cuda")]
mod adopted;
mod layout;
mod lent;
pub(crate) mod managed;
mod taken;

use crate::DeviceBytes;

pub use crate::error::TensorError;
pub use layout::{DlDataType, DlDevice, DlManagedTensorVersioned, DlPackVersion, DlTensor};
pub use lent::Lent;
pub use taken::Taken;

/// A number that DLPack has a type for.
///
/// # Safety
///
/// A value has the size and meaning of [`DATA_TYPE`](Self::DATA_TYPE), with one lane.
///
/// ```
/// use ringmem::SharedLayout;
/// use ringmem::dlpack::{DlDataType, Element};
///
/// /// Half precision, of a crate of your choice.
/// #[derive(Clone, Copy, SharedLayout)]
/// #[repr(C)]
/// struct Half { bits: u16 }
///
/// // SAFETY: two bytes, with the meaning of an IEEE 754 binary16.
/// unsafe impl Element for Half {
///     const DATA_TYPE: DlDataType = DlDataType { code: DlDataType::FLOAT, bits: 16, lanes: 1 };
/// }
/// assert_eq!(Half::DATA_TYPE.to_string(), "float16");
/// ```
pub unsafe trait Element: DeviceBytes {
    /// Its type.
    const DATA_TYPE: DlDataType;
}

macro_rules! elements {
    ($($element:ty: $code:ident),*) => {$(
        // SAFETY: a number of that kind, in the byte order of the machine.
        unsafe impl Element for $element {
            const DATA_TYPE: DlDataType = DlDataType { code: DlDataType::$code, bits: 8 * size_of::<$element>() as u8, lanes: 1 };
        }
    )*};
}

elements! { i8: INT, i16: INT, i32: INT, i64: INT, u8: UINT, u16: UINT, u32: UINT, u64: UINT, f32: FLOAT, f64: FLOAT }
