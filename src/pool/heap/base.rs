use super::{LARGEST_ALIGN, UNIT};
use crate::backend::Block;

/// The low bits of a slab's address, which determine alignments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::pool) struct Base {
    pub(super) units: u32,
    /// The largest alignment on which all addresses agree, in units.
    pub(super) most: u32,
}

impl Base {
    pub(super) const TOP: u32 = 1 << 31;

    pub fn of(slab: &Block) -> Self {
        let device = slab.device_address.map(|address| address.get());
        let host = slab.host.map(|host| host.as_ptr().addr() as u64);
        let units = |address: u64| (address / UNIT) as u32;
        let (one, other) = (device.or(host).map_or(0, units), host.or(device).map_or(0, units));
        let differs = one ^ other;
        Self { units: one, most: if differs == 0 { Self::TOP } else { 1 << differs.trailing_zeros() } }
    }

    /// The units from `offset` to the next aligned address, if the slab's addresses agree on it.
    pub(super) const fn padding(self, offset: u32, align: u32) -> Option<u32> {
        if align > self.most {
            return None;
        }
        // Modulo 2^32, a multiple of every alignment.
        Some(self.units.wrapping_add(offset).wrapping_neg() & (align - 1))
    }

    /// As [`padding`](Self::padding), in bytes.
    pub fn padding_bytes(self, offset: u64, align: u64) -> Option<u64> {
        Some(u64::from(self.padding((offset / UNIT) as u32, align_units(align)?)?) * UNIT)
    }
}

pub(super) const fn align_units(align: u64) -> Option<u32> {
    match align {
        0..=UNIT => Some(1),
        _ if align <= LARGEST_ALIGN => Some((align / UNIT) as u32),
        _ => None,
    }
}
