use ringmem::DeviceBytes;
use ringmem::backend::host::HostBackend;
use ringmem::manager::{AnyBufferId, BufferConfig, BufferId};
use ringmem::memory::Device;
use ringmem::stream::Stream;

use super::{MIB, Manager, is_empty, plain};
use crate::rig::leak_checked::Clean;

const LEAST: usize = 1000;
const MOST: usize = 1_000_000;

struct Of<T> {
    id: BufferId<T>,
    element: fn(u32) -> T,
}

trait Field {
    fn id(&self) -> AnyBufferId;
    fn write(&self, manager: &Manager, from: usize);
    fn check(&self, manager: &Manager, len: usize);
}

impl<T: DeviceBytes + PartialEq + std::fmt::Debug> Field for Of<T> {
    fn id(&self) -> AnyBufferId {
        self.id.into()
    }

    fn write(&self, manager: &Manager, from: usize) {
        let mut lease = manager.lease_mut(self.id).expect("nobody else");
        let elements: Vec<T> = (from..lease.len()).map(|node| (self.element)(node as u32)).collect();
        lease.slice_mut(from..).expect("live").copy_from(&elements).expect("a copy");
    }

    fn check(&self, manager: &Manager, len: usize) {
        let elements = manager.lease(self.id).expect("nobody else").to_vec().expect("a copy");
        assert_eq!(elements.len(), len);
        let wrong = elements.iter().enumerate().find(|(node, element)| **element != (self.element)(*node as u32));
        assert_eq!(wrong, None, "of {len}");
    }
}

fn field<T: DeviceBytes + PartialEq + std::fmt::Debug>(
    manager: &Manager,
    name: &str,
    config: BufferConfig,
    element: fn(u32) -> T,
) -> Box<dyn Field> {
    let id = manager.create::<T>(name, LEAST, config).expect("room");
    let field = Of { id, element };
    field.write(manager, 0);
    Box::new(field)
}

#[test]
fn thirteen_buffers_grow_to_a_million_nodes_without_loss() {
    let backend = Clean::build(HostBackend::builder().device_memory(512 * MIB));
    let stream = Stream::new(&backend, 0).expect("a stream");
    let manager = Manager::builder(Device::new(&backend, 0)).limit_of_device().expect("a device").build();
    let node = |node: u32| [node as f32, node as f32 * 0.5, -1.0];
    let fields = [
        field(&manager, "positions", BufferConfig::positions(), node),
        field(&manager, "velocities", BufferConfig::velocities(), node),
        field(&manager, "forces", BufferConfig::forces(), node),
        field(&manager, "edges", plain(), |node| u64::from(node) << 32 | u64::from(node + 1)),
        field(&manager, "grid", BufferConfig::grid(), |node| u64::from(node) * 3),
        field(&manager, "masses", plain(), |node| node as f32 + 1.0),
        field(&manager, "charges", plain(), |node| -(node as f32)),
        field(&manager, "radii", plain(), |node| node as f32 * 0.25),
        field(&manager, "kinds", plain(), |node| node as u8),
        field(&manager, "groups", plain(), |node| node as u16),
        field(&manager, "flags", plain(), |node| node.rotate_left(7)),
        field(&manager, "parents", plain(), |node| node / 2),
        field(&manager, "degrees", plain(), |node| node.count_ones()),
    ];
    let mut len = LEAST;
    while len < MOST {
        let more = (len * 2).min(MOST);
        manager.resize_group_on(fields.iter().map(|field| (field.id(), more)), &stream).expect("room");
        fields.iter().for_each(|field| field.write(&manager, len));
        fields.iter().for_each(|field| field.check(&manager, more));
        len = more;
    }
    let figures = manager.statistics();
    assert_eq!((figures.buffers.len(), figures.resizes), (13, figures.buffers.iter().map(|buffer| buffer.resizes).sum()));
    assert!(figures.peak_bytes <= figures.limit_bytes && figures.buffers.iter().all(|buffer| buffer.len as usize == MOST));
    assert_eq!(backend.counters().device_copies.bytes, figures.resize_bytes);
    drop(manager);
    assert!(is_empty(&backend));
}
