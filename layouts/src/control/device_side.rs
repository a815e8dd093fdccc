//! [`DeviceSide`]: the kernel's hand on a control block.

use core::fmt;

use super::{Fault, Shared, State, pack};
use crate::Word;

/// The kernel's hand on a control block: one lane of one warp.
pub struct DeviceSide<'a, W> {
    block: &'a Shared<W>,
    epoch: u32,
    pub(super) state: State,
    faults: u32,
    processed: u64,
    clock: u64,
}

impl<'a, W: Word> DeviceSide<'a, W> {
    /// Takes the block for the launch of `epoch` and says which ABI this kernel has.
    ///
    /// # Safety
    ///
    /// This is the only kernel on the block that was launched with `epoch`, and one lane alone calls the methods that write.
    pub unsafe fn attach(block: &'a Shared<W>, epoch: u32) -> Self {
        // SYNC POINT: block seen. Pairs with HostSide::prepare.
        let _ = block.state.load_acquire();
        Self { block, epoch, state: State::Created, faults: 0, processed: 0, clock: 0 }
    }

    /// Says which ABI this kernel has; whether it is the one that the host asks for.
    pub fn agree(&mut self, abi: u64) -> bool {
        self.block.abi_seen.word().store(abi);
        self.block.abi.load() == abi
    }

    /// Device addresses of the input ring, the output ring and the telemetry buffer.
    #[must_use]
    pub fn addresses(&self) -> [u64; 3] {
        [self.block.input_ring.load(), self.block.output_ring.load(), self.block.telemetry.load()]
    }

    /// Whether the host still means this launch.
    #[must_use]
    pub fn is_current(&self) -> bool {
        self.block.epoch.load() == u64::from(self.epoch)
    }

    /// The last command with its sequence number; sequence 0 before the first.
    #[must_use]
    pub fn command(&self) -> (u32, u32) {
        // SYNC POINT: command seen. Pairs with HostSide::command.
        let word = self.block.command.load_acquire();
        ((word >> 32) as u32, word as u32)
    }

    /// Goes to another state; `false`, and nothing is written, where that is no legal step.
    pub fn enter(&mut self, next: State) -> bool {
        let legal = self.state.may_become(next);
        if legal {
            self.state = next;
            // SYNC POINT: state entered. Pairs with HostSide::state.
            W::publish_all([(self.block.state.word(), pack(self.epoch, next as u32))]);
        }
        legal
    }

    /// The state it is in.
    #[must_use]
    pub const fn state(&self) -> State {
        self.state
    }

    /// Says that a command was acted on.
    pub fn acknowledge(&mut self, sequence: u32) {
        // SYNC POINT: command acknowledged. Pairs with HostSide::acknowledged.
        W::publish_all([(self.block.command_seen.word(), u64::from(sequence))]);
    }

    /// Counts a fault. The kernel goes on; [`enter`](Self::enter) `Faulted` if it must not.
    pub fn note(&mut self, fault: Fault) {
        self.faults = self.faults.saturating_add(1);
        self.block.error.word().store(pack(self.faults, fault as u32));
    }

    /// Says that `count` messages are being worked on.
    pub fn take(&mut self, count: u64) {
        self.block.in_flight.word().store(count);
    }

    /// Counts messages as answered, at `now_us` microseconds of the kernel's clock.
    pub fn answered(&mut self, count: u64, now_us: u64) {
        self.processed = self.processed.wrapping_add(count);
        self.clock = crate::clock::tick(self.clock, now_us);
        self.block.processed.word().store(self.processed);
        self.block.in_flight.word().store(0);
        self.block.clock.word().store(self.clock);
    }

    /// Messages counted as answered.
    #[must_use]
    pub const fn processed(&self) -> u64 {
        self.processed
    }

    /// Shows that the kernel lives, and has done so many rounds.
    pub fn beat(&mut self, rounds: u64) {
        self.block.heartbeat.word().store(rounds);
    }
}

impl<W: Word> fmt::Debug for DeviceSide<'_, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceSide").field("epoch", &self.epoch).field("state", &self.state).field("block", self.block).finish()
    }
}

/// Says in the place of a kernel that can say no more that it has panicked: one fault more, `Faulted`. If its epoch is over it has nothing to say.
///
/// # Safety
///
/// The kernel of this epoch, the only one on the block, panics and writes nothing after this.
#[inline(always)]
pub unsafe fn panicked<W: Word>(block: &Shared<W>, epoch: u32) {
    if block.epoch.load() == u64::from(epoch) {
        let faults = (block.error.load() >> 32) as u32;
        block.error.word().store(pack(faults.saturating_add(1), Fault::Panic as u32));
        W::publish_all([(block.state.word(), pack(epoch, State::Faulted as u32))]);
    }
}
