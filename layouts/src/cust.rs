use cust_core::DeviceCopy;

use crate::region::RegionEntry;
use crate::ring::{ConstantLine, ConsumerLine, ProducerLine};
use crate::{BufferReference, ControlBlock, RegionHeader, RingHeader, TelemetryBuffer};

// SAFETY: plain integers without padding or pointers.
unsafe impl DeviceCopy for BufferReference {}

macro_rules! words {
    ($($layout:ident)+) => {$(
        // SAFETY: words without padding or pointers, if `W` is plain data.
        unsafe impl<W: DeviceCopy> DeviceCopy for $layout<W> {}
    )+};
}

words! { ConstantLine ConsumerLine ControlBlock ProducerLine RegionEntry RegionHeader RingHeader TelemetryBuffer }
