//! Each driver function of a workload fails, at its first and some later calls.

use std::sync::Arc;

use ringmem::backend::cuda::{CudaBackend, Settings};
use ringmem::backend::{Address, Backend, Fill, MemoryInfo, Uses};
use ringmem::bridge::TransferStrategy;
use ringmem::channel::{Channel, Options};
use ringmem::memory::{Buffer, Device, Host, Pinned, Unified};
use ringmem::stream::{Module, Stream};
use ringmem::{Error, Rejected};
use ringmem_kernels::echo::Echo;
use ringmem_kernels::{ABI, IMAGE};

use crate::rig::{Alone, Double};

const RELEASES: [&str; 12] = [
    "cuMemRelease",
    "cuMemAddressFree",
    "cuMemFree_v2",
    "cuMemFreeAsync",
    "cuMemFreeHost",
    "cuMemPoolDestroy",
    "cuStreamDestroy_v2",
    "cuEventDestroy_v2",
    "cuModuleUnload",
    "cuDevicePrimaryCtxRelease_v2",
    // Without a bound context nothing can be freed.
    "cuCtxSetCurrent",
    // Which call fails depends on which thread is first.
    "cuCtxGetCurrent",
];

pub fn work(stream_ordered: bool) -> Result<(), Error> {
    let backend = CudaBackend::with(Settings { stream_ordered, ..Settings::default() })?;
    backend.capabilities(0)?;
    let _: Option<MemoryInfo> = backend.memory_info(0)?;
    let (stream, other) = (Stream::new(&backend, 0)?, Stream::new(&backend, 0)?);
    let module = Module::load(&backend, &IMAGE, &ABI)?;
    let mut gpu = Buffer::<u64, _>::new_on(Device::new(&backend, 0), 40_000, &stream)?;
    gpu.fill(0x0102_0304_0506_0708)?;
    let host = Buffer::<u64, _>::new(Host::new(&backend, 0), 40_000)?;
    let pinned = Buffer::<u64, _>::new(Pinned::new(&backend, 0), 40_000)?;
    let (host, gpu) = stream.copy(host, gpu).map_err(Rejected::into_error)?.detach();
    let (gpu, pinned) = other.copy(gpu, pinned).map_err(Rejected::into_error)?.detach();
    let (large, back) =
        (Buffer::<u8, _>::new(Host::new(&backend, 0), 2_200_000)?, Buffer::<u8, _>::new(Host::new(&backend, 0), 2_200_000)?);
    let far = Buffer::<u8, _>::new(Device::new(&backend, 0), 2_200_000)?;
    let (large, far) = stream.copy(large, far).map_err(Rejected::into_error)?.detach();
    let (far, back) = stream.copy(far, back).map_err(Rejected::into_error)?.detach();
    let mut gpu = stream.fill(gpu, 1..100, 0x0102_0304_0506_0708).map_err(Rejected::into_error)?.detach();
    let address = gpu.device_address().map_or(0, |address| address.get());
    // SAFETY: the buffer's bytes; it records the launch.
    drop(unsafe { stream.launch(&module, "increment", &[address, 1000]) }?);
    gpu.used_by(&stream)?;
    let unified = Buffer::<u64, _>::new(Unified::new(&backend, 0), 1000)?;
    let unified = stream.prefetch(unified, Some(0)).map_err(Rejected::into_error)?.wait().map_err(Rejected::into_error)?;
    stream.synchronize()?;
    other.synchronize()?;
    gpu.close()?;
    far.close()?;
    large.close()?;
    back.close()?;
    pinned.close()?;
    host.close()?;
    unified.close()?;
    word(&backend)?;
    parts(&backend)?;
    for strategy in [TransferStrategy::Unified, TransferStrategy::Async] {
        // SAFETY: `echo` takes no own arguments.
        let mut channel: Channel<Echo, Echo> =
            unsafe { Channel::open_raw(&backend, 0, &module, &Options { strategy: Some(strategy), ..Options::new("echo") }) }?;
        let _ = channel.try_send(Echo { words: [1; 8] });
        channel.close()?;
    }
    Ok(())
}

fn parts(backend: &Arc<CudaBackend>) -> Result<(), Error> {
    let Some(unit) = backend.capabilities(0)?.mapping_granularity else { return Ok(()) };
    let range = backend.reserve(0, 4 * unit)?;
    let mut blocks = Vec::new();
    let outcome = (|| {
        blocks.push(backend.map(&range, 0, unit)?);
        blocks.push(backend.map(&range, unit, unit)?);
        // SAFETY: two parts, which nothing else uses.
        unsafe { backend.fill_now(&Fill::of(Address::Device(range.address()), 5_u8, 2 * unit)) }?;
        // SAFETY: nothing uses it.
        unsafe { backend.remap(&mut blocks[1], 2 * unit) }
    })();
    let mut freed = Ok(());
    for block in blocks.into_iter().filter(|block| block.layout.size() > 0) {
        // SAFETY: each block is freed once, and unused.
        freed = freed.and(unsafe { backend.free(&block, &Uses::NONE) });
    }
    outcome.and(freed)
}

fn word(backend: &Arc<CudaBackend>) -> Result<(), Error> {
    let mut words = Buffer::<u64, _>::new(Device::new(backend, 0), 2)?;
    let stream = Stream::new(backend, 0)?;
    let Some(address) = words.device_address() else { return Ok(()) };
    let place = Address::Device(address);
    // SAFETY: the buffer's first word, unused until the wait.
    unsafe {
        backend.publish_now(place, 3)?;
        backend.fill_now(&Fill { to: place, pattern: 5, size: 8, count: 1 })?;
    }
    let copied = stream.fill(words, ..1, 4).map_err(Rejected::into_error)?.wait().map_err(Rejected::into_error)?;
    words = copied;
    assert_eq!(words.to_vec()?[0], 4);
    Ok(())
}

fn every_call_in_turn(stream_ordered: bool) {
    let double = Double::new();
    work(stream_ordered).expect("nothing fails yet");
    assert_eq!(double.settled(0), 0);
    double.reset();
    work(stream_ordered).expect("nothing fails yet");
    let counts: Vec<(&str, u64)> =
        ringmem_driver_double::symbols().map(|symbol| (symbol, double.calls(symbol))).filter(|(_, calls)| *calls > 0).collect();
    assert!(counts.len() > 30, "{counts:?}");
    // The code does not reach the kernels, which the PTX machine executes slowly.
    let codes: &[u32] = if std::env::var("RINGMEM_DOUBLE_KERNELS").is_ok_and(|kernels| kernels == "ptx") { &[2] } else { &[1, 2, 999] };
    let mut failures = 0;
    for (symbol, calls) in counts {
        let most = calls.min(60);
        for number in (1..=most).filter(|number| *number <= 12 || number % 7 == 0 || *number == most) {
            for &code in codes {
                double.reset();
                double.fail(symbol, number, code);
                let before = double.live();
                let error = work(stream_ordered).err();
                failures += u64::from(error.is_some());
                if let Some(Error::Driver { call, code: told, name, .. }) = error {
                    assert!(
                        (call, told) == (symbol, code) && name.starts_with("CUDA_ERROR_"),
                        "{symbol}, {code}: {call} said {name}, {told}"
                    );
                }
                let expected = match symbol {
                    "cuCtxSetCurrent" => 100,
                    // The mapping, and the addresses around it.
                    "cuMemUnmap" => 2,
                    _ => u64::from(RELEASES.contains(&symbol)),
                };
                let left = double.settled(before + expected).saturating_sub(before);
                assert!(left <= expected, "call {number} of {symbol} answered {code}: {left} left");
            }
        }
    }
    assert!(failures > 100, "{failures} of them were seen");
    double.reset();
}

fn run(path: &'static str, stream_ordered: bool) {
    let alone = Alone::new(path);
    if alone.is_here() {
        return every_call_in_turn(stream_ordered);
    }
    let said = alone.run();
    assert!(!said.contains("violations"), "{said}");
}

#[test]
fn no_failing_call_leaks_with_pooled_memory() {
    run(concat!(module_path!(), "::no_failing_call_leaks_with_pooled_memory"), true);
}

#[test]
fn no_failing_call_leaks_with_driver_memory() {
    run(concat!(module_path!(), "::no_failing_call_leaks_with_driver_memory"), false);
}
