//! [`ReadOnly`]: a word that anybody may read.

use core::fmt;

use zerocopy::{FromBytes, Immutable, KnownLayout};

use crate::{Layout, LayoutDescriptor, Word};

/// A word of a shared control block or telemetry buffer. Only the hand of its line stores to it; there is no way to the word itself.
///
/// ```
/// use ringmem_layouts::{HostWord, control};
/// let block: control::Shared<HostWord> = zerocopy::FromZeros::new_zeroed();
/// assert_eq!(block.heartbeat.load(), 0);
/// ```
///
/// ```compile_fail,E0599
/// # use ringmem_layouts::{HostWord, control};
/// # let block: control::Shared<HostWord> = zerocopy::FromZeros::new_zeroed();
/// block.heartbeat.store(1);
/// ```
#[derive(FromBytes, Immutable, KnownLayout)]
#[repr(transparent)]
pub struct ReadOnly<W>(W);

impl<W> ReadOnly<W> {
    /// Around a word that its owner alone has.
    pub const fn new(word: W) -> Self {
        Self(word)
    }
}

impl<W: Word> ReadOnly<W> {
    /// Relaxed load.
    #[inline(always)]
    pub fn load(&self) -> u64 {
        self.0.load()
    }

    /// Acquire load: what was written before the paired publish is visible after it.
    #[inline(always)]
    pub fn load_acquire(&self) -> u64 {
        self.0.load_acquire()
    }

    /// For the hand whose line it is.
    #[inline(always)]
    pub(crate) const fn word(&self) -> &W {
        &self.0
    }
}

// The same eight bytes as the word, and the same hash.
// SAFETY: transparent over the word.
unsafe impl<W: Layout> Layout for ReadOnly<W> {
    const DESCRIPTOR: LayoutDescriptor = W::DESCRIPTOR;
}

impl<W: Word> fmt::Debug for ReadOnly<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.load().fmt(f)
    }
}
