use core::fmt;

use super::{Fault, SecondHeader, Shared, State, pack};
use crate::Word;

/// The kernel's writer of a control block: one lane of one warp.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::control::{Command, DeviceSide, State};
/// # use ringmem::{HostWord, control::{Capabilities, HostSide, Launch, Shared}};
/// # let block: Shared<HostWord> = zerocopy::FromZeros::new_zeroed();
/// # let launch = Launch { abi: 0, capabilities: Capabilities::empty(), epoch: 1, input_ring: 0, output_ring: 0, second_headers: [None; 2], telemetry: 0 };
/// # let mut host = unsafe { HostSide::prepare(&block, &launch) };
/// # host.command(Command::ACTIVATE);
///
/// // SAFETY: the only kernel of this launch; one lane writes.
/// let mut kernel = unsafe { DeviceSide::attach(&block, 1) };
/// kernel.enter(State::Ready);
/// let (sequence, bits) = kernel.command();
/// if Command::from_bits_retain(bits).contains(Command::ACTIVATE) {
///     kernel.enter(State::Active);
///     kernel.acknowledge(sequence);
/// }
/// assert_eq!((host.state(), host.acknowledged()), (Some(State::Active), true));
/// ```
pub struct DeviceSide<'a, W> {
    block: &'a Shared<W>,
    epoch: u32,
    pub(super) state: State,
    faults: u32,
    processed: u64,
}

impl<'a, W: Word> DeviceSide<'a, W> {
    /// Attaches to the block for the launch `epoch`.
    ///
    /// # Safety
    ///
    /// This is the only kernel on the block launched with `epoch`, and only one lane calls the methods that write.
    pub unsafe fn attach(block: &'a Shared<W>, epoch: u32) -> Self {
        // SYNC POINT: block seen. Pairs with HostSide::prepare.
        let _ = block.state.load_acquire();
        Self { block, epoch, state: State::Created, faults: 0, processed: 0 }
    }

    /// Writes the kernel's ABI hash; returns whether the host expects it.
    pub fn agree(&mut self, abi: u64) -> bool {
        self.block.abi_seen.word().store(abi);
        self.block.abi.load() == abi
    }

    /// Returns the device addresses that the kernel uses.
    #[must_use]
    pub fn addresses(&self) -> Addresses {
        let ring = |ring: u64, second: u64| match SecondHeader::from_word(second) {
            None => RingHeaders { ring, own: ring, peer: ring },
            Some(SecondHeader { address, is_polled: false }) => RingHeaders { ring, own: ring, peer: address },
            Some(SecondHeader { address, is_polled: true }) => RingHeaders { ring, own: address, peer: ring },
        };
        Addresses {
            input: ring(self.block.input_ring.load(), self.block.input_second.load()),
            output: ring(self.block.output_ring.load(), self.block.output_second.load()),
            telemetry: self.block.telemetry.load(),
        }
    }

    /// Returns whether the block's epoch is this launch's.
    #[must_use]
    pub fn is_current(&self) -> bool {
        self.block.epoch.load() == u64::from(self.epoch)
    }

    /// Loads epoch and command without ordering, in parallel with other loads, for [`is_news`](Self::is_news).
    #[must_use]
    pub fn glance(&self) -> Glance {
        Glance { epoch: self.block.epoch.load(), command: self.block.command.load() }
    }

    /// Returns whether a glance saw another epoch or command than `acted`. Acquire them with [`is_current`](Self::is_current) and
    /// [`command`](Self::command).
    #[must_use]
    pub fn is_news(&self, glance: Glance, acted: u32) -> bool {
        // Only a part of each loaded word is compared. If a whole word were known to be equal, the compiler would replace it by its equal in the
        // caller's loop, and copy the loaded word to a register of its own where it is loaded: a copy waits for the load, a round trip over the
        // bus, before the rings can be polled. The epoch's upper half is always 0.
        glance.epoch as u32 != self.epoch || (glance.command >> 32) as u32 != acted
    }

    /// Returns the last command's sequence number, 0 before the first, and its bits.
    #[must_use]
    pub fn command(&self) -> (u32, u32) {
        // SYNC POINT: command seen. Pairs with HostSide::command.
        let word = self.block.command.load_acquire();
        ((word >> 32) as u32, word as u32)
    }

    /// Changes the state; returns `false` if that is illegal.
    pub fn enter(&mut self, next: State) -> bool {
        let legal = self.state.may_become(next);
        if legal {
            self.state = next;
            // SYNC POINT: state entered. Pairs with HostSide::state.
            W::publish_all([(self.block.state.word(), pack(self.epoch, next as u32))]);
        }
        legal
    }

    /// Returns the current state.
    #[must_use]
    pub const fn state(&self) -> State {
        self.state
    }

    /// Acknowledges a command.
    pub fn acknowledge(&mut self, sequence: u32) {
        // SYNC POINT: command acknowledged. Pairs with HostSide::acknowledged.
        W::publish_all([(self.block.command_seen.word(), u64::from(sequence))]);
    }

    /// Counts a fault. To stop as well, [`enter`](Self::enter) `Faulted`.
    pub fn note(&mut self, fault: Fault) {
        self.faults = self.faults.saturating_add(1);
        self.block.error.word().store(pack(self.faults, fault as u32));
    }

    /// Records `count` messages in flight.
    pub fn take(&mut self, count: u64) {
        self.block.in_flight.word().store(count);
    }

    /// Counts processed messages.
    pub fn answered(&mut self, count: u64) {
        self.processed = self.processed.wrapping_add(count);
        self.block.processed.word().store(self.processed);
        self.block.in_flight.word().store(0);
    }

    /// Returns the number of processed messages.
    #[must_use]
    pub const fn processed(&self) -> u64 {
        self.processed
    }

    /// Writes the heartbeat.
    pub fn beat(&mut self, rounds: u64) {
        self.block.heartbeat.word().store(rounds);
    }
}

/// Device addresses in a control block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addresses {
    /// The input ring.
    pub input: RingHeaders,
    /// The output ring.
    pub output: RingHeaders,
    /// The telemetry buffer.
    pub telemetry: u64,
}

/// Device addresses of a ring, as its kernel uses them. All three are equal if the ring has one header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingHeaders {
    /// The header before the slots: `own` or `peer`.
    pub ring: u64,
    /// The header that the kernel polls.
    pub own: u64,
    /// The header to which the kernel publishes.
    pub peer: u64,
}

/// Epoch and command of a control block, loaded without ordering.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::control::{Command, DeviceSide};
/// # use ringmem::{HostWord, control::{Capabilities, HostSide, Launch, Shared}};
/// # let block: Shared<HostWord> = zerocopy::FromZeros::new_zeroed();
/// # let launch = Launch { abi: 0, capabilities: Capabilities::empty(), epoch: 1, input_ring: 0, output_ring: 0, second_headers: [None; 2], telemetry: 0 };
/// # let mut host = unsafe { HostSide::prepare(&block, &launch) };
/// # let kernel = unsafe { DeviceSide::attach(&block, 1) };
///
/// let acted = 0; // the sequence number of the last command acted on
/// assert!(!kernel.is_news(kernel.glance(), acted));
/// let sequence = host.command(Command::PAUSE);
/// assert!(kernel.is_news(kernel.glance(), acted));
/// assert!(!kernel.is_news(kernel.glance(), sequence));
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Glance {
    epoch: u64,
    command: u64,
}

impl<W: Word> fmt::Debug for DeviceSide<'_, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceSide").field("epoch", &self.epoch).field("state", &self.state).field("block", self.block).finish()
    }
}

/// Records a kernel's panic and enters `Faulted`, unless the epoch has ended.
///
/// # Safety
///
/// The kernel of this epoch is the only one on the block; it has panicked and writes nothing more.
#[inline(always)]
pub unsafe fn panicked<W: Word>(block: &Shared<W>, epoch: u32) {
    if block.epoch.load() == u64::from(epoch) {
        let faults = (block.error.load() >> 32) as u32;
        block.error.word().store(pack(faults.saturating_add(1), Fault::Panic as u32));
        W::publish_all([(block.state.word(), pack(epoch, State::Faulted as u32))]);
    }
}
