//! [`PodMessage`], and bytemuck's `Pod` for the layouts of this crate.

use bytemuck::{Pod, Zeroable};

use super::{BufferReference, RingMessage};
use crate::region::{RegionEntry, RegionHeader};
use crate::ring::{ConstantLine, ConsumerLine, ProducerLine};
use crate::{AbiHash, ControlBlock, DeviceBytes, Layout, LayoutDescriptor, RingHeader, Shape, TelemetryBuffer};

/// A `Pod` type of any crate, as a message of a shared ring or as a field of a struct with `SharedLayout`.
///
/// Its descriptor has no fields. If a field of `T` changes its type or place, change `KIND`: the ABI hash stays the same.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use bytemuck::{Pod, Zeroable};
/// use ringmem::message::PodMessage;
/// use ringmem::{DeviceBytes, RingMessage, SharedLayout};
///
/// // Of another crate: it has no `SharedLayout`.
/// #[derive(Clone, Copy, Debug, PartialEq)]
/// #[repr(C)]
/// struct Vec3 { x: f32, y: f32, z: f32 }
/// # // SAFETY: zero is valid.
/// unsafe impl Zeroable for Vec3 {}
/// # // SAFETY: three numbers without padding.
/// unsafe impl Pod for Vec3 {}
///
/// #[derive(Clone, Copy, SharedLayout)]
/// #[repr(C)]
/// struct Body { position: PodMessage<Vec3>, mass: f32 }
///
/// type Position = PodMessage<Vec3, 7>;
/// assert_eq!((Position::KIND, size_of::<Position>(), size_of::<Body>()), (7, 12, 16));
/// let position = PodMessage::<Vec3, 7>(Vec3 { x: 1.0, y: 2.0, z: 3.0 });
/// assert_eq!(position.as_bytes(), bytemuck::bytes_of(&position.0));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct PodMessage<T, const KIND: u64 = 0>(pub T);

// SAFETY: `Pod`: any bytes are valid and none is padding. The wrapper is transparent.
unsafe impl<T: Pod, const KIND: u64> Layout for PodMessage<T, KIND> {
    const DESCRIPTOR: LayoutDescriptor = LayoutDescriptor {
        name: "pod",
        size: size_of::<T>(),
        align: align_of::<T>(),
        fields: &[],
        hash: AbiHash::new().name("pod").number(size_of::<T>() as u64).number(align_of::<T>() as u64).finish(),
        shape: Shape::Number,
        kind: 0,
    };
}

impl<T: Pod + Send + Sync, const KIND: u64> RingMessage for PodMessage<T, KIND> {
    const KIND: u64 = KIND;
}

// SAFETY: transparent over a `T`.
unsafe impl<T: Zeroable, const KIND: u64> Zeroable for PodMessage<T, KIND> {}
// SAFETY: transparent over a `T`, which is `Pod`.
unsafe impl<T: Pod, const KIND: u64> Pod for PodMessage<T, KIND> {}

macro_rules! pods {
    ($($type:ty),+) => {
        $(
            const _: () = <$type as DeviceBytes>::CHECKED;
            // SAFETY: `DeviceBytes`: every bit pattern is valid.
            unsafe impl Zeroable for $type {}
            // SAFETY: `DeviceBytes`: every bit pattern is valid, and there is no padding and no pointer. The type is `Copy`, `repr(C)` and
            // has no words that change.
            unsafe impl Pod for $type {}
        )+

        #[cfg(test)]
        const ALL: &[LayoutDescriptor] = &[$(<$type as Layout>::DESCRIPTOR),+];
    };
}

pods! {
    BufferReference, ControlBlock<u64>, RegionEntry<u64>, RegionHeader<u64>, RingHeader<u64>, ConstantLine<u64>,
    ConsumerLine<u64>, ProducerLine<u64>, TelemetryBuffer<u64>
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_layout_of_this_crate_is_pod() {
        assert_eq!(super::ALL, crate::LAYOUTS);
    }
}
