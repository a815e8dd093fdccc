use std::sync::Barrier;
use std::thread;

use ringmem::Error;
use ringmem::backend::{Backend, Launch, ModuleId, StreamId, Ticket};
use ringmem::memory::{Buffer, Device};
use ringmem_kernels::{ABI, IMAGE};

use crate::rig::{self, Double, alone};

fn launched(backend: &dyn Backend, module: ModuleId, name: &str, arguments: &[u64], on: StreamId) -> Result<Ticket, Error> {
    // SAFETY: a count of 0.
    unsafe { backend.launch(&Launch { module, name, arguments, groups: 1, warps: 1, stays: false, operands: &[], elements: None }, on) }
}

alone! {
    fn threads_that_load_one_image_at_a_time_load_it_once() {
        let double = Double::new();
        for _ in 0..20 {
            let backend = rig::open();
            double.reset();
            let together = Barrier::new(4);
            thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| {
                        together.wait();
                        backend.load(&IMAGE, &ABI).expect("our ABI")
                    });
                }
            });
            assert_eq!(double.calls("cuModuleLoadDataEx"), 1);
        }
    }

    fn cached_kernels_are_found_by_module_and_name_until_unload() {
        let (backend, other) = (rig::open(), rig::open());
        let bytes = Buffer::<u8, _>::new(Device::new(&backend, 0), 8).expect("room");
        let address = bytes.device_address().expect("it has one").get();
        let [stream, foreign] = [&backend, &other].map(|backend| backend.open_stream(0).expect("a stream"));
        let [first, second] = [(); 2].map(|()| backend.load(&IMAGE, &ABI).expect("our ABI"));
        let mut name = *b"increment";
        fn text(name: &[u8]) -> &str {
            core::str::from_utf8(name).expect("letters")
        }
        for _ in 0..2 {
            for module in [first, second] {
                launched(&*backend, module, text(&name), &[address, 0], stream).expect("queued");
            }
        }
        let few = launched(&*backend, first, text(&name), &[address], stream);
        assert!(matches!(few, Err(Error::Arguments { name: "increment", expected: 2, got: 1 })), "{few:?}");
        name[0] = b'o';
        let unknown = launched(&*backend, first, text(&name), &[address, 0], stream);
        assert!(matches!(unknown, Err(Error::NotFound { what: "kernel", .. })), "{unknown:?}");
        name[0] = b'i';
        let unloaded = launched(&*other, first, text(&name), &[address, 0], foreign);
        assert!(matches!(unloaded, Err(Error::NotFound { what: "kernel", .. })), "another backend's: {unloaded:?}");
        backend.unload(first);
        let gone = launched(&*backend, first, text(&name), &[address, 0], stream);
        assert!(matches!(gone, Err(Error::NotFound { what: "kernel", .. })), "{gone:?}");
        launched(&*backend, second, text(&name), &[address, 0], stream).expect("the other is there");
        backend.synchronize(stream).expect("done");
        backend.close_stream(stream);
        other.close_stream(foreign);
    }

    fn only_resident_kernels_of_many_groups_launch_cooperatively() {
        let (backend, double) = (rig::open(), Double::new());
        let bytes = Buffer::<u8, _>::new(Device::new(&backend, 0), 8).expect("room");
        let arguments = [bytes.device_address().expect("it has one").get(), 0];
        let (stream, module) = (backend.open_stream(0).expect("a stream"), backend.load(&IMAGE, &ABI).expect("our ABI"));
        for (groups, stays, cooperative) in [(1, false, 0), (4, false, 0), (1, true, 0), (4, true, 1)] {
            double.reset();
            let launch = Launch { module, name: "increment", arguments: &arguments, groups, warps: 1, stays, operands: &[], elements: None };
            // SAFETY: no byte is touched.
            let ticket = unsafe { backend.launch(&launch, stream) }.expect("as many as fit");
            backend.wait(ticket, None).expect("done");
            let calls = ["cuLaunchCooperativeKernel", "cuLaunchKernel"].map(|symbol| double.calls(symbol));
            assert_eq!(calls, [cooperative, 1 - cooperative], "{groups} groups, resident: {stays}");
        }
        backend.close_stream(stream);
    }

    fn a_stream_reuses_the_events_of_a_burst_of_kernels() {
        let (backend, double) = (rig::open(), Double::new());
        let bytes = Buffer::<u8, _>::new(Device::new(&backend, 0), 8).expect("room");
        let address = bytes.device_address().expect("it has one").get();
        let stream = backend.open_stream(0).expect("a stream");
        let module = backend.load(&IMAGE, &ABI).expect("our ABI");
        let row = || {
            for _ in 0..30 {
                launched(&*backend, module, "increment", &[address, 0], stream).expect("queued");
            }
            backend.synchronize(stream).expect("done");
        };
        row();
        let others = [(); 3].map(|()| backend.open_stream(0).expect("a stream"));
        double.reset();
        row();
        assert_eq!(double.calls("cuEventCreate"), 0);
        backend.close_stream(stream);
        others.into_iter().for_each(|stream| backend.close_stream(stream));
    }
}
