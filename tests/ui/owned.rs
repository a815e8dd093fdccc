use std::mem::swap;
use std::sync::Arc;

use ringmem_layouts::ring::{mpmc, spsc};

fn main() {
    let (mut one, receives) = spsc::Ring::<Arc<u8>, 8>::new().into_ends();
    let (mut other, _receives) = spsc::Ring::<Arc<u8>, 8>::new().into_ends();
    swap(&mut one, &mut other);
    one.with(|one| other.with(|other| drop((one.push(Arc::new(1)), other.push(Arc::new(2))))));
    let written = one.with(|end| end.reserve(2).map(|grant| grant.written()));
    let (sends, _receives) = mpmc::Ring::<u8, 8>::new().into_ends();
    let clone = sends.clone();
    let slot = receives.end().row();
    drop(sends);
    println!("{written:?} {clone:?} {slot:p}", slot = slot.at(0));
    drop(receives);
}
