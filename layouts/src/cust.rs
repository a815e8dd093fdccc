use cust_core::DeviceCopy;

use crate::region::RegionEntry;
use crate::ring::{ConstantLine, ConsumerLine, ProducerLine};
use crate::{BufferReference, ControlBlock, HybridClock, MessageHeader, RegionHeader, RingHeader, TelemetryBuffer};

// SAFETY: plain integers without padding or pointers.
unsafe impl DeviceCopy for BufferReference {}
// SAFETY: as above.
unsafe impl DeviceCopy for MessageHeader {}

macro_rules! words {
    ($($layout:ident)+) => {$(
        // SAFETY: words without padding or pointers, if `W` is plain data.
        unsafe impl<W: DeviceCopy> DeviceCopy for $layout<W> {}
    )+};
}

words! { ConstantLine ConsumerLine ControlBlock HybridClock ProducerLine RegionEntry RegionHeader RingHeader TelemetryBuffer }
