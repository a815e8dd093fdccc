use super::{Owned, own_bytes};
use crate::ring::Storage;
use crate::ring::lossy::{Boxed, Reader, RingIn, Writer};
use crate::{HostWord, Local, RingMessage};

/// A writer that shares ownership of its ring.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::ring::lossy::{OwnedWriter, bounded};
///
/// fn sample(mut writer: OwnedWriter<u32>) {
///     (1..=3).for_each(|value| writer.push(value));
/// }
///
/// let (writer, reader) = bounded(4);
/// std::thread::spawn(|| sample(writer)).join().unwrap();
/// assert_eq!((reader.len(), reader.lost()), (3, 0));
/// ```
pub type OwnedWriter<T> = Owned<Writer<'static, T, Local>>;

/// A reader that shares ownership of its ring.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::ring::lossy::{OwnedReader, ReadError, bounded};
///
/// fn first(mut reader: OwnedReader<u32>) -> Result<u32, ReadError> {
///     reader.pop()
/// }
///
/// let (mut writer, reader) = bounded(2);
/// let other = reader.clone(); // each reader reads every message
/// writer.push(7);
/// assert_eq!((first(reader), first(other)), (Ok(7), Ok(7)));
/// ```
pub type OwnedReader<T> = Owned<Reader<'static, T, Local>>;

/// Allocates a ring of at least `capacity` messages (the next power of two, at least 1); its ends share ownership.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// let (mut writer, mut reader) = ringmem::ring::lossy::bounded::<u64>(100);
/// writer.push(7);
/// assert_eq!((writer.capacity(), reader.pop()), (128, Ok(7)));
/// ```
///
/// # Panics
///
/// If the words exceed `isize::MAX` bytes.
#[must_use]
pub fn bounded<T: RingMessage>(capacity: usize) -> (OwnedWriter<T>, OwnedReader<T>) {
    Boxed::with_capacity(capacity).into_ends()
}

impl<T: RingMessage, S: Storage<HostWord>> RingIn<T, S> {
    /// Like [`split`](Self::split), with shared ownership.
    #[must_use]
    pub fn into_ends(self) -> (OwnedWriter<T>, OwnedReader<T>)
    where
        T: Send + 'static,
        S: Send + 'static,
    {
        own_bytes(self, Self::split)
    }
}
