//! Rings between an interrupt and the main loop, on a core without 64-bit atomics.
#![no_std]
#![no_main]

mod framed;
mod mailbox;
mod slotted;
mod spsc;
mod tick;

use core::panic::PanicInfo;

use cortex_m::Peripherals;
use cortex_m_rt::entry;
use cortex_m_semihosting::{debug, hprintln};

const START: u64 = u64::MAX - 5;

#[entry]
fn main() -> ! {
    let Some(peripherals) = Peripherals::take() else { unreachable!("main runs once") };
    tick::start(peripherals.SYST);
    framed::interrupt_to_main(100_000);
    framed::main_to_interrupt(100_000);
    spsc::interrupt_to_main(10_000);
    spsc::main_to_interrupt(10_000);
    slotted::flagged_interrupt_to_main(10_000);
    slotted::flagged_main_to_interrupt(10_000);
    slotted::mpsc_interrupt_to_main(10_000);
    slotted::mpsc_main_to_interrupt(10_000);
    slotted::mpsc_both_to_main(10_000);
    mailbox::interrupt_to_main(10_000);
    debug::exit(debug::EXIT_SUCCESS);
    unreachable!("the emulator has ended")
}

fn report(ring: &str, messages: u32, laps: u64, full: u32, empty: u32) {
    hprintln!("{}: {} messages, {} laps, {} times full, {} times empty", ring, messages, laps, full, empty);
    assert!(laps >= 1000, "{ring}: too few laps");
    assert!(full >= 100 && empty >= 100, "{ring}: too seldom full or empty");
}

#[panic_handler]
fn panic(panic: &PanicInfo<'_>) -> ! {
    hprintln!("{}", panic);
    loop {
        debug::exit(debug::EXIT_FAILURE);
    }
}
