use core::fmt;

use zerocopy::{FromBytes, Immutable, KnownLayout};

use crate::{Layout, LayoutDescriptor, Word};

/// A word of a shared control block or telemetry buffer, stored only by its writer: [`HostSide`](crate::control::HostSide),
/// [`DeviceSide`](crate::control::DeviceSide) or [`Recorder`](crate::telemetry::Recorder).
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::{HostWord, control};
/// let block: control::Shared<HostWord> = zerocopy::FromZeros::new_zeroed();
/// assert_eq!(block.heartbeat.load(), 0);
/// ```
///
/// ```compile_fail,E0599
/// # use ringmem_layouts as ringmem;
/// # use ringmem::{HostWord, control};
/// # let block: control::Shared<HostWord> = zerocopy::FromZeros::new_zeroed();
/// block.heartbeat.store(1);
/// ```
#[derive(FromBytes, Immutable, KnownLayout)]
#[repr(transparent)]
pub struct ReadOnly<W>(W);

impl<W> ReadOnly<W> {
    /// Wraps an unshared word.
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

    /// Acquire load: sees the writes before the paired publish.
    #[inline(always)]
    pub fn load_acquire(&self) -> u64 {
        self.0.load_acquire()
    }

    #[inline(always)]
    pub(crate) const fn word(&self) -> &W {
        &self.0
    }
}

// The same hash as the word. SAFETY: transparent over the word.
#[diagnostic::do_not_recommend]
unsafe impl<W: Layout> Layout for ReadOnly<W> {
    const DESCRIPTOR: LayoutDescriptor = W::DESCRIPTOR;
}

impl<W: Word> fmt::Debug for ReadOnly<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.load().fmt(f)
    }
}
