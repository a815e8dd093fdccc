#[cfg(feature = "std")]
use crc32c::crc32c_append as append;
#[cfg(not(feature = "std"))]
use table::append;
use zerocopy::IntoBytes;

use super::{Flags, HeaderError, MessageHeader};

#[cfg_attr(feature = "std", allow(dead_code, reason = "only tested"))]
mod table {
    use crc::{CRC_32_ISCSI, Crc, Table};

    /// Sixteen bytes per step, with 16 KiB of tables.
    static CASTAGNOLI: Crc<u32, Table<16>> = Crc::<u32, Table<16>>::new(&CRC_32_ISCSI);

    pub fn append(sum: u32, bytes: &[u8]) -> u32 {
        let mut digest = CASTAGNOLI.digest_with_initial((!sum).reverse_bits());
        digest.update(bytes);
        digest.finalize()
    }
}

/// Returns the CRC-32C of some bytes, as in RFC 3720 (iSCSI). With `std`, by the processor's instruction.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// assert_eq!(ringmem::message::crc32c(b"123456789"), 0xe306_9283);
/// ```
#[must_use]
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc32c_append(0, bytes)
}

/// Returns the [`crc32c()`] of the bytes with this sum, followed by `bytes`.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::message::{crc32c, crc32c_append};
/// assert_eq!(crc32c_append(crc32c(b"12345"), b"6789"), crc32c(b"123456789"));
/// ```
#[must_use]
pub fn crc32c_append(sum: u32, bytes: &[u8]) -> u32 {
    append(sum, bytes)
}

impl MessageHeader {
    /// Sets payload length and checksum. Call it last: the checksum covers all other fields.
    ///
    /// # Errors
    ///
    /// [`HeaderError::Length`] for a payload of 4 GiB or more.
    pub fn seal(self, payload: &[u8]) -> Result<Self, HeaderError> {
        let too_long = HeaderError::Length { claimed: u32::MAX, available: payload.len() as u64 };
        let payload_length = u32::try_from(payload.len()).map_err(|_| too_long)?;
        let sealed = Self { payload_length, flags: self.flags | Flags::HAS_CHECKSUM.bits(), ..self };
        Ok(Self { checksum: sealed.sum(payload), ..sealed })
    }

    /// Verifies that header and payload are unchanged since [`seal`](Self::seal). Detects every single-bit flip and every change within 32
    /// neighbouring bits of the payload; of others all but one in 2^32.
    ///
    /// # Errors
    ///
    /// As [`validate`](Self::validate); [`HeaderError::Length`] if the payload has another length; [`HeaderError::Unsealed`];
    /// [`HeaderError::Checksum`].
    pub fn check(&self, payload: &[u8]) -> Result<(), HeaderError> {
        self.validate(payload.len())?;
        if self.payload_length as usize != payload.len() {
            return Err(HeaderError::Length { claimed: self.payload_length, available: payload.len() as u64 });
        }
        if self.flags & Flags::HAS_CHECKSUM.bits() == 0 {
            return Err(HeaderError::Unsealed);
        }
        let expected = self.sum(payload);
        if expected == self.checksum { Ok(()) } else { Err(HeaderError::Checksum { expected, got: self.checksum }) }
    }

    fn sum(&self, payload: &[u8]) -> u32 {
        let zeroed = Self { checksum: 0, ..*self };
        crc32c_append(crc32c(zeroed.as_bytes()), payload)
    }
}

#[cfg(test)]
mod tests {
    use super::table;

    #[test]
    fn both_implementations_return_equal_sums() {
        let bytes: [u8; 100] = core::array::from_fn(|n| (n * 7) as u8);
        for (from, to) in (0..100).flat_map(|from| (from..100).map(move |to| (from, to))) {
            let [first, second] = [&bytes[..from], &bytes[from..to]];
            let sum = table::append(table::append(0, first), second);
            assert_eq!((sum, table::append(0, &bytes[..to])), (super::append(super::append(0, first), second), sum), "{from}, {to}");
        }
        assert_eq!(table::append(0, b"123456789"), 0xe306_9283);
    }
}
