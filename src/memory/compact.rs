use core::alloc::Layout;
use core::ptr::NonNull;

use crate::backend::{Address, Block, DeviceAddress, MemoryLocation};

/// A [`Block`] that is ready. Each move of a buffer copies it as whole words: shorter fields block store forwarding.
#[derive(Clone, Copy)]
pub(crate) struct Compact {
    pub host: Option<NonNull<u8>>,
    /// 0 unless `facts` has `ON_DEVICE`.
    pub device_address: u64,
    pub bytes: usize,
    pub tag: u64,
    /// From the low bits: device (32 bits), location (2), flags, logarithm of the alignment (8).
    // INVARIANT: with `bytes`, the alignment of a layout.
    pub facts: u64,
}

// SAFETY: no method dereferences an address; its owner decides about accesses.
unsafe impl Send for Compact {}
// SAFETY: no method dereferences an address; its owner decides about accesses.
unsafe impl Sync for Compact {}

const LOCATION: u32 = 32;
const PINNED: u64 = 1 << 34;
const ON_DEVICE: u64 = 1 << 35;
const ALIGN: u32 = 36;

impl Compact {
    #[inline(always)]
    pub fn of(block: &Block) -> Self {
        let (device_address, on_device) = match block.device_address {
            Some(address) => (address.get(), ON_DEVICE),
            None => (0, 0),
        };
        let pinned = if block.is_pinned { PINNED } else { 0 };
        let align = (block.layout.align().trailing_zeros() as u64) << ALIGN;
        let facts = block.device as u64 | block.location.bits() << LOCATION | pinned | on_device | align;
        Self { host: block.host, device_address, bytes: block.layout.size(), tag: block.tag, facts }
    }

    #[inline(always)]
    pub const fn block(&self) -> Block {
        Block {
            device_address: self.device_address(),
            host: self.host,
            // SAFETY: by the invariant of `facts`, its alignment and `bytes` are those of a layout.
            layout: unsafe { Layout::from_size_align_unchecked(self.bytes, self.align()) },
            location: self.location(),
            device: self.device(),
            is_pinned: self.is_pinned(),
            ready: None,
            tag: self.tag,
        }
    }

    #[inline(always)]
    pub const fn device_address(&self) -> Option<DeviceAddress> {
        if self.facts & ON_DEVICE == 0 { None } else { Some(DeviceAddress::new(self.device_address)) }
    }

    #[inline(always)]
    pub const fn align(&self) -> usize {
        1 << (self.facts >> ALIGN)
    }

    #[inline(always)]
    pub const fn location(&self) -> MemoryLocation {
        MemoryLocation::from_bits(self.facts >> LOCATION)
    }

    pub const fn device(&self) -> u32 {
        self.facts as u32
    }

    pub const fn is_pinned(&self) -> bool {
        self.facts & PINNED != 0
    }

    /// # Safety
    ///
    /// `offset` is within the block.
    pub unsafe fn address_at(&self, offset: u64) -> Option<Address> {
        // SAFETY: the caller promises an offset within the block, which `block` returns.
        unsafe { self.block().address_at(offset) }
    }
}

const _: () = assert!(size_of::<Compact>() <= 40);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_keeps_every_field() {
        let layouts = [(0, 1), (1, 1), (100, 8), (3 << 20, 2 << 20), (0, 1 << (usize::BITS - 2))];
        let locations = [MemoryLocation::Host, MemoryLocation::Device, MemoryLocation::Pinned, MemoryLocation::Unified];
        let hosts = [None, NonNull::new(core::ptr::without_provenance_mut(0x1000))];
        let addresses = [None, Some(0), Some(0x7000), Some(u64::MAX)];
        for (number, (bytes, align)) in (0_u32..).zip(layouts) {
            for location in locations {
                for (host, address) in
                    hosts.into_iter().zip(addresses.chunks(2)).flat_map(|(host, some)| some.iter().map(move |&address| (host, address)))
                {
                    let layout = Layout::from_size_align(bytes, align).expect("a layout");
                    let (device_address, is_pinned) = (address.map(DeviceAddress::new), number.is_multiple_of(2));
                    let block = Block {
                        device_address,
                        host,
                        layout,
                        location,
                        device: u32::MAX - number,
                        is_pinned,
                        ready: None,
                        tag: !u64::from(number),
                    };
                    let kept = Compact::of(&block);
                    assert_eq!(std::format!("{:?}", kept.block()), std::format!("{block:?}"));
                    assert_eq!((kept.align(), kept.location(), kept.device_address()), (align, location, device_address));
                    assert_eq!((kept.device(), kept.is_pinned()), (block.device, is_pinned));
                }
            }
        }
    }
}
