//! Kernels over buffers on the driver double: their host builds, and their PTX in a machine.

use std::sync::Arc;

use ringmem::Error;
use ringmem::backend::cuda::CudaBackend;
use ringmem::channel::Channel;
use ringmem::memory::{Buffer, Device, GpuBuffer};
use ringmem::stream::Stream;
use ringmem_kernels::echo::{ECHO_BLOCK, ECHO_GROUPED, Echo};
use ringmem_kernels::grid::{SAXPY, SMOOTH};
use ringmem_kernels::{ECHO, Index, saxpy, smooth};

use crate::rig::{self, Double, alone};

fn buffer(backend: &Arc<CudaBackend>, elements: &[f32]) -> GpuBuffer<f32> {
    Buffer::from_slice(Device::new(backend, 0), elements).expect("room")
}

/// Compares kernels with their functions, for some shapes of a launch.
fn compare(sizes: &[usize]) {
    let backend = rig::open();
    let stream = Stream::new(&backend, 0).expect("a stream");
    for &len in sizes {
        let x: Vec<f32> = (0..len).map(|i| (i % 97) as f32).collect();
        let (inputs, mut outputs) = (buffer(&backend, &x), buffer(&backend, &vec![3.0; len]));
        for (threads, blocks) in [(0, 0), (64, 1), (96, 3)] {
            outputs.fill(3.0).expect("a fill");
            stream.run(SAXPY.threads(threads).blocks(blocks), (&inputs, &mut outputs, 0.5)).expect("equal lengths");
            let mut expected = vec![3.0; len];
            expected.iter_mut().zip(&x).for_each(|(y, x)| saxpy(x, y, 0.5));
            assert!(outputs.to_vec().expect("a copy") == expected, "{len} elements, {threads} threads, {blocks} blocks");
            stream.run(SMOOTH.threads(threads).blocks(blocks), (&inputs, &mut outputs)).expect("a launch");
            expected.iter_mut().enumerate().for_each(|(at, y)| smooth(Index::new(at, len), &x, y));
            assert!(outputs.to_vec().expect("a copy") == expected, "{len} elements, {threads} threads, {blocks} blocks");
        }
    }
}

alone! {
    fn host_builds_process_each_element_once() {
        compare(&[0, 1, 63, 64, 65, 5000]);
    }

    fn ptx_processes_each_element_once() with("RINGMEM_DOUBLE_KERNELS" = "ptx") {
        compare(&[1, 63, 65, 300, 1025]);
    }

    fn a_kernel_over_buffers_runs_beside_a_persistent_one() {
        let backend = rig::open();
        let stream = Stream::new(&backend, 0).expect("a stream");
        let (x, mut y) = (buffer(&backend, &[1.0; 4000]), buffer(&backend, &[1.0; 4000]));
        stream.run(SAXPY, (&x, &mut y, 1.0)).expect("the image is loaded");
        let mut channel = Channel::open(&backend, 0, ECHO).expect("a channel");
        // More blocks than fit at once: they do not wait for each other.
        stream.run(SAXPY.threads(64).blocks(100_000), (&x, &mut y, 1.0)).expect("beside the channel's kernel");
        let message = Echo { words: [7; 8] };
        channel.send(message).expect("room");
        assert_eq!(channel.recv().expect("an answer"), message);
        channel.close().expect("it ends");
        assert_eq!(y.to_vec().expect("a copy"), vec![3.0; 4000]);
    }

    fn a_kernel_over_buffers_takes_smaller_blocks_beside_persistent_ones() {
        let backend = rig::open();
        let stream = Stream::new(&backend, 0).expect("a stream");
        let (x, mut y) = (buffer(&backend, &[1.0; 40_000]), buffer(&backend, &[1.0; 40_000]));
        stream.run(SAXPY, (&x, &mut y, 1.0)).expect("the image is loaded");
        // Seven eighths of each multiprocessor.
        let groups = Channel::builder(ECHO_GROUPED).groups(56).open(&backend, 0).expect("a channel");
        stream.run(SAXPY, (&x, &mut y, 1.0)).expect("in blocks of 128 threads");
        stream.run(SAXPY.threads(96), (&x, &mut y, 1.0)).expect("a tenth");
        let refused = stream.run(SAXPY.threads(160), (&x, &mut y, 1.0)).expect_err("a sixth");
        assert!(matches!(refused, Error::Residency { asked: 1, free: 0, most: 24, resident: 56 }), "{refused}");
        // An eighth each.
        let last = Channel::builder(ECHO_BLOCK).warps(2).open(&backend, 0).expect("one is left on each");
        stream.run(SAXPY, (&x, &mut y, 1.0)).expect("on another multiprocessor");
        let others = [(); 3].map(|()| Channel::builder(ECHO_BLOCK).warps(2).open(&backend, 0).expect("one is left on three"));
        let refused = stream.run(SAXPY, (&x, &mut y, 1.0)).expect_err("none is left");
        assert!(matches!(refused, Error::Residency { asked: 1, free: 0, most: 64, resident: 60 }), "{refused}");
        drop((groups, last, others));
        assert_eq!(y.to_vec().expect("a copy"), vec![5.0; 40_000]);
    }

    fn more_threads_than_a_kernel_has_registers_for_are_refused() with("RINGMEM_DOUBLE_THREADS" = "saxpy=256") {
        let backend = rig::open();
        let stream = Stream::new(&backend, 0).expect("a stream");
        let (x, mut y) = (buffer(&backend, &[1.0; 1000]), buffer(&backend, &[1.0; 1000]));
        let mut run = |threads| stream.run(SAXPY.threads(threads), (&x, &mut y, 1.0));
        let refused = run(288).expect_err("one warp too many");
        let what = "threads of a block of this kernel";
        assert!(matches!(refused, Error::Size { what: it, asked: 288, least: 1, most: 256 } if it == what), "{refused}");
        run(256).expect("as many as fit");
        run(0).expect("the backend chooses");
        assert_eq!(y.to_vec().expect("a copy"), [3.0; 1000]);
    }

    fn a_failed_launch_returns_the_buffers() {
        let backend = rig::open();
        let double = Double::new();
        let stream = Stream::new(&backend, 0).expect("a stream");
        let (x, y) = (buffer(&backend, &[1.0; 100]), buffer(&backend, &[0.0; 100]));
        double.fail("cuLaunchKernel", double.calls("cuLaunchKernel") + 1, 701);
        let rejected = stream.submit(SAXPY, (x, y, 1.0)).expect_err("too many resources");
        assert!(matches!(rejected.error, Error::Driver { code: 701, .. }), "{}", rejected.error);
        let (x, y, ()) = rejected.value;
        let (_, y, ()) = stream.submit(SAXPY, (x, y, 2.0)).expect("queued").wait().expect("no failure");
        assert_eq!(y.to_vec().expect("a copy"), [2.0; 100]);
    }
}
