use core::ffi::c_int;

use ringmem_layouts::{Layout, LayoutDescriptor};

use crate::DeviceBytes;

/// An element type that NCCL has.
///
/// ```
/// use ringmem::backend::cuda::nccl::{Bf16, Element};
/// use ringmem::backend::host::HostBackend;
/// use ringmem::memory::{Device, GpuBuffer};
///
/// fn takes<T: Element>(_: &GpuBuffer<T>) {}
///
/// let backend = HostBackend::builder().build()?;
/// let words = GpuBuffer::<u16>::new(Device::new(&backend, 0), 8)?; // NCCL has no `u16`
/// takes(&words.cast::<Bf16>()?);
/// # Ok::<(), ringmem::Error>(())
/// ```
/// ```compile_fail
/// fn takes<T: ringmem::backend::cuda::nccl::Element>() {}
/// takes::<u16>(); // neither `F16` nor `Bf16`
/// ```
#[diagnostic::on_unimplemented(
    message = "NCCL has no element type `{Self}`",
    note = "i8, u8, i32, u32, i64, u64, f32, f64, `F16`, `Bf16`; `Buffer::cast` changes the type of a buffer"
)]
pub trait Element: DeviceBytes + sealed::Typed {}

/// The bits of an IEEE 754 half-precision number.
///
/// ```
/// use ringmem::backend::cuda::nccl::F16;
/// use ringmem::backend::host::HostBackend;
/// use ringmem::memory::{Device, GpuBuffer};
///
/// const ONE: F16 = F16(0x3c00);
///
/// let backend = HostBackend::builder().build()?;
/// let mut weights = GpuBuffer::<F16>::new(Device::new(&backend, 0), 3)?;
/// weights.fill(ONE)?;
/// assert_eq!((weights.to_vec()?, weights.size_bytes()), (vec![ONE; 3], 6));
/// # Ok::<(), ringmem::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct F16(pub u16);

/// The bits of a bfloat16 number: the upper half of an `f32`.
///
/// ```
/// use ringmem::backend::cuda::nccl::Bf16;
///
/// fn truncated(value: f32) -> Bf16 {
///     Bf16((value.to_bits() >> 16) as u16)
/// }
///
/// assert_eq!(f32::from_bits(u32::from(truncated(1.5).0) << 16), 1.5);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct Bf16(pub u16);

// SAFETY: transparent over a number, of which all bits are valid.
unsafe impl Layout for F16 {
    const DESCRIPTOR: LayoutDescriptor = LayoutDescriptor::number::<Self>("F16");
}
// SAFETY: as above.
unsafe impl Layout for Bf16 {
    const DESCRIPTOR: LayoutDescriptor = LayoutDescriptor::number::<Self>("Bf16");
}

/// The operation of an [all-reduce](super::Collective::all_reduce). Integers wrap.
///
/// ```
/// use ringmem::backend::cuda::nccl::{Communicator, Reduce};
/// use ringmem::memory::GpuBuffer;
/// use ringmem::stream::Stream;
///
/// /// Replaces each element by the largest of all ranks.
/// fn largest(rank: &Communicator, stream: &Stream, losses: GpuBuffer<f32>) -> ringmem::Result<GpuBuffer<f32>> {
///     Ok(rank.wait(rank.on(stream, losses).all_reduce(Reduce::Maximum, ..).queue()?)?)
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reduce {
    /// Sum.
    Sum,
    /// Product.
    Product,
    /// Largest value.
    Maximum,
    /// Smallest value.
    Minimum,
}

impl Reduce {
    pub(super) const fn code(self) -> c_int {
        match self {
            Self::Sum => 0,
            Self::Product => 1,
            Self::Maximum => 2,
            Self::Minimum => 3,
        }
    }
}

pub(super) mod sealed {
    use core::ffi::c_int;

    pub trait Typed {
        /// `ncclDataType_t`.
        const TYPE: c_int;
    }
}

macro_rules! elements {
    ($($element:ty = $number:literal),+) => {$(
        impl sealed::Typed for $element {
            const TYPE: c_int = $number;
        }
        impl Element for $element {}
    )+};
}
elements!(i8 = 0, u8 = 1, i32 = 2, u32 = 3, i64 = 4, u64 = 5, F16 = 6, f32 = 7, f64 = 8, Bf16 = 9);
