//! [`Clock`]: what happens before a point in a lane's execution.

use std::collections::BTreeMap;
use std::sync::Arc;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lane {
    pub block: u32,
    pub index: u32,
}

/// A vector clock. The host's steps are not observed: its part is a machine time, and all its earlier writes happen before.
#[derive(Clone, Debug)]
pub struct Clock {
    block: u32,
    own: Box<[u32]>,
    others: BTreeMap<u32, Arc<[u32]>>,
    pub host: u64,
}

impl Clock {
    pub fn new(lane: Lane, lanes: usize, host: u64) -> Self {
        let mut own = vec![0; lanes];
        own[lane.index as usize] = 1;
        Self { block: lane.block, own: own.into(), others: BTreeMap::new(), host }
    }

    fn of(&self, block: u32) -> &[u32] {
        if block == self.block { &self.own } else { self.others.get(&block).map_or(&[], |steps| steps) }
    }

    pub fn get(&self, lane: Lane) -> u32 {
        self.of(lane.block).get(lane.index as usize).copied().unwrap_or(0)
    }

    pub fn covers(&self, lane: Lane, step: u32) -> bool {
        step <= self.get(lane)
    }

    pub fn step(&mut self, index: u32) {
        self.own[index as usize] += 1;
    }

    pub fn join(&mut self, other: &Self) {
        self.host = self.host.max(other.host);
        if other.block == self.block {
            join(&mut self.own, &other.own);
        } else {
            self.join_other(other.block, &other.own);
        }
        for (block, steps) in &other.others {
            if *block == self.block { join(&mut self.own, steps) } else { self.join_other(*block, steps) }
        }
    }

    pub fn forget(&mut self, block: u32) {
        self.others.remove(&block);
    }

    fn join_other(&mut self, block: u32, steps: &[u32]) {
        match self.others.get_mut(&block) {
            Some(own) if own.iter().zip(steps).all(|(own, other)| other <= own) => {}
            Some(own) => {
                let mut joined = own.to_vec();
                join(&mut joined, steps);
                *own = joined.into();
            }
            None => {
                self.others.insert(block, steps.into());
            }
        }
    }
}

fn join(own: &mut [u32], other: &[u32]) {
    for (own, other) in own.iter_mut().zip(other) {
        *own = (*own).max(*other);
    }
}
