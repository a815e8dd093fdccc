use crc::{CRC_32_ISCSI, Crc, Digest, Table};
use zerocopy::IntoBytes;

use super::{Flags, HeaderError, MessageHeader};

/// Sixteen bytes per step, with 16 KiB of tables.
static CASTAGNOLI: Crc<u32, Table<16>> = Crc::<u32, Table<16>>::new(&CRC_32_ISCSI);

/// Returns the CRC-32C of some bytes, as in RFC 3720 (iSCSI).
///
/// ```
/// # use ringmem_layouts as ringmem;
/// assert_eq!(ringmem::message::crc32c(b"123456789"), 0xe306_9283);
/// ```
#[must_use]
pub fn crc32c(bytes: &[u8]) -> u32 {
    CASTAGNOLI.checksum(bytes)
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
        let mut digest: Digest<'_, u32, Table<16>> = CASTAGNOLI.digest();
        digest.update(zeroed.as_bytes());
        digest.update(payload);
        digest.finalize()
    }
}
