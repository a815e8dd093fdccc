//! [`Rings`]: what the kernels of one launch share with the host, in one range of pinned memory.

use std::ptr::NonNull;

use ringmem::control::{Capabilities, HostSide, Launch, SecondHeader, Shared};
use ringmem::{HostWord, RingHeader, RingLayout};
use ringmem_kernels::ABI;
use ringmem_kernels::echo::Echo;

use crate::driver::Pinned;

/// Bytes of a control block, and of a block of telemetry. The kernel expects the control blocks at this distance.
const STRIDE: u64 = 128;

/// For each block of the grid a control block, its telemetry, an input ring and an output ring of [`Echo`]s.
///
/// The control blocks come first, then the telemetry, then each block's input ring and output ring.
pub struct Rings {
    memory: Pinned,
    ring: RingLayout,
    blocks: u64,
}

impl Rings {
    pub const fn bytes(ring: &RingLayout, blocks: u64) -> u64 {
        blocks * 2 * (STRIDE + ring.size())
    }

    /// Formats empty rings whose positions begin at `start`.
    ///
    /// # Safety
    ///
    /// [`bytes`](Self::bytes) bytes from `memory.host` are zero and aligned to 128. They are valid until this value, its control blocks and the ends
    /// of its rings are dropped. Until then only these and the launched kernels access them.
    pub unsafe fn format(memory: Pinned, ring: RingLayout, blocks: u64, start: u64) -> Self {
        let rings = Self { memory, ring, blocks };
        for at in (0..blocks).flat_map(|block| [rings.input(block), rings.output(block)]) {
            // SAFETY: the offset is a multiple of 128 within the range, as rings are multiples of 128 bytes long; zeros are a valid header, to which
            // no end is attached.
            unsafe { rings.place(at).cast::<RingHeader<HostWord>>().as_ref().format::<Echo>(&rings.ring, start) };
        }
        rings
    }

    /// Returns the offset of a block's input ring.
    pub const fn input(&self, block: u64) -> u64 {
        self.blocks * 2 * STRIDE + block * 2 * self.ring.size()
    }

    pub const fn output(&self, block: u64) -> u64 {
        self.input(block) + self.ring.size()
    }

    pub fn place(&self, offset: u64) -> NonNull<u8> {
        // SAFETY: offsets are those of this value, so they are within the range that the caller of `format` has promised.
        unsafe { self.memory.host.add(offset as usize) }
    }

    pub const fn address(&self, offset: u64) -> u64 {
        self.memory.device + offset
    }

    /// Prepares a block's control block for a launch. Its input and its output ring may have second headers.
    ///
    /// # Safety
    ///
    /// No kernel runs on this control block, and none is prepared twice.
    pub unsafe fn control(&self, block: u64, epoch: u32, second_headers: [Option<SecondHeader>; 2]) -> HostSide<'static, HostWord> {
        let launch = Launch {
            abi: ABI.hash,
            capabilities: Capabilities::SYSTEM_SCOPE | Capabilities::TELEMETRY,
            epoch,
            input_ring: self.address(self.input(block)),
            output_ring: self.address(self.output(block)),
            second_headers,
            telemetry: self.address((self.blocks + block) * STRIDE),
        };
        // SAFETY: the offset is that of a control block within the range, which outlives the returned value and is aligned; the caller of `format` has
        // promised both. No other value writes to it, by this function's contract.
        unsafe { HostSide::prepare(self.place(block * STRIDE).cast::<Shared<HostWord>>().as_ref(), &launch) }
    }
}
