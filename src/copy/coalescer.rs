//! [`Coalescer`]: small writes, kept until they can be few copies.
#![allow(clippy::result_large_err, reason = "what comes back is as large as what went in")]

use core::fmt;
use core::mem::swap;
use std::vec::Vec;

use crate::memory::{Buffer, Device, HostReadable, Memory, Pinned, end, same_backend};
use crate::{DeviceBytes, Error, Rejected, Result};

/// Collects writes to one buffer in a staging buffer of its own, and copies them when it is [flushed](Self::flush) or the staging is full.
///
/// 1. A flush is one copy for each run of elements that were written side by side, in whatever order and however often.
/// 2. The buffer is then as if each write had been copied by itself, in their order: the last one of an element stands.
/// 3. All staging is allocated at once, by [`new`](Self::new), and used again by every flush.
/// 4. What a failed flush has not copied is still pending: the next one copies it.
/// 5. Dropping it drops what is pending: [`flush`](Self::flush) or [`close`](Self::close) say what went wrong, a destructor could not.
///
/// ```
/// # fn main() -> ringmem::Result<()> {
/// use ringmem::backend::host::HostBackend;
/// use ringmem::memory::{Device, GpuBuffer, Pinned};
/// use ringmem::copy::Coalescer;
///
/// let backend = HostBackend::builder().build()?;
/// let table = GpuBuffer::<u32>::new(Device::new(&backend, 0), 1000)?;
/// let mut table = Coalescer::new(table, Pinned::new(&backend, 0), 256)?;
/// for row in 0..100 {
///     table.write(2 * row, &[row as u32, 0])?;
/// }
/// table.write(500, &[7])?;
/// assert_eq!(table.flush()?, 2);
/// assert_eq!(backend.counters().uploads.count, 2);
/// # Ok(())
/// # }
/// ```
pub struct Coalescer<T: DeviceBytes, M: Memory = Device, S: Memory<Visibility: HostReadable> = Pinned> {
    target: Buffer<T, M>,
    // INVARIANT: two halves of `capacity` elements: one that is written to, one that writes out of order are gathered in.
    staging: Buffer<T, S>,
    capacity: usize,
    is_second: bool,
    /// Elements of the half in use that hold writes.
    staged: usize,
    /// What is pending, in the order of writing.
    // INVARIANT: within `target`, and within the staged part of the half in use; at most `capacity` elements in all.
    pieces: Vec<Piece>,
    /// Whether each piece lies behind the one before, with something between them: then they are the runs.
    is_ordered: bool,
    /// Room for the next runs.
    runs: Vec<Piece>,
}

/// Elements side by side.
#[derive(Clone, Copy)]
struct Piece {
    /// Where in the target.
    at: usize,
    /// Where in a half of the staging.
    from: usize,
    len: usize,
}

impl Piece {
    const fn end(&self) -> usize {
        self.at + self.len
    }
}

impl<T: DeviceBytes, M: Memory, S: Memory<Visibility: HostReadable>> Coalescer<T, M, S> {
    /// Collects writes to `target`, at most `capacity` elements at a time. Of `memory` it takes a buffer twice as long.
    ///
    /// # Errors
    ///
    /// The target, with [`Size`](Error::Size) for no elements, [`OtherBackend`](Error::OtherBackend) for memory of another backend, or what the memory refuses.
    #[track_caller]
    pub fn new(target: Buffer<T, M>, memory: S, capacity: usize) -> Result<Self, Rejected<Buffer<T, M>>> {
        match Self::stage(&target, memory, capacity) {
            Ok(staging) => {
                Ok(Self { target, staging, capacity, is_second: false, staged: 0, pieces: Vec::new(), is_ordered: true, runs: Vec::new() })
            }
            Err(error) => Err(Rejected { error, value: target }),
        }
    }

    #[track_caller]
    fn stage(target: &Buffer<T, M>, memory: S, capacity: usize) -> Result<Buffer<T, S>> {
        same_backend(&**target.memory().backend(), &**memory.backend())?;
        match capacity.checked_mul(2) {
            Some(both @ 1..) => Buffer::new(memory, both),
            _ => {
                let size = size_of::<T>().max(1) as u64;
                Err(Error::Size {
                    asked: (capacity as u64).saturating_mul(2).saturating_mul(size),
                    least: 2 * size,
                    most: isize::MAX as u64,
                })
            }
        }
    }

    /// Writes elements from the one at `at` on, with the next flush. Where the staging has no room for them, it is flushed; what is longer than all of
    /// it is copied at once, after that.
    ///
    /// # Errors
    ///
    /// [`Range`](Error::Range) before anything is done; what a copy failed with. Nothing of these elements is pending then.
    pub fn write(&mut self, at: usize, elements: &[T]) -> Result<()> {
        end::<T>(at, elements.len(), self.target.len())?;
        let len = elements.len();
        if len == 0 || size_of::<T>() == 0 {
            return Ok(());
        }
        if len > self.capacity - self.staged {
            self.flush()?;
            if len > self.capacity {
                return self.target.copy_from_at(at, elements);
            }
        }
        let (half, from) = (self.half(), self.staged);
        // Within: the half has `capacity` elements.
        self.staging.as_mut_slice()?[half + from..][..len].copy_from_slice(elements);
        self.staged += len;
        match self.pieces.last_mut() {
            // The last piece's elements are the last that were staged.
            Some(last) if last.end() == at => last.len += len,
            last => {
                self.is_ordered &= last.is_none_or(|last| last.end() < at);
                self.pieces.push(Piece { at, from, len });
            }
        }
        Ok(())
    }

    /// Copies what is pending, and returns when that is done; how many copies it took.
    ///
    /// # Errors
    ///
    /// What the first copy failed with. It and what comes after it are still pending.
    pub fn flush(&mut self) -> Result<usize> {
        if !self.is_ordered {
            self.gather()?;
        }
        let (half, mut copied) = (self.half(), 0);
        let Self { target, staging, pieces, .. } = self;
        let outcome: Result<()> = pieces.iter().try_for_each(|piece| {
            let from = staging.slice(half + piece.from..)?.slice(..piece.len)?;
            target.slice_mut(piece.at..piece.end())?.copy_from_view(from)?;
            copied += 1;
            Ok(())
        });
        pieces.drain(..copied);
        outcome?;
        self.staged = 0;
        Ok(copied)
    }

    /// Brings what is pending into runs, in the other half.
    fn gather(&mut self) -> Result<()> {
        let Self { staging, pieces, runs, capacity, is_second, .. } = self;
        runs.clear();
        runs.extend_from_slice(pieces);
        runs.sort_unstable_by_key(|piece| piece.at);
        runs.dedup_by(|next, run| {
            let joins = next.at <= run.end();
            if joins {
                run.len = run.end().max(next.end()) - run.at;
            }
            joins
        });
        let mut staged = 0;
        for run in runs.iter_mut() {
            run.from = staged;
            staged += run.len;
        }
        let (first, second) = staging.as_mut_slice()?.split_at_mut(*capacity);
        let (old, new) = if *is_second { (second, first) } else { (first, second) };
        // In the order of writing: so the last one of an element stands.
        for piece in pieces.iter() {
            // Its run is the last that does not begin behind it: it is part of one.
            let run = &runs[runs.partition_point(|run| run.at <= piece.at) - 1];
            new[run.from + piece.at - run.at..][..piece.len].copy_from_slice(&old[piece.from..][..piece.len]);
        }
        swap(pieces, runs);
        (self.is_second, self.staged, self.is_ordered) = (!*is_second, staged, true);
        Ok(())
    }

    /// The buffer, with all that was written.
    ///
    /// # Errors
    ///
    /// As [`flush`](Self::flush).
    pub fn target(&mut self) -> Result<&mut Buffer<T, M>> {
        self.flush()?;
        Ok(&mut self.target)
    }

    /// Flushes, and gives the buffer back.
    ///
    /// # Errors
    ///
    /// `self`, with what [`flush`](Self::flush) failed with.
    pub fn close(mut self) -> Result<Buffer<T, M>, Rejected<Self>> {
        match self.flush() {
            Ok(_) => Ok(self.target),
            Err(error) => Err(Rejected { error, value: self }),
        }
    }

    /// Elements that were written and not yet copied, as often as they were written, or once where a flush has gathered them and failed; 0 when nothing is
    /// pending.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.pieces.iter().map(|piece| piece.len).sum()
    }

    /// Elements that it collects at most.
    #[must_use]
    pub const fn capacity(&self) -> usize {
        self.capacity
    }

    /// Where the half in use begins.
    const fn half(&self) -> usize {
        if self.is_second { self.capacity } else { 0 }
    }
}

impl<T: DeviceBytes, M: Memory, S: Memory<Visibility: HostReadable>> fmt::Debug for Coalescer<T, M, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Coalescer")
            .field("target", &self.target)
            .field("pending", &self.pending())
            .field("capacity", &self.capacity)
            .finish_non_exhaustive()
    }
}
