use crc32c::crc32c;

use super::Peers;
use crate::backend::same_backend;
use crate::copy::Chunks;
use crate::memory::{Both, Buffer, DeviceOnly, Memory, Slice, same_len};
use crate::{DeviceBytes, Error, Result};

const CHUNK: u64 = 4 << 20;

impl Peers {
    /// Compares two buffers by the CRC-32C of each 4 MiB, read back from the devices. Detects every change within 32 adjacent bits of a
    /// chunk, and others but for a probability of 2^-32.
    ///
    /// # Errors
    ///
    /// [`Corrupted`](Error::Corrupted) with the first chunk that differs; [`Size`](Error::Size), [`OtherBackend`](Error::OtherBackend), the
    /// staging memory's error; the error of an earlier use.
    pub fn verify<T, A, B>(&self, from: &Buffer<T, A>, to: &Buffer<T, B>) -> Result<()>
    where
        T: DeviceBytes,
        A: Memory<Visibility = DeviceOnly>,
        B: Memory<Visibility = DeviceOnly>,
    {
        same_len(to.len(), from.len())?;
        same_backend(&*self.backend, &**from.memory().backend())?;
        same_backend(&*self.backend, &**to.memory().backend())?;
        let (from, to) = (from.as_view().cast::<u8>()?, to.as_view().cast::<u8>()?);
        let chunks = Chunks::new(from.len() as u64, 1, CHUNK)?;
        let len = from.len().min(CHUNK as usize);
        let mut host = self.origin.around(|| Buffer::<u8, _>::new(self.staging.clone(), len))?;
        for chunk in chunks {
            let (offset, len) = (chunk.start, chunk.end - chunk.start);
            let expected = sum(from, offset as usize, len as usize, &mut host)?;
            let got = sum(to, offset as usize, len as usize, &mut host)?;
            if expected != got {
                return Err(Error::Corrupted { offset, len, expected, got });
            }
        }
        Ok(())
    }
}

fn sum<M: Memory>(bytes: Slice<'_, u8, M>, at: usize, len: usize, host: &mut Buffer<u8, impl Memory<Visibility = Both>>) -> Result<u32> {
    host.slice_mut(..len)?.copy_from_view(bytes.slice(at..at + len)?)?;
    Ok(crc32c(host.slice(..len)?.as_slice()?))
}
