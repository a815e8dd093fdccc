#![allow(clippy::result_large_err, reason = "what comes back is as large as what went in")]

use core::fmt;
use core::mem::swap;
use std::vec::Vec;

use crate::backend::same_backend;
use crate::memory::{Buffer, Device, HostReadable, Memory, Pinned, end};
use crate::{DeviceBytes, Error, Rejected, Result};

/// Collects writes to one buffer; copies them on [`flush`](Self::flush) or when full.
///
/// 1. A flush is one copy per contiguous run, in any order of writes.
/// 2. The last write of an element wins.
/// 3. [`new`](Self::new) allocates all staging memory.
/// 4. Writes that a failed flush did not copy stay pending.
/// 5. A drop discards pending writes: call [`flush`](Self::flush) or [`close`](Self::close).
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
    // INVARIANT: two halves of `capacity` elements: for writes, and to gather unordered ones.
    staging: Buffer<T, S>,
    capacity: usize,
    is_second: bool,
    staged: usize,
    // INVARIANT: in order, within `target` and the staged part of the half in use; at most `capacity` elements in all.
    pieces: Vec<Piece>,
    is_ordered: bool,
    runs: Vec<Piece>,
}

#[derive(Clone, Copy)]
struct Piece {
    at: usize,
    from: usize,
    len: usize,
}

impl Piece {
    const fn end(&self) -> usize {
        self.at + self.len
    }
}

impl<T: DeviceBytes, M: Memory, S: Memory<Visibility: HostReadable>> Coalescer<T, M, S> {
    /// Collects up to `capacity` elements for `target`, in twice as many of `memory`.
    ///
    /// # Errors
    ///
    /// The target, with [`Size`](Error::Size) for no elements, [`OtherBackend`](Error::OtherBackend), or the allocation's error.
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
                    what: "size in bytes",
                    asked: (capacity as u64).saturating_mul(2).saturating_mul(size),
                    least: 2 * size,
                    most: isize::MAX as u64,
                })
            }
        }
    }

    /// Writes elements from index `at` on, at the next flush. Flushes first if they do not fit; copies more than the capacity at once.
    ///
    /// # Errors
    ///
    /// [`Range`](Error::Range), without a change; a copy's error: none of these elements is pending.
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
        self.staging.as_mut_slice()?[half + from..][..len].copy_from_slice(elements);
        self.staged += len;
        match self.pieces.last_mut() {
            Some(last) if last.end() == at => last.len += len,
            last => {
                self.is_ordered &= last.is_none_or(|last| last.end() < at);
                self.pieces.push(Piece { at, from, len });
            }
        }
        Ok(())
    }

    /// Copies pending writes and waits; returns the number of copies.
    ///
    /// # Errors
    ///
    /// The first copy's error; it and later writes stay pending.
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
        for piece in pieces.iter() {
            let run = &runs[runs.partition_point(|run| run.at <= piece.at) - 1];
            new[run.from + piece.at - run.at..][..piece.len].copy_from_slice(&old[piece.from..][..piece.len]);
        }
        swap(pieces, runs);
        (self.is_second, self.staged, self.is_ordered) = (!*is_second, staged, true);
        Ok(())
    }

    /// Flushes, and returns the buffer.
    ///
    /// # Errors
    ///
    /// As [`flush`](Self::flush).
    pub fn target(&mut self) -> Result<&mut Buffer<T, M>> {
        self.flush()?;
        Ok(&mut self.target)
    }

    /// Flushes, and returns the owned buffer.
    ///
    /// # Errors
    ///
    /// `self`, with the error of [`flush`](Self::flush).
    pub fn close(mut self) -> Result<Buffer<T, M>, Rejected<Self>> {
        match self.flush() {
            Ok(_) => Ok(self.target),
            Err(error) => Err(Rejected { error, value: self }),
        }
    }

    /// Returns the uncopied elements, counted per write, or once after a failed flush.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.pieces.iter().map(|piece| piece.len).sum()
    }

    /// Returns the most collected elements.
    #[must_use]
    pub const fn capacity(&self) -> usize {
        self.capacity
    }

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
