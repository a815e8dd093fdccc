//! [`ControlBlock`]: what host and kernel tell each other besides messages.
//!
//! 1. The host writes the first line, one lane of one warp the second. Neither writes the other's, but for the host before a launch.
//! 2. [`HostSide`] and [`DeviceSide`] are the two hands: each has the stores of its own line and no others.
//! 3. Every value is one word, so none is ever torn; several words are not one moment.
//!
//! Where a cache line is 128 bytes long, the two lines share it: correct, slower.

mod words;

use zerocopy::{FromBytes, Immutable, KnownLayout};

pub use words::{Capabilities, Command, Fault, State};

use crate::Word;

/// 128 bytes, one per pair of rings. With `W = u64` it is a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, Immutable, KnownLayout)]
#[repr(C, align(128))]
pub struct ControlBlock<W> {
    /// ABI hash of the image that may run on this block; the kernel refuses to start on another. Host, before launch.
    pub abi: W,
    /// [`Capabilities`]: scope and features agreed on. Host, before launch.
    pub capabilities: W,
    /// Sequence number in the high 32 bits, [`Command`] in the low 32. Host, at any time; the sequence goes up with each.
    pub command: W,
    /// Launch generation, from 1. Host, before launch.
    pub epoch: W,
    /// Device address of the input ring's header. Host, before launch.
    pub input_ring: W,
    /// Device address of the output ring's header. Host, before launch.
    pub output_ring: W,
    /// Device address of the `TelemetryBuffer`. Host, before launch.
    pub telemetry: W,
    /// Zero. Host.
    pub _host_reserved: W,
    /// Epoch in the high 32 bits, [`State`] in the low 32. Device, at each transition.
    pub state: W,
    /// Sequence number of the last command acted on: none is missed unseen. Device.
    pub command_seen: W,
    /// Count in the high 32 bits, last [`Fault`] in the low 32. Device, one store, so never torn.
    pub error: W,
    /// Messages processed since launch. Device, after each batch.
    pub processed: W,
    /// Messages taken and not yet answered, at most the batch. Device.
    pub in_flight: W,
    /// Hybrid logical clock, see [`crate::clock`]. Device, after each batch.
    pub clock: W,
    /// Goes up while the kernel lives, busy or not. Device.
    pub heartbeat: W,
    /// The ABI hash that the kernel was compiled with. Device, on start.
    pub abi_seen: W,
}

crate::layout_table! {
    impl<W> ControlBlock<W>: size 128, align 128;
    0   abi: W, "host, before launch";
    8   capabilities: W, "host, before launch";
    16  command: W, "host";
    24  epoch: W, "host, before launch";
    32  input_ring: W, "host, before launch";
    40  output_ring: W, "host, before launch";
    48  telemetry: W, "host, before launch";
    56  _host_reserved: W, "nobody: zero";
    64  state: W, "device";
    72  command_seen: W, "device";
    80  error: W, "device";
    88  processed: W, "device";
    96  in_flight: W, "device";
    104 clock: W, "device";
    112 heartbeat: W, "device";
    120 abi_seen: W, "device, on start";
}

// SAFETY: sixteen words of plain data without padding or pointers, if `W` is plain data.
#[cfg(feature = "cust")]
unsafe impl<W: cust_core::DeviceCopy> cust_core::DeviceCopy for ControlBlock<W> {}

/// What the host fixes before a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launch {
    /// ABI hash of the image.
    pub abi: u64,
    /// Agreed on by both sides.
    pub capabilities: Capabilities,
    /// Generation, from 1; the kernel gets it as an argument too.
    pub epoch: u32,
    /// Device address of a ring header.
    pub input_ring: u64,
    /// Device address of a ring header.
    pub output_ring: u64,
    /// Device address of a telemetry buffer.
    pub telemetry: u64,
}

/// The host's hand on a control block.
#[derive(Debug)]
pub struct HostSide<'a, W> {
    block: &'a ControlBlock<W>,
    sequence: u32,
}

impl<'a, W: Word> HostSide<'a, W> {
    /// Prepares the block for a launch: writes the host's line and resets the device's.
    ///
    /// # Safety
    ///
    /// No kernel runs on this block, and until this value is gone nobody else on the host writes to it.
    pub unsafe fn prepare(block: &'a ControlBlock<W>, launch: &Launch) -> Self {
        block.abi.store(launch.abi);
        block.capabilities.store(launch.capabilities.bits());
        block.command.store(0);
        block.epoch.store(u64::from(launch.epoch));
        block.input_ring.store(launch.input_ring);
        block.output_ring.store(launch.output_ring);
        block.telemetry.store(launch.telemetry);
        block._host_reserved.store(0);
        for word in [&block.command_seen, &block.error, &block.processed, &block.in_flight, &block.clock, &block.heartbeat, &block.abi_seen]
        {
            word.store(0);
        }
        // SYNC POINT: block prepared. Pairs with DeviceSide::attach; a launch orders it too.
        W::publish_all([(&block.state, pack(launch.epoch, State::Created as u32))]);
        Self { block, sequence: 0 }
    }

    /// Gives a command and its sequence number. The kernel acts on the last one given, so wait for
    /// [`acknowledged`](Self::acknowledged) where each must be seen.
    pub fn command(&mut self, command: Command) -> u32 {
        // Never 0: that is "no command yet".
        self.sequence = self.sequence.checked_add(1).unwrap_or(1);
        // SYNC POINT: command given. Pairs with DeviceSide::command.
        W::publish_all([(&self.block.command, pack(self.sequence, command.bits()))]);
        self.sequence
    }

    /// Whether the kernel has acted on the last command.
    #[must_use]
    pub fn acknowledged(&self) -> bool {
        self.block.command_seen.load_acquire() == u64::from(self.sequence)
    }

    /// Ends the epoch: a kernel that was launched with it leaves without another word.
    pub fn abandon(&mut self) {
        W::publish_all([(&self.block.epoch, 0)]);
    }

    /// The kernel's state; `None` if the number means nothing.
    #[must_use]
    pub fn state(&self) -> Option<State> {
        // SYNC POINT: state seen. Pairs with DeviceSide::enter.
        State::from_word(self.block.state.load_acquire())
    }

    /// Every word, each read once. Not one moment: the kernel goes on.
    #[must_use]
    pub fn snapshot(&self) -> ControlBlock<u64> {
        snapshot(self.block)
    }
}

/// Every word of a control block, each read once, by anyone.
#[must_use]
pub fn snapshot<W: Word>(block: &ControlBlock<W>) -> ControlBlock<u64> {
    ControlBlock {
        state: block.state.load_acquire(),
        abi: block.abi.load(),
        capabilities: block.capabilities.load(),
        command: block.command.load(),
        epoch: block.epoch.load(),
        input_ring: block.input_ring.load(),
        output_ring: block.output_ring.load(),
        telemetry: block.telemetry.load(),
        _host_reserved: block._host_reserved.load(),
        command_seen: block.command_seen.load(),
        error: block.error.load(),
        processed: block.processed.load(),
        in_flight: block.in_flight.load(),
        clock: block.clock.load(),
        heartbeat: block.heartbeat.load(),
        abi_seen: block.abi_seen.load(),
    }
}

impl ControlBlock<u64> {
    /// The kernel's state; `None` if the number means nothing.
    #[must_use]
    pub const fn kernel_state(&self) -> Option<State> {
        State::from_word(self.state)
    }

    /// How many faults there were, and the last; `None` with a count of 0, or for an unknown number.
    #[must_use]
    pub const fn faults(&self) -> (u32, Option<Fault>) {
        ((self.error >> 32) as u32, Fault::from_word(self.error))
    }
}

/// The kernel's hand on a control block: one lane of one warp.
pub struct DeviceSide<'a, W> {
    block: &'a ControlBlock<W>,
    epoch: u32,
    state: State,
    faults: u32,
    heartbeat: u64,
    processed: u64,
    clock: u64,
}

impl<'a, W: Word> DeviceSide<'a, W> {
    /// Takes the block for the launch of `epoch` and says which ABI this kernel has.
    ///
    /// # Safety
    ///
    /// This is the only kernel on the block that was launched with `epoch`, and one lane alone calls the methods that write.
    pub unsafe fn attach(block: &'a ControlBlock<W>, epoch: u32) -> Self {
        // SYNC POINT: block seen. Pairs with HostSide::prepare.
        let _ = block.state.load_acquire();
        Self { block, epoch, state: State::Created, faults: 0, heartbeat: 0, processed: 0, clock: 0 }
    }

    /// Says which ABI this kernel has; whether it is the one that the host asks for.
    pub fn agree(&mut self, abi: u64) -> bool {
        self.block.abi_seen.store(abi);
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
            W::publish_all([(&self.block.state, pack(self.epoch, next as u32))]);
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
        W::publish_all([(&self.block.command_seen, u64::from(sequence))]);
    }

    /// Counts a fault. The kernel goes on; [`enter`](Self::enter) `Faulted` if it must not.
    pub fn note(&mut self, fault: Fault) {
        self.faults = self.faults.saturating_add(1);
        self.block.error.store(pack(self.faults, fault as u32));
    }

    /// Says that `count` messages are being worked on.
    pub fn take(&mut self, count: u64) {
        self.block.in_flight.store(count);
    }

    /// Counts a batch as answered, at `now_us` microseconds of the kernel's clock.
    pub fn answered(&mut self, count: u64, now_us: u64) {
        self.processed = self.processed.wrapping_add(count);
        self.clock = crate::clock::tick(self.clock, now_us);
        self.block.processed.store(self.processed);
        self.block.in_flight.store(0);
        self.block.clock.store(self.clock);
    }

    /// Shows that the kernel lives.
    pub fn beat(&mut self) {
        self.heartbeat = self.heartbeat.wrapping_add(1);
        self.block.heartbeat.store(self.heartbeat);
    }
}

const fn pack(high: u32, low: u32) -> u64 {
    (high as u64) << 32 | low as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_one_word_with_its_count() {
        let block: ControlBlock<crate::HostWord> = zerocopy::FromZeros::new_zeroed();
        // SAFETY: the block is this test's own.
        let mut device = unsafe { DeviceSide::attach(&block, 3) };
        device.note(Fault::Message);
        device.note(Fault::Corrupt);
        assert_eq!(snapshot(&block).faults(), (2, Some(Fault::Corrupt)));
    }
}
