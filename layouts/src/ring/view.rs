//! Views of a [`Consumer`]'s waiting messages: shared by `&self`, mutable by `&mut self`.
//!
//! 1. A view takes no message: the next `pop` returns the first one, with any changes.
//! 2. A view through `&self` cannot cache the index that it polls. [`mpmc`](super::mpmc) rings have no views.

use super::chunk::Chunk;
use super::consumer::Consumer;
use super::error::PopError;
use super::kind::{InPlace, Indexed, OneConsumer};
use crate::{Machine, SliceCell, SlotCell};

impl<K: OneConsumer<T, M> + InPlace, T, M: Machine<Cell<T>: SliceCell<T>>> Consumer<'_, K, T, M> {
    /// Returns the next message in place; it remains the next.
    ///
    /// # Errors
    ///
    /// [`PopError`].
    ///
    /// ```
    /// # use ringmem_layouts as ringmem;
    /// use ringmem::ring::{PopError, spsc};
    ///
    /// let (mut producer, consumer) = spsc::bounded::<String>(4);
    /// assert_eq!(consumer.end().first(), Err(PopError::Empty));
    /// producer.push("head".to_owned())?;
    /// assert_eq!(consumer.end().first().map(String::as_str), Ok("head"));
    /// assert_eq!(consumer.len(), 1);
    /// # Ok::<(), ringmem::ring::PushError<String>>(())
    /// ```
    #[doc(alias("front", "peek"))]
    pub fn first(&self) -> Result<&T, PopError<M::Corrupt>> {
        let (index, count) = K::seen(self, 1).map_err(PopError::Corrupt)?;
        if count == 0 {
            return Err(PopError::Empty);
        }
        // SAFETY: present, and this end's until it is released, which takes `&mut`.
        Ok(unsafe { &*self.place(index) })
    }

    /// Like [`first`](Self::first), but mutable.
    ///
    /// # Errors
    ///
    /// As [`first`](Self::first).
    ///
    /// ```
    /// # use ringmem_layouts as ringmem;
    /// use ringmem::ring::spsc::Ring;
    ///
    /// let mut ring = Ring::from([1, 2]);
    /// let (_, mut consumer) = ring.split();
    /// *consumer.first_mut()? += 10;
    /// assert_eq!(consumer.pop(), Ok(11));
    /// # Ok::<(), ringmem::ring::PopError>(())
    /// ```
    #[doc(alias("front_mut", "peek_mut"))]
    pub fn first_mut(&mut self) -> Result<&mut T, PopError<M::Corrupt>> {
        self.peek(1)?;
        // SAFETY: present and this end's, borrowed exclusively.
        Ok(unsafe { &mut *self.place(self.head) })
    }

    /// Returns the waiting messages in place, oldest first: in `mpsc` up to the next slot that is unpublished or given up. A corrupt ring yields
    /// none.
    ///
    /// ```
    /// # use ringmem_layouts as ringmem;
    /// use ringmem::ring::spsc;
    ///
    /// let (mut producer, mut consumer) = spsc::bounded::<u32>(4);
    /// (1..=3).for_each(|number| assert!(producer.push(number).is_ok()));
    /// assert_eq!(consumer.end().iter().rev().copied().collect::<Vec<_>>(), [3, 2, 1]);
    /// assert_eq!(consumer.pop(), Ok(1));
    /// ```
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &T> + ExactSizeIterator {
        let (index, count) = K::seen(self, self.capacity()).unwrap_or((self.head, 0));
        // SAFETY: present, and this end's until they are released, which takes `&mut`.
        (0..count).map(move |offset| unsafe { &*self.place(index.wrapping_add(offset as u64)) })
    }

    /// Like [`iter`](Self::iter), but mutable.
    ///
    /// ```
    /// # use ringmem_layouts as ringmem;
    /// use ringmem::ring::spsc::Ring;
    ///
    /// let mut ring = Ring::from([1, 2, 3, 4]);
    /// let (_, mut consumer) = ring.split();
    /// consumer.iter_mut().for_each(|number| *number *= 2);
    /// assert_eq!(consumer.iter().sum::<i32>(), 20);
    /// ```
    pub fn iter_mut(&mut self) -> impl DoubleEndedIterator<Item = &mut T> + ExactSizeIterator {
        let count = self.peek(usize::MAX).map_or(0, |chunk| chunk.len());
        self.exclusive(count)
    }

    /// The first `count` messages are present.
    fn exclusive(&mut self, count: usize) -> impl DoubleEndedIterator<Item = &mut T> + ExactSizeIterator {
        let end = &*self;
        // SAFETY: present and this end's, borrowed exclusively for as long; each offset comes once.
        (0..count).map(move |offset| unsafe { &mut *end.place(end.head.wrapping_add(offset as u64)) })
    }

    fn place(&self, index: u64) -> *mut T {
        K::cell(self.slots.at(index)).with_mut(|place| place)
    }
}

impl<T, M: Machine<Cell<T>: SliceCell<T>>> Consumer<'_, Indexed, T, M> {
    /// Returns all waiting messages in place: before the wrap and after it.
    ///
    /// # Errors
    ///
    /// [`Corrupt`](crate::attach::Corrupt) if the producer's index is outside the ring.
    ///
    /// ```
    /// # use ringmem_layouts as ringmem;
    /// use ringmem::ring::spsc::Ring;
    ///
    /// let mut ring = Ring::<u32, 4>::starting_at(2);
    /// let (mut producer, consumer) = ring.split();
    /// producer.push_slice(&[1, 2, 3])?;
    /// assert_eq!(consumer.as_slices()?, [&[1, 2][..], &[3]]);
    /// # Ok::<(), ringmem::attach::Corrupt>(())
    /// ```
    pub fn as_slices(&self) -> Result<[&[T]; 2], M::Corrupt> {
        let (_, count) = <Indexed as OneConsumer<T, M>>::seen(self, self.capacity())?;
        Ok(self.runs(count))
    }

    /// Like [`as_slices`](Self::as_slices), but mutable.
    ///
    /// # Errors
    ///
    /// As [`as_slices`](Self::as_slices).
    ///
    /// ```
    /// # use ringmem_layouts as ringmem;
    /// use ringmem::ring::spsc::Ring;
    ///
    /// let mut ring = Ring::from([3, 1, 2, 4]);
    /// let (_, mut consumer) = ring.split();
    /// let [all, _] = consumer.as_mut_slices()?;
    /// all.sort();
    /// assert_eq!(consumer.pop(), Ok(1));
    /// # Ok::<(), ringmem::attach::Corrupt>(())
    /// ```
    pub fn as_mut_slices(&mut self) -> Result<[&mut [T]; 2], M::Corrupt> {
        let (_, count) = <Indexed as OneConsumer<T, M>>::seen(self, self.capacity())?;
        Ok(self.runs_mut(count))
    }

    /// The first `count` messages are present.
    fn runs_mut(&mut self, count: usize) -> [&mut [T]; 2] {
        let first = self.slots.before_wrap(self.head, count);
        let run = |index: u64, count: usize| {
            // SAFETY: `count` filled slots short of the wrap, borrowed exclusively; the two runs do not overlap.
            unsafe { core::slice::from_raw_parts_mut(self.slots.run(index).as_ptr(), count) }
        };
        [run(self.head, first), run(self.head.wrapping_add(first as u64), count - first)]
    }
}

impl<K: OneConsumer<T, M> + InPlace, T, M: Machine<Cell<T>: SliceCell<T>>> Chunk<'_, '_, K, T, M> {
    /// Like [`get`](Self::get), but mutable.
    ///
    /// ```
    /// # use ringmem_layouts as ringmem;
    /// use ringmem::ring::spsc::Ring;
    ///
    /// let mut ring = Ring::from([1, 2]);
    /// let (_, mut consumer) = ring.split();
    /// let mut chunk = consumer.peek(2)?;
    /// assert_eq!((chunk.get_mut(1).map(core::mem::take), chunk.get_mut(2)), (Some(2), None));
    /// assert_eq!((consumer.pop(), consumer.pop()), (Ok(1), Ok(0)));
    /// # Ok::<(), ringmem::ring::PopError>(())
    /// ```
    pub fn get_mut(&mut self, offset: usize) -> Option<&mut T> {
        if offset >= self.len() {
            return None;
        }
        // SAFETY: present by the invariant of a chunk, and borrowed exclusively.
        Some(unsafe { &mut *self.consumer.place(self.consumer.head.wrapping_add(offset as u64)) })
    }

    /// Like [`iter`](Self::iter), but mutable.
    ///
    /// ```
    /// # use ringmem_layouts as ringmem;
    /// use ringmem::ring::spsc::Ring;
    ///
    /// let mut ring = Ring::from([1, 2]);
    /// let (_, mut consumer) = ring.split();
    /// let mut chunk = consumer.peek(2)?;
    /// chunk.iter_mut().for_each(|number| *number += 1);
    /// assert_eq!(chunk.into_iter().sum::<i32>(), 5);
    /// # Ok::<(), ringmem::ring::PopError>(())
    /// ```
    pub fn iter_mut(&mut self) -> impl DoubleEndedIterator<Item = &mut T> + ExactSizeIterator {
        let count = self.len();
        self.consumer.exclusive(count)
    }
}

impl<T, M: Machine<Cell<T>: SliceCell<T>>> Chunk<'_, '_, Indexed, T, M> {
    /// Like [`as_slices`](Self::as_slices), but mutable.
    ///
    /// ```
    /// # use ringmem_layouts as ringmem;
    /// use ringmem::ring::spsc::Ring;
    ///
    /// let mut ring = Ring::from([1, 2]);
    /// let (_, mut consumer) = ring.split();
    /// let mut chunk = consumer.peek(2)?;
    /// chunk.as_mut_slices()[0].reverse();
    /// assert_eq!(consumer.pop(), Ok(2));
    /// # Ok::<(), ringmem::ring::PopError>(())
    /// ```
    pub fn as_mut_slices(&mut self) -> [&mut [T]; 2] {
        let count = self.len();
        self.consumer.runs_mut(count)
    }
}
