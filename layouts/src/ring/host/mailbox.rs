use crate::ring::mailbox::{Reader, Writer};
use crate::ring::{RingFlags, lossy};
use crate::{Local, RingMessage};

/// A mailbox in one value. `N` is a power of two, at least 2 (checked at compile time).
///
/// ```compile_fail
/// # use ringmem_layouts as ringmem;
/// let mailbox = ringmem::ring::mailbox::Mailbox::<u64, 1>::new(); // nothing to read while the one slot is written
/// ```
pub struct Mailbox<T, const N: usize = 4>(lossy::Ring<T, N>);

impl<T: RingMessage, const N: usize> Mailbox<T, N> {
    /// Returns an empty mailbox.
    #[must_use]
    pub const fn new() -> Self {
        Self::starting_at(0)
    }

    /// Like [`new`](Self::new), with indices from `start`; versions begin at 1.
    #[must_use]
    pub const fn starting_at(start: u64) -> Self {
        const { assert!(N >= 2, "a mailbox has at least two slots") };
        Self(lossy::Ring::of_kind(RingFlags::MAILBOX, start))
    }

    /// Returns the writer and a cloneable reader. After all are dropped, the mailbox can be split again, with its value.
    pub fn split(&mut self) -> (Writer<'_, T, Local>, Reader<'_, T, Local>) {
        let (writer, reader) = self.0.split();
        (Writer(writer), Reader::at_latest(reader))
    }
}

impl<T: RingMessage, const N: usize> Default for Mailbox<T, N> {
    fn default() -> Self {
        Self::new()
    }
}
