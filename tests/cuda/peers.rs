use ringmem::Error;
use ringmem::backend::{Address, Backend, Copy};
use ringmem::memory::{Buffer, Device, GpuBuffer};
use ringmem::stream::{Module, Stream};
use ringmem_kernels::{ABI, IMAGE};

use crate::rig::{self, Double, alone};

alone! {
    fn peer_copies_are_direct_once_enabled() with("RINGMEM_DOUBLE_DEVICES" = 3, "RINGMEM_DOUBLE_PEERS" = "0>1") {
        let (backend, double) = (rig::open(), Double::new());
        let peers: Vec<_> = (0..3).map(|device| backend.capabilities(device).expect("a device").peers).collect();
        assert_eq!(peers, [vec![1], vec![], vec![]]);
        let [from, to] = [0, 1].map(|device| Buffer::<u8, _>::from_slice(Device::new(&backend, device), &[device as u8 + 5; 1000]).expect("room"));
        let copy = Copy {
            to: Address::Device(to.device_address().expect("it has one")),
            from: Address::Device(from.device_address().expect("it has one")),
            bytes: 1000,
        };
        // SAFETY: both live and disjoint.
        unsafe { backend.copy_now(&copy) }.expect("a copy");
        let counters = backend.counters();
        assert_eq!((counters.peer_copies.count, counters.downloads.count, counters.uploads.count), (0, 1, 3), "over the host");
        backend.set_peer(0, 1, true).expect("it is listed");
        backend.set_peer(0, 1, true).expect("again is nothing");
        backend.set_peer(0, 0, true).expect("itself is nothing");
        assert_eq!((double.calls("cuCtxEnablePeerAccess"), backend.counters().peer_enables), (1, 1));
        assert!(matches!(backend.set_peer(1, 0, true), Err(Error::Unsupported { .. })));
        assert!(matches!(backend.set_peer(0, 3, true), Err(Error::NoDevice { asked: 3, devices: 3 })));
        let stream = Stream::new(&backend, 1).expect("a stream");
        // SAFETY: both live and disjoint, and unused until the wait.
        let ticket = unsafe { backend.copy(&copy, stream.id()) }.expect("queued");
        backend.wait(ticket, None).expect("done");
        assert_eq!(backend.counters().peer_copies.count, 1);
        assert_eq!(to.to_vec().expect("a copy"), [5; 1000]);
        backend.set_peer(0, 1, false).expect("it was enabled");
        backend.set_peer(0, 1, false).expect("again is nothing");
        assert_eq!((double.calls("cuCtxDisablePeerAccess"), backend.counters().peer_disables), (1, 1));
    }

    fn kernels_and_stream_waits_work_on_two_devices() with("RINGMEM_DOUBLE_DEVICES" = 2) {
        let backend = rig::open();
        let module = Module::load(&backend, &IMAGE, &ABI).expect("our ABI");
        let streams = [0, 1].map(|device| Stream::new(&backend, device).expect("a stream"));
        for (device, stream) in streams.iter().enumerate() {
            let mut buffer = GpuBuffer::<u8>::from_slice(Device::new(&backend, device as u32), &[1; 100]).expect("room");
            let arguments = [buffer.device_address().expect("it has one").get(), 100];
            // SAFETY: the buffer's bytes; it records the launch.
            drop(unsafe { stream.launch(&module, "increment", &arguments) }.expect("a launch"));
            buffer.used_by(stream).expect("its own backend");
            streams[1 - device].wait_for(stream).expect("one backend");
            let buffer = stream.fill(buffer, ..50, 9).expect("a fill").wait().expect("done");
            assert_eq!(buffer.to_vec().expect("a copy"), [[9; 50], [2; 50]].concat());
        }
    }

    fn an_unused_device_is_not_opened() with("RINGMEM_DOUBLE_DEVICES" = 4) {
        let (backend, double) = (rig::open(), Double::new());
        drop(GpuBuffer::<u8>::new(Device::new(&backend, 2), 100).expect("room"));
        assert_eq!(double.calls("cuDevicePrimaryCtxRetain"), 1);
        drop(Module::load(&backend, &IMAGE, &ABI).expect("our ABI"));
        assert_eq!(double.calls("cuDevicePrimaryCtxRetain"), 1, "it is loaded where something is open");
    }
}
