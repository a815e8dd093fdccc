//! Kernels over buffers without `unsafe`: from one buffer to another, three in a chain, and an update of a mirrored buffer.
//!
//! `cargo run --release --features std --example 10_grid_kernels`

use ringmem::backend::host::{Counters, HostBackend};
use ringmem::memory::{Device, GpuBuffer, Pinned};
use ringmem::mirror::MirroredBuffer;
use ringmem::stream::Stream;
use ringmem_kernels::{Index, kernels};

kernels! {
    /// The square root of a non-negative input, by Newton's method.
    pub grid fn process_data(input: &f32, output: &mut f32) {
        let mut root = input.max(1.0);
        for _ in 0..30 {
            root = 0.5 * (root + *input / root);
        }
        *output = root;
    }

    /// The mean of an element and its neighbours.
    pub grid fn smooth(at: Index, input: &[f32], output: &mut f32) {
        let near = &input[at.get().saturating_sub(1)..(at.get() + 2).min(at.len())];
        *output = near.iter().sum::<f32>() / near.len() as f32;
    }

    /// Multiplies in place.
    pub grid fn scale(data: &mut f32, factor: f32) {
        *data *= factor;
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let backend = HostBackend::builder().build()?;
    let (memory, stream) = (Device::new(&backend, 0), Stream::new(&backend, 0)?);

    // `run` lends the buffers, and returns when the kernel has ended.
    let squares: Vec<f32> = (0..1000_u16).map(|n| f32::from(n * (n % 60))).collect();
    let input = GpuBuffer::from_slice(memory.clone(), &squares)?;
    let mut output = GpuBuffer::<f32>::new(memory.clone(), squares.len())?;
    stream.run(PROCESS_DATA, (&input, &mut output))?;
    let roots = output.to_vec()?;
    let wrong = squares.iter().zip(&roots).filter(|(square, root)| (root.powi(2) - **square).abs() > 1e-3 * square.max(1.0)).count();
    println!("process_data: {} roots, {wrong} of them wrong", roots.len());

    // `submit` owns the buffers and returns at once: each kernel of a chain comes after the one before, and the data stays on the device.
    let copies = |counters: Counters| counters.uploads.count + counters.downloads.count + counters.device_copies.count;
    let before = copies(backend.counters());
    let (_, smoothed) = stream.submit(SMOOTH, (output, input))?.detach();
    let (smoothed, ()) = stream.submit(SCALE, (smoothed, 10.0))?.detach();
    let roots_again = GpuBuffer::<f32>::new(memory.clone(), squares.len())?;
    let (_, last) = stream.submit(PROCESS_DATA, (smoothed, roots_again))?.wait()?;
    println!("chain: 3 kernels, {} copies between them; the last root is {:.3}", copies(backend.counters()) - before, last.to_vec()?[999]);

    // A mirrored buffer moves its elements to the side that uses them.
    let mut prices = MirroredBuffer::<f32, _, _>::new(Pinned::new(&backend, 0), memory, 4)?;
    prices.copy_from(&[1.0, 2.0, 3.0, 4.0])?;
    stream.run(SCALE, (prices.device_mut()?, 1.5))?;
    prices.host_mut()?[0] = 100.0;
    stream.run(SCALE, (prices.device_mut()?, 2.0))?;
    let (elements, moved) = (prices.to_vec()?, prices.statistics());
    println!("mirror: {elements:?} after {} copies to the device and {} back", moved.to_device.count, moved.to_host.count);
    Ok(())
}
