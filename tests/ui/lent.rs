use core::mem::MaybeUninit;

use ringmem::shared::Memory;
use ringmem::wait::WaitStrategy;
use ringmem_layouts::ring::{BareSlot, End, mpmc, spsc};

type Reborrow<'m> = &'m mut [MaybeUninit<BareSlot<String>>];

fn lent(memory: Reborrow<'_>) -> spsc::RingIn<String, Reborrow<'_>> {
    spsc::RingIn::<String, Reborrow<'_>>::over(memory).unwrap()
}

fn main() {
    let mut memory = [const { MaybeUninit::uninit() }; 8];
    let mut ring = spsc::RingIn::<String, Reborrow<'_>>::over(&mut memory[..]).unwrap();
    let _ = ring.split().0.push(String::new());
    drop(ring);
    let _ = lent(&mut memory[..4]);
    let _ = mpmc::RingIn::<String, _>::over([const { MaybeUninit::uninit() }; 4]);
    let shared = Memory::create::<u64>(4).unwrap();
    let waiting = shared.producer::<u64>().unwrap().into_waiting(WaitStrategy::Spin);
    let bell = waiting.end().wait_words().theirs;
    println!("{bell:?}");
    drop(waiting);
}
