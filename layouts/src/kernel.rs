//! [`Kernel`] and [`Persistent`]: the name of a kernel and the types of its arguments or messages.
//!
//! A [`Persistent`] kernel accesses only its rings and control block, so a channel opens it without `unsafe`. Launching a [`Kernel`] is
//! `unsafe`. `ringmem_kernels::kernels!` declares both.
//!
//! A launch with arguments of other types does not compile.
//!
//! ```
//! # use ringmem_layouts as ringmem;
//! use ringmem::kernel::{DevicePointer, Kernel};
//!
//! /// Adds one to each of so many words.
//! const INCREMENT: Kernel<(DevicePointer<u64>, u64)> = Kernel::new("increment");
//!
//! assert_eq!((INCREMENT.name(), INCREMENT.takes()), ("increment", 2));
//! // The host form of the kernel converts its arguments to their types.
//! let (first, count) = INCREMENT.arguments(&[0x1000, 8]).unwrap();
//! assert_eq!((first.address(), count), (0x1000, 8));
//! assert!(INCREMENT.arguments(&[0x1000]).is_none());
//! ```

use core::fmt;
use core::marker::PhantomData;

use crate::image::{Entry, Image, KernelHost};
use crate::{ControlBlock, LayoutDescriptor, RingMessage};

/// The name of a kernel, with its [`Argument`] types as a tuple.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::kernel::Kernel;
///
/// const WAIT: Kernel<(u64,)> = Kernel::new("wait");
///
/// let entry = WAIT.entry(|host, words| {
///     let Some((until_ns,)) = WAIT.arguments(words) else { return };
///     while host.now_ns() < until_ns {
///         host.pause(0);
///     }
/// });
/// assert_eq!((entry.name, entry.arguments), ("wait", 1));
/// ```
pub struct Kernel<A> {
    name: &'static str,
    _arguments: PhantomData<fn(A)>,
}

impl<A> Clone for Kernel<A> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<A> Copy for Kernel<A> {}

impl<A: Arguments> Kernel<A> {
    /// Declares the kernel of this name.
    #[must_use]
    pub const fn new(name: &'static str) -> Self {
        Self { name, _arguments: PhantomData }
    }

    /// Returns the name in the image.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// Returns the number of arguments.
    #[must_use]
    pub const fn takes(&self) -> usize {
        A::COUNT
    }

    /// Converts words to arguments; `None` for another number.
    #[must_use]
    pub fn arguments(&self, words: &[u64]) -> Option<A> {
        A::of_words(words)
    }

    /// Returns the entry of the host form.
    #[must_use]
    pub const fn entry(&self, run: unsafe fn(&dyn KernelHost, &[u64])) -> Entry {
        Entry { name: self.name, arguments: A::COUNT, run }
    }
}

impl<A: Arguments> fmt::Debug for Kernel<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kernel").field("name", &self.name).field("takes", &A::COUNT).finish()
    }
}

/// How a persistent kernel uses its two rings.
// Not `Indexed` and `Flagged`, as in `kernels!` and `warp_rings`: the compiler's errors would then give the paths of the types `ring::Indexed` and
// `ring::Flagged`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rings {
    /// One warp, between [`spsc`](crate::ring::spsc) rings: a `persistent fn`.
    Spsc,
    /// One warp, between [`flagged`](crate::ring::flagged) rings: a `flagged fn`.
    FlagPerSlot,
    /// Any number of warps between `spsc` rings, by [`groups`](crate::ring::groups): a `grouped fn`.
    OfGroups,
    /// A block of any number of warps, between `spsc` rings: a `block fn`.
    OfBlock,
}

/// A kernel that pops messages `I` from one ring and pushes answers `O` to another.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::kernel::{Persistent, Rings};
/// # use ringmem::{Abi, Image, LAYOUTS};
/// # const IMAGE: Image = Image { ptx: b"", host: &[], abi: Abi::of(LAYOUTS) };
///
/// // SAFETY: `IMAGE` has this kernel, which accesses only its control block, its telemetry and its rings.
/// const SQUARE: Persistent<f32, f32> = unsafe { Persistent::new("square", IMAGE, Rings::Spsc) };
/// assert_eq!((SQUARE.name(), SQUARE.kernel().takes()), ("square", 4));
/// ```
pub struct Persistent<I, O> {
    name: &'static str,
    image: Image,
    rings: Rings,
    _messages: PhantomData<fn(I) -> O>,
}

impl<I, O> Clone for Persistent<I, O> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<I, O> Copy for Persistent<I, O> {}

impl<I, O> Persistent<I, O> {
    /// Declares the kernel of this name, with rings of this kind.
    ///
    /// # Safety
    ///
    /// The image has such a kernel with the [arguments](Self::kernel) of every persistent kernel, and of a [grouped](Rings::OfGroups) one. It accesses only
    /// its control block, its telemetry and its rings, and its `Groups`, by their protocols.
    #[must_use]
    pub const unsafe fn new(name: &'static str, image: Image, rings: Rings) -> Self {
        Self { name, image, rings, _messages: PhantomData }
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

    /// Returns the kind of its rings.
    #[must_use]
    pub const fn rings(&self) -> Rings {
        self.rings
    }

    /// Returns the kernel for a launch without a channel. Its arguments: control block, epoch, idle limit in nanoseconds, most messages per batch. A
    /// [grouped](Rings::OfGroups) one takes the address of its [`Groups`](crate::ring::groups::Groups), too: a launch of this one fails.
    #[must_use]
    pub const fn kernel(&self) -> Kernel<(DevicePointer<ControlBlock<u64>>, Epoch, u64, u64)> {
        Kernel::new(self.name)
    }
}

impl<I, O> fmt::Debug for Persistent<I, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Persistent").field("name", &self.name).field("rings", &self.rings).finish_non_exhaustive()
    }
}

/// An argument of a kernel: 64 bits, in memory and in a register.
///
/// # Safety
///
/// The type is `#[repr(transparent)]` over `u64`, and a launch may pass any value.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::kernel::{Argument, DevicePointer, Epoch};
///
/// assert_eq!(DevicePointer::<f32>::new(0x1000).word(), 0x1000);
/// assert_eq!(Epoch::of_word(3), Epoch::new(3));
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be a kernel argument",
    note = "a `u64`, an `Epoch` or a `DevicePointer<T>`: kernels take 64 bits each"
)]
pub unsafe trait Argument: Copy + 'static {
    /// Whether a kernel with it is resident: it runs until a command ends it.
    const STAYS: bool = false;

    /// Converts to the passed word.
    fn word(self) -> u64;
    /// Converts from the passed word.
    fn of_word(word: u64) -> Self;
}

// SAFETY: it is one.
unsafe impl Argument for u64 {
    #[inline(always)]
    fn word(self) -> u64 {
        self
    }
    #[inline(always)]
    fn of_word(word: u64) -> Self {
        word
    }
}

/// The generation of a launch.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::kernel::{Arguments, Epoch};
///
/// assert_eq!(Epoch::new(3).get(), 3);
/// const { assert!(<(u64, Epoch)>::STAYS) }; // such a kernel is resident
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct Epoch(u64);

impl Epoch {
    /// Wraps a generation.
    #[must_use]
    pub const fn new(epoch: u32) -> Self {
        Self(epoch as u64)
    }

    /// Returns the generation.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0 as u32
    }
}

// SAFETY: transparent over a word, whose low half counts.
unsafe impl Argument for Epoch {
    const STAYS: bool = true;

    #[inline(always)]
    fn word(self) -> u64 {
        self.0
    }
    #[inline(always)]
    fn of_word(word: u64) -> Self {
        Self(word)
    }
}

/// A device address of `T`s. It may dangle: the caller of a launch promises validity.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::kernel::DevicePointer;
///
/// let first = DevicePointer::<f32>::new(0x1000);
/// assert_eq!(first.add(2).address(), 0x1008);
/// assert_eq!(first.cast::<[f32; 4]>().add(2).address(), 0x1020);
/// ```
#[repr(transparent)]
pub struct DevicePointer<T> {
    address: u64,
    _element: PhantomData<*const T>,
}

// SAFETY: a number; the host accesses nothing through it.
unsafe impl<T> Send for DevicePointer<T> {}
// SAFETY: a number; the host accesses nothing through it.
unsafe impl<T> Sync for DevicePointer<T> {}

impl<T> DevicePointer<T> {
    /// Wraps a device address.
    #[must_use]
    #[inline(always)]
    pub const fn new(address: u64) -> Self {
        Self { address, _element: PhantomData }
    }

    /// Returns the address.
    #[must_use]
    #[inline(always)]
    pub const fn address(self) -> u64 {
        self.address
    }

    /// Adds `count` elements, wrapping.
    #[must_use]
    #[inline(always)]
    pub const fn add(self, count: u64) -> Self {
        Self::new(self.address.wrapping_add(count.wrapping_mul(size_of::<T>() as u64)))
    }

    /// Changes the element type.
    #[must_use]
    #[inline(always)]
    pub const fn cast<U>(self) -> DevicePointer<U> {
        DevicePointer::new(self.address)
    }
}

impl<T> Clone for DevicePointer<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for DevicePointer<T> {}

impl<T> PartialEq for DevicePointer<T> {
    fn eq(&self, other: &Self) -> bool {
        self.address == other.address
    }
}

impl<T> Eq for DevicePointer<T> {}

impl<T> fmt::Debug for DevicePointer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.address)
    }
}

// SAFETY: transparent over a word; any address is allowed.
unsafe impl<T: 'static> Argument for DevicePointer<T> {
    #[inline(always)]
    fn word(self) -> u64 {
        self.address
    }
    #[inline(always)]
    fn of_word(word: u64) -> Self {
        Self::new(word)
    }
}

#[doc(hidden)]
pub const fn is_argument<T: Argument>() {}

#[doc(hidden)]
pub const fn message<T: RingMessage>() -> (u64, LayoutDescriptor) {
    (T::KIND, T::DESCRIPTOR)
}

/// A tuple of up to twelve [`Argument`]s.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::kernel::{Arguments, DevicePointer, Epoch};
///
/// let arguments = (DevicePointer::<f32>::new(0x1000), 8);
/// assert_eq!(arguments.words(), [0x1000, 8]);
/// assert_eq!(Arguments::of_words(&[0x1000, 8]), Some(arguments));
/// assert_eq!(<(u64, Epoch)>::of_words(&[0x1000]), None);
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be kernel arguments",
    note = "kernel arguments are a tuple of up to twelve `u64`, `Epoch` or `DevicePointer<T>` values; write a single one as `(x,)`"
)]
pub trait Arguments: Copy + 'static {
    /// Number of arguments.
    const COUNT: usize;
    /// Whether a kernel with these arguments is resident: one is an [`Epoch`].
    const STAYS: bool;
    /// An array of words.
    type Words: AsRef<[u64]>;

    /// Converts to the passed words.
    fn words(self) -> Self::Words;
    /// Converts from the passed words; `None` for another number.
    fn of_words(words: &[u64]) -> Option<Self>;
}

macro_rules! tuples {
    ($($count:literal: $($t:ident $x:ident),*;)*) => {$(
        impl<$($t: Argument),*> Arguments for ($($t,)*) {
            const COUNT: usize = $count;
            const STAYS: bool = false $(|| $t::STAYS)*;
            type Words = [u64; $count];

            fn words(self) -> Self::Words {
                let ($($x,)*) = self;
                [$($x.word()),*]
            }
            fn of_words(words: &[u64]) -> Option<Self> {
                let &[$($x),*] = words else { return None };
                Some(($($t::of_word($x),)*))
            }
        }
    )*};
}

tuples! {
    0: ;
    1: A a;
    2: A a, B b;
    3: A a, B b, C c;
    4: A a, B b, C c, D d;
    5: A a, B b, C c, D d, E e;
    6: A a, B b, C c, D d, E e, F f;
    7: A a, B b, C c, D d, E e, F f, G g;
    8: A a, B b, C c, D d, E e, F f, G g, H h;
    9: A a, B b, C c, D d, E e, F f, G g, H h, I i;
    10: A a, B b, C c, D d, E e, F f, G g, H h, I i, J j;
    11: A a, B b, C c, D d, E e, F f, G g, H h, I i, J j, K k;
    12: A a, B b, C c, D d, E e, F f, G g, H h, I i, J j, K k, L l;
}
