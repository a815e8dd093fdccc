//! The ends of an SPSC ring of `u8` as readers and writers of `std::io` (feature `std`) and `embedded-io`.
//!
//! 1. A reader returns `Ok(0)` once the producer is dropped and all its bytes are read. A writer fails with `BrokenPipe` once the consumer is
//!    dropped.
//! 2. The `std::io` traits fail with `WouldBlock` on an empty or full ring. The ends of `ringmem::wait` block.
//! 3. The `embedded-io` traits poll in a loop. In an interrupt, call `read_ready` or `write_ready` first.
//! 4. An index outside the ring is `InvalidData`.

use super::kind::OneProducer;
use super::{End, Indexed, spsc};
use crate::attach::Corrupt;
use crate::{Machine, RmwWord, SliceCell};

#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    /// The consumer was dropped.
    Closed,
    /// The consumer's index is outside the ring.
    Corrupt(Corrupt),
}

#[doc(hidden)]
pub trait WriteBytes: End {
    fn write_some(&mut self, bytes: &[u8]) -> Result<usize, Corrupt>;

    fn has_room(&mut self) -> bool;

    /// `None` if the ring is full.
    fn try_write(&mut self, bytes: &[u8]) -> Option<Result<usize, Broken>> {
        if bytes.is_empty() {
            return Some(Ok(0));
        }
        if self.is_disconnected() {
            return Some(Err(Broken::Closed));
        }
        Some(self.write_some(bytes).map_err(Broken::Corrupt)).filter(|written| *written != Ok(0))
    }
}

#[doc(hidden)]
pub trait ReadBytes: End {
    fn read_some(&mut self, into: &mut [u8]) -> Result<usize, Corrupt>;

    fn has_bytes(&mut self) -> bool;

    /// `None` if the ring is empty and open.
    fn try_read(&mut self, into: &mut [u8]) -> Option<Result<usize, Corrupt>> {
        let read = self.read_some(into);
        if read != Ok(0) || into.is_empty() {
            return Some(read);
        }
        // A closed end's last bytes are visible.
        self.is_disconnected().then(|| self.read_some(into))
    }
}

impl<M: Machine<Word: RmwWord, Cell<u8>: SliceCell<u8>>> WriteBytes for spsc::Producer<'_, u8, M> {
    fn write_some(&mut self, bytes: &[u8]) -> Result<usize, Corrupt> {
        self.push_slice(bytes).map_err(Into::into)
    }
    fn has_room(&mut self) -> bool {
        self.free() > 0 || Indexed::room(self) != Ok(0)
    }
}

impl<M: Machine<Word: RmwWord, Cell<u8>: SliceCell<u8>>> ReadBytes for spsc::Consumer<'_, u8, M> {
    fn read_some(&mut self, into: &mut [u8]) -> Result<usize, Corrupt> {
        self.pop_slice(into).map_err(Into::into)
    }
    fn has_bytes(&mut self) -> bool {
        self.available() > 0 || self.refresh() != Ok(0)
    }
}

impl<E: WriteBytes> WriteBytes for &mut E {
    fn write_some(&mut self, bytes: &[u8]) -> Result<usize, Corrupt> {
        E::write_some(self, bytes)
    }
    fn has_room(&mut self) -> bool {
        E::has_room(self)
    }
}

impl<E: ReadBytes> ReadBytes for &mut E {
    fn read_some(&mut self, into: &mut [u8]) -> Result<usize, Corrupt> {
        E::read_some(self, into)
    }
    fn has_bytes(&mut self) -> bool {
        E::has_bytes(self)
    }
}

#[cfg(feature = "std")]
mod standard {
    use std::io::{Error, ErrorKind, Read, Result, Write};

    use super::*;

    impl From<Broken> for Error {
        fn from(broken: Broken) -> Self {
            match broken {
                Broken::Closed => ErrorKind::BrokenPipe.into(),
                Broken::Corrupt(corrupt) => Self::new(ErrorKind::InvalidData, corrupt),
            }
        }
    }

    macro_rules! streams {
        ([$($writer_generic:tt)*] $writer:ty, [$($reader_generic:tt)*] $reader:ty) => {
            /// Writes as many bytes as fit, without blocking.
            ///
            /// ```
            /// # use ringmem_layouts as ringmem;
            /// use std::io::{ErrorKind, Read, Write};
            ///
            /// let (mut producer, mut consumer) = ringmem::ring::spsc::bounded::<u8>(4);
            /// assert_eq!(producer.write(b"hello")?, 4);
            /// assert_eq!(producer.write(b"o").unwrap_err().kind(), ErrorKind::WouldBlock);
            /// drop(producer);
            /// let mut text = String::new();
            /// consumer.read_to_string(&mut text)?; // to the end of the stream
            /// assert_eq!(text, "hell");
            /// # Ok::<(), std::io::Error>(())
            /// ```
            impl<$($writer_generic)*> Write for $writer {
                fn write(&mut self, bytes: &[u8]) -> Result<usize> {
                    match self.try_write(bytes) {
                        Some(written) => Ok(written?),
                        None => Err(ErrorKind::WouldBlock.into()),
                    }
                }
                /// Does nothing: each write publishes its bytes.
                fn flush(&mut self) -> Result<()> {
                    Ok(())
                }
            }

            /// Reads as many bytes as wait and fit, without blocking.
            impl<$($reader_generic)*> Read for $reader {
                fn read(&mut self, into: &mut [u8]) -> Result<usize> {
                    match self.try_read(into) {
                        Some(read) => read.map_err(|corrupt| Broken::Corrupt(corrupt).into()),
                        None => Err(ErrorKind::WouldBlock.into()),
                    }
                }
            }
        };
    }

    streams! {
        [M: Machine<Word: RmwWord, Cell<u8>: SliceCell<u8>>] spsc::Producer<'_, u8, M>,
        [M: Machine<Word: RmwWord, Cell<u8>: SliceCell<u8>>] spsc::Consumer<'_, u8, M>
    }
    #[cfg(all(feature = "alloc", target_has_atomic = "ptr", any(target_has_atomic = "64", feature = "portable-atomic")))]
    streams! { [E: WriteBytes] crate::ring::Owned<E>, [E: ReadBytes] crate::ring::Owned<E> }
}

#[cfg(feature = "embedded-io")]
mod embedded {
    use core::hint::spin_loop;

    use embedded_io::{ErrorKind, ErrorType, Read, ReadReady, Write, WriteReady};

    use super::*;

    impl From<Broken> for ErrorKind {
        fn from(broken: Broken) -> Self {
            match broken {
                Broken::Closed => Self::BrokenPipe,
                Broken::Corrupt(_) => Self::InvalidData,
            }
        }
    }

    impl<M: Machine> ErrorType for spsc::Producer<'_, u8, M> {
        type Error = ErrorKind;
    }

    impl<M: Machine> ErrorType for spsc::Consumer<'_, u8, M> {
        type Error = ErrorKind;
    }

    macro_rules! streams {
        ([$($writer_generic:tt)*] $writer:ty, [$($reader_generic:tt)*] $reader:ty) => {
            /// Writes as many bytes as fit; polls until at least one fits, or the consumer was dropped.
            ///
            /// ```
            /// # use ringmem_layouts as ringmem;
            /// use embedded_io::{Read, ReadReady, Write, WriteReady};
            /// use ringmem::ring::spsc::Ring;
            ///
            /// let mut ring = Ring::<u8, 4>::new();
            /// let (mut producer, mut consumer) = ring.split();
            /// producer.write_all(b"abcd")?;
            /// assert!(!producer.write_ready()? && consumer.read_ready()?);
            /// drop(producer);
            /// let mut bytes = [0; 8];
            /// assert_eq!((consumer.read(&mut bytes)?, consumer.read(&mut bytes)?), (4, 0)); // the end of the stream
            /// # Ok::<(), embedded_io::ErrorKind>(())
            /// ```
            impl<$($writer_generic)*> Write for $writer {
                fn write(&mut self, bytes: &[u8]) -> Result<usize, ErrorKind> {
                    loop {
                        if let Some(written) = self.try_write(bytes) {
                            return Ok(written?);
                        }
                        spin_loop();
                    }
                }
                /// Does nothing: each write publishes its bytes.
                fn flush(&mut self) -> Result<(), ErrorKind> {
                    Ok(())
                }
            }

            /// Returns whether a write returns at once.
            impl<$($writer_generic)*> WriteReady for $writer {
                fn write_ready(&mut self) -> Result<bool, ErrorKind> {
                    Ok(self.has_room() || End::is_disconnected(self))
                }
            }

            /// Reads as many bytes as wait and fit; polls until at least one waits, or the producer was dropped.
            impl<$($reader_generic)*> Read for $reader {
                fn read(&mut self, into: &mut [u8]) -> Result<usize, ErrorKind> {
                    loop {
                        if let Some(read) = self.try_read(into) {
                            return read.map_err(|corrupt| Broken::Corrupt(corrupt).into());
                        }
                        spin_loop();
                    }
                }
            }

            /// Returns whether a read returns at once.
            impl<$($reader_generic)*> ReadReady for $reader {
                fn read_ready(&mut self) -> Result<bool, ErrorKind> {
                    Ok(self.has_bytes() || End::is_disconnected(self))
                }
            }
        };
    }

    streams! {
        [M: Machine<Word: RmwWord, Cell<u8>: SliceCell<u8>>] spsc::Producer<'_, u8, M>,
        [M: Machine<Word: RmwWord, Cell<u8>: SliceCell<u8>>] spsc::Consumer<'_, u8, M>
    }
    #[cfg(all(feature = "alloc", target_has_atomic = "ptr", any(target_has_atomic = "64", feature = "portable-atomic")))]
    const _: () = {
        use crate::ring::Owned;

        impl<E> ErrorType for Owned<E> {
            type Error = ErrorKind;
        }
        streams! { [E: WriteBytes] Owned<E>, [E: ReadBytes] Owned<E> }
    };
}
