//! [`Launch`]: a kernel's blocks as threads, over the host build of its entry or over its PTX; how a fault breaks the context.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::Duration;

use ringmem_layouts::image::KernelHost;
use ringmem_ptx_machine::{Fault, Kind as FaultKind};

use crate::block::{Block, Kind};
use crate::code::Code;
use crate::device::Device;
use crate::driver::Driver;
use crate::module::Program;
use crate::stream::Ticket;
use crate::virtual_memory::Use;

pub const MULTIPROCESSORS: u64 = 4;
pub const BLOCKS_EACH: u64 = 16;

/// INVARIANT: `arguments` match the program's; the launch promised what `Entry::run` requires.
pub struct Launch {
    pub program: Program,
    pub arguments: Vec<u64>,
    pub groups: u64,
    /// Of a block, in two dimensions.
    pub threads: [u32; 2],
}

struct Group<'a> {
    driver: &'static Driver,
    device: &'static Device,
    ticket: &'a Ticket,
    kernel: &'static str,
    /// The PTX machine runs the kernel. Its accesses are aligned, so none crosses the border of two mappings; but it looks ahead in 256 bytes
    /// and more, which must not count as the kernel's use of the next mapping.
    is_machine: bool,
    index: u64,
    groups: u64,
}

impl Launch {
    /// The kernel uses the mappings into which its arguments point, from now until it ends.
    pub fn note(&self, driver: &Driver, ticket: &Ticket) {
        for &argument in &self.arguments {
            if let Some(block) = driver.space.mapping(argument) {
                // Stream-ordered memory alone has wrong orders.
                let _ = block.used_by(ticket);
            }
        }
    }

    pub fn execute(self, driver: &'static Driver, device: u32, ticket: &Ticket) {
        let Self { program, arguments, groups, threads } = self;
        let name = program.name();
        let device = &driver.devices[device as usize];
        driver.engine.runs(name);
        static GRIDS: AtomicU64 = AtomicU64::new(1);
        let (next, grid) = (AtomicU64::new(0), GRIDS.fetch_add(1, Relaxed));
        let multiprocessor = || {
            loop {
                let index = next.fetch_add(1, Relaxed);
                if index >= groups {
                    return;
                }
                let is_machine = matches!(program, Program::Ptx { .. });
                let group = Group { driver, device, ticket, kernel: name, is_machine, index, groups };
                let entry = match &program {
                    Program::Host { entry, .. } => entry,
                    Program::Ptx { image, .. } => {
                        if let Err(fault) = driver.machine.run(image, name, &arguments, &group, threads, grid) {
                            group.fail(&fault);
                        }
                        continue;
                    }
                };
                // SAFETY: by the invariant the arguments match the program, and the launch promised live memory, shared by the kernel's
                // protocol.
                let ended = catch_unwind(AssertUnwindSafe(|| unsafe { (entry.run)(&group, &arguments) }));
                if let Err(payload) = ended {
                    std::mem::forget(payload);
                    device.context.fail(Code::LAUNCH_FAILED);
                }
            }
        };
        thread::scope(|scope| {
            for _ in 0..groups.min(MULTIPROCESSORS * BLOCKS_EACH) {
                let thread = thread::Builder::new().name(format!("double-{name}"));
                if thread.spawn_scoped(scope, multiprocessor).is_err() {
                    // Fewer threads would run fewer blocks at once than promised.
                    device.context.fail(Code::LAUNCH_OUT_OF_RESOURCES);
                }
            }
        });
        driver.engine.left(name);
    }
}

impl Group<'_> {
    fn fail(&self, fault: &Fault) {
        let text = format!("kernel `{}`, block {}: {fault}", self.kernel, self.index);
        eprintln!("{}: {text}", crate::NAME);
        self.device.context.fail(match fault.kind {
            FaultKind::OutOfBounds => Code::ILLEGAL_ADDRESS,
            FaultKind::Misaligned => Code::MISALIGNED_ADDRESS,
            _ => Code::LAUNCH_FAILED,
        });
        if !matches!(fault.kind, FaultKind::OutOfBounds | FaultKind::Misaligned | FaultKind::Trap) {
            self.driver.violations.add(text);
        }
    }
}

impl KernelHost for Group<'_> {
    fn translate(&self, address: u64, bytes: u64) -> Option<NonNull<u8>> {
        let span = self.driver.space.reach(address, bytes).ok()?;
        let block = &span.block;
        if self.is_machine && span.blocks().nth(1).is_some() {
            return None;
        }
        let may = match (block.kind, &block.ordered) {
            // Which of its accesses are writes is unknown before they happen.
            (Kind::Mapped, _) => span.lets(self.device.ordinal, Use::Read),
            (Kind::Pinned | Kind::Registered | Kind::Managed, _) => true,
            (_, Some(ordered)) => ordered.is_ready() && ordered.pool.lets(self.device.ordinal),
            (_, None) => self.device.reaches(block.device),
        };
        let is_use = |block: &&Arc<Block>| block.ordered.is_some() || may && block.mapped.is_some();
        for wrong in span.blocks().filter(is_use).filter_map(|block| block.used_by(self.ticket)) {
            self.driver.violations.add(format!("kernel `{}`: {wrong}", self.kernel));
        }
        may.then(|| span.place())
    }

    fn now_ns(&self) -> u64 {
        // Some kernels only poll the time in their waits.
        thread::yield_now();
        self.driver.now_ns()
    }

    fn group(&self) -> u64 {
        self.index
    }

    fn groups(&self) -> u64 {
        self.groups
    }

    fn pause(&self, times: u32) {
        match times {
            0..50 => std::hint::spin_loop(),
            50..1000 => thread::yield_now(),
            _ => thread::sleep(Duration::from_micros(50)),
        }
    }
}

#[cfg(test)]
mod tests {
    use ringmem_layouts::image::Entry;

    use super::*;
    use crate::calls::context::{cuCtxSetCurrent, cuCtxSynchronize, cuDevicePrimaryCtxRelease_v2, cuDevicePrimaryCtxRetain};
    use crate::calls::device::cuInit;
    use crate::operation::Operation;

    #[test]
    fn a_panicking_kernel_breaks_the_context_until_its_end() {
        fn panics(_: &dyn KernelHost, _: &[u64]) {
            panic!("a kernel of the test panics");
        }
        let mut context = 0;
        // SAFETY: each takes or writes one handle.
        unsafe {
            assert_eq!((cuInit(0), cuDevicePrimaryCtxRetain(&raw mut context, 0), cuCtxSetCurrent(context)), (0, 0, 0));
            let program =
                Program::Host { entry: Entry { name: "panics", arguments: 0, run: panics }, parameters: Vec::new(), is_elementwise: false };
            let launch = Launch { program, arguments: Vec::new(), groups: 2, threads: [32, 1] };
            assert!(Driver::the().engine.queue(0, Operation::Launch(launch), None).is_ok());
            assert_eq!((cuCtxSynchronize(), cuCtxSynchronize()), (719, 719));
            assert_eq!((cuDevicePrimaryCtxRelease_v2(0), cuDevicePrimaryCtxRetain(&raw mut context, 0)), (0, 0));
            assert_eq!((cuCtxSynchronize(), cuDevicePrimaryCtxRelease_v2(0)), (0, 0));
        }
        assert!(Driver::the().engine.running().is_empty());
    }
}
