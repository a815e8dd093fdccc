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

/// Returns the bytes not freed, without registrations. Physical memory counts once, mapped or not.
#[unsafe(no_mangle)]
pub extern "C" fn ringmem_double_live_bytes() -> u64 {
    let (live, physical) = (Driver::the().space.live(), Driver::the().virtual_memory.bytes());
    physical + live.iter().filter(|block| !matches!(block.kind, Kind::Registered | Kind::Mapped)).map(|block| block.len).sum::<u64>()
}

fn all(driver: &Driver) -> Vec<Left> {
    let mut all = driver.lost.things.lock().unwrap_or_else(PoisonError::into_inner).clone();
    all.extend(live(driver, None));
    let retained = driver.devices.iter().map(|device| device.context.retained()).sum();
    all.extend((0..retained).map(|_| Left { what: "retain of the primary context", which: String::new() }));
    all
}

/// Returns the live objects, or those of one device's context, which owns no virtual memory.
pub fn live(driver: &Driver, of: Option<u32>) -> Vec<Left> {
    let is = |device| of.is_none_or(|of| of == device);
    let range = |what, address, len, made| Left { what, which: format!(" {address:#x}, {len} bytes, call {made}") };
    let block = |Live { address, kind, len, made, .. }| {
        let what = match kind {
            Kind::Device => "device memory",
            Kind::Ordered => "stream-ordered memory",
            Kind::Mapped => "mapping",
            Kind::Managed => "managed memory",
            Kind::Pinned => "pinned memory",
            Kind::Registered => "registration of host memory",
            Kind::Global | Kind::Pageable => "memory of the double",
        };
        range(what, address, len, made)
    };
    let handle = |what| move |(handle, made)| Left { what, which: format!(" {handle:#x}, call {made}") };
    let is_owned = |block: &Live| is(block.device) && (of.is_none() || block.kind != Kind::Mapped);
    let mut live: Vec<Left> = driver.space.live().into_iter().filter(is_owned).map(block).collect();
    if of.is_none() {
        live.extend(driver.virtual_memory.handles.list(|_| true).into_iter().map(handle("physical memory")));
        live.extend(
            driver.virtual_memory.reserved().into_iter().map(|(address, len, made)| range("address reservation", address, len, made)),
        );
    }
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
