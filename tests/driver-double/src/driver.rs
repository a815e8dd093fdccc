//! [`Driver`]: everything there is, once per process.

use std::process;
use std::sync::OnceLock;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::time::Instant;

use crate::block::Kind;
use crate::call::Needs;
use crate::code::{Answer, Code};
use crate::context::Context;
use crate::engine::Engine;
use crate::event::Event;
use crate::faults::Faults;
use crate::leaks::{self, Lost};
use crate::module::{Kernel, Module};
use crate::record::Record;
use crate::settings::{self, Settings};
use crate::space::Space;
use crate::table::Table;

pub struct Driver {
    pub settings: Settings,
    pub record: Record,
    pub faults: Faults,
    pub context: Context,
    pub space: Space,
    pub engine: Engine,
    pub events: Table<Event>,
    pub modules: Table<Module>,
    pub functions: Table<Kernel>,
    pub lost: Lost,
    /// The process that initialised it; 0 before.
    process: AtomicU32,
    /// Whether the process is ending.
    gone: AtomicBool,
    born: Instant,
}

unsafe extern "C" {
    safe fn atexit(callback: extern "C" fn()) -> i32;
}

static DRIVER: OnceLock<Driver> = OnceLock::new();

extern "C" fn at_exit() {
    let Some(driver) = DRIVER.get() else { return };
    driver.gone.store(true, Release);
    if driver.settings.leaks && driver.process.load(Relaxed) == process::id() {
        leaks::report(driver);
    }
}

impl Driver {
    /// The one of this process; made by its first call.
    pub fn the() -> &'static Self {
        DRIVER.get_or_init(|| {
            let settings = Settings::read();
            // It fails for want of memory, and then only the report is missing.
            atexit(at_exit);
            Self {
                record: Record::open(settings.log.as_deref()),
                faults: Faults::parse(&settings.fail),
                settings,
                context: Context::default(),
                space: Space::new(),
                engine: Engine::new(),
                events: Table::new(0xE7),
                modules: Table::new(0x30),
                functions: Table::new(0xF0),
                lost: Lost::default(),
                process: AtomicU32::new(0),
                gone: AtomicBool::new(false),
                born: Instant::now(),
            }
        })
    }

    pub fn initialise(&self) -> Answer {
        match self.process.compare_exchange(0, process::id(), Release, Relaxed) {
            Ok(_) => settings::announce(),
            Err(process) if process == process::id() => {}
            Err(_) => return Err(Code::NOT_INITIALIZED),
        }
        Ok(())
    }

    /// Whether a call with such needs may go on.
    pub fn admits(&self, needs: Needs) -> Answer {
        if self.gone.load(Acquire) {
            return Err(Code::DEINITIALIZED);
        }
        match (needs, self.process.load(Acquire)) {
            (Needs::Nothing, _) => Ok(()),
            // After a fork the streams' threads are not there.
            (_, process) if process != process::id() => Err(Code::NOT_INITIALIZED),
            (Needs::Init, _) => Ok(()),
            (Needs::Context, _) => self.context.check(),
        }
    }

    /// Ends the context: what is in it is lost to its owners.
    pub fn destroy_context(&self) {
        self.lost.keep(leaks::live(self));
        self.engine.destroy_all();
        self.events.retain(|_| false);
        self.functions.retain(|_| false);
        self.modules.retain(|_| false);
        // Pinned memory stays where it is: its owner may still look at it.
        let left = self.space.clear();
        left.into_iter().filter(|block| block.kind == Kind::Pinned).for_each(std::mem::forget);
    }

    /// Nanoseconds since the driver was made.
    pub fn now_ns(&self) -> u64 {
        u64::try_from(self.born.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}
