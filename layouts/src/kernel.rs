//! [`Kernel`]: a kernel's name and the types of its arguments, declared once for whoever launches it and for whoever runs it.
//!
//! 1. Every argument is 64 bits, as kernels take them: a number, an [`Epoch`], a [`DevicePointer`] to elements of one type.
//! 2. A launch with other arguments, or another number of them, does not compile.
//! 3. It says nothing of what a pointer names: that stays the launch's promise.
//!
//! ```
//! use ringmem_layouts::kernel::{DevicePointer, Kernel};
//!
//! /// Adds one to each of so many words.
//! const INCREMENT: Kernel<(DevicePointer<u64>, u64)> = Kernel::new("increment");
//!
//! assert_eq!((INCREMENT.name(), INCREMENT.takes()), ("increment", 2));
//! // What the host's form of the kernel is given, with its types.
//! let (first, count) = INCREMENT.arguments(&[0x1000, 8]).unwrap();
//! assert_eq!((first.address(), count), (0x1000, 8));
//! assert!(INCREMENT.arguments(&[0x1000]).is_none());
//! ```

use core::fmt;
use core::marker::PhantomData;

use crate::image::{Entry, Image, KernelHost};
use crate::{ControlBlock, RingMessage};

/// A kernel of an image, by name, and what it takes: a tuple of [`Argument`]s.
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
    /// The kernel of this name.
    #[must_use]
    pub const fn new(name: &'static str) -> Self {
        Self { name, _arguments: PhantomData }
    }

    /// As in the image.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// How many arguments it takes.
    #[must_use]
    pub const fn takes(&self) -> usize {
        A::COUNT
    }

    /// The arguments with their types; `None` if there are more or fewer.
    #[must_use]
    pub fn arguments(&self, words: &[u64]) -> Option<A> {
        A::of_words(words)
    }

    /// The entry of its host form, which asks [`arguments`](Self::arguments) what it was given.
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

/// A persistent kernel that pops messages `I` from one ring and pushes answers `O` to another, and accesses no other memory.
///
/// `ringmem_kernels::kernels!` makes one for each such kernel. A channel opens it without further promises.
pub struct Persistent<I, O> {
    name: &'static str,
    image: Image,
    is_flagged: bool,
    _messages: PhantomData<fn(I) -> O>,
}

impl<I, O> Clone for Persistent<I, O> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<I, O> Copy for Persistent<I, O> {}

impl<I: RingMessage, O: RingMessage> Persistent<I, O> {
    /// The kernel of this name in an image. `is_flagged` if its rings have a flag in each slot.
    ///
    /// # Safety
    ///
    /// The image has such a kernel with the [arguments](Self::kernel) of every persistent kernel. It accesses its control block, its telemetry and its
    /// rings by their protocols, and no other memory.
    #[must_use]
    pub const unsafe fn new(name: &'static str, image: Image, is_flagged: bool) -> Self {
        Self { name, image, is_flagged, _messages: PhantomData }
    }

    /// Returns its name in the image.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// Returns its image.
    #[must_use]
    pub const fn image(&self) -> &Image {
        &self.image
    }

    /// Returns whether its rings have a flag in each slot.
    #[must_use]
    pub const fn is_flagged(&self) -> bool {
        self.is_flagged
    }

    /// Returns it with the types of its arguments, for a launch without a channel: address of its control block, epoch, nanoseconds without work after
    /// which it leaves, most messages a batch.
    #[must_use]
    pub const fn kernel(&self) -> Kernel<(DevicePointer<ControlBlock<u64>>, Epoch, u64, u64)> {
        Kernel::new(self.name)
    }
}

impl<I, O> fmt::Debug for Persistent<I, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Persistent").field("name", &self.name).field("is_flagged", &self.is_flagged).finish_non_exhaustive()
    }
}

/// What a kernel takes in one place: 64 bits, in memory and in a register.
///
/// # Safety
///
/// The type is `#[repr(transparent)]` over `u64`, and any value of it may come from a launch.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no argument of a kernel",
    note = "a `u64`, an `Epoch` or a `DevicePointer<T>`: kernels take 64 bits each"
)]
pub unsafe trait Argument: Copy + 'static {
    /// A kernel that takes one stays until it is told to leave.
    const STAYS: bool = false;

    /// As it is handed over.
    fn word(self) -> u64;
    /// What was handed over.
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

/// A launch generation as an argument: the one that its control block was prepared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct Epoch(u64);

impl Epoch {
    /// This generation.
    #[must_use]
    pub const fn new(epoch: u32) -> Self {
        Self(epoch as u64)
    }

    /// Its number.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0 as u32
    }
}

// SAFETY: transparent over a word; whatever it holds means its low half.
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

/// A device address of a `T`, or of the first of several. It owns nothing, and need not point to anything: a launch promises that.
#[repr(transparent)]
pub struct DevicePointer<T> {
    address: u64,
    _element: PhantomData<*const T>,
}

// SAFETY: a number; nothing is reached through it on this side.
unsafe impl<T> Send for DevicePointer<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for DevicePointer<T> {}

impl<T> DevicePointer<T> {
    /// The `T` at an address.
    #[must_use]
    #[inline(always)]
    pub const fn new(address: u64) -> Self {
        Self { address, _element: PhantomData }
    }

    /// Its address.
    #[must_use]
    #[inline(always)]
    pub const fn address(self) -> u64 {
        self.address
    }

    /// The element `count` places further on; wraps.
    #[must_use]
    #[inline(always)]
    pub const fn add(self, count: u64) -> Self {
        Self::new(self.address.wrapping_add(count.wrapping_mul(size_of::<T>() as u64)))
    }

    /// The same address, said to be of another type.
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

// SAFETY: transparent over a word; any address may be named.
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

/// Compiles if a kernel takes it as an argument.
#[doc(hidden)]
pub const fn is_argument<T: Argument>() {}

/// Compiles if a ring carries it.
#[doc(hidden)]
pub const fn is_message<T: RingMessage>() {}

/// What a kernel takes: a tuple of up to twelve [`Argument`]s.
#[diagnostic::on_unimplemented(
    message = "`{Self}` are no arguments of a kernel",
    note = "a tuple of up to twelve, of `u64`, `Epoch` and `DevicePointer<T>`: one alone is `(x,)`"
)]
pub trait Arguments: Copy + 'static {
    /// How many.
    const COUNT: usize;
    /// Whether a kernel that takes them stays until it is told to leave: one of them is an [`Epoch`].
    const STAYS: bool;
    /// As many words.
    type Words: AsRef<[u64]>;

    /// As they are handed over.
    fn words(self) -> Self::Words;
    /// What was handed over; `None` if there are more or fewer.
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
