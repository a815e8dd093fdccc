use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use crate::NAME;
use crate::block::Kind;
use crate::driver::Driver;
use crate::space::Live;

#[derive(Clone)]
pub struct Left {
    what: &'static str,
    which: String,
}

#[derive(Default)]
pub struct Lost {
    things: Mutex<Vec<Left>>,
}

impl Lost {
    pub fn keep(&self, things: Vec<Left>) {
        self.things.lock().unwrap_or_else(PoisonError::into_inner).extend(things);
    }
}

/// Returns the live objects, including those lost with a context. A stream-ordered free counts when queued.
#[unsafe(no_mangle)]
pub extern "C" fn ringmem_double_live() -> u64 {
    all(Driver::the()).len() as u64
}

/// Returns the bytes not freed, without registrations.
#[unsafe(no_mangle)]
pub extern "C" fn ringmem_double_live_bytes() -> u64 {
    let live = Driver::the().space.live();
    live.iter().filter(|block| !matches!(block.kind, Kind::Registered)).map(|block| block.len).sum()
}

fn all(driver: &Driver) -> Vec<Left> {
    let mut all = driver.lost.things.lock().unwrap_or_else(PoisonError::into_inner).clone();
    all.extend(live(driver, None));
    let retained = driver.devices.iter().map(|device| device.context.retained()).sum();
    all.extend((0..retained).map(|_| Left { what: "retain of the primary context", which: String::new() }));
    all
}

pub fn live(driver: &Driver, of: Option<u32>) -> Vec<Left> {
    let is = |device| of.is_none_or(|of| of == device);
    let block = |Live { address, kind, len, made, .. }| {
        let what = match kind {
            Kind::Device => "device memory",
            Kind::Ordered => "stream-ordered memory",
            Kind::Managed => "managed memory",
            Kind::Pinned => "pinned memory",
            Kind::Registered => "registration of host memory",
            Kind::Global | Kind::Pageable => "memory of the double",
        };
        Left { what, which: format!(" {address:#x}, {len} bytes, call {made}") }
    };
    let handle = |what| move |(handle, made)| Left { what, which: format!(" {handle:#x}, call {made}") };
    let mut live: Vec<Left> = driver.space.live().into_iter().filter(|block| is(block.device)).map(block).collect();
    live.extend(driver.pools.list(|pool| is(pool.device) && !pool.is_default).into_iter().map(handle("memory pool")));
    live.extend(driver.engine.streams.list(|stream| is(stream.device)).into_iter().map(handle("stream")));
    live.extend(driver.events.list(|event| is(event.device)).into_iter().map(handle("event")));
    live.extend(driver.modules.list(|module| is(module.device)).into_iter().map(handle("module")));
    live
}

pub fn report(driver: &Driver) {
    let all = all(driver);
    let mut counts = BTreeMap::<_, u64>::new();
    all.iter().for_each(|left| *counts.entry(left.what).or_default() += 1);
    let counts: Vec<String> = counts.into_iter().map(|(what, count)| format!("{count} {what}")).collect();
    eprintln!("{NAME}: {} leaked{}{}", all.len(), if all.is_empty() { "" } else { ": " }, counts.join(", "));
    for Left { what, which } in all {
        eprintln!("  {what}{which}");
    }
    for kernel in driver.engine.running() {
        eprintln!("  kernel `{kernel}` still runs");
    }
}
