//! Moves of values between a caller and a slot.

use core::mem::{ManuallyDrop, MaybeUninit};

/// LLVM keeps words in registers; a longer copy stays in memory, and each move on its way repeats it.
const fn is_words<T>() -> bool {
    cfg!(any(target_arch = "x86_64", target_arch = "aarch64")) && matches!(size_of::<T>(), 9..=256) && size_of::<T>().is_multiple_of(8)
}

/// # Safety
///
/// As [`core::ptr::copy_nonoverlapping`] of one value; `T` moves as words.
#[inline(always)]
unsafe fn copy_words<T>(from: *const T, to: *mut T) {
    let (from, to) = (from.cast::<MaybeUninit<u64>>(), to.cast::<MaybeUninit<u64>>());
    // A loop would become the longer copy.
    macro_rules! copy {
        ($($word:literal)*) => {
            $(if const { size_of::<T>() > 8 * $word } {
                // SAFETY: within the value; a word of it may be uninitialised and unaligned.
                unsafe { to.add($word).write_unaligned(from.add($word).read_unaligned()) };
            })*
        };
    }
    copy!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31);
}

/// [`core::ptr::read`].
///
/// # Safety
///
/// As there.
#[inline(always)]
pub(super) unsafe fn read<T>(place: *const T) -> T {
    if const { !is_words::<T>() } {
        // SAFETY: the caller promises that `place` is aligned, valid for reads, and an initialised `T`.
        return unsafe { place.read() };
    }
    let mut value = MaybeUninit::uninit();
    // SAFETY: the caller promises a valid, initialised value at `place`; `T` moves as words, `value` is a separate local, and all of it is
    // copied.
    unsafe {
        copy_words(place, value.as_mut_ptr());
        value.assume_init()
    }
}

/// [`core::ptr::write`].
///
/// # Safety
///
/// As there.
#[inline(always)]
pub(super) unsafe fn write<T>(place: *mut T, value: T) {
    if const { !is_words::<T>() } {
        // SAFETY: the caller promises that `place` is aligned and valid for writes.
        return unsafe { place.write(value) };
    }
    let value = ManuallyDrop::new(value);
    // SAFETY: the caller promises a valid place for a `T`; `T` moves as words, and `value` is a separate local that is not dropped.
    unsafe { copy_words(&raw const *value, place) };
}
