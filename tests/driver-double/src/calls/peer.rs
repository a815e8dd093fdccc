use crate::code::Code;
use crate::entry::give;

calls! {
    Init fn cuDeviceCanAccessPeer(can: *mut i32, device: i32, peer: i32) |driver| {
        let (device, peer) = (driver.device(device)?.ordinal, driver.device(peer)?.ordinal);
        // SAFETY: the driver's documentation obliges the caller to pass a `can` that is valid for a write; null is rejected.
        unsafe { give(can, driver.settings.peers.can_reach(device, peer).into()) }
    }

    Init fn cuDeviceGetP2PAttribute(value: *mut i32, attribute: i32, device: i32, peer: i32) |driver| {
        let (device, peer) = (driver.device(device)?.ordinal, driver.device(peer)?.ordinal);
        if device == peer {
            return Err(Code::INVALID_DEVICE);
        }
        let known = match attribute {
            1 => 0,
            2..=4 => driver.settings.peers.can_reach(device, peer).into(),
            _ => return Err(Code::INVALID_VALUE),
        };
        // SAFETY: the driver's documentation obliges the caller to pass a `value` that is valid for a write; null is rejected.
        unsafe { give(value, known) }
    }

    Context fn cuCtxEnablePeerAccess(peer: usize, flags: u32) |driver| {
        let (device, peer) = (driver.current()?, driver.device_of(peer)?.ordinal);
        if device.ordinal == peer {
            return Err(Code::INVALID_CONTEXT);
        }
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        if !driver.settings.peers.can_reach(device.ordinal, peer) {
            return Err(Code::PEER_ACCESS_UNSUPPORTED);
        }
        if device.reach(peer, true) { Err(Code::PEER_ACCESS_ALREADY_ENABLED) } else { Ok(()) }
    }

    Context fn cuCtxDisablePeerAccess(peer: usize) |driver| {
        let (device, peer) = (driver.current()?, driver.device_of(peer)?.ordinal);
        if device.ordinal == peer {
            return Err(Code::INVALID_CONTEXT);
        }
        if device.reach(peer, false) { Ok(()) } else { Err(Code::PEER_ACCESS_NOT_ENABLED) }
    }
}
