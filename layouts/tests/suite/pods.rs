use std::ptr::NonNull;

use bytemuck::{Pod, Zeroable};
use ringmem_layouts::attach::AttachError;
use ringmem_layouts::message::PodMessage;
use ringmem_layouts::ring::{BareSlot, spsc};
use ringmem_layouts::{BufferReference, DeviceBytes, Host, HostWord, Layout, RingHeader, RingLayout, RingMessage, SharedLayout, SlotCell};

#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C)]
struct Vertex {
    position: [f32; 3],
    colour: u32,
}

// SAFETY: zero is valid.
unsafe impl Zeroable for Vertex {}
// SAFETY: four numbers of four bytes.
unsafe impl Pod for Vertex {}

#[derive(Clone, Copy, Debug, PartialEq, SharedLayout)]
#[repr(C)]
#[layout(message = 9)]
struct Draw {
    first: PodMessage<Vertex>,
    count: u64,
}

// SAFETY: zero is valid.
unsafe impl Zeroable for Draw {}
// SAFETY: `SharedLayout` rejects padding.
unsafe impl Pod for Draw {}

const VERTEX: Vertex = Vertex { position: [1.0, 2.0, 3.0], colour: 0xff00_00ff };

fn exchanged<T: RingMessage>(value: T) -> T {
    let header = RingHeader::<HostWord>::new::<T>(&RingLayout::of::<T>(2).unwrap(), u64::MAX);
    let slots: [BareSlot<T>; 2] = [T::zeroed(); 2].map(SlotCell::new);
    // SAFETY: initialised, and these ends' only.
    unsafe {
        let mut producer = spsc::Producer::<T, Host>::new(&header, &header, NonNull::from(&slots).cast()).unwrap();
        let mut consumer = spsc::Consumer::<T, Host>::new(&header, &header, NonNull::from(&slots).cast()).unwrap();
        assert!(producer.push(value).is_ok());
        consumer.pop().unwrap()
    }
}

#[test]
fn pod_types_are_messages_and_message_fields() {
    assert_eq!(exchanged(PodMessage::<_, 3>(VERTEX)).0, VERTEX);
    let draw = Draw { first: PodMessage(VERTEX), count: 3 };
    assert_eq!(exchanged(draw), draw);
    assert_eq!(draw.as_bytes(), bytemuck::bytes_of(&draw));
    let descriptor = <PodMessage<Vertex, 3>>::DESCRIPTOR;
    assert_eq!((descriptor.size, descriptor.align, Draw::DESCRIPTOR.fields[1].offset), (16, 4, 16));
}

#[test]
fn mismatched_pod_messages_are_errors() {
    type Ours = PodMessage<[u32; 4], 1>;
    let header = RingHeader::<HostWord>::new::<Ours>(&RingLayout::of::<Ours>(2).unwrap(), 0);
    let refused = |refused: Result<RingLayout, AttachError>| refused.unwrap_err();
    assert!(header.geometry::<Ours>().is_ok() && header.geometry::<PodMessage<[f32; 4], 1>>().is_ok());
    assert!(matches!(refused(header.geometry::<PodMessage<[u32; 4], 2>>()), AttachError::Kind { expected: 2, got: 1 }));
    assert!(matches!(refused(header.geometry::<PodMessage<[u32; 3], 1>>()), AttachError::Abi { .. }));
    assert!(matches!(refused(header.geometry::<PodMessage<[u64; 2], 1>>()), AttachError::Abi { .. }));
}

#[test]
fn layouts_cast_to_bytes_and_back() {
    let reference = BufferReference::new::<u32>(7, 1, 2..4);
    assert_eq!(bytemuck::pod_read_unaligned::<BufferReference>(bytemuck::bytes_of(&reference)), reference);
    let snapshot: RingHeader = Zeroable::zeroed();
    assert_eq!(bytemuck::cast_slice::<_, u64>(&[snapshot; 2]), [0; 96]);
}

mod geometry {
    use super::*;

    #[derive(Clone, Copy, SharedLayout)]
    #[repr(C)]
    pub struct Box {
        pub sides: [f32; 2],
    }
}

#[test]
fn a_type_of_a_module_may_have_the_name_of_one_of_the_standard_library() {
    #[derive(Clone, Copy, SharedLayout)]
    #[repr(C)]
    struct Placed {
        bounds: geometry::Box,
        corner: [f32; 2],
    }
    let placed = Placed { bounds: geometry::Box { sides: [1.0, 2.0] }, corner: [3.0, 4.0] };
    assert_eq!((Placed::DESCRIPTOR.size, placed.bounds.sides[1] + placed.corner[0]), (16, 5.0));
}
