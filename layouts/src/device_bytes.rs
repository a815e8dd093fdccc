//! [`DeviceBytes`]: what may be copied to a device and back as bytes.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::region::{RegionEntry, RegionHeader};
use crate::ring::{ConstantLine, ConsumerLine, ProducerLine};
use crate::{ControlBlock, RingHeader, TelemetryBuffer};

/// Plain bytes: any are valid, none are padding, no pointer is among them, and nothing happens when they are dropped.
///
/// Numbers, arrays of them, and every struct that derives zerocopy's traits have it. `Copy` alone would admit `bool`, references and
/// padding, and would leave out what a device may write: so it is not enough, and atomics are not `Copy`.
///
/// # Safety
///
/// Every byte of every value is initialised: no padding. The rest is checked by the traits above it.
#[diagnostic::on_unimplemented(message = "`{Self}` is not plain bytes that a device may copy")]
pub unsafe trait DeviceBytes: FromBytes + Immutable + KnownLayout + Copy + Send + Sync + 'static {}

// SAFETY: `IntoBytes` says that there is no padding.
unsafe impl<T: FromBytes + IntoBytes + Immutable + KnownLayout + Copy + Send + Sync + 'static> DeviceBytes for T {}

// Snapshots are generic over their word, and zerocopy derives `IntoBytes` for no generic struct that is aligned. Each one's table has
// checked that it has no padding without a name.
macro_rules! snapshots {
    ($($name:ident),+) => {$(
        // SAFETY: the struct's table, evaluated here, says that its fields follow each other without padding; they are `u64`s.
        unsafe impl DeviceBytes for $name<u64> {}
        const _: crate::LayoutDescriptor = <$name<u64> as crate::Layout>::DESCRIPTOR;
    )+};
}
snapshots!(ControlBlock, TelemetryBuffer, RegionHeader, RegionEntry, RingHeader, ProducerLine, ConsumerLine, ConstantLine);

static_assertions::assert_impl_all!(u8: DeviceBytes);
static_assertions::assert_impl_all!([[f32; 4]; 3]: DeviceBytes);
static_assertions::assert_not_impl_any!(crate::image::Abi: DeviceBytes);
