use core::ffi::{c_int, c_void};
use core::{iter, ptr};
use std::sync::MutexGuard;
use std::vec::Vec;

use super::Element;
use super::collective::{Collective, Part, Step, What};
use super::communicator::{Communicator, Flight, State, grouped};
use super::library::Comm;
use crate::backend::Ticket;
use crate::memory::{DeviceOnly, Memory};
use crate::stream::{Operand, Pending, Queue, Queued};
use crate::trace::event;
use crate::{Error, Rejected, Result};

/// Queues operations as one group: NCCL starts all of them before it waits for another rank.
///
/// Each is ordered after earlier work of its stream and operand. NCCL may block until the ranks are connected, at their first operation
/// with each other.
///
/// # Errors
///
/// The operands, with the first wrong operation's error: [`Range`](Error::Range); [`Size`](Error::Size) for a rank or a device;
/// [`OtherBackend`](Error::OtherBackend); [`Unsupported`](Error::Unsupported) for overlapping elements; [`Tainted`](Error::Tainted);
/// [`Closed`](Error::Closed); the communicator's earlier error. For ranks of the same communicator in the group: [`Size`](Error::Size) for
/// another number of elements or operations, [`Unsupported`](Error::Unsupported) for another operation. Nothing was queued.
///
/// [`Nccl`](Error::Nccl) or the driver's error: the communicators of the group were aborted, and written elements are invalid.
pub fn group<'a, T>(collectives: impl IntoIterator<Item = Collective<'a, T>>) -> Result<Vec<Pending<T>>, Rejected<Vec<T>>>
where
    T: Operand<Element: Element, Memory: Memory<Visibility = DeviceOnly>>,
{
    let mut collectives: Vec<_> = collectives.into_iter().collect();
    let prepared = collectives.iter_mut().map(Collective::part).collect::<Result<Vec<_>>>();
    let prepared = prepared.and_then(|parts| matching(&parts).map(|()| parts));
    let (tickets, outcome) = match prepared {
        Ok(parts) => queue_all(&parts),
        Err(error) => (Vec::new(), Err(error)),
    };
    let tickets = tickets.into_iter().chain(iter::repeat(None));
    let pending =
        iter::zip(collectives, tickets).map(|(Collective { stream, operand, .. }, ticket)| Pending::new(operand, ticket, stream.clone()));
    match outcome {
        Ok(()) => Ok(pending.collect()),
        Err(error) => Err(Rejected { error, value: pending.map(Pending::ordered).collect() }),
    }
}

pub(super) fn single<T: Queued>(queued: Result<Vec<Pending<T>>, Rejected<Vec<T>>>) -> Queue<T> {
    match queued {
        Ok(mut all) => Ok(all.remove(0)),
        Err(Rejected { error, value: mut all }) => Err(Rejected { error, value: all.remove(0) }),
    }
}

fn address(communicator: &Communicator) -> usize {
    ptr::from_ref(communicator).addr()
}

/// Returns a ticket for each part that is or may be queued.
fn queue_all(parts: &[Part<'_>]) -> (Vec<Option<Ticket>>, Result<()>) {
    // Locked in one order by all threads.
    let mut ranks: Vec<&Communicator> = parts.iter().filter(|part| !part.steps.is_empty()).map(|part| part.communicator).collect();
    ranks.sort_by_key(|rank| address(rank));
    ranks.dedup_by_key(|rank| address(rank));
    let mut states: Vec<_> = ranks.iter().map(|rank| rank.state()).collect();
    let index = |part: &Part<'_>| ranks.iter().position(|rank| ptr::eq(*rank, part.communicator));
    let comm = |part: &Part<'_>, states: &[MutexGuard<'_, State>]| match index(part).and_then(|index| states.get(index)) {
        Some(state) => state.open(),
        None => Ok(ptr::null_mut()),
    };
    let comms = match parts.iter().map(|part| comm(part, &states)).collect::<Result<Vec<Comm>>>() {
        Ok(comms) => comms,
        Err(error) => return (Vec::new(), Err(error)),
    };
    // Under the lock of a queue, a wait for a rank of this process might never end.
    let foreign: Vec<_> = ranks.iter().map(|rank| rank.backend.shared.launching.foreign()).collect();
    // Waits for earlier operations must not wait for these.
    parts.iter().for_each(|part| drop(part.queue.event(part.queue.last())));
    let count = parts.iter().map(|part| part.steps.len()).sum();
    let called = match ranks.first() {
        Some(rank) => grouped(rank.library, count, || iter::zip(parts, &comms).try_for_each(|(part, comm)| call(part, *comm))),
        None => Ok(()),
    };
    let mut tickets = Vec::new();
    let mut outcome = Ok(());
    for part in parts {
        let Some(state) = index(part).and_then(|index| states.get_mut(index)) else {
            tickets.push(None);
            continue;
        };
        match part.follow() {
            Ok(flight) => {
                event!(debug, stream = part.stream.get(), operations = part.steps.len(), "collective queued");
                tickets.push(Some(flight.ticket));
                state.forget();
                match &called {
                    Ok(()) => state.flights.push(flight),
                    Err(error) => flight.fail(part.communicator, error),
                }
            }
            Err(error) => {
                tickets.push(None);
                outcome = outcome.and(Err(error));
            }
        }
    }
    if let Err(error) = &called {
        iter::zip(&ranks, &mut states).for_each(|(rank, state)| drop(state.end(rank, error)));
    }
    drop(foreign);
    (tickets, called.and(outcome))
}

fn call(part: &Part<'_>, comm: Comm) -> Result<()> {
    let Part { communicator, queue, element, steps, .. } = part;
    let (nccl, stream) = (communicator.library, queue.handle());
    let _bound = communicator.device.bind()?;
    steps.iter().try_for_each(|&Step { what, place, count, .. }| {
        let at: *mut c_void = ptr::without_provenance_mut(place.address() as usize);
        // SAFETY: a live communicator and stream of one device; as many elements there, which the group's caller owns until the ticket is
        // reached, without overlap.
        unsafe {
            match what {
                What::AllReduce(reduce) => nccl.ncclAllReduce(at, at, count, *element, reduce.code(), comm, stream),
                What::Broadcast { root } => nccl.ncclBroadcast(at, at, count, *element, root as c_int, comm, stream),
                What::Send { peer } => nccl.ncclSend(at, count, *element, peer as c_int, comm, stream),
                What::Receive { peer } => nccl.ncclRecv(at, count, *element, peer as c_int, comm, stream),
            }
        }
    })
}

impl Part<'_> {
    /// Lists the operations, even if a call failed: some may be queued.
    fn follow(&self) -> Result<Flight> {
        let number = self.queue.follow().inspect_err(|_| {
            // Closed meanwhile: the caller gets the buffers, which must not be in use.
            let _bound = self.queue.device.bind();
            // SAFETY: not destroyed while the queue lives.
            let _ = unsafe { self.queue.device.calls.cuStreamSynchronize(self.queue.handle()) };
        })?;
        let flight = Flight {
            queue: self.queue.clone(),
            ticket: Ticket { stream: self.stream, number },
            written: self.steps.iter().filter(|step| step.writes()).map(|step| (step.place, step.bytes)).collect(),
        };
        let taints = self.communicator.backend.shared.ranges.taints();
        flight.written.iter().for_each(|&(place, bytes)| taints.remove(place, bytes));
        Ok(flight)
    }
}

fn matching(parts: &[Part<'_>]) -> Result<()> {
    let of = |rank: &Communicator| -> Vec<Step> {
        let own = parts.iter().filter(|part| ptr::eq(part.communicator, rank));
        own.flat_map(|part| part.steps.iter().copied()).collect()
    };
    let is_joint = |step: &Step| matches!(step.what, What::AllReduce(_) | What::Broadcast { .. });
    for (place, one) in parts.iter().enumerate() {
        let (one, ones) = (one.communicator, of(one.communicator));
        for other in parts[place + 1..].iter().map(|part| part.communicator).filter(|other| !ptr::eq(*other, one) && other.id == one.id) {
            let others = of(other);
            let joint = |steps: &[Step]| -> Vec<Step> { steps.iter().copied().filter(is_joint).collect() };
            alike(&joint(&ones), &joint(&others))?;
            for (from, sends, to, receives) in [(one, &ones, other, &others), (other, &others, one, &ones)] {
                let only = |steps: &[Step], what| -> Vec<Step> { steps.iter().copied().filter(|step| step.what == what).collect() };
                let sent = only(sends, What::Send { peer: to.rank });
                let mut received = only(receives, What::Receive { peer: from.rank });
                received.iter_mut().for_each(|step| step.what = What::Send { peer: to.rank });
                alike(&sent, &received)?;
            }
        }
    }
    Ok(())
}

fn alike(expected: &[Step], got: &[Step]) -> Result<()> {
    let same = |what, expected: usize, asked: usize| match expected == asked {
        true => Ok(()),
        false => Err(Error::Size { what, asked: asked as u64, least: expected as u64, most: expected as u64 }),
    };
    same("number of operations of another rank in the group", expected.len(), got.len())?;
    for (expected, got) in iter::zip(expected, got) {
        if expected.what != got.what {
            return Err(Error::Unsupported { what: "an operation that differs from another rank's in the group" });
        }
        same("number of elements of another rank in the group", expected.count, got.count)?;
    }
    Ok(())
}
