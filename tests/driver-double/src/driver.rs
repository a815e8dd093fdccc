//! [`Driver`]: all state of the double, and whether a call is admitted: after `cuInit`, before exit, not in a forked child, in a sound context.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU8};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use crate::block::{Block, Kind, POISON, Span};
use crate::code::{Answer, Code};
use crate::context;
use crate::device::Device;
use crate::engine::Engine;
use crate::entry::Needs;
use crate::event::Event;
use crate::faults;
use crate::handle_table::Table;
use crate::host_function;
use crate::leaks::{self, Lost};
use crate::log::Record;
use crate::module::{Kernel, Module};
use crate::pool::Pool;
use crate::settings::{self, Settings};
use crate::space::Space;
use crate::symbol::PLAIN;
use crate::violations::Violations;
use crate::virtual_memory::{Use, VirtualMemory};

pub struct Driver {
    pub settings: Settings,
    pub record: Record,
    pub devices: Vec<Device>,
    pub space: Space,
    pub engine: Engine,
    pub events: Table<Event>,
    pub modules: Table<Module>,
    pub functions: Table<Kernel>,
    pub pools: Table<Pool>,
    pub virtual_memory: VirtualMemory,
    pub lost: Lost,
    pub violations: Violations,
    pub machine: ringmem_ptx_machine::Device,
    stage: AtomicU8,
    gone: AtomicBool,
    unsettled: AtomicBool,
    born: Instant,
}

const NEW: u8 = 0;
const INITIALISED: u8 = 1;
const FORKED: u8 = 2;

unsafe extern "C" {
    safe fn atexit(callback: extern "C" fn()) -> i32;
    #[cfg(unix)]
    safe fn pthread_atfork(prepare: Option<extern "C" fn()>, parent: Option<extern "C" fn()>, child: Option<extern "C" fn()>) -> i32;
}

static DRIVER: OnceLock<Driver> = OnceLock::new();

extern "C" fn at_exit() {
    let Some(driver) = DRIVER.get() else { return };
    PLAIN.store(false, Release);
    driver.gone.store(true, Release);
    if driver.stage.load(Acquire) == INITIALISED {
        if driver.settings.leaks {
            leaks::report(driver);
        }
        driver.violations.report();
    }
}

/// A fork handler: `getpid` would be a system call in every call.
#[cfg(unix)]
extern "C" fn in_child() {
    PLAIN.store(false, Release);
    if let Some(driver) = DRIVER.get() {
        let _ = driver.stage.compare_exchange(INITIALISED, FORKED, Release, Relaxed);
    }
}

impl Driver {
    pub fn the() -> &'static Self {
        DRIVER.get_or_init(|| {
            let settings = Settings::read();
            faults::plan(&settings.fail);
            atexit(at_exit);
            #[cfg(unix)]
            pthread_atfork(None, None, Some(in_child));
            let pools = Table::new(0x90, "memory pool");
            let device = |ordinal| Device::new(ordinal, settings.memory, pools.insert(Pool::new(ordinal, true, u64::MAX)));
            Self {
                record: Record::open(settings.log.as_deref()),
                devices: (0..settings.devices).map(device).collect(),
                space: Space::new(),
                engine: Engine::new(settings.devices as usize, settings.delay, settings.queues),
                events: Table::new(0xE7, "event"),
                modules: Table::new(0x30, "module"),
                functions: Table::new(0xF0, "function of a module"),
                pools,
                virtual_memory: VirtualMemory::new(),
                lost: Lost::default(),
                violations: Violations::default(),
                machine: ringmem_ptx_machine::Device::new(settings.seed).with_poison(POISON),
                stage: AtomicU8::new(NEW),
                gone: AtomicBool::new(false),
                unsettled: AtomicBool::new(false),
                born: Instant::now(),
                settings,
            }
        })
    }

    pub fn initialise(&self) -> Answer {
        match self.stage.compare_exchange(NEW, INITIALISED, Release, Relaxed) {
            Ok(_) => {
                settings::announce();
                PLAIN.store(!self.record.is_on() && self.settings.waits.is_empty(), Release);
            }
            Err(INITIALISED) => {}
            Err(_) => return Err(Code::NOT_INITIALIZED),
        }
        Ok(())
    }

    pub fn admits(&self, needs: Needs) -> Answer {
        if self.gone.load(Acquire) {
            return Err(Code::DEINITIALIZED);
        }
        if host_function::is_inside() {
            self.violations.of_call("is called by a host function of a stream");
            return Err(Code::NOT_PERMITTED);
        }
        match (needs, self.stage.load(Acquire)) {
            (Needs::Nothing, _) => Ok(()),
            (Needs::Init, INITIALISED) => Ok(()),
            (Needs::Context, INITIALISED) => self.current()?.context.check(),
            _ => Err(Code::NOT_INITIALIZED),
        }
    }

    pub fn current(&self) -> Answer<&Device> {
        context::bound().map(|device| &self.devices[device as usize]).ok_or(Code::INVALID_CONTEXT)
    }

    pub fn device(&self, ordinal: i32) -> Answer<&Device> {
        usize::try_from(ordinal).ok().and_then(|ordinal| self.devices.get(ordinal)).ok_or(Code::INVALID_DEVICE)
    }

    pub fn device_of(&self, context: usize) -> Answer<&Device> {
        let device = &self.devices[context::device(context, self.devices.len())? as usize];
        if device.context.retained() > 0 { Ok(device) } else { Err(Code::INVALID_CONTEXT) }
    }

    pub fn demand(&self, attribute: i32) -> Answer {
        if self.settings.attributes.has(attribute) { Ok(()) } else { Err(Code::NOT_SUPPORTED) }
    }

    /// Resolves a range that an operation of a stream accesses, on the stream's device.
    pub fn resolve(&self, stream: usize, address: u64, len: u64, access: Use) -> Answer<Span> {
        let span = self.space.resolve(address, len)?;
        if span.block.mapped.is_none() || span.lets(self.engine.stream(stream)?.device, access) {
            Ok(span)
        } else {
            Err(Code::INVALID_VALUE)
        }
    }

    /// Virtual memory belongs to no context, and stays.
    pub fn destroy_context(&self, device: &Device) {
        let ordinal = device.ordinal;
        self.lost.keep(leaks::live(self, Some(ordinal)));
        self.engine.destroy_all(ordinal);
        self.events.retain(|event| event.device != ordinal);
        self.functions.retain(|kernel| kernel.device != ordinal);
        self.modules.retain(|module| module.device != ordinal);
        let left = self.space.clear(ordinal);
        let charged = left.iter().filter(|block| matches!(block.kind, Kind::Device | Kind::Global)).map(|block| block.len);
        device.give_back(charged.sum());
        left.into_iter().filter(|block| matches!(block.kind, Kind::Pinned | Kind::Managed)).for_each(std::mem::forget);
        for (handle, _) in self.pools.list(|pool| pool.device == ordinal) {
            if let Ok(pool) = self.pools.find(handle) {
                pool.clear(device);
            }
        }
        self.pools.retain(|pool| pool.device != ordinal || pool.is_default);
        device.forget();
        for other in &self.devices {
            other.reach(ordinal, false);
        }
    }

    pub fn free_ordered(&self, address: u64, block: &Arc<Block>) {
        if let (Some(_), Some(ordered)) = (self.space.remove(address), &block.ordered) {
            ordered.pool.give_back(&self.devices[block.device as usize], ordered.take_charge());
            self.unsettled.store(true, Release);
        }
    }

    pub fn settle(&self) {
        if self.unsettled.swap(false, Acquire) {
            for (handle, _) in self.pools.list(|_| true) {
                if let Ok(pool) = self.pools.find(handle) {
                    pool.settle(&self.devices[pool.device as usize]);
                }
            }
        }
    }

    pub fn now_ns(&self) -> u64 {
        u64::try_from(self.born.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}
