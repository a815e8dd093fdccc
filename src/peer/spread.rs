//! Splits one buffer over several devices, and joins them.

use super::Peers;
use crate::memory::{Buffer, DeviceOnly, Memory, end, same_size};
use crate::{DeviceBytes, Result};

impl Peers {
    /// Copies a buffer to several others: the first elements to the first of `to`, the following ones to the second, and so on.
    ///
    /// Copies run one after the other, because they leave the same device through the same copy engine.
    ///
    /// # Errors
    ///
    /// [`Size`](crate::Error::Size) if the lengths differ in sum, before any copy; as [`copy`](Self::copy) for the first failure. Earlier parts
    /// have arrived; later ones are untouched.
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

    /// Copies several buffers to one, in order.
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

/// Returns the total number of elements, saturating: that many fit nowhere.
fn together<T, M: Memory>(parts: &[Buffer<T, M>]) -> usize {
    parts.iter().fold(0, |sum, part| part.len().saturating_add(sum))
}
