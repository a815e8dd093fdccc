use core::sync::atomic::Ordering::Relaxed;
use std::sync::PoisonError;

use super::Inner;
use super::code::number;
use super::device::Device;
use crate::{Error, Result};

impl Inner {
    pub(super) fn reaches(&self, device: &Device, peer: u32) -> Result<bool> {
        let calls = device.calls;
        if device.ordinal == peer || calls.cuDeviceCanAccessPeer.is_none() || calls.cuCtxEnablePeerAccess.is_none() {
            return Ok(false);
        }
        let (other, mut can) = (self.driver.device(peer)?, 0);
        // SAFETY: writes one integer.
        unsafe { calls.cuDeviceCanAccessPeer(&raw mut can, device.handle, other) }?;
        Ok(can != 0)
    }

    pub(super) fn reach_each_other(&self, one: u32, other: u32) -> bool {
        let reaches = |device: u32, peer: u32| {
            self.device(device).is_ok_and(|device| device.peers.lock().unwrap_or_else(PoisonError::into_inner).contains(&peer))
        };
        reaches(one, other) || reaches(other, one)
    }

    pub(super) fn set_peer(&self, device: u32, peer: u32, enabled: bool) -> Result<()> {
        let (home, other) = (self.device(device)?, self.device(peer)?);
        if device == peer {
            return Ok(());
        }
        if !self.reaches(home, peer)? {
            return Err(Error::Unsupported { what: "peer access between these devices" });
        }
        let mut peers = home.peers.lock().unwrap_or_else(PoisonError::into_inner);
        if peers.contains(&peer) == enabled {
            return Ok(());
        }
        let _bound = home.bind()?;
        let context = other.context().0;
        let said = if enabled {
            // SAFETY: a live context.
            unsafe { home.calls.cuCtxEnablePeerAccess(context, 0) }
        } else {
            // SAFETY: as above.
            unsafe { home.calls.cuCtxDisablePeerAccess(context) }
        };
        match said {
            Ok(()) => {}
            Err(Error::Driver { code: number::PEER_ACCESS_ALREADY_ENABLED, .. }) if enabled => {}
            Err(Error::Driver { code: number::PEER_ACCESS_NOT_ENABLED, .. }) if !enabled => {}
            Err(error) => return Err(error),
        }
        if let Some(pool) = &other.pool {
            pool.share(device, enabled)?;
        }
        let counts = &self.counts;
        if enabled { &counts.peer_enables } else { &counts.peer_disables }.fetch_add(1, Relaxed);
        if enabled {
            peers.insert(peer);
        } else {
            peers.remove(&peer);
        }
        Ok(())
    }
}
