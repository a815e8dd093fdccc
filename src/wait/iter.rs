use core::iter;

use super::{Park, Waiting};
use crate::ring::Pop;

impl<E: Pop, P: Park<E::Word>> Waiting<E, P> {
    /// Iterates over messages; waits for each; ends when [`recv`](Self::recv) fails.
    pub fn iter(&mut self) -> impl Iterator<Item = E::Item> {
        iter::from_fn(|| self.recv().ok())
    }

    /// Iterates over available messages without waiting.
    pub fn try_iter(&mut self) -> impl Iterator<Item = E::Item> {
        iter::from_fn(|| self.try_recv().ok())
    }
}

impl<E: Pop, P: Park<E::Word>> IntoIterator for Waiting<E, P> {
    type Item = E::Item;
    type IntoIter = IntoIter<E, P>;

    fn into_iter(self) -> IntoIter<E, P> {
        IntoIter { receiver: self }
    }
}

/// The iterator of a receiver.
///
/// ```
/// let (mut sender, receiver) = ringmem::wait::bounded::<u32>(16);
/// (1..=3).for_each(|number| sender.send(number).unwrap());
/// drop(sender); // without this, the iterator waits for more
/// assert_eq!(receiver.into_iter().sum::<u32>(), 6);
/// ```
#[derive(Debug)]
pub struct IntoIter<E: Pop, P: Park<E::Word>> {
    receiver: Waiting<E, P>,
}

impl<E: Pop, P: Park<E::Word>> Iterator for IntoIter<E, P> {
    type Item = E::Item;

    fn next(&mut self) -> Option<E::Item> {
        self.receiver.recv().ok()
    }
}
