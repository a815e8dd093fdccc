//! Copies and published words, blocking and queued.
//!
//! # Copies
//!
//! The two ends decide the route. Memory that only the driver may access counts as device memory: device memory, and managed memory without concurrent
//! access.
//!
//! | [`Route`] | blocking copy | queued copy |
//! |---|---|---|
//! | host to host | by this thread | by a host function: the driver's own copy blocks the caller |
//! | host to device, device to host | by the driver, on an internal stream | by the driver; of pageable memory, staged |
//! | within a device, between devices | by the driver, on an internal stream | by the driver |
//!
//! A blocking copy of an aligned word goes through the pinned word of the internal stream: this thread then accesses the host's memory with one atomic load
//! or store, and others may access the word meanwhile. Without host functions in the driver, a queued copy from pageable memory to a
//! device reads its source at the call, and one from a device to pageable memory, or between pinned memories, blocks. A copy between host memories of which
//! one is pageable is refused, and so is a queued word that only the host may store, in pageable or host-accessible managed memory.
//!
//! # Staged copies
//!
//! A queued copy from or to pageable memory has parts of [`STAGING`] bytes. Each part has two steps: a host function copies between pageable and pinned memory
//! (the staging), the driver between pinned memory and the device.
//!
//! 1. If the copy has several parts, its host functions run on the stream of a `Stager` (`resources.rs`), and the parts alternate between the queue's staging
//!    and the stager's: the driver copies one part while a host function copies the next.
//! 2. For each part: the first step waits until the second step of the part two before it has left the staging (event 0 or 1, by the parity of the part); the
//!    second step waits for the first (event [`FILLED`]). An upload begins, and a download ends, with a wait between the two streams, so that the copy is
//!    ordered with the caller's stream. Each wait is for work queued before it, because streams may share a hardware queue: a wait for later work could
//!    deadlock.
//! 3. Without an idle stager, both steps run on the caller's stream, and need no events.
//! 4. If a call fails after others of the copy, the caller's stream may not wait for the stager's, and the operation completes while host functions are still
//!    queued. So the queue stops the operation's host functions before it completes (`Functions` in `queue.rs`): they then access neither the caller's memory
//!    nor the staging, which the next copy may use at once.
//!
//! # Published words
//!
//! A word becomes visible after the data before it: the stream stores it after its earlier operations (`cuStreamWriteValue64`, or a copy of a pinned word
//! where the device cannot store), the host stores it with release order. The stores of the host are drained first, since write-combined memory is not covered
//! by release order. If an earlier call fails, nothing is stored: a blocking call returns before the store is queued, and a queued one fails if an operation
//! from `since` on has failed.
//!
//! # What failures leave
//!
//! A blocking copy that fails leaves its target partly written, and tainted only if it was so before: the caller has the error. A word whose own store failed
//! may be stored or not, which the caller must find out (`resync` in `src/bridge/direction.rs`). In both cases the call has waited for the driver, unless the
//! driver does not answer. A queued copy that failed at a later call has a number that fails, and its target is tainted unless it is pageable (`write_queued`).
//! One that failed at its first call leaves everything as it was, and so does a queued publication that was refused, but for its number, which fails: later
//! publications whose `since` is at most that number are refused too.
//!
//! If `copy_and_publish_now` fails after its first call, its copies may be executed. In one batch (`in_order`) none of them is counted or made valid;
//! otherwise each copy before the failed call is.

use core::ptr::NonNull;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Release;

use cudarc::driver::sys::CUstream;

use super::Inner;
use super::device::{Device, STAGING};
use super::driver;
use super::queue::{CompletionCount, Kind, Length, OpBuilder, Queue, drain_stores};
use super::resources::FILLED;
use crate::Result;
use crate::backend::bytes::{aligned, is_word, moved};
use crate::backend::ranges::Found;
use crate::backend::{Address, Copy, MemoryLocation, StreamId, Ticket};

struct Ends {
    to: Found,
    from: Found,
    route: Route,
}

impl Ends {
    fn is_pageable(&self) -> bool {
        [&self.to, &self.from].iter().any(|end| end.location == MemoryLocation::Host)
    }

    fn completion_count(&self, bytes: u64) -> CompletionCount {
        let kind = match (self.route, self.is_pageable()) {
            (Route::Host, _) => Kind::HostCopy,
            (Route::Upload, false) => Kind::Upload,
            (Route::Upload, true) => Kind::UploadOfPageable,
            (Route::Download, false) => Kind::Download,
            (Route::Download, true) => Kind::DownloadToPageable,
            (Route::Device, _) => Kind::DeviceCopy,
            (Route::Peer, _) => Kind::PeerCopy,
            (Route::Staged, _) => Kind::StagedCopy,
        };
        CompletionCount { kind, bytes }
    }
}

pub(super) fn address(found: &Found) -> u64 {
    found.place.as_ptr().addr() as u64
}

pub(super) fn device_address(found: &Found) -> u64 {
    address(found).wrapping_add(found.shift)
}

impl Inner {
    #[inline(always)]
    fn ends(&self, copy: &Copy) -> Result<Ends> {
        let to = self.ranges.end(copy.to, copy.bytes, "copy")?;
        let from = self.ranges.end(copy.from, copy.bytes, "copy")?;
        self.ranges.taints().check(copy.from, copy.bytes)?;
        let route = match (self.is_driver_only(&from)?, self.is_driver_only(&to)?) {
            (false, false) => Route::Host,
            (false, true) => Route::Upload,
            (true, false) => Route::Download,
            (true, true) if from.device == to.device => Route::Device,
            (true, true) if self.have_peer_access(from.device, to.device) => Route::Peer,
            (true, true) => Route::Staged,
        };
        Ok(Ends { to, from, route })
    }

    /// True if only the driver may access the memory.
    pub(super) fn is_driver_only(&self, found: &Found) -> Result<bool> {
        Ok(match found.location {
            MemoryLocation::Device => true,
            MemoryLocation::Unified => !self.device(found.device)?.facts.concurrent_managed_access,
            MemoryLocation::Pinned | MemoryLocation::Host => false,
        })
    }

    /// Makes the driver call for a route.
    ///
    /// # Safety
    ///
    /// Until the copy is complete, both ends have `bytes` bytes, without overlap, and nothing else writes the source or accesses the target.
    unsafe fn call_driver(&self, ends: &Ends, bytes: usize, home: &Device, stream: CUstream) -> Result<()> {
        let Ends { to, from, route } = ends;
        let (target, source) = (device_address(to), device_address(from));
        let calls = home.calls;
        // SAFETY: both ends have this many bytes until the copy is complete: the caller's promise. Only the driver dereferences device addresses; a host end
        // has its host address.
        unsafe {
            match route {
                Route::Host | Route::Upload => calls.cuMemcpyHtoDAsync_v2(target, from.place.as_ptr().cast(), bytes, stream),
                Route::Download => calls.cuMemcpyDtoHAsync_v2(to.place.as_ptr().cast(), source, bytes, stream),
                Route::Device => calls.cuMemcpyDtoDAsync_v2(target, source, bytes, stream),
                Route::Peer | Route::Staged => {
                    let [to, from] = [self.device(to.device)?.context(), self.device(from.device)?.context()];
                    calls.cuMemcpyPeerAsync(target, to.0, source, from.0, bytes, stream)
                }
            }
        }
    }

    /// # Safety
    ///
    /// As `Backend::copy_now`.
    pub(super) unsafe fn copy_now(&self, copy: &Copy) -> Result<()> {
        driver::check_not_forked("cuMemcpyHtoDAsync_v2")?;
        let ends = self.ends(copy)?;
        let bytes = copy.bytes as usize;
        let word = is_word(address(&ends.to), address(&ends.from), copy.bytes);
        match ends.route {
            Route::Host => {
                drain_stores();
                // SAFETY: both ends have this many bytes: `ends` found them in live ranges, or the caller promises it for its pageable memory. The caller
                // also promises that they do not overlap, and that others access at most one aligned word, as a word.
                unsafe { moved(ends.to.place, ends.from.place, bytes) };
                drain_stores();
            }
            Route::Upload if word => self.device(ends.to.device)?.run_and_wait(|internal| {
                // SAFETY: the source is one aligned word, which the caller promises to be readable and, as a word, writable. The stream's word is exclusive
                // to this call.
                unsafe { moved(internal.word().cast(), ends.from.place, bytes) };
                // SAFETY: the target is a word of a live range. The source, the stream's word, is exclusive to this call until `run_and_wait` has
                // synchronised the stream.
                unsafe { self.calls().cuMemcpyHtoDAsync_v2(address(&ends.to), internal.word().as_ptr().cast(), bytes, internal.stream()) }
            })?,
            Route::Download if word => self.device(ends.from.device)?.run_and_wait(|internal| {
                // SAFETY: the source is a word of a live range. The target, the stream's word, is exclusive to this call until `run_and_wait` has
                // synchronised the stream.
                unsafe {
                    self.calls().cuMemcpyDtoHAsync_v2(internal.word().as_ptr().cast(), address(&ends.from), bytes, internal.stream())
                }?;
                // SAFETY: the stream is held by this call.
                unsafe { self.calls().cuStreamSynchronize(internal.stream()) }?;
                // SAFETY: the target is one aligned word, which the caller promises to be writable. The driver has written the stream's word, since the
                // stream is synchronised.
                unsafe { moved(ends.to.place, internal.word().cast(), bytes) };
                Ok(())
            })?,
            _ => {
                let home = self.device(if ends.route == Route::Upload { ends.to.device } else { ends.from.device })?;
                home.run_and_wait(|internal| {
                    // SAFETY: `ends` found both ends in live ranges, or the caller promises the bytes of its pageable memory; it also promises that until this
                    // returns nothing else writes the source or accesses the target, and `run_and_wait` returns when the copy is complete.
                    unsafe { self.call_driver(&ends, bytes, home, internal.stream()) }
                })?;
            }
        }
        self.ranges.taints().remove(copy.to, copy.bytes);
        ends.completion_count(copy.bytes).count(&self.counts);
        Ok(())
    }

    /// # Safety
    ///
    /// As `Backend::copy`.
    pub(super) unsafe fn copy_queued(&self, copy: &Copy, on: StreamId) -> Result<Ticket> {
        let queue = self.stream(on)?;
        let ends = self.ends(copy)?;
        let bytes = copy.bytes as usize;
        self.write_queued(&queue, on, (copy.to, &ends.to, copy.bytes), ends.completion_count(copy.bytes), |op| {
            let calls = queue.device.calls;
            let by_host = ends.route == Route::Host || ends.is_pageable();
            if !by_host || calls.cuLaunchHostFunc.is_none() && !(ends.route == Route::Host && ends.is_pageable()) {
                // SAFETY: `ends` found both ends in live ranges, or the caller promises the bytes of its pageable memory; it also promises that until the copy
                // is executed nothing else writes the source or accesses the target, except one aligned word as a word.
                return op.call(|stream| unsafe { self.call_driver(&ends, bytes, &queue.device, stream) });
            }
            let (to, from) = (HostAddress(ends.to.place), HostAddress(ends.from.place));
            if ends.route == Route::Host {
                // SAFETY: both ends have this many bytes without overlap: `ends` found them, or the caller promises it for its pageable memory, until the
                // copy is executed; it also promises that until then others access at most one aligned word, as a word. The queue runs no host function of a
                // complete operation.
                return self.host(op, queue.handle(), move || unsafe { moved(to.get(), from.get(), bytes) });
            }
            // SAFETY: one end was found in a live range, and the caller promises the bytes of the other, without overlap, and that until the copy is executed
            // nothing else writes the source or accesses the target, except one aligned word as a word.
            unsafe { self.copy_staged(op, &queue, &ends, bytes) }
        })
    }

    pub(super) fn write_queued(
        &self,
        queue: &Queue,
        on: StreamId,
        (to, found, bytes): (Address, &Found, u64),
        done: CompletionCount,
        make: impl FnOnce(&mut OpBuilder<'_>) -> Result<()>,
    ) -> Result<Ticket> {
        let taints = self.ranges.taints();
        let number = queue.push(Length::Bytes(bytes), Some(done), |op| {
            let made = make(op);
            // Under the queue's lock, before the number is known: a waiter that sees the number complete sees the taint, and two writes of one stream change
            // the table in the order of the stream.
            match (&made, op.failed()) {
                (Ok(()), _) => taints.remove(to, bytes),
                (Err(error), Some(number)) if !found.in_no_range => taints.add(to, bytes, Ticket { stream: on, number }, error),
                (Err(_), _) => {}
            }
            made
        })?;
        Ok(Ticket { stream: on, number })
    }
}

/// An address that a host function may receive.
#[derive(Clone, Copy)]
pub(super) struct HostAddress(NonNull<u8>);

// SAFETY: the address alone is sent. Each access to its memory has its own argument.
unsafe impl Send for HostAddress {}

impl HostAddress {
    pub const fn new(place: NonNull<u8>) -> Self {
        Self(place)
    }

    pub const fn get(self) -> NonNull<u8> {
        self.0
    }
}

impl Inner {
    /// Queues a copy from or to pageable memory, part by part.
    ///
    /// # Safety
    ///
    /// Until the operation is complete, both ends have `bytes` bytes, without overlap, and nothing else writes the source or accesses the target, except one
    /// aligned word as a word.
    unsafe fn copy_staged(&self, op: &mut OpBuilder<'_>, queue: &Queue, ends: &Ends, bytes: usize) -> Result<()> {
        let stager = if bytes > STAGING { op.stager() } else { None };
        let (own, caller) = (op.staging()?, queue.handle());
        let (other, functions) = stager.as_ref().map_or((own, caller), |stager| (stager.staging.place(), stager.stream()));
        let record = |op: &mut OpBuilder<'_>, event: usize, on| match &stager {
            Some(stager) => op.call(|_| stager.events[event].record(on)),
            None => Ok(()),
        };
        let wait = |op: &mut OpBuilder<'_>, event: usize, on| match &stager {
            // SAFETY: the operation keeps the stager, and the queue lives during the call, so both streams and the event are live. A later record of the
            // event does not change what this call waits for.
            Some(stager) => op.call(|_| unsafe { self.calls().cuStreamWaitEvent(on, stager.events[event].handle(), 0) }),
            None => Ok(()),
        };
        let up = ends.route == Route::Upload;
        let (first, second) = if up { (functions, caller) } else { (caller, functions) };
        let mut index = 0;
        if up {
            record(op, FILLED, caller)?;
            wait(op, FILLED, functions)?;
        }
        while index * STAGING < bytes {
            let (staging, half) = ([own, other][index % 2], index % 2);
            let begin = index * STAGING;
            let len = STAGING.min(bytes - begin);
            let [mut to, mut from] = [&ends.to, &ends.from].map(|end| part(end, begin));
            let job = if up { [staging, from.place] } else { [to.place, staging] }.map(HostAddress::new);
            *(if up { &mut from } else { &mut to }) = Found { place: staging, ..if up { from } else { to } };
            let copy = |op: &mut OpBuilder<'_>| {
                let ends = Ends { to, from, route: ends.route };
                // SAFETY: the device's end is part of the operation's, exclusive until it is complete: the caller's promise. The waits make the staging
                // exclusive to this part.
                op.call(|_| unsafe { self.call_driver(&ends, len, &queue.device, caller) })
            };
            let function = |op: &mut OpBuilder<'_>| {
                // SAFETY: the caller of `copy_staged` promises the pageable bytes until the operation is complete, and the queue runs no host function after
                // that. The waits above make the staging exclusive to this part.
                self.host(op, functions, move || unsafe { moved(job[0].get(), job[1].get(), len) })
            };
            if index >= 2 {
                wait(op, half, first)?;
            }
            if up {
                function(op)?
            } else {
                copy(op)?
            }
            record(op, FILLED, first)?;
            wait(op, FILLED, second)?;
            if up {
                copy(op)?
            } else {
                function(op)?
            }
            record(op, half, second)?;
            index += 1;
        }
        // Without a byte there is no part.
        if up || index == 0 { Ok(()) } else { wait(op, (index - 1) % 2, caller) }
    }
}

fn part(found: &Found, begin: usize) -> Found {
    let place = core::ptr::NonNull::new(found.place.as_ptr().wrapping_add(begin)).unwrap_or(found.place);
    Found { place, ..*found }
}

/// Flags of `cuStreamWriteValue64`: earlier operations of the stream are visible before the word.
const WITH_BARRIER: u32 = 0;

impl Inner {
    fn find_word(&self, word: Address) -> Result<Found> {
        let bytes = size_of::<u64>() as u64;
        let found = self.ranges.end(word, bytes, "publish")?;
        aligned(address(&found), bytes, bytes)?;
        Ok(found)
    }

    /// # Safety
    ///
    /// As `Backend::publish_now`.
    pub(super) unsafe fn publish_now(&self, word: Address, value: u64) -> Result<()> {
        driver::check_not_forked("cuStreamWriteValue64_v2")?;
        let found = self.find_word(word)?;
        if self.is_driver_only(&found)? {
            let home = self.device(found.device)?;
            home.run_and_wait(|internal| {
                if home.facts.writes_words && found.location != MemoryLocation::Unified {
                    // SAFETY: `find_word` found the word in a live range, and checked its alignment. It is memory of this device.
                    return unsafe { home.calls.cuStreamWriteValue64_v2(internal.stream(), device_address(&found), value, WITH_BARRIER) };
                }
                // SAFETY: the stream's word is exclusive to this call.
                unsafe { internal.word().write(value) };
                // SAFETY: `find_word` found the target in a live range, and checked its alignment. The source, the stream's word, is exclusive to this call
                // until `run_and_wait` has synchronised the stream.
                unsafe {
                    home.calls.cuMemcpyHtoDAsync_v2(
                        device_address(&found),
                        internal.word().as_ptr().cast(),
                        size_of::<u64>(),
                        internal.stream(),
                    )
                }
            })?;
        } else {
            // SAFETY: `find_word` checked the alignment, and found the word in a live range that the host may access; or the caller promises it for its
            // pageable memory. The caller also promises that others access it as a word.
            unsafe { store_word(HostAddress::new(found.place), value) };
        }
        CompletionCount::PUBLICATION.count(&self.counts);
        Ok(())
    }

    /// # Safety
    ///
    /// As `Backend::publish`.
    pub(super) unsafe fn publish_queued(&self, word: Address, value: u64, since: u64, on: StreamId) -> Result<Ticket> {
        let queue = self.stream(on)?;
        let found = self.find_word(word)?;
        let (bytes, is_driver_only) = (size_of::<u64>(), self.is_driver_only(&found)?);
        let since = Some(Ticket { stream: on, number: since });
        let number = queue.push_bound(
            &queue.device.bind()?,
            queue.state(),
            since,
            Length::Bytes(bytes as u64),
            Some(CompletionCount::PUBLICATION),
            |op| {
                let device = &queue.device;
                let is_managed = found.location == MemoryLocation::Unified;
                if found.location == MemoryLocation::Host || is_managed && !is_driver_only {
                    let address = HostAddress::new(found.place);
                    // SAFETY: `find_word` checked the alignment. The caller promises that the word lives until the store is executed, and that others access it
                    // as a word. The queue runs no host function of a complete operation.
                    return self.host(op, queue.handle(), move || unsafe { store_word(address, value) });
                }
                if device.facts.writes_words && !is_managed {
                    // SAFETY: `find_word` found the word in a live range that the device can access, and checked its alignment. The caller promises that it
                    // lives until the store is executed.
                    return op.call(|stream| unsafe {
                        device.calls.cuStreamWriteValue64_v2(stream, device_address(&found), value, WITH_BARRIER)
                    });
                }
                let own = op.word()?;
                // SAFETY: the operation's word is exclusive to it until it is complete.
                unsafe { own.write(value) };
                // SAFETY: `find_word` found the target in a live range that the device can access, and the caller promises that it lives until the store is
                // executed. The source is the operation's word.
                op.call(|stream| unsafe { device.calls.cuMemcpyHtoDAsync_v2(device_address(&found), own.as_ptr().cast(), bytes, stream) })
            },
        )?;
        Ok(Ticket { stream: on, number })
    }

    /// # Safety
    ///
    /// As `Backend::copy_and_publish_now`.
    pub(super) unsafe fn copy_and_publish_now(&self, copies: &[Copy], word: Address, value: u64) -> Result<()> {
        driver::check_not_forked("cuStreamWriteValue64_v2")?;
        let found = self.find_word(word)?;
        let home = if found.location == MemoryLocation::Device { Some(self.device(found.device)?) } else { None };
        let mut ends = [None, None];
        for (ends, copy) in ends.iter_mut().zip(copies) {
            *ends = Some((self.ends(copy)?, copy.bytes));
        }
        // A copy of one word needs the word of the internal stream, and several copies would share it.
        let is_ordered = |(ends, bytes): &(Ends, u64)| {
            let is_home = match ends.route {
                Route::Upload => ends.to.device == found.device,
                Route::Download => ends.from.device == found.device,
                _ => false,
            };
            is_home && !is_word(address(&ends.to), address(&ends.from), *bytes)
        };
        let in_order = home.filter(|home| home.facts.writes_words && copies.len() <= ends.len() && ends.iter().flatten().all(is_ordered));
        let Some(home) = in_order else {
            for copy in copies {
                // SAFETY: the caller promises for each copy that both ends have all bytes, without overlap, that nothing else writes the source or accesses the
                // target until this returns, except one aligned word as a word, and that a source of one word is writable.
                unsafe { self.copy_now(copy) }?;
            }
            // SAFETY: the caller promises that the word has 8 bytes, which others access only as a word until this returns.
            return unsafe { self.publish_now(word, value) };
        };
        home.run_and_wait(|internal| {
            for (ends, bytes) in ends.iter().flatten() {
                // SAFETY: `ends` found both ends in live ranges, or the caller promises the bytes of its pageable memory. No copy is of one word here; for
                // others the caller also promises no overlap, and that nothing else writes the source or accesses the target until this returns. `run_and_wait`
                // returns when the copies are complete.
                unsafe { self.call_driver(ends, *bytes as usize, home, internal.stream()) }?;
            }
            // SAFETY: `find_word` found the word in a live range, and checked its alignment. It is memory of `home`.
            unsafe { home.calls.cuStreamWriteValue64_v2(internal.stream(), device_address(&found), value, WITH_BARRIER) }
        })?;
        copies.iter().for_each(|copy| self.ranges.taints().remove(copy.to, copy.bytes));
        ends.iter().flatten().for_each(|(ends, bytes)| ends.completion_count(*bytes).count(&self.counts));
        CompletionCount::PUBLICATION.count(&self.counts);
        Ok(())
    }
}

/// # Safety
///
/// The word is live and aligned, and others access it as a word.
unsafe fn store_word(address: HostAddress, value: u64) {
    drain_stores();
    // SAFETY: the word is live and aligned, and others access it as a word: the caller's promise.
    let word = unsafe { AtomicU64::from_ptr(address.get().as_ptr().cast()) };
    // SYNC POINT: published. Pairs with every acquire load of that word.
    word.store(value, Release);
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Route {
    Host,
    Upload,
    Download,
    Device,
    /// Between devices with peer access.
    Peer,
    /// Between devices without peer access: the driver copies through the host.
    Staged,
}
