use super::Peers;
use crate::memory::{Buffer, DeviceOnly, Memory, end, same_len};
use crate::{DeviceBytes, Result};

impl Peers {
    /// Copies a buffer to several others, in order, one at a time: they share a copy engine.
    ///
    /// # Errors
    ///
    /// [`Size`](crate::Error::Size) unless the lengths match in sum, before any copy; as [`copy`](Self::copy) for the first failure,
    /// without later copies.
    pub fn scatter<T, A, B>(&self, from: &Buffer<T, A>, to: &mut [Buffer<T, B>]) -> Result<()>
    where
        T: DeviceBytes,
        A: Memory<Visibility = DeviceOnly>,
        B: Memory<Visibility = DeviceOnly>,
    {
        same_len(together(to), from.len())?;
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
        same_len(to.len(), together(from))?;
        let mut at = 0;
        for part in from {
            let end = end::<T>(at, part.len(), to.len())?;
            self.copy_view(part.as_view(), to.slice_mut(at..end)?, None, |_| {})?;
            at = end;
        }
        Ok(())
    }
}

fn together<T, M: Memory>(parts: &[Buffer<T, M>]) -> usize {
    parts.iter().fold(0, |sum, part| part.len().saturating_add(sum))
}
