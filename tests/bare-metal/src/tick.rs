use core::cell::RefCell;
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::Relaxed;

use cortex_m::interrupt::{self, Mutex};
use cortex_m::peripheral::SYST;
use cortex_m::peripheral::syst::SystClkSource;
use cortex_m_rt::exception;

const PATIENCE: u32 = 10_000;

pub trait Work: Send {
    fn attempt(&mut self, number: u32) -> bool;
}

struct Shift {
    work: &'static mut dyn Work,
    next: u32,
    end: u32,
    refused: u32,
}

pub struct Refused {
    pub interrupt: u32,
    pub main: u32,
}

static TICKS: AtomicU32 = AtomicU32::new(0);
static TIMER: Mutex<RefCell<Option<SYST>>> = Mutex::new(RefCell::new(None));
static SHIFT: Mutex<RefCell<Option<Shift>>> = Mutex::new(RefCell::new(None));

pub fn start(mut timer: SYST) {
    timer.set_clock_source(SystClkSource::Core);
    timer.set_reload(1000);
    timer.clear_current();
    timer.enable_interrupt();
    timer.enable_counter();
    interrupt::free(|cs| TIMER.borrow(cs).replace(Some(timer)));
}

pub fn share(end: u32, theirs: &'static mut dyn Work, ours: &mut dyn Work) -> Refused {
    interrupt::free(|cs| SHIFT.borrow(cs).replace(Some(Shift { work: theirs, next: 0, end, refused: 0 })));
    let mut main = 0;
    for number in 0..end {
        if !ours.attempt(number) {
            main += 1;
            wait(|| ours.attempt(number).then_some(()));
        }
    }
    let interrupt = wait(|| {
        let ended = |shift: &mut Shift| shift.next == shift.end;
        let shift = interrupt::free(|cs| SHIFT.borrow(cs).borrow_mut().take_if(ended));
        shift.map(|shift| shift.refused)
    });
    Refused { interrupt, main }
}

fn wait<T>(mut attempt: impl FnMut() -> Option<T>) -> T {
    let since = TICKS.load(Relaxed);
    loop {
        if let Some(done) = attempt() {
            return done;
        }
        assert!(TICKS.load(Relaxed).wrapping_sub(since) < PATIENCE, "no progress for {PATIENCE} ticks");
    }
}

#[exception]
fn SysTick() {
    let tick = TICKS.fetch_add(1, Relaxed);
    let hash = tick.wrapping_mul(0x9e37_79b9);
    interrupt::free(|cs| {
        if let Some(timer) = TIMER.borrow(cs).borrow_mut().as_mut() {
            timer.set_reload(500 + (hash >> 8) % 4001);
        }
        if let Some(shift) = SHIFT.borrow(cs).borrow_mut().as_mut() {
            shift.attempt(most(tick));
        }
    });
}

const fn most(tick: u32) -> u32 {
    if tick & 64 == 0 { 16 } else { 1 }
}

impl Shift {
    fn attempt(&mut self, most: u32) {
        for _ in 0..most.min(self.end - self.next) {
            if !self.work.attempt(self.next) {
                self.refused += 1;
                return;
            }
            self.next += 1;
        }
    }
}
