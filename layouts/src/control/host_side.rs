use core::fmt;

use super::{Capabilities, Command, Shared, State, pack, snapshot};
use crate::defmt_derive::Format;
use crate::{ControlBlock, Word};

/// Values that the host sets before a launch.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::control::{Capabilities, Launch};
/// # use ringmem::{Abi, HostWord, LAYOUTS, control::{HostSide, Shared}};
///
/// let launch = Launch {
///     abi: Abi::of(LAYOUTS).hash,
///     capabilities: Capabilities::SYSTEM_SCOPE | Capabilities::TELEMETRY,
///     epoch: 1,
///     input_ring: 0x1000,
///     output_ring: 0x2000,
///     second_headers: [None; 2],
///     telemetry: 0x3000,
/// };
/// # let block: Shared<HostWord> = zerocopy::FromZeros::new_zeroed();
/// // SAFETY: no kernel runs on this block, and nothing else writes to it.
/// let host = unsafe { HostSide::prepare(&block, &launch) };
/// assert_eq!(host.snapshot().epoch, 1);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Format)]
pub struct Launch {
    /// ABI hash of the image.
    pub abi: u64,
    /// Memory scope and features in use.
    pub capabilities: Capabilities,
    /// Launch generation, from 1; also an argument of the kernel.
    pub epoch: u32,
    /// Device address of the input ring: header and slots.
    pub input_ring: u64,
    /// Device address of the output ring: header and slots.
    pub output_ring: u64,
    /// Second headers of the input and of the output ring, if any.
    pub second_headers: [Option<SecondHeader>; 2],
    /// Device address of the telemetry buffer.
    pub telemetry: u64,
}

/// A second header of a ring, so that each side polls memory near it: one side polls the ring's own header and publishes to this one.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::control::SecondHeader;
///
/// let second = SecondHeader { address: 0x4000, is_polled: true };
/// assert_eq!((second.to_word(), SecondHeader::from_word(0x4001)), (0x4001, Some(second)));
/// assert_eq!(SecondHeader::from_word(0), None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Format)]
pub struct SecondHeader {
    /// Device address, a multiple of 128.
    pub address: u64,
    /// The kernel polls this header and publishes to the ring's own; if false, it publishes to this one.
    pub is_polled: bool,
}

impl SecondHeader {
    /// Returns the word of a control block: the address, with `is_polled` in bit 0, which an aligned address leaves free.
    #[must_use]
    pub const fn to_word(self) -> u64 {
        self.address | self.is_polled as u64
    }

    /// Returns the header of a word; `None` for 0.
    #[must_use]
    pub const fn from_word(word: u64) -> Option<Self> {
        if word == 0 { None } else { Some(Self { address: word & !1, is_polled: word & 1 == 1 }) }
    }
}

/// The host's writer of a control block.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::control::{Command, HostSide, State};
/// # use ringmem::{HostWord, control::{Capabilities, DeviceSide, Launch, Shared}};
/// # let block: Shared<HostWord> = zerocopy::FromZeros::new_zeroed();
/// # let launch = Launch { abi: 0, capabilities: Capabilities::empty(), epoch: 1, input_ring: 0, output_ring: 0, second_headers: [None; 2], telemetry: 0 };
///
/// // SAFETY: no kernel runs on this block, and nothing else writes to it.
/// let mut host = unsafe { HostSide::prepare(&block, &launch) };
/// let sequence = host.command(Command::ACTIVATE);
/// assert_eq!((host.state(), host.acknowledged()), (Some(State::Created), false));
/// # let mut kernel = unsafe { DeviceSide::attach(&block, 1) };
/// # kernel.acknowledge(sequence);
/// // After the kernel has seen the command:
/// assert!(host.acknowledged());
/// ```
pub struct HostSide<'a, W> {
    block: &'a Shared<W>,
    pub(super) sequence: u32,
}

impl<'a, W: Word> HostSide<'a, W> {
    /// Prepares the block for a launch.
    ///
    /// # Safety
    ///
    /// No kernel runs on this block, and until this value is dropped nothing else on the host writes to it.
    pub unsafe fn prepare(block: &'a Shared<W>, launch: &Launch) -> Self {
        block.abi.word().store(launch.abi);
        block.capabilities.word().store(launch.capabilities.bits());
        block.command.word().store(0);
        block.epoch.word().store(u64::from(launch.epoch));
        block.input_ring.word().store(launch.input_ring);
        block.output_ring.word().store(launch.output_ring);
        block.telemetry.word().store(launch.telemetry);
        block.input_second.word().store(launch.second_headers[0].map_or(0, SecondHeader::to_word));
        for word in [&block.command_seen, &block.error, &block.processed, &block.in_flight, &block.heartbeat, &block.abi_seen] {
            word.word().store(0);
        }
        block.output_second.word().store(launch.second_headers[1].map_or(0, SecondHeader::to_word));
        // SYNC POINT: block prepared. Pairs with DeviceSide::attach; a launch orders it too.
        W::publish_all([(block.state.word(), pack(launch.epoch, State::Created as u32))]);
        Self { block, sequence: 0 }
    }

    /// Sends a command; returns its sequence number. Wait until it is [`acknowledged`](Self::acknowledged): the kernel acts only on the last.
    pub fn command(&mut self, command: Command) -> u32 {
        // Never 0: no command yet.
        self.sequence = self.sequence.checked_add(1).unwrap_or(1);
        // SYNC POINT: command given. Pairs with DeviceSide::command.
        W::publish_all([(self.block.command.word(), pack(self.sequence, command.bits()))]);
        self.sequence
    }

    /// Returns whether the kernel has acted on the last command.
    #[must_use]
    pub fn acknowledged(&self) -> bool {
        // SYNC POINT: acknowledgement seen. Pairs with DeviceSide::acknowledge.
        self.block.command_seen.load_acquire() == u64::from(self.sequence)
    }

    /// Ends the epoch: the kernel exits when it next reads it. It may write until its launch ends.
    pub fn abandon(&mut self) {
        W::publish_all([(self.block.epoch.word(), 0)]);
    }

    /// Returns the kernel's state; `None` if undefined.
    #[must_use]
    pub fn state(&self) -> Option<State> {
        // SYNC POINT: state seen. Pairs with DeviceSide::enter.
        State::from_word(self.block.state.load_acquire())
    }

    /// Reads every word once, not at one instant.
    #[must_use]
    pub fn snapshot(&self) -> ControlBlock<u64> {
        snapshot(self.block)
    }
}

impl<W: Word> fmt::Debug for HostSide<'_, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostSide").field("sequence", &self.sequence).field("block", self.block).finish()
    }
}
