//! The memory that each policy takes from the driver for the same requests.

use std::collections::HashMap;

use ringmem::memory::Trace;
use ringmem::pool::Statistics;
use ringmem_recordings::models::{Direct, Expandable, Model, PyTorch};
use ringmem_recordings::{Device, Kind};

use super::{Arguments, Rig, Tally, timed};
use crate::Failure;
use crate::progress::Bar;

/// A row of the table.
pub(super) struct Policy {
    pub(super) name: &'static str,
    pub(super) is_model: bool,
    /// Bytes from the driver at most.
    pub(super) reserved: u64,
    /// Pieces of memory allocated, mapped, moved and freed.
    pub(super) calls: u64,
    pub(super) refused: u64,
    /// The index of the event.
    pub(super) first_refusal: Option<usize>,
}

const OURS: &str = "ringmem's pool";
const SLABS: &str = "ringmem's pool, slabs";
pub(super) const PYTORCH: &str = "PyTorch's allocator";
const EXPANDABLE: &str = "PyTorch's, expandable segments";
pub(super) const DIRECT: &str = "no pool";

/// `seen` and `tally` are of the replay with the user's options.
pub(super) fn all(
    arguments: &Arguments,
    device: &Device,
    trace: &Trace,
    tally: &Tally,
    seen: &Statistics,
    bar: &Bar,
) -> Result<Vec<Policy>, Failure> {
    let mut policies = Vec::new();
    if !arguments.no_pool {
        policies.push(ours(OURS, tally, seen));
        if arguments.slab.is_none() {
            let rig = Rig::new(arguments, trace, Some(32 << 20))?;
            let (tally, seen, _) = timed(&rig, trace, tally.peak_after, bar)?;
            policies.push(ours(SLABS, &tally, &seen.end));
        }
    }
    let limit = arguments.limit.unwrap_or(u64::MAX);
    policies.push(modelled(PYTORCH, device, &mut PyTorch::new(limit)));
    policies.push(modelled(EXPANDABLE, device, &mut Expandable::new(limit)));
    policies.push(modelled(DIRECT, device, &mut Direct::new(limit)));
    Ok(policies)
}

fn ours(name: &'static str, tally: &Tally, seen: &Statistics) -> Policy {
    Policy {
        name,
        is_model: false,
        reserved: seen.reserved_peak,
        calls: seen.memory_allocations + seen.memory_moves + seen.memory_frees,
        refused: tally.refused,
        first_refusal: tally.first_refusal.as_ref().map(|(event, _)| *event as usize - 1),
    }
}

fn modelled(name: &'static str, device: &Device, model: &mut dyn Model) -> Policy {
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
    Policy { name, is_model: true, reserved: driver.peak, calls: driver.calls, refused, first_refusal }
}
