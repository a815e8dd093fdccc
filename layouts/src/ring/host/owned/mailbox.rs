use super::{Owned, own_bytes};
use crate::ring::mailbox::{Mailbox, Reader, Writer};
use crate::{Local, RingMessage};

/// A writer that shares ownership of its mailbox.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::ring::mailbox::{OwnedWriter, channel};
///
/// fn publish(mut position: OwnedWriter<[f32; 3]>) {
///     position.publish([1.0, 2.0, 3.0]);
/// }
///
/// let (writer, reader) = channel();
/// std::thread::spawn(|| publish(writer)).join().unwrap();
/// assert_eq!(reader.latest(), Ok((1, [1.0, 2.0, 3.0])));
/// ```
pub type OwnedWriter<T> = Owned<Writer<'static, T, Local>>;

/// A reader that shares ownership of its mailbox.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::ring::mailbox::{OwnedReader, channel};
///
/// fn latest(reader: &OwnedReader<u32>) -> Option<u32> {
///     reader.latest().ok().map(|(_version, value)| value)
/// }
///
/// let (mut writer, reader) = channel();
/// assert_eq!(latest(&reader), None);
/// writer.publish(7);
/// assert_eq!(latest(&reader), Some(7));
/// ```
pub type OwnedReader<T> = Owned<Reader<'static, T, Local>>;

/// Allocates a mailbox; its ends share ownership.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// let (mut writer, mut reader) = ringmem::ring::mailbox::channel::<u64>();
/// writer.publish(1);
/// writer.publish(2);
/// assert_eq!(reader.take_new().map(|new| new.value), Ok(2));
/// ```
#[must_use]
pub fn channel<T: RingMessage>() -> (OwnedWriter<T>, OwnedReader<T>) {
    Mailbox::<T>::new().into_ends()
}

impl<T: RingMessage, const N: usize> Mailbox<T, N> {
    /// Like [`split`](Self::split), with shared ownership.
    #[must_use]
    pub fn into_ends(self) -> (OwnedWriter<T>, OwnedReader<T>)
    where
        T: Send + 'static,
    {
        own_bytes(self, Self::split)
    }
}
