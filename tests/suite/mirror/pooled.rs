use ringmem::memory::{Device, Pinned};
use ringmem::mirror::{MirroredBuffer, State};
use ringmem::pool::Pool;

use super::{LEN, backend};

#[test]
fn a_second_mirror_of_a_shape_reuses_pooled_memory() {
    let backend = backend();
    let (host, device) = (Pool::builder(Pinned::new(&backend, 0)), Pool::builder(Device::new(&backend, 0)));
    let host = host.slab(1 << 16).build().expect("a pool");
    let device = device.slab(1 << 16).build().expect("a pool");
    let mirror = || MirroredBuffer::<u32, _, _>::new(host.clone(), device.clone(), LEN).expect("one backend");
    let mut places = Vec::new();
    for round in 1..=100 {
        let mut mirror = mirror();
        assert_eq!(mirror.state(), State::Uninitialized);
        assert_eq!(mirror.host().expect("room"), [0; LEN], "round {round}");
        mirror.fill(round).expect("room");
        assert_eq!(mirror.device().expect("room").to_vec().expect("a copy"), [round; LEN]);
        let at = mirror.device().expect("valid").device_address().expect("it has bytes");
        places.push((mirror.host().expect("valid").as_ptr(), at));
        let mut other = mirror_of_zeroes(&host, &device);
        assert_eq!(other.device().expect("valid").to_vec().expect("a copy"), [0; LEN], "round {round}");
    }
    places.dedup();
    assert_eq!(places.len(), 1, "{places:?}");
    let counters = backend.counters();
    assert_eq!((counters.device_allocations.count, counters.pinned_allocations.count), (1, 1));
    assert_eq!((device.statistics().misses, host.statistics().misses), (2, 2), "one each for two that live at a time");
}

type PinnedPool = Pool<Pinned>;
type DevicePool = Pool<Device>;

fn mirror_of_zeroes(host: &PinnedPool, device: &DevicePool) -> MirroredBuffer<u32, PinnedPool, DevicePool> {
    let mut mirror = MirroredBuffer::new(host.clone(), device.clone(), LEN).expect("one backend");
    mirror.device().expect("room");
    mirror
}
