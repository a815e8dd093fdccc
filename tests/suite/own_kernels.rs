use std::sync::Arc;

use ringmem::backend::host::HostBackend;
use ringmem::channel::Channel;
use ringmem::kernel::DevicePointer;
use ringmem::memory::{Device, GpuBuffer};
use ringmem::stream::{Module, Stream};
use ringmem::{Layout, Machine};
use ringmem_kernels::{Batch, Handler, Lanes, Launch, SharedLayout, kernels, persistent};

#[derive(Clone, Copy, Debug, PartialEq, SharedLayout)]
#[repr(C)]
#[layout(message = 1)]
struct Number {
    value: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, SharedLayout)]
#[repr(C)]
#[layout(message = 2)]
struct Sum {
    count: u64,
    total: u64,
}

struct Total(Sum);

impl<M: Machine, L: Lanes> Handler<M, L> for Total {
    type Input = Number;
    type Output = Sum;

    unsafe fn answer(&mut self, lanes: &L, batch: &mut Batch<'_, '_, Number, Sum, M>) -> u64 {
        for index in 0..batch.len() {
            // SAFETY: below the length.
            let number = unsafe { batch.message(index, |number| *number) };
            self.0 = Sum { count: self.0.count + 1, total: self.0.total + number.value };
            if lanes.lane() == 0 {
                // SAFETY: below the length; only lane 0 exchanges.
                unsafe { batch.exchange(index, |_, sum| *sum = self.0) };
            }
        }
        0
    }
}

struct Offset(u64);

impl<M: Machine, L: Lanes> Handler<M, L> for Offset {
    type Input = Number;
    type Output = Number;

    unsafe fn answer(&mut self, lanes: &L, batch: &mut Batch<'_, '_, Number, Number, M>) -> u64 {
        let mut index = u64::from(lanes.lane());
        while index < batch.len() {
            // SAFETY: below the length; the lanes take turns.
            unsafe { batch.exchange(index, |now, then| then.value = now.value + self.0) };
            index += u64::from(L::WIDTH);
        }
        0
    }
}

/// # Safety
///
/// As [`persistent`].
unsafe fn serve_offset<M: Machine, L: Lanes>(machine: &M, lanes: &L, launch: &Launch, offset: u64) {
    // SAFETY: the caller makes the promises of `persistent`, which are passed on with an own handler.
    unsafe { persistent(machine, lanes, launch, &mut Offset(offset)) }
}

unsafe fn scale_all<M: Machine, L: Lanes>(machine: &M, lanes: &L, data: DevicePointer<f32>, count: u64, by: u64) {
    let Some(first) = machine.at(data.address(), count * 4, 4) else { return };
    let mut index = lanes.group() * u64::from(L::WIDTH) + u64::from(lanes.lane());
    while index < count {
        // SAFETY: within the buffer; all groups' lanes take turns.
        let element = unsafe { first.cast::<f32>().add(index as usize).as_mut() };
        *element *= by as f32;
        index += lanes.groups() * u64::from(L::WIDTH);
    }
}

kernels! {
    layouts: [Sum; 2];

    persistent fn double(now: &Number, then: &mut Number) {
        then.value = 2 * now.value;
    }

    flagged fn double_flagged(now: &Number, then: &mut Number) {
        double(now, then);
    }

    persistent fn running(sum: &mut Sum, now: &Number, then: &mut Sum) {
        *sum = Sum { count: sum.count + 1, total: sum.total + now.value };
        *then = *sum;
    }

    persistent fn total(Number) -> Sum = Total(Sum { count: 0, total: 0 });

    unsafe persistent fn offset(offset: u64) = serve_offset;

    unsafe grid fn scale(data: DevicePointer<f32>, count: u64, by: u64) = scale_all;
}

fn backend() -> Arc<HostBackend> {
    HostBackend::builder().device_memory(1 << 20).build().expect("a backend")
}

#[test]
fn a_message_function_is_a_kernel_and_a_plain_function() {
    let mut answer = Number { value: 0 };
    double(&Number { value: 21 }, &mut answer);
    assert_eq!(answer.value, 42);
    for kernel in [DOUBLE, DOUBLE_FLAGGED] {
        let mut channel = Channel::open(&backend(), 0, kernel).expect("a channel");
        for value in 0..100 {
            channel.send(Number { value }).expect("room");
        }
        assert!((0..100).all(|value| channel.recv().expect("an answer").value == 2 * value), "{kernel:?}");
    }
}

#[test]
fn a_kernel_keeps_state_between_messages() {
    for kernel in [TOTAL, RUNNING] {
        let mut channel = Channel::open(&backend(), 0, kernel).expect("a channel");
        for value in 1..=100 {
            channel.send(Number { value }).expect("room");
        }
        let last = channel.iter().take(100).last().expect("answers");
        assert_eq!(last, Sum { count: 100, total: 5050 }, "{kernel:?}");
    }
}

#[test]
fn a_kernel_with_arguments_is_launched_with_their_types() {
    let backend = backend();
    let module = Module::load(&backend, &IMAGE, &ABI).expect("our layouts");
    let options = ringmem::channel::Options { arguments: &[1000], ..ringmem::channel::Options::new(OFFSET.name()) };
    // SAFETY: its argument is a number.
    let mut channel = unsafe { Channel::<Number, Number>::open_raw(&backend, 0, &module, &options) }.expect("a channel");
    channel.send(Number { value: 1 }).expect("room");
    assert_eq!(channel.recv().expect("an answer").value, 1001);
}

#[test]
fn a_grid_kernel_processes_a_buffer() {
    let backend = backend();
    let module = Module::load(&backend, &IMAGE, &ABI).expect("our layouts");
    let stream = Stream::new(&backend, 0).expect("a stream");
    let mut data = GpuBuffer::<f32>::from_slice(Device::new(&backend, 0), &[1.5; 1000]).expect("room");
    let first = DevicePointer::new(data.device_address().expect("it has bytes").get());
    // SAFETY: the buffer has that many elements, and is waited for.
    let launched = unsafe { stream.start(&module, &SCALE, (first, 1000, 3), 4) }.expect("queued");
    launched.wait().expect("it ends");
    assert_eq!(data.to_vec().expect("a copy"), [4.5; 1000]);
    data.zero().expect("idle");
}

#[test]
fn the_abi_contains_each_layout_once() {
    let of = |name: &str| ABI.layouts.iter().filter(|layout| layout.name == name).count();
    assert_eq!((of("Number"), of("Sum")), (1, 1));
    assert!(ABI.layouts.contains(&<[Sum; 2] as Layout>::DESCRIPTOR));
    assert_eq!(IMAGE.abi, ABI);
    assert_eq!(
        IMAGE.host.iter().map(|entry| entry.name).collect::<Vec<_>>(),
        ["double", "double_flagged", "running", "total", "offset", "scale"]
    );
}
