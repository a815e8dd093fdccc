//! [`GridKernel`]: a kernel over buffers, which calls a function once for each element.
//!
//! ```text
//!   grid fn saxpy(x: &f32, y: &mut f32, a: f32) { *y += a * *x; }
//!
//!   x     x0  x1  x2  x3  x4  ..        each thread: element `at`, `at` + all threads, ..
//!   y     y0  y1  y2  y3  y4  ..
//!          |   |   |   |   |
//!         lane 0 1   2   3   4  ..      writes its own elements only, and reads those of `&T` and all of `&[T]`
//! ```
//!
//! The words of a launch are the number of elements, then for each parameter:
//!
//! | parameter | marker | words |
//! |---|---|---|
//! | `x: &T` | [`Element`] | address |
//! | `y: &mut T` | [`ElementMut`] | address |
//! | `all: &[T]` | [`All`] | address, number of elements |
//! | `a: T` | [`Scalar`] | the bytes of `T`, rounded up |
//!
//! A launch takes them by types alone: no thread writes an element that another one accesses, because an output is a buffer that is borrowed mutably, or
//! owned, by the launch, and each index belongs to one thread.

use core::fmt;
use core::marker::PhantomData;

use crate::{Abi, AbiHash, DeviceBytes, Image, LayoutDescriptor};

/// The place of an element: its index, and the number of elements of the launch.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::grid::Index;
///
/// /// The mean of an element's neighbourhood.
/// fn smooth(at: Index, x: &[f32], y: &mut f32) {
///     let near = &x[at.get().saturating_sub(1)..(at.get() + 2).min(at.len())];
///     *y = near.iter().sum::<f32>() / near.len() as f32;
/// }
///
/// let mut y = 0.0;
/// smooth(Index::new(0, 3), &[1.0, 2.0, 9.0], &mut y);
/// assert_eq!(y, 1.5);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Index {
    at: usize,
    len: usize,
}

impl Index {
    /// Returns the place of element `at` of `len`, for a call of the function by hand.
    #[must_use]
    #[inline(always)]
    pub const fn new(at: usize, len: usize) -> Self {
        Self { at, len }
    }

    /// Returns the index of the element.
    #[must_use]
    #[inline(always)]
    pub const fn get(self) -> usize {
        self.at
    }

    /// Returns the number of elements.
    #[must_use]
    #[inline(always)]
    #[allow(clippy::len_without_is_empty, reason = "there is an element")]
    pub const fn len(self) -> usize {
        self.len
    }
}

/// A parameter `name: &T`: an element of a buffer, for reading.
pub struct Element<T, N>(PhantomData<fn(T, N)>);
/// A parameter `name: &mut T`: an element of a buffer, which this call alone accesses.
pub struct ElementMut<T, N>(PhantomData<fn(T, N)>);
/// A parameter `name: &[T]`: a whole buffer, for reading.
pub struct All<T, N>(PhantomData<fn(T, N)>);
/// A parameter `name: T`: a value, the same in each call.
pub struct Scalar<T, N>(PhantomData<fn(T, N)>);

/// The name of a parameter. `kernels!` implements it.
pub trait Parameter {
    /// The name.
    const NAME: &'static str;
}

/// A kernel over buffers, with the types of its parameters `P`: a tuple of [`Element`], [`ElementMut`], [`All`] and [`Scalar`].
///
/// `ringmem_kernels::kernels!` declares it by `grid fn`; `ringmem::stream::Stream::run` launches it. A simulated device checks the threads of a block, and runs
/// the kernel on threads of its own choice.
pub struct GridKernel<P> {
    name: &'static str,
    image: Image,
    threads: u32,
    blocks: u32,
    _parameters: PhantomData<fn(P)>,
}

impl<P> Clone for GridKernel<P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P> Copy for GridKernel<P> {}

impl<P> GridKernel<P> {
    /// Declares the kernel of this name.
    ///
    /// # Safety
    ///
    /// The image has a kernel of this name with these parameters. It writes to the elements of [`ElementMut`] only, each from one thread, reads elements of
    /// the others only, and accesses no other memory.
    #[must_use]
    pub const unsafe fn new(name: &'static str, image: Image) -> Self {
        Self { name, image, threads: 0, blocks: 0, _parameters: PhantomData }
    }

    /// Sets the threads of a block, a multiple of 32 from 64 to 1024; 0 for as many as give the highest occupancy, the default.
    #[must_use]
    pub const fn threads(self, threads: u32) -> Self {
        Self { threads, ..self }
    }

    /// Sets the number of blocks; 0 for as many as run at once, and no more than there are elements, the default. The threads share the elements, also where
    /// there are more elements than threads.
    #[must_use]
    pub const fn blocks(self, blocks: u32) -> Self {
        Self { blocks, ..self }
    }

    /// Returns the name in the image.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// Returns the image.
    #[must_use]
    pub const fn image(&self) -> &Image {
        &self.image
    }

    /// Returns the threads of a block and the number of blocks; 0 for the default.
    #[must_use]
    pub const fn shape(&self) -> [u32; 2] {
        [self.threads, self.blocks]
    }
}

impl<P> fmt::Debug for GridKernel<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GridKernel")
            .field("name", &self.name)
            .field("threads", &self.threads)
            .field("blocks", &self.blocks)
            .finish_non_exhaustive()
    }
}

/// Threads of a launch at most.
#[doc(hidden)]
pub const MOST_THREADS: u32 = 1 << 31;

/// Returns the words of a [`Scalar`].
#[doc(hidden)]
#[must_use]
pub const fn words_of<T>() -> usize {
    assert!(align_of::<T>() <= 8, "a value of a kernel is aligned to at most 8 bytes: take it as `&[T]`, from a buffer of one element");
    size_of::<T>().div_ceil(8)
}

/// The name of a kernel, and for each parameter its role and the hash of its type; for a persistent kernel of several warps, a number of its kind and 0.
#[doc(hidden)]
pub type Signature = (&'static str, &'static [(u64, u64)]);

/// Adds kernels to the hash: PTX whose kernels have other parameters or are of another kind is refused.
#[doc(hidden)]
#[must_use]
pub const fn with_kernels(abi: Abi, kernels: &[Signature]) -> Abi {
    if kernels.is_empty() {
        return abi;
    }
    let (mut hash, mut kernel) = (AbiHash::new().number(abi.hash), 0);
    while kernel < kernels.len() {
        let (name, parameters) = kernels[kernel];
        hash = hash.name(name).number(parameters.len() as u64);
        let mut parameter = 0;
        while parameter < parameters.len() {
            let (role, ty) = parameters[parameter];
            hash = hash.number(role).number(ty);
            parameter += 1;
        }
        kernel += 1;
    }
    Abi { hash: hash.finish(), ..abi }
}

/// The type of an element or value: one error for another type, in place of one for each of its traits. Only [`DeviceBytes`] can implement it.
#[doc(hidden)]
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not plain bytes that host and device share",
    label = "not a type of elements or values",
    note = "derive `Clone`, `Copy` and `SharedLayout` for a struct; use an integer for an enum, `u8` for `bool`, `u32` for `char`, `u64` for `usize`"
)]
pub trait ElementType: DeviceBytes {}

#[diagnostic::do_not_recommend]
impl<T: DeviceBytes> ElementType for T {}

/// Returns the layout of an element. Padding is the error of the struct; what reads bytes checks it again.
#[doc(hidden)]
#[must_use]
pub const fn element<T: ElementType>() -> LayoutDescriptor {
    T::DESCRIPTOR
}
