use std::time::Duration;

use crate::Error;

/// Limits and times of a relay.
///
/// ```
/// use ringmem_zenoh::Options;
///
/// let small = Options { window_bytes: 64 << 10, ..Options::default() };
/// assert_eq!(small.batch_bytes, 32 << 10);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Approximate bytes of messages per batch: 1 byte to 64 MiB. By default 32 KiB.
    pub batch_bytes: usize,
    /// Most unacknowledged bytes: 1 byte to 1 TiB; the smaller value of sender and receiver applies. By default 4 MiB.
    pub window_bytes: usize,
    /// The time without an acknowledgement after which a sender repeats the handshake: 1 ms to 1 day. By default 500 ms.
    pub silence: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self { batch_bytes: 32 << 10, window_bytes: 4 << 20, silence: Duration::from_millis(500) }
    }
}

const MOST_BATCH: usize = 64 << 20;
/// The receiver doubles it.
const MOST_WINDOW: usize = if usize::BITS > 40 { 1 << 40 } else { 1 << 29 };
const SHORTEST_SILENCE: Duration = Duration::from_millis(1);
const LONGEST_SILENCE: Duration = Duration::from_secs(24 * 60 * 60);

impl Options {
    /// Without a byte to send or a time to wait, a relay would be silent or busy without an error; larger values overflow sums.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let Self { batch_bytes, window_bytes, silence } = *self;
        let error = |name, allowed, value| Err(Error::Option { name, allowed, value });
        if !(1..=MOST_BATCH).contains(&batch_bytes) {
            return error("batch_bytes", "1 to 67108864 (64 MiB)", batch_bytes.to_string());
        }
        if !(1..=MOST_WINDOW).contains(&window_bytes) {
            let allowed = if MOST_WINDOW > 1 << 29 { "1 to 1099511627776 (1 TiB)" } else { "1 to 536870912 (512 MiB)" };
            return error("window_bytes", allowed, window_bytes.to_string());
        }
        if !(SHORTEST_SILENCE..=LONGEST_SILENCE).contains(&silence) {
            return error("silence", "1ms to 86400s (a day)", format!("{silence:?}"));
        }
        Ok(())
    }
}
