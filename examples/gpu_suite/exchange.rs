use std::sync::Arc;
use std::time::Instant;

use ringmem::backend::cuda::CudaBackend;
use ringmem::bridge::TransferStrategy;
use ringmem::channel::{Channel, Options, ReceiveError, SendError};
use ringmem::stream::Module;
use ringmem_kernels::echo::Echo;
use ringmem_kernels::{ABI, IMAGE};

use crate::limits::{Limits, limits};
use crate::report::Failure;

pub type Echoes = Channel<Echo, Echo>;

pub const STRATEGIES: [TransferStrategy; 5] = [
    TransferStrategy::Unified,
    TransferStrategy::Flagged,
    TransferStrategy::Sync,
    TransferStrategy::Async,
    TransferStrategy::DmaPolling { poll_interval_us: 1 },
];

pub fn options(kernel: &str) -> Options<'_> {
    let Limits { idle, timeout, .. } = *limits();
    Options { idle, timeout, ..Options::new(kernel) }
}

pub fn by(strategy: TransferStrategy) -> Options<'static> {
    let kernel = if strategy == TransferStrategy::Flagged { "echo_flagged" } else { "echo" };
    Options { strategy: Some(strategy), ..options(kernel) }
}

pub fn open(backend: &Arc<CudaBackend>, options: &Options<'_>) -> Result<Echoes, Failure> {
    let module = Module::load(backend, &IMAGE, &ABI)?;
    // SAFETY: the echo kernels take no own arguments.
    Ok(unsafe { Channel::open_raw(backend, 0, &module, options) }?)
}

pub const fn message(number: u64) -> Echo {
    let turned = number.rotate_left(17);
    Echo { words: [number, !number, turned, !turned, number ^ 0x5555, number.wrapping_mul(number), number << 7, 7] }
}

pub fn exchange(channel: &mut Echoes, first: u64, count: u64) -> Result<(), Failure> {
    let last = first + count;
    let (mut sent, mut received, mut moved) = (first, first, Instant::now());
    while received < last {
        while sent < last {
            match channel.try_send(message(sent)) {
                Ok(()) => sent += 1,
                Err(SendError::Full(_)) => break,
                Err(SendError::Kernel { error, .. }) => return Err(error.into()),
                Err(error) => return Err(error.to_string().into()),
            }
        }
        match channel.try_recv() {
            Ok(answer) if answer == message(received) => (received, moved) = (received + 1, Instant::now()),
            Ok(answer) => return Err(format!("message {received} came back as {:?}", answer.words).into()),
            Err(ReceiveError::Empty) if moved.elapsed() > limits().answer => {
                let dump = channel.dump().unwrap_or_else(|rejected| rejected.value);
                return Err(format!("{received} of {last} came back, then none: {dump}").into());
            }
            Err(ReceiveError::Empty) => {
                channel.check()?;
                std::thread::yield_now();
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
