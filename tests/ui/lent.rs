use core::mem::MaybeUninit;

use ringmem::shared::Memory;
use ringmem::wait::How;
use ringmem_layouts::ring::{BareSlot, End, mpmc, spsc};

type Lent<'m> = &'m mut [MaybeUninit<BareSlot<String>>];

fn lent(memory: Lent<'_>) -> spsc::RingIn<String, Lent<'_>> {
    spsc::RingIn::<String, Lent<'_>>::over(memory).unwrap()
}

fn main() {
    let mut memory = [const { MaybeUninit::uninit() }; 8];
    let mut ring = spsc::RingIn::<String, Lent<'_>>::over(&mut memory[..]).unwrap();
    let _ = ring.split().0.push(String::new());
    drop(ring);
    let _ = lent(&mut memory[..4]);
    let _ = mpmc::RingIn::<String, _>::over([const { MaybeUninit::uninit() }; 4]);
    let shared = Memory::create::<u64>(4).unwrap();
    let waiting = shared.producer::<u64>().unwrap().into_waiting(How::Spin);
    let bell = waiting.end().bells().theirs;
    println!("{bell:?}");
    drop(waiting);
}
