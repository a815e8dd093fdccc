use crate::rig::leak_checked::Clean;
use crate::{LIMIT, eventually};
use ringmem::backend::host::HostBackend;
use ringmem::control::{self, Capabilities, Command, HostSide, State};
use ringmem::kernel::{DevicePointer, Epoch, Kernel};
use ringmem::manager::MemoryManager;
use ringmem::memory::{Device, GpuBuffer, Pinned, PinnedBuffer};
use ringmem::mirror::{Access, MirroredBuffer};
use ringmem::ring::spsc::{Consumer, Producer};
use ringmem::stream::{Module, Stream};
use ringmem::{Abi, Error, Host, HostWord, Image, LAYOUTS, RingHeader, RingLayout, SharedLayout, image::KernelHost};
use ringmem_kernels::echo::{ECHO, Echo};
use ringmem_kernels::grid::{COPY, FILL, VECTOR_ADD};
use ringmem_kernels::{ABI, IMAGE};

fn setup() -> (Clean, Module, Stream) {
    let backend = Clean::build(HostBackend::builder().device_memory(1 << 20).resident_groups(8));
    let module = Module::load(&backend, &IMAGE, &ABI).expect("our ABI");
    let stream = Stream::new(&backend, 0).expect("a stream");
    (backend, module, stream)
}

#[test]
fn grid_kernels_process_whole_buffers_for_any_group_count() {
    let (backend, module, stream) = setup();
    let memory = || Device::new(&backend, 0);
    for groups in [1, 3, 8] {
        let (a, b) = (vec![1.25_f32; 1003], (0..1003).map(|i| i as f32).collect::<Vec<_>>());
        let left = GpuBuffer::from_slice(memory(), &a).expect("room");
        let right = GpuBuffer::from_slice(memory(), &b).expect("room");
        let sums = GpuBuffer::<f32>::new(memory(), 1003).expect("room");
        let twin = GpuBuffer::<f32>::new(memory(), 1003).expect("room");
        let filled = GpuBuffer::<u64>::new(memory(), 77).expect("room");
        let [to, x, y, copied] = [&sums, &left, &right, &twin].map(|buffer| buffer.device_pointer().expect("it has bytes"));
        let words = filled.device_pointer().expect("it has bytes");
        // SAFETY: for all three: all five live until the wait, otherwise unused.
        let last = unsafe {
            drop(stream.start(&module, &VECTOR_ADD, (to, x, y, 1003), groups).expect("queued"));
            drop(stream.start(&module, &COPY, (copied.cast(), to.cast(), 1003 * 4), groups).expect("queued"));
            stream.start(&module, &FILL, (words, 77, 0x0102_0304), groups).expect("queued")
        };
        last.wait().expect("no panic");
        let expected: Vec<f32> = a.iter().zip(&b).map(|(a, b)| a + b).collect();
        assert_eq!(twin.to_vec().expect("a download"), expected, "{groups} groups");
        assert_eq!(filled.to_vec().expect("a download"), [0x0102_0304; 77]);
    }
}

#[test]
fn views_leases_and_mirrors_have_typed_pointers_for_a_launch() {
    let (backend, module, stream) = setup();
    let memory = || Device::new(&backend, 0);
    let mut mirror = MirroredBuffer::<u64, _, _>::new(Pinned::new(&backend, 0), memory(), 8).expect("one backend");
    // SAFETY: for all launches: the elements live until the wait, otherwise unused.
    let fill =
        |words: Option<DevicePointer<u64>>, count| unsafe { stream.start(&module, &FILL, (words.expect("it has bytes"), count, 5), 1) };
    let words = mirror.device_write_only().expect("room").device_pointer();
    drop(fill(words, 8).expect("queued"));
    mirror.used_by(&stream).expect("one backend");
    assert_eq!(mirror.host().expect("copied down"), [5; 8]);
    mirror.copy_from(&[0; 8]).expect("live");
    let words = mirror.device_on(Access::Update, &stream).expect("copied up");
    drop(fill(words, 3).expect("queued"));
    mirror.used_by(&stream).expect("one backend");
    assert_eq!(mirror.host().expect("copied down"), [5, 5, 5, 0, 0, 0, 0, 0]);
    assert_eq!(mirror.device().expect("valid").device_pointer(), words);

    let manager = MemoryManager::new(memory());
    let id = manager.register(GpuBuffer::<u64>::from_slice(memory(), &[0; 4]).expect("room")).expect("room");
    let mut lease = manager.lease_mut(id).expect("live");
    assert_eq!(lease.device_pointer(), lease.view().device_pointer());
    fill(lease.slice_mut(2..).expect("within").device_pointer(), 2).expect("queued").wait().expect("no panic");
    assert_eq!(lease.to_vec().expect("a download"), [0, 0, 5, 5]);
}

#[test]
fn start_rejects_more_groups_than_can_run_at_once() {
    let (backend, module, stream) = setup();
    let filled = GpuBuffer::<u64>::from_slice(Device::new(&backend, 0), &[7; 4]).expect("room");
    let words = filled.device_pointer().expect("it has bytes");
    for groups in [0, 9, u32::MAX] {
        // SAFETY: rejected.
        let error = unsafe { stream.start(&module, &FILL, (words, 4, 1), groups) }.expect_err("not so many");
        assert!(matches!(error, Error::Size { asked, least: 1, most: 8, .. } if asked == u64::from(groups)), "{error}");
    }
    stream.synchronize().expect("nothing was queued");
    assert_eq!((filled.to_vec().expect("a download"), backend.counters().launches), (vec![7; 4], 0));
}

const WRITE: Kernel<(DevicePointer<u64>, Epoch, u64, DevicePointer<Echo>)> = Kernel::new("write");

unsafe fn write(host: &dyn KernelHost, words: &[u64]) {
    let Some((to, epoch, number, pointer)) = WRITE.arguments(words) else { return };
    let Some(place) = host.translate(to.address(), 32) else { return };
    let given = [words.len() as u64, u64::from(epoch.get()), number, pointer.address()];
    // SAFETY: four words of the launch.
    unsafe { place.cast::<[u64; 4]>().write(given) };
}

#[test]
fn typed_arguments_arrive_unchanged() {
    const OURS: Abi = Abi::of(LAYOUTS);
    const OWN: Image = Image { ptx: b"", host: &[WRITE.entry(write)], abi: OURS };
    let (backend, _, stream) = setup();
    let module = Module::load(&backend, &OWN, &OURS).expect("our ABI");
    let place = GpuBuffer::<u64>::new(Device::new(&backend, 0), 4).expect("room");
    let to = place.device_pointer().expect("it has bytes");
    let arguments = (to, Epoch::new(u32::MAX), u64::MAX, DevicePointer::<Echo>::new(64).add(3));
    // SAFETY: four words, live until the wait.
    unsafe { stream.start(&module, &WRITE, arguments, 1) }.expect("queued").wait().expect("no panic");
    assert_eq!(place.to_vec().expect("a download"), [4, u64::from(u32::MAX), u64::MAX, 64 + 3 * 64]);
    let missing: Kernel<()> = Kernel::new("missing");
    // SAFETY: rejected.
    let error = unsafe { stream.start(&module, &missing, (), 1) }.expect_err("the image has no such kernel");
    assert!(matches!(error, Error::NotFound { what: "kernel", .. }), "{error}");
    let other: Kernel<(u64,)> = Kernel::new("write");
    // SAFETY: rejected.
    let error = unsafe { stream.start(&module, &other, (1,), 1) }.expect_err("a constant that is not the image's");
    assert!(matches!(error, Error::Arguments { expected: 4, got: 1, .. }), "{error}");
}

#[derive(Clone, Copy, SharedLayout)]
#[repr(C, align(128))]
struct Line {
    words: [u64; 16],
}

const GROUPS: u64 = 4;

#[test]
fn one_launch_serves_one_ring_per_group() {
    let (backend, module, stream) = setup();
    let ring = RingLayout::of::<Echo>(16).expect("a geometry");
    let (telemetry_at, rings_at) = (GROUPS * 128, GROUPS * 256);
    let each = ring.size().next_multiple_of(128);
    let bytes = rings_at + GROUPS * 2 * each;
    let region =
        PinnedBuffer::<Line>::from_slice(Pinned::new(&backend, 0), &vec![Line { words: [0; 16] }; bytes as usize / 128]).expect("room");
    let base = region.as_ptr().expect("it has bytes").cast::<u8>();
    let address = region.device_address().expect("it has bytes").get();
    // SAFETY: offsets are within the region.
    let at = |offset: u64| unsafe { base.add(offset as usize) };
    let mut ends = Vec::new();
    for group in 0..GROUPS {
        let [input, output] = [0, 1].map(|which| rings_at + (2 * group + which) * each);
        for header in [input, output] {
            // SAFETY: zeroed, aligned words without ends.
            unsafe { at(header).cast::<RingHeader<HostWord>>().as_ref().format::<Echo>(&ring, 0) };
        }
        let prepared = control::Launch {
            abi: ABI.hash,
            capabilities: Capabilities::SYSTEM_SCOPE,
            epoch: 3,
            input_ring: address + input,
            output_ring: address + output,
            second_headers: [None; 2],
            telemetry: address + telemetry_at + group * 128,
        };
        // SAFETY: no kernel runs; the only host.
        let control = unsafe { HostSide::prepare(at(group * 128).cast::<control::Shared<HostWord>>().as_ref(), &prepared) };
        // SAFETY: as long as its layout; the kernel is the other end.
        let sender = unsafe { Producer::<Echo, Host>::from_raw(at(input), ring.size()) }.expect("just formatted");
        // SAFETY: as long as its layout; the kernel is the other end.
        let receiver = unsafe { Consumer::<Echo, Host>::from_raw(at(output), ring.size()) }.expect("just formatted");
        ends.push((control, sender, receiver));
    }
    let arguments = (DevicePointer::new(address), Epoch::new(3), LIMIT.as_nanos() as u64, 8);
    // SAFETY: the region outlives the awaited launch; this test is the only peer.
    let launch = unsafe { stream.start(&module, &ECHO.kernel(), arguments, GROUPS as u32) }.expect("queued");
    for (group, (control, sender, receiver)) in ends.iter_mut().enumerate() {
        control.command(Command::ACTIVATE);
        for id in 0..100 {
            let message = Echo { words: [group as u64 * 1000 + id; 8] };
            sender.push(message).expect("room");
            eventually("the group answers its own ring", || receiver.pop() == Ok(message));
        }
    }
    for (control, ..) in &mut ends {
        control.command(Command::TERMINATE);
    }
    launch.wait_timeout(LIMIT).expect("all groups left in time").expect("no panic");
    for (control, ..) in &ends {
        assert_eq!((control.state(), control.snapshot().processed), (Some(State::Terminated), 100));
    }
}
