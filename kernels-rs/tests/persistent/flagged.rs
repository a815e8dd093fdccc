use std::ops::Range;

use ringmem_kernels::echo::{self, Echo};
use ringmem_kernels::{Launch, Simulated, persistent_flagged};
use ringmem_layouts::Host;
use ringmem_layouts::control::{Command, Fault, State};
use ringmem_layouts::ring::flagged::{Consumer, Producer};
use ringmem_layouts::ring::{PopError, RingFlags};

use crate::echo::message;
use crate::flag_suite::suite;
use crate::memory::{Bytes, Device};
use crate::rig::{OwnRings, Rig, Shape, until};
use crate::simulated_warp::{Lane, with_a_warp};

fn send(sender: &mut Producer<'_, Echo, Host>, ids: Range<u64>) -> u64 {
    let values: Vec<Echo> = ids.map(message).collect();
    sender.push_slice(&values).expect("an index that can be") as u64
}

suite! { FLAGGED, "echo_flagged", persistent_flagged, send, batches [1, 8, 128], warps [(32, 64, 40), (128, 256, 100), (40, 16, 3)] }
