//! One buffer in parts on several devices, and back.

use super::Peers;
use crate::memory::{Buffer, DeviceOnly, Memory, end, same_size};
use crate::{DeviceBytes, Result};

impl Peers {
    /// Copies a buffer to others in parts: the first is as long as the first of `to`, the second follows it, and together they are all of `from`.
    ///
    /// One part after the other: they leave the same device by the same engine.
    ///
    /// # Errors
    ///
    /// [`Size`](crate::Error::Size) where the parts together are not as long, before anything is done; as [`copy`](Self::copy) for the first
    /// part that fails. Those before it have arrived, and nothing after it was touched.
    pub fn scatter<T, A, B>(&self, from: &Buffer<T, A>, to: &mut [Buffer<T, B>]) -> Result<()>
    where
        T: DeviceBytes,
        A: Memory<Visibility = DeviceOnly>,
        B: Memory<Visibility = DeviceOnly>,
    {
        same_size::<T>(together(to), from.len())?;
        let mut at = 0;
        for part in to {
            let end = end::<T>(at, part.len(), from.len())?;
            self.copy_view(from.slice(at..end)?, part.as_view_mut(), None, |_| {})?;
            at = end;
        }
        Ok(())
    }

    /// Copies buffers to one: each behind the one before it, and together all of `to`.
    ///
    /// # Errors
    ///
    /// As [`scatter`](Self::scatter).
    pub fn gather<T, A, B>(&self, from: &[Buffer<T, A>], to: &mut Buffer<T, B>) -> Result<()>
    where
        T: DeviceBytes,
        A: Memory<Visibility = DeviceOnly>,
        B: Memory<Visibility = DeviceOnly>,
    {
        same_size::<T>(to.len(), together(from))?;
        let mut at = 0;
        for part in from {
            let end = end::<T>(at, part.len(), to.len())?;
            self.copy_view(part.as_view(), to.slice_mut(at..end)?, None, |_| {})?;
            at = end;
        }
        Ok(())
    }
}

/// Elements of all; more than there are addresses fit nowhere.
fn together<T, M: Memory>(parts: &[Buffer<T, M>]) -> usize {
    parts.iter().fold(0, |sum, part| part.len().saturating_add(sum))
}
