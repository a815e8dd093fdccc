//! `defmt::Format` for flags and packed words, which its derive does not support.

use defmt::{Format, Formatter, write};

use crate::control::{Capabilities, Command};
use crate::ring::RingFlags;
use crate::{ControlBlock, TelemetryBuffer};

impl Format for Command {
    fn format(&self, f: Formatter<'_>) {
        write!(f, "Command({=u32:#b})", self.bits());
    }
}

impl Format for Capabilities {
    fn format(&self, f: Formatter<'_>) {
        write!(f, "Capabilities({=u64:#b})", self.bits());
    }
}

impl Format for RingFlags {
    fn format(&self, f: Formatter<'_>) {
        write!(f, "RingFlags({=u64:#b})", self.bits());
    }
}

impl Format for ControlBlock<u64> {
    fn format(&self, f: Formatter<'_>) {
        let ((sequence, command), (faults, fault)) = (self.given(), self.faults());
        // One `write!` is one entry in defmt's string table.
        write!(
            f,
            "ControlBlock {{ abi: {=u64:#x}, capabilities: {}, command: {{ sequence: {=u32}, command: {} }}, epoch: {=u64}, \
         input_ring: {=u64:#x}, output_ring: {=u64:#x}, telemetry: {=u64:#x}, input_second: {=u64:#x}, state: {{ epoch: {=u32}, state: {} }}, \
         command_seen: {=u64}, error: {{ count: {=u32}, last: {} }}, processed: {=u64}, in_flight: {=u64}, output_second: {=u64:#x}, \
         heartbeat: {=u64}, abi_seen: {=u64:#x} }}",
            self.abi,
            Capabilities::from_bits_retain(self.capabilities),
            sequence,
            command,
            self.epoch,
            self.input_ring,
            self.output_ring,
            self.telemetry,
            self.input_second,
            self.kernel_epoch(),
            self.kernel_state(),
            self.command_seen,
            faults,
            fault,
            self.processed,
            self.in_flight,
            self.output_second,
            self.heartbeat,
            self.abi_seen,
        );
    }
}

impl Format for TelemetryBuffer<u64> {
    fn format(&self, f: Formatter<'_>) {
        write!(
            f,
            "TelemetryBuffer {{ sequence: {=u64}, processed: {=u64}, dropped: {=u64}, latency_total_ns: {=u64}, latency_min_ns: {}, \
         latency_max_ns: {=u64}, input_depth: {=u32}, output_depth: {=u32}, updated_ns: {=u64} }}",
            self.sequence,
            self.processed,
            self.dropped,
            self.latency_total_ns,
            self.latency_min(),
            self.latency_max_ns,
            self.input_depth(),
            self.output_depth(),
            self.updated_ns,
        );
    }
}
