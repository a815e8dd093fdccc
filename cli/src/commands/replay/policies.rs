//! The memory that each policy takes from the driver for the same requests.

use std::collections::HashMap;

use ringmem::memory::Trace;
use ringmem::pool::Statistics;
use ringmem_recordings::models::{Direct, Expandable, Model, PyTorch};
use ringmem_recordings::{Device, Kind};

use super::{Arguments, Rig, Tally, limit, timed};
use crate::Failure;
use crate::progress::Bar;

/// The length of slabs if none is chosen.
pub(super) const SLAB: u64 = 32 << 20;

/// A row of the table.
pub(super) struct Policy {
    pub(super) rule: Rule,
    /// Bytes from the driver at most.
    pub(super) reserved: u64,
    /// Pieces of memory allocated, mapped, moved and freed.
    pub(super) calls: u64,
    pub(super) refused: u64,
    /// The index of the event.
    pub(super) first_refusal: Option<usize>,
    /// Requests that no limit lets succeed, and the first: the index of its event, and the error. The models have none.
    pub(super) impossible: u64,
    pub(super) first_impossible: Option<(usize, String)>,
    /// The [limit](find_least) with which nothing is refused, if that was asked for.
    pub(super) least: Option<u64>,
    /// As it is printed: [sufficient](limit::sufficient), too.
    pub(super) least_text: Option<String>,
}

impl Policy {
    pub(super) const fn refuses_nothing(&self) -> bool {
        self.refused == 0 && self.impossible == 0
    }
}

#[derive(Clone, Copy, PartialEq)]
pub(super) enum Rule {
    /// ringmem's pool, as the user's options say.
    Pool,
    /// The same, in slabs.
    Slabs,
    PyTorch,
    Expandable,
    Direct,
}

impl Rule {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Pool => "ringmem's pool",
            Self::Slabs => "ringmem's pool, slabs",
            Self::PyTorch => "PyTorch's allocator",
            Self::Expandable => "PyTorch's, expandable segments",
            Self::Direct => "no pool",
        }
    }

    /// The others are this library's own.
    pub(super) const fn is_model(self) -> bool {
        matches!(self, Self::PyTorch | Self::Expandable | Self::Direct)
    }

    fn run(self, arguments: &Arguments, device: &Device, trace: &Trace, limit: Option<u64>, bar: &Bar) -> Result<Policy, Failure> {
        let of_model = limit.unwrap_or(u64::MAX);
        let slab = match self {
            Self::Pool => arguments.slab,
            Self::Slabs => Some(SLAB),
            Self::PyTorch => return Ok(self.modelled(device, &mut PyTorch::new(of_model))),
            Self::Expandable => return Ok(self.modelled(device, &mut Expandable::new(of_model))),
            Self::Direct => return Ok(self.modelled(device, &mut Direct::new(of_model))),
        };
        let rig = Rig::new(arguments, trace, slab, limit)?;
        let (tally, figures, _) = timed(&rig, trace, bar)?;
        Ok(self.ours(&tally, &figures.end))
    }

    fn ours(self, tally: &Tally, end: &Statistics) -> Policy {
        let index = |event: u64| event as usize - 1;
        Policy {
            rule: self,
            reserved: end.reserved_peak,
            calls: end.memory_allocations + end.memory_moves + end.memory_frees,
            refused: tally.refused,
            first_refusal: tally.first_refusal.as_ref().map(|&(event, _)| index(event)),
            impossible: tally.impossible,
            first_impossible: tally.first_impossible.as_ref().map(|(event, why)| (index(*event), why.clone())),
            least: None,
            least_text: None,
        }
    }

    fn modelled(self, device: &Device, model: &mut dyn Model) -> Policy {
        let mut live = HashMap::new();
        let (mut refused, mut first_refusal) = (0, None);
        for (index, event) in device.events.iter().enumerate() {
            if event.kind == Kind::Free {
                if let Some(block) = live.remove(&event.block) {
                    model.give(block);
                }
                continue;
            }
            match model.take(event.size, event.stream) {
                None => {
                    refused += 1;
                    first_refusal.get_or_insert(index);
                }
                // The recorded program did not have it.
                Some(block) if event.kind == Kind::Refused => model.give(block),
                Some(block) => drop(live.insert(event.block, block)),
            }
        }
        let driver = model.driver();
        Policy {
            rule: self,
            reserved: driver.peak,
            calls: driver.calls,
            refused,
            first_refusal,
            impossible: 0,
            first_impossible: None,
            least: None,
            least_text: None,
        }
    }
}

/// `tally` and `end` are of the replay with the user's options.
pub(super) fn all(
    arguments: &Arguments,
    device: &Device,
    trace: &Trace,
    tally: &Tally,
    end: &Statistics,
    bar: &Bar,
) -> Result<Vec<Policy>, Failure> {
    let mut policies = Vec::new();
    let mut others = vec![Rule::PyTorch, Rule::Expandable, Rule::Direct];
    if !arguments.no_pool {
        policies.push(Rule::Pool.ours(tally, end));
        if arguments.slab.is_none() {
            others.insert(0, Rule::Slabs);
        }
    }
    for rule in others {
        policies.push(rule.run(arguments, device, trace, arguments.limit, bar)?);
    }
    Ok(policies)
}

/// Events of a recording whose bisections go down to [`UNIT`]: a probe of each policy takes some milliseconds.
const SHORT: usize = 100_000;
/// Blocks of PyTorch, and the pieces that the pool maps, are multiples of it.
const UNIT: u64 = 512;

/// The most bytes between the limit that [`find_least`] finds and one that does not suffice.
pub(super) fn step(device: &Device, live: u64) -> u64 {
    if device.events.len() <= SHORT { UNIT } else { (live / 1024).max(1 << 20) }
}

/// Finds a low limit with which each policy refuses nothing, by bisection between the bytes that are live at most, the least of any policy, and those that it
/// reserved without a limit: at a limit a policy returns its cached memory before it refuses a request.
///
/// The result is a limit that suffices, at most a [`step`] above an insufficient limit. It need not be the least: whether a limit suffices is not monotone. A
/// policy rounds, and the gaps that it leaves depend on the limit, so a smaller limit may suffice and a larger one may not.
pub(super) fn find_least(
    arguments: &Arguments,
    device: &Device,
    trace: &Trace,
    live: u64,
    policies: &mut [Policy],
    bar: &Bar,
) -> Result<(), Failure> {
    let step = step(device, live);
    // The others refused requests of more bytes than any device has, or such as no limit lets succeed.
    for policy in policies.iter_mut().filter(|policy| policy.refuses_nothing()) {
        let suffices = |limit| policy.rule.run(arguments, device, trace, Some(limit), bar).map(|run| run.refuses_nothing());
        let (mut too_little, mut enough) = (live.saturating_sub(1), policy.reserved.max(live));
        // The pool maps larger pieces on a larger device, so with this limit it may need more.
        while enough > 0 && !suffices(enough)? {
            too_little = enough;
            enough = enough.saturating_add((enough / 32).max(step));
        }
        while enough - too_little > step {
            let middle = too_little + (enough - too_little) / 2;
            // Whole units, so that the limit of one unit less than the result was tried.
            let middle = Some(middle / UNIT * UNIT).filter(|&middle| middle > too_little).unwrap_or(middle);
            if suffices(middle)? { enough = middle } else { too_little = middle }
        }
        policy.least = Some(enough);
        policy.least_text = Some(limit::sufficient(enough, suffices)?);
    }
    Ok(())
}
