//! [`ControlBlock`]: commands, state, faults and progress, shared between host and kernel.
//!
//! 1. The host writes the first line, one lane the second; the host resets both before a launch.
//! 2. [`HostSide`] and [`DeviceSide`] store to their own line only; other code sees [`ReadOnly`] words.
//! 3. Several words are not from one instant.
//! 4. With 128-byte cache lines both sides share one line: correct, but slower.

mod device_side;
mod host_side;
mod words;

use core::fmt;

use zerocopy::{FromBytes, Immutable, KnownLayout};

pub use crate::read_only::ReadOnly;
pub use device_side::{Addresses, DeviceSide, Glance, RingHeaders, panicked};
pub use host_side::{HostSide, Launch, SecondHeader};
pub use words::{Capabilities, Command, Fault, State};

use crate::Word;

/// The control block in shared memory.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::HostWord;
/// use ringmem::control::{Shared, State, snapshot};
///
/// let block: Shared<HostWord> = zerocopy::FromZeros::new_zeroed();
/// assert_eq!(block.heartbeat.load(), 0);
/// assert_eq!(snapshot(&block).kernel_state(), Some(State::Created));
/// ```
pub type Shared<W> = ControlBlock<ReadOnly<W>>;

/// One per pair of rings. [`Shared`] is the shared form.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use ringmem::{ControlBlock, Layout};
///
/// assert_eq!(size_of::<ControlBlock>(), 128);
/// let fields = <ControlBlock as Layout>::DESCRIPTOR.fields;
/// assert!(fields.iter().any(|field| field.name == "heartbeat"));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, FromBytes, Immutable, KnownLayout)]
#[repr(C, align(128))]
pub struct ControlBlock<W = u64> {
    /// ABI hash of the image; a kernel with another does not start. Host, before launch.
    pub abi: W,
    /// [`Capabilities`]. Host, before launch.
    pub capabilities: W,
    /// Sequence number in the high 32 bits, [`Command`] in the low 32. Host, at any time; each command increments the sequence.
    pub command: W,
    /// Launch generation, from 1. Host, before launch.
    pub epoch: W,
    /// Device address of the input ring: header and slots. Host, before launch.
    pub input_ring: W,
    /// Device address of the output ring: header and slots. Host, before launch.
    pub output_ring: W,
    /// Device address of the `TelemetryBuffer`. Host, before launch.
    pub telemetry: W,
    /// Device address of a second header of the input ring, as [`SecondHeader`]; 0 if there is none. Host, before launch.
    pub input_second: W,
    /// Epoch in the high 32 bits, [`State`] in the low 32. Device, at each transition.
    pub state: W,
    /// Sequence number of the last command acted on. Device.
    pub command_seen: W,
    /// Count in the high 32 bits, last [`Fault`] in the low 32. Device.
    pub error: W,
    /// Messages processed since launch. Device. Lags by at most 128 batches, or a millisecond and the current batch; exact if the kernel is
    /// idle, paused or has exited, except after a panic or an ended epoch.
    pub processed: W,
    /// Messages of the last batch that `processed` lacks. Device.
    pub in_flight: W,
    /// As `input_second`, of the output ring. Host, before launch: it is in the device's line because the host's line is full.
    pub output_second: W,
    /// Advances while the kernel runs, busy or idle. Device.
    pub heartbeat: W,
    /// The kernel's ABI hash. Device, at start.
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
    56  input_second: W, "host, before launch";
    64  state: W, "device";
    72  command_seen: W, "device";
    80  error: W, "device";
    88  processed: W, "device";
    96  in_flight: W, "device";
    104 output_second: W, "host, before launch";
    112 heartbeat: W, "device";
    120 abi_seen: W, "device, on start";
}

/// Reads every word once.
#[must_use]
pub fn snapshot<W: Word>(block: &Shared<W>) -> ControlBlock<u64> {
    ControlBlock {
        state: block.state.load_acquire(),
        abi: block.abi.load(),
        capabilities: block.capabilities.load(),
        command: block.command.load(),
        epoch: block.epoch.load(),
        input_ring: block.input_ring.load(),
        output_ring: block.output_ring.load(),
        telemetry: block.telemetry.load(),
        input_second: block.input_second.load(),
        command_seen: block.command_seen.load(),
        error: block.error.load(),
        processed: block.processed.load(),
        in_flight: block.in_flight.load(),
        output_second: block.output_second.load(),
        heartbeat: block.heartbeat.load(),
        abi_seen: block.abi_seen.load(),
    }
}

impl ControlBlock<u64> {
    /// Returns the kernel's state; `None` if undefined.
    #[must_use]
    pub const fn kernel_state(&self) -> Option<State> {
        State::from_word(self.state)
    }

    /// Returns the epoch of `state`. It differs from `epoch` before the start and after the kernel was abandoned.
    #[must_use]
    pub const fn kernel_epoch(&self) -> u32 {
        (self.state >> 32) as u32
    }

    /// Returns the last command's sequence number, 0 before the first, and the command.
    #[must_use]
    pub const fn given(&self) -> (u32, Command) {
        ((self.command >> 32) as u32, Command::from_bits_retain(self.command as u32))
    }

    /// Returns the number of faults and the last one, if defined.
    #[must_use]
    pub const fn faults(&self) -> (u32, Option<Fault>) {
        ((self.error >> 32) as u32, Fault::from_word(self.error))
    }
}

struct Packed<A, B>([&'static str; 2], A, B);

impl<A: fmt::Debug, B: fmt::Debug> fmt::Debug for Packed<A, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self([first, second], a, b) = self;
        f.debug_map().entry(&format_args!("{first}"), a).entry(&format_args!("{second}"), b).finish()
    }
}

struct Named<T>(Option<T>, u64);

impl<T: fmt::Debug> fmt::Debug for Named<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self(Some(name), _) => name.fmt(f),
            Self(None, number) => number.fmt(f),
        }
    }
}

impl fmt::Debug for ControlBlock<u64> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ((sequence, command), (count, fault)) = (self.given(), self.faults());
        let [state, last] = [self.state, self.error].map(|word| word & u64::from(u32::MAX));
        f.debug_struct("ControlBlock")
            .field("abi", &format_args!("{:#x}", self.abi))
            .field("capabilities", &Capabilities::from_bits_retain(self.capabilities))
            .field("command", &Packed(["sequence", "command"], sequence, command))
            .field("epoch", &self.epoch)
            .field("input_ring", &format_args!("{:#x}", self.input_ring))
            .field("output_ring", &format_args!("{:#x}", self.output_ring))
            .field("telemetry", &format_args!("{:#x}", self.telemetry))
            .field("input_second", &format_args!("{:#x}", self.input_second))
            .field("state", &Packed(["epoch", "state"], self.kernel_epoch(), Named(self.kernel_state(), state)))
            .field("command_seen", &self.command_seen)
            .field("error", &Packed(["count", "last"], count, Named(fault, last)))
            .field("processed", &self.processed)
            .field("in_flight", &self.in_flight)
            .field("output_second", &format_args!("{:#x}", self.output_second))
            .field("heartbeat", &self.heartbeat)
            .field("abi_seen", &format_args!("{:#x}", self.abi_seen))
            .finish()
    }
}

impl<W: Word> fmt::Debug for Shared<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        snapshot(self).fmt(f)
    }
}

const fn pack(high: u32, low: u32) -> u64 {
    (high as u64) << 32 | low as u64
}

#[cfg(test)]
mod tests;
