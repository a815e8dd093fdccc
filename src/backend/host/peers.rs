use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::Relaxed;
use std::vec::Vec;

use crate::{Error, Result};

pub(super) struct Peers {
    devices: u32,
    /// Possible, enabled; by `from * devices + to`.
    links: Vec<(bool, AtomicBool)>,
}

impl Peers {
    pub fn new(devices: u32, pairs: &[(u32, u32)]) -> Result<Self> {
        let mut links: Vec<_> = (0..devices as usize * devices as usize).map(|_| (false, AtomicBool::new(false))).collect();
        for &(from, to) in pairs {
            for asked in [from, to] {
                exists(asked, devices)?;
            }
            links[index(from, to, devices)].0 = true;
        }
        Ok(Self { devices, links })
    }

    pub fn of(&self, device: u32) -> Vec<u32> {
        (0..self.devices).filter(|&peer| peer != device && self.links[index(device, peer, self.devices)].0).collect()
    }

    pub fn reaches(&self, device: u32, other: u32) -> bool {
        device == other || self.links.get(index(device, other, self.devices)).is_some_and(|(_, is_enabled)| is_enabled.load(Relaxed))
    }

    pub fn set(&self, device: u32, peer: u32, enabled: bool) -> Result<bool> {
        for asked in [device, peer] {
            exists(asked, self.devices)?;
        }
        let (can, is_enabled) = &self.links[index(device, peer, self.devices)];
        match (device == peer, can) {
            (true, _) => Ok(false),
            (false, true) => Ok(is_enabled.swap(enabled, Relaxed) != enabled),
            (false, false) => Err(Error::Unsupported { what: "peer access between these devices" }),
        }
    }
}

fn exists(asked: u32, devices: u32) -> Result<()> {
    if asked < devices { Ok(()) } else { Err(Error::NoDevice { asked, devices }) }
}

fn index(from: u32, to: u32, devices: u32) -> usize {
    from as usize * devices as usize + to as usize
}
