use std::sync::Arc;
use std::thread;

use ringmem_layouts::ring::spsc::{Consumer, PopError, Ring};
use ringmem_layouts::{Host, Layout, RingHeader, RingLayout, SharedLayout, SlotCell};

#[derive(Clone, Copy, SharedLayout)]
#[repr(C)]
#[layout(message = 1)]
struct Flag {
    set: u8,
}

static RING: Ring<u8, 8> = Ring::new();

fn main() {
    let mut ring = Ring::<u64, 8>::new();
    let (mut producer, mut consumer) = ring.split();
    thread::scope(|scope| {
        scope.spawn(move || producer.push(1));
        scope.spawn(move || consumer.pop());
    });
    let mut owned = Ring::<Arc<u8>, 8>::new();
    let (mut filling, mut emptying) = owned.split();
    thread::scope(|scope| {
        scope.spawn(|| drop(filling.push(Arc::new(1))));
        scope.spawn(|| drop(emptying.pop()));
    });
    let _ = filling.batch(4).push(Arc::new(2));
    let _ = emptying.pop();
    let _ = RingLayout::of::<u8>(8);
    let _ = (Flag::DESCRIPTOR, &RING);
    foreign();
}

fn foreign() {
    let header = RingHeader::new::<u64>(&RingLayout::of::<u64>(1).unwrap(), 0);
    let slot = SlotCell::new(0);
    let (header, slots) = (&header, std::ptr::NonNull::from(&slot));
    let consumer = unsafe { Consumer::<u64, Host>::new(header, header, slots) };
    match consumer.unwrap().pop() {
        Ok(_) | Err(PopError::Empty) => {}
        Err(PopError::Corrupt(_)) => {}
    }
    match Ring::<u64, 1>::new().split().1.pop() {
        Ok(_) | Err(PopError::Empty) => {}
    }

}
