//! The calls of `kernels!` for kernels over buffers.
//!
//! On a device, the threads of all blocks share the elements: each begins at its own number and steps by the number of threads, so that neighbouring threads
//! access neighbouring elements. On the host, each group has a part of consecutive elements.

#[cfg(not(target_os = "cuda"))]
pub use on_the_host::Arguments;

use core::ptr;

use ringmem_layouts::grid::ElementType;

/// A buffer with an element for each call. The expansion itself dereferences nothing.
pub struct Column<T>(*mut T);

impl<T> Clone for Column<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Column<T> {}

impl<T> Column<T> {
    /// Elements from an address on; those without bytes are anywhere.
    #[inline(always)]
    #[must_use]
    pub const fn new(first: *mut T) -> Self {
        Self(if size_of::<T>() == 0 { ptr::dangling_mut() } else { first })
    }

    /// Returns the elements from `begin` on.
    ///
    /// # Safety
    ///
    /// There are so many.
    #[inline(always)]
    #[must_use]
    pub const unsafe fn skip(self, begin: usize) -> Self {
        // SAFETY: so many elements: the caller's promise.
        Self(unsafe { self.0.add(begin) })
    }

    /// Returns an element.
    ///
    /// # Safety
    ///
    /// There is such an element, which nothing writes during `'a`.
    #[inline(always)]
    #[must_use]
    pub const unsafe fn get<'a>(self, at: usize) -> &'a T {
        // SAFETY: the caller promises that there is such an element, which nothing writes during `'a`.
        unsafe { &*self.0.add(at) }
    }

    /// Returns an element.
    ///
    /// # Safety
    ///
    /// There is such an element, which nothing else accesses during `'a`.
    #[inline(always)]
    #[must_use]
    #[allow(clippy::mut_from_ref, reason = "a copy of the address")]
    pub const unsafe fn get_mut<'a>(self, at: usize) -> &'a mut T {
        // SAFETY: the caller promises that there is such an element, which nothing else accesses during `'a`.
        unsafe { &mut *self.0.add(at) }
    }
}

/// Returns a value for a call.
#[inline(always)]
#[must_use]
pub const fn copied<T: ElementType>(value: &T) -> T {
    *value
}

/// Returns a whole buffer, which is null without bytes.
///
/// # Safety
///
/// There are so many elements, which nothing writes during `'a`, or no bytes.
#[inline(always)]
#[must_use]
pub const unsafe fn slice<'a, T>(first: *const T, len: u64) -> &'a [T] {
    let first = if size_of::<T>() == 0 || len == 0 { ptr::dangling() } else { first };
    // SAFETY: so many elements, which nothing writes: the caller's promise. Without bytes any aligned address has them.
    unsafe { core::slice::from_raw_parts(first, len as usize) }
}

/// Calls a function for the elements of this thread, part by part: with what `begin` returns for the first index of the part, the index in the part, and the
/// index. In a part, indices have 32 bits: a GPU needs several instructions for a sum of 64 bits, and one to add 32 bits to an address.
///
/// The launch has at most `PART` threads, and so no sum of an index and their number wraps.
#[cfg(target_os = "cuda")]
#[inline(always)]
pub fn for_each<P: Copy>(count: u64, begin: impl Fn(usize) -> P, mut call: impl FnMut(P, usize, usize)) {
    const PART: u64 = ringmem_layouts::grid::MOST_THREADS as u64;
    let [first, threads] = crate::device::thread();
    let mut done = 0;
    while done < count {
        let (part, places) = ((count - done).min(PART) as u32, begin(done as usize));
        let mut at = first;
        while at < part {
            call(places, at as usize, done as usize + at as usize);
            at += threads;
        }
        done += PART;
    }
}

#[cfg(not(target_os = "cuda"))]
mod on_the_host {
    use core::ops::Range;
    use core::ptr;

    use ringmem_layouts::align::is_aligned;
    use ringmem_layouts::image::KernelHost;

    use super::{Column, slice};

    /// The words of a launch, read in order.
    pub struct Arguments<'a> {
        host: &'a dyn KernelHost,
        words: &'a [u64],
        count: u64,
    }

    impl<'a> Arguments<'a> {
        /// The first word is the number of elements. `None` for another number of words than the entry's.
        #[must_use]
        pub fn new(host: &'a dyn KernelHost, words: &'a [u64], entry: usize) -> Option<Self> {
            let (&count, others) = words.split_first().filter(|_| words.len() == entry)?;
            Some(Self { host, words: others, count })
        }

        /// Returns the number of elements.
        #[must_use]
        pub const fn count(&self) -> u64 {
            self.count
        }

        /// Returns this group's elements.
        #[must_use]
        pub fn part(&self) -> Range<usize> {
            let border = |group: u64| (u128::from(self.count) * u128::from(group) / u128::from(self.host.groups())) as usize;
            border(self.host.group())..border(self.host.group() + 1)
        }

        /// Returns a buffer with an element for each call.
        pub fn elements<T>(&mut self) -> Column<T> {
            let address = self.word();
            Column::new(self.place(address, self.count))
        }

        /// Returns a whole buffer.
        ///
        /// # Safety
        ///
        /// Nothing writes it during `'a`.
        pub unsafe fn all<T>(&mut self) -> &'a [T] {
            let [address, len] = [self.word(), self.word()];
            // SAFETY: translated for so many elements; the caller promises that nothing writes them.
            unsafe { slice(self.place(address, len), len) }
        }

        /// Returns a value.
        ///
        /// # Safety
        ///
        /// Any bytes are a `T`.
        pub unsafe fn value<T>(&mut self) -> T {
            let (own, others) = self.words.split_at(size_of::<T>().div_ceil(8));
            self.words = others;
            // SAFETY: as many bytes as a `T` has or more; any are one: the caller's promise.
            unsafe { own.as_ptr().cast::<T>().read_unaligned() }
        }

        fn word(&mut self) -> u64 {
            let (&word, others) = self.words.split_first().expect("a launch has as many words as its entry");
            self.words = others;
            word
        }

        fn place<T>(&self, address: u64, count: u64) -> *mut T {
            let bytes = count.saturating_mul(size_of::<T>() as u64);
            if bytes == 0 {
                return ptr::dangling_mut();
            }
            let place = self.host.translate(address, bytes).expect("a buffer of a launch is mapped");
            assert!(is_aligned(place.as_ptr() as u64, align_of::<T>() as u64), "a buffer of a launch is aligned for its elements");
            place.as_ptr().cast()
        }
    }
}
