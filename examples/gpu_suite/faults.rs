use std::alloc::Layout;
use std::sync::Arc;

use ringmem::backend::cuda::CudaBackend;
use ringmem::backend::{Backend, Launch, MemoryLocation, Options, Request};
use ringmem::memory::{Buffer, Device, GpuBuffer};
use ringmem::stream::{Module, Stream};
use ringmem::{Abi, Error, Image};
use ringmem_kernels::{ABI, IMAGE};

use crate::child::Child;
use crate::exchange::{exchange, open, options};
use crate::limits::limits;
use crate::report::{Failure, Report, Skipped, demand};

pub fn run(report: &mut Report, backend: &Arc<CudaBackend>) -> Result<(), Failure> {
    report.fact("more memory than there is", || refused(backend, over_allocation));
    report.fact("an image that is none", || refused(backend, no_image));
    report.fact("an image of another ABI", || refused(backend, another_abi));
    report.fact("arguments that make no sense", || refused(backend, arguments));
    report.fact("ranges outside of a buffer and alignments that there are not", || refused(backend, ranges));
    report.fact("an address that is misaligned, seen by the kernel", || refused(backend, misaligned));
    report.fact("a context destroyed under a kernel", || lost(backend));
    Ok(())
}

fn refused(backend: &Arc<CudaBackend>, refuse: fn(&Arc<CudaBackend>) -> Result<String, Failure>) -> Result<String, Failure> {
    let facts = refuse(backend)?;
    works(backend)?;
    Ok(facts)
}

fn works(backend: &Arc<CudaBackend>) -> Result<(), Failure> {
    let mut buffer = GpuBuffer::<u8>::new(Device::new(backend, 0), 5000)?;
    buffer.fill(5)?;
    demand(buffer.to_vec()?.iter().all(|&byte| byte == 5), || "a fill afterwards came back otherwise".to_owned())?;
    let mut channel = open(backend, &options("echo"))?;
    exchange(&mut channel, 0, 100)?;
    channel.close()?;
    Ok(())
}

fn error_of<T>(what: &str, outcome: Result<T, Error>) -> Result<Error, Failure> {
    outcome.err().ok_or_else(|| format!("{what} was not refused").into())
}

fn over_allocation(backend: &Arc<CudaBackend>) -> Result<String, Failure> {
    let Some(info) = backend.memory_info(0)? else { return Err(Skipped("nobody knows how much memory there is".to_owned()).into()) };
    let asked = info.total.saturating_mul(2);
    let buffer = GpuBuffer::<u8>::new(Device::new(backend, 0), usize::try_from(asked)?);
    let error = error_of("twice the memory", buffer)?;
    demand(matches!(error, Error::OutOfMemory { requested, .. } if requested == asked), || error.to_string())?;
    Ok(error.to_string())
}

fn no_image(backend: &Arc<CudaBackend>) -> Result<String, Failure> {
    let mut said = Vec::new();
    for ptx in [&b"no text of any kind"[..], b".version 6.3\n.target sm_70\n.address_size 64\n.visible .entry broken() { nonsense; }\n"] {
        let error = error_of("an image that is none", Module::load(backend, &Image { ptx, ..IMAGE }, &ABI))?;
        demand(matches!(error, Error::Driver { .. }), || error.to_string())?;
        said.push(error.to_string());
    }
    Ok(said.join("; "))
}

fn another_abi(backend: &Arc<CudaBackend>) -> Result<String, Failure> {
    let mine = Abi::of(ringmem::LAYOUTS);
    let error = error_of("an image of another ABI", Module::load(backend, &IMAGE, &mine))?;
    demand(matches!(error, Error::Abi { .. }), || error.to_string())?;
    let error = error_of("a text of another ABI", Module::load(backend, &Image { abi: mine, ..IMAGE }, &mine))?;
    demand(matches!(error, Error::Abi { .. }), || error.to_string())?;
    Ok("by what it says, and by what its text says".to_owned())
}

fn arguments(backend: &Arc<CudaBackend>) -> Result<String, Failure> {
    let (stream, module) = (Stream::new(backend, 0)?, Module::load(backend, &IMAGE, &ABI)?);
    // SAFETY: refused: the kernel takes two arguments.
    let error = error_of("one argument for two", unsafe { stream.launch(&module, "increment", &[0]) }.map(drop))?;
    demand(matches!(error, Error::Arguments { expected: 2, got: 1, .. }), || error.to_string())?;
    // SAFETY: refused: an unknown kernel.
    let error = error_of("a kernel that there is not", unsafe { stream.launch(&module, "nobody", &[]) }.map(drop))?;
    demand(matches!(error, Error::NotFound { what: "kernel", .. }), || error.to_string())?;
    for groups in [0, u32::MAX] {
        let launch = Launch {
            module: backend.load(&IMAGE, &ABI)?,
            name: "increment",
            arguments: &[0, 0],
            groups,
            warps: 1,
            stays: false,
            operands: &[],
            elements: None,
        };
        // SAFETY: refused: too many groups.
        let error = error_of("so many groups", unsafe { backend.launch(&launch, stream.id()) })?;
        demand(matches!(error, Error::Size { least: 1, .. }), || error.to_string())?;
    }
    Ok("their number, a name, 0 groups and more than run at once".to_owned())
}

fn ranges(backend: &Arc<CudaBackend>) -> Result<String, Failure> {
    let mut buffer = Buffer::<u8, _>::new(Device::new(backend, 0), 100)?;
    let error = error_of("a range outside", buffer.slice(50..101).map(drop))?;
    demand(matches!(error, Error::Range { offset: 50, len: 51, size: 100, .. }), || error.to_string())?;
    let error = error_of("bytes for which there is no room", buffer.copy_from(&[0; 101]))?;
    demand(matches!(error, Error::Size { what: "length in elements", least: 100, asked: 101, .. }), || error.to_string())?;
    let error = error_of("elements that are misaligned", buffer.slice(1..9)?.cast::<u64>().map(drop))?;
    demand(matches!(error, Error::Cast { .. }), || error.to_string())?;
    let most = backend.capabilities(0)?.largest_align;
    let layout = Layout::from_size_align(64, usize::try_from(most.saturating_mul(2))?)?;
    let request = Request { location: MemoryLocation::Device, device: 0, layout, options: Options::empty() };
    let error = error_of("more than the largest alignment", backend.allocate(&request, None))?;
    demand(matches!(error, Error::Align { .. }), || error.to_string())?;
    Ok("before the driver was asked".to_owned())
}

fn misaligned(backend: &Arc<CudaBackend>) -> Result<String, Failure> {
    let (stream, module) = (Stream::new(backend, 0)?, Module::load(backend, &IMAGE, &ABI)?);
    let mut buffer = Buffer::<u64, _>::new(Device::new(backend, 0), 4)?;
    buffer.fill(0)?;
    let address = buffer.device_address().ok_or("device memory has no address")?.get();
    // SAFETY: within the buffer, which records the launch; the kernel refuses a misaligned address.
    let kernel = unsafe { stream.launch(&module, "hold", &[address + 4]) }?;
    buffer.used_by(&stream)?;
    let Ok(left) = kernel.wait_timeout(limits().answer) else { return Err("it took the address".into()) };
    left.map_err(ringmem::Rejected::into_error)?;
    demand(buffer.to_vec()? == [0; 4], || "it wrote there".to_owned())?;
    Ok("it left at once and wrote nothing".to_owned())
}

fn lost(backend: &Arc<CudaBackend>) -> Result<String, Failure> {
    let mut child = Child::start("child-loses-its-context", &[])?;
    let said = child.line(limits().start);
    drop(child);
    works(backend)?;
    let said = said?;
    if said.is_empty() {
        return Ok("the process ended inside the driver; others go on".to_owned());
    }
    demand(said.starts_with("lost: "), || format!("the child said `{said}`"))?;
    Ok(said)
}
