//! Moves of values between a caller and a slot.

use core::mem::{ManuallyDrop, MaybeUninit};

type Word = MaybeUninit<u64>;

/// Greatest value that moves as words.
const MOST: usize = 256;

/// Whether a `T` moves as words. LLVM keeps these in registers; a longer copy stays in memory, and each move on its way is one more.
const fn is_words<T>() -> bool {
    cfg!(any(target_arch = "x86_64", target_arch = "aarch64"))
        && size_of::<T>() > 8
        && size_of::<T>() <= MOST
        && size_of::<T>().is_multiple_of(8)
}

/// Not a loop, which LLVM would turn into the longer copy.
macro_rules! copy_words {
    ($from:expr, $to:expr, $t:ty, $($word:literal)*) => {
        $(if const { size_of::<$t>() > 8 * $word } {
            // SAFETY: within the value, by the condition; a word of it, initialised or not, is a `Word`.
            unsafe { $to.add($word).write_unaligned($from.add($word).read_unaligned()) };
        })*
    };
    ($from:expr, $to:expr, $t:ty) => { copy_words!($from, $to, $t, 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31) };
}

/// [`core::ptr::read`].
///
/// # Safety
///
/// As there.
#[inline(always)]
pub(super) unsafe fn read<T>(place: *const T) -> T {
    if const { !is_words::<T>() } {
        // SAFETY: the caller's promise.
        return unsafe { place.read() };
    }
    let mut value = MaybeUninit::<T>::uninit();
    let (from, to) = (place.cast::<Word>(), value.as_mut_ptr().cast::<Word>());
    copy_words!(from, to, T);
    // SAFETY: every word was copied.
    unsafe { value.assume_init() }
}

/// [`core::ptr::write`].
///
/// # Safety
///
/// As there.
#[inline(always)]
pub(super) unsafe fn write<T>(place: *mut T, value: T) {
    if const { !is_words::<T>() } {
        // SAFETY: the caller's promise.
        return unsafe { place.write(value) };
    }
    let value = ManuallyDrop::new(value);
    let (from, to) = ((&raw const value).cast::<Word>(), place.cast::<Word>());
    copy_words!(from, to, T);
}
