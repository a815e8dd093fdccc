use core::fmt;
use core::ops::RangeBounds;
use std::sync::Arc;
use std::vec::Vec;

use super::super::queue::Queue;
use super::communicator::{Communicator, within};
use super::element::sealed::Typed;
use super::group::{group, single};
use super::{Element, Reduce};
use crate::backend::{Place, StreamId, Uses, same_backend};
use crate::memory::{DeviceOnly, Memory};
use crate::stream::{self, Operand, Source, Stream, Target};
use crate::{Error, Result};

/// Operations of one rank on a buffer or lease, not yet queued. Several are queued as one group, and must use different elements.
///
/// ```no_run
/// use ringmem::backend::cuda::nccl::Communicator;
/// use ringmem::memory::GpuBuffer;
/// use ringmem::stream::Stream;
///
/// /// Sends the first half to the next rank, and receives the second half from the previous one.
/// fn shift(rank: &Communicator, stream: &Stream, buffer: GpuBuffer<f32>) -> ringmem::Result<GpuBuffer<f32>> {
///     let (half, ranks) = (buffer.len() / 2, rank.ranks());
///     let [next, previous] = [1, ranks - 1].map(|step| (rank.rank() + step) % ranks);
///     let exchange = rank.on(stream, buffer).send(next, ..half).receive(previous, half..2 * half);
///     Ok(rank.wait(exchange.queue()?)?)
/// }
/// ```
#[must_use = "nothing is queued yet"]
pub struct Collective<'a, T> {
    pub(super) communicator: &'a Communicator,
    pub(super) stream: &'a Stream,
    pub(super) operand: T,
    steps: Vec<Step>,
    wrong: Option<Error>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum What {
    AllReduce(Reduce),
    Broadcast { root: u32 },
    Send { peer: u32 },
    Receive { peer: u32 },
}

#[derive(Clone, Copy)]
pub(super) struct Step {
    pub what: What,
    pub place: Place,
    pub count: usize,
    pub bytes: u64,
}

pub(super) struct Part<'a> {
    pub communicator: &'a Communicator,
    pub queue: Arc<Queue>,
    pub stream: StreamId,
    /// `ncclDataType_t`.
    pub element: i32,
    pub steps: Vec<Step>,
}

impl<'a, T: Operand<Element: Element, Memory: Memory<Visibility = DeviceOnly>>> Collective<'a, T> {
    /// Queues it.
    ///
    /// # Errors
    ///
    /// The operand, as [`group`].
    pub fn queue(self) -> stream::Queue<T> {
        single(group([self]))
    }

    /// Sends a range to the peer's [`receive`](Self::receive). A range without bytes queues nothing, here and below.
    pub fn send(self, peer: u32, range: impl RangeBounds<usize>) -> Self
    where
        T: Source,
    {
        self.and("rank of the peer", peer, What::Send { peer }, range)
    }

    /// Receives as many elements as the peer sends.
    pub fn receive(self, peer: u32, range: impl RangeBounds<usize>) -> Self
    where
        T: Target,
    {
        self.and("rank of the peer", peer, What::Receive { peer }, range)
    }

    /// Replaces each element by the reduction of those of all ranks.
    pub fn all_reduce(self, reduce: Reduce, range: impl RangeBounds<usize>) -> Self
    where
        T: Target,
    {
        let own = self.communicator.rank;
        self.and("rank", own, What::AllReduce(reduce), range)
    }

    /// Replaces the elements by those of rank `root`.
    pub fn broadcast(self, root: u32, range: impl RangeBounds<usize>) -> Self
    where
        T: Target,
    {
        self.and("rank of the root", root, What::Broadcast { root }, range)
    }

    /// The first error stays, and is returned when it would be queued.
    fn and(mut self, whose: &'static str, rank: u32, what: What, range: impl RangeBounds<usize>) -> Self {
        let made = within(whose, rank, 0, self.communicator.ranks - 1).and_then(|()| self.step(what, range));
        match made {
            Ok(step) => self.steps.extend(step),
            Err(error) => drop(self.wrong.get_or_insert(error)),
        }
        self
    }

    fn step(&self, what: What, range: impl RangeBounds<usize>) -> Result<Option<Step>> {
        let elements = self.operand.elements().slice(range)?;
        let bytes = (elements.len() * size_of::<T::Element>()) as u64;
        let (Some(place), 1..) = (elements.place(), bytes) else { return Ok(None) };
        let expected = self.communicator.device.ordinal;
        within("device of the buffer", elements.device().unwrap_or(u32::MAX), expected, expected)?;
        let step = Step { what, place, count: elements.len(), bytes };
        if self.steps.iter().any(|other| step.conflicts(other)) {
            return Err(Error::Unsupported { what: "a write to elements that another operation of the group uses" });
        }
        Ok(Some(step))
    }

    pub(super) fn part(&mut self) -> Result<Part<'a>> {
        if let Some(error) = self.wrong.take() {
            return Err(error);
        }
        let Self { communicator, stream, ref operand, .. } = *self;
        let (backend, elements) = (&*communicator.backend, operand.elements());
        same_backend(backend, &**stream.backend())?;
        same_backend(backend, &**elements.memory().backend())?;
        let expected = communicator.device.ordinal;
        within("device of the stream", stream.device(), expected, expected)?;
        let taints = backend.shared.ranges.taints();
        let mut reads = self.steps.iter().filter(|step| step.reads(communicator.rank));
        reads.try_for_each(|step| taints.check(step.place, step.bytes))?;
        let queue = backend.shared.stream(stream.id())?;
        stream.come_after(elements.uses())?;
        stream.come_after(&Uses::from(operand.last()))?;
        let element = T::Element::TYPE;
        Ok(Part { communicator, queue, stream: stream.id(), element, steps: self.steps.clone() })
    }
}

impl<'a, T> Collective<'a, T> {
    pub(super) const fn new(communicator: &'a Communicator, stream: &'a Stream, operand: T) -> Self {
        Self { communicator, stream, operand, steps: Vec::new(), wrong: None }
    }
}

impl Step {
    pub const fn writes(&self) -> bool {
        !matches!(self.what, What::Send { .. })
    }

    const fn reads(&self, rank: u32) -> bool {
        match self.what {
            What::AllReduce(_) | What::Send { .. } => true,
            What::Broadcast { root } => root == rank,
            What::Receive { .. } => false,
        }
    }

    fn conflicts(&self, other: &Self) -> bool {
        let (one, two) = (self.place.address(), other.place.address());
        (self.writes() || other.writes()) && one < two + other.bytes && two < one + self.bytes
    }
}

impl<T> fmt::Debug for Collective<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Collective").field("communicator", self.communicator).field("operations", &self.steps.len()).finish_non_exhaustive()
    }
}
