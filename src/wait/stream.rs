use std::io::{Error, ErrorKind, Read, Result, Write};

use super::WaitError;
use super::park::Park;
use super::waiting::Waiting;
use crate::attach::Corrupt;
use crate::ring::{Broken, ReadBytes, WriteBytes};

impl<E: WriteBytes, P: Park<E::Word>> Waiting<E, P> {
    fn write_bytes(&mut self, bytes: &[u8]) -> std::result::Result<usize, Broken> {
        let written = self.outcome_until(None, |end| end.try_write(bytes).map(|written| written.map_err(WaitError::Refused)));
        written.map_err(|refused| if let WaitError::Refused(broken) = refused { broken } else { Broken::Closed })
    }
}

impl<E: ReadBytes, P: Park<E::Word>> Waiting<E, P> {
    /// None at the end of the stream.
    fn read_bytes(&mut self, into: &mut [u8]) -> std::result::Result<usize, Corrupt> {
        match self.outcome_until(None, |end| end.try_read(into).map(|read| read.map_err(WaitError::Refused))) {
            Ok(count) => Ok(count),
            Err(WaitError::Refused(corrupt)) => Err(corrupt),
            Err(WaitError::Disconnected | WaitError::Timeout) => Ok(0),
        }
    }
}

/// Writes as many bytes as fit, at least one; waits for room. `BrokenPipe` once the other end is dropped.
///
/// ```
/// use std::io::{Read, Write};
///
/// let (mut writer, mut reader) = ringmem::wait::bounded::<u8>(64);
/// let thread = std::thread::spawn(move || (0..1000).try_for_each(|number| writeln!(writer, "line {number}")));
/// let mut text = String::new();
/// reader.read_to_string(&mut text)?; // until the writer is dropped
/// assert_eq!(text.lines().last(), Some("line 999"));
/// thread.join().unwrap()?;
/// # Ok::<(), std::io::Error>(())
/// ```
impl<E: WriteBytes, P: Park<E::Word>> Write for Waiting<E, P> {
    fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        Ok(self.write_bytes(bytes)?)
    }
    /// Does nothing: each write publishes its bytes.
    fn flush(&mut self) -> Result<()> {
        Ok(())
    }
}

/// Reads as many bytes as fit, at least one; waits for them. Returns 0 once the other end is dropped and all was read.
impl<E: ReadBytes, P: Park<E::Word>> Read for Waiting<E, P> {
    fn read(&mut self, into: &mut [u8]) -> Result<usize> {
        self.read_bytes(into).map_err(|corrupt| Error::new(ErrorKind::InvalidData, corrupt))
    }
}

#[cfg(feature = "embedded-io")]
mod embedded {
    use std::result::Result;

    use embedded_io::{ErrorKind, ErrorType, Read, ReadReady, Write, WriteReady};

    use super::{Park, ReadBytes, Waiting, WriteBytes};
    use crate::ring::{Broken, End};

    impl<E: End, P: Park<E::Word>> ErrorType for Waiting<E, P> {
        type Error = ErrorKind;
    }

    impl<E: WriteBytes, P: Park<E::Word>> Write for Waiting<E, P> {
        fn write(&mut self, bytes: &[u8]) -> Result<usize, ErrorKind> {
            Ok(self.write_bytes(bytes)?)
        }
        fn flush(&mut self) -> Result<(), ErrorKind> {
            Ok(())
        }
    }

    impl<E: WriteBytes, P: Park<E::Word>> WriteReady for Waiting<E, P> {
        fn write_ready(&mut self) -> Result<bool, ErrorKind> {
            Ok(self.attempt(|end| end.has_room() || end.is_disconnected()))
        }
    }

    impl<E: ReadBytes, P: Park<E::Word>> Read for Waiting<E, P> {
        fn read(&mut self, into: &mut [u8]) -> Result<usize, ErrorKind> {
            self.read_bytes(into).map_err(|corrupt| Broken::Corrupt(corrupt).into())
        }
    }

    impl<E: ReadBytes, P: Park<E::Word>> ReadReady for Waiting<E, P> {
        fn read_ready(&mut self) -> Result<bool, ErrorKind> {
            Ok(self.attempt(|end| end.has_bytes() || end.is_disconnected()))
        }
    }
}
