use std::sync::{Condvar, Mutex, PoisonError};

use crate::driver::Driver;
use crate::log::give_up;

#[derive(Clone, Copy)]
pub enum Step {
    Copy,
    Function,
}

struct Plan {
    begun: [u64; 2],
    executed: [u64; 2],
    held: Option<(usize, u64)>,
}

impl Plan {
    const fn new(held: Option<(usize, u64)>) -> Self {
        Self { begun: [0; 2], executed: [0; 2], held }
    }
}

static PLAN: Mutex<Plan> = Mutex::new(Plan::new(None));
static CHANGED: Condvar = Condvar::new();

pub fn step(step: Step, run: impl FnOnce()) {
    let kind = step as usize;
    let mut plan = PLAN.lock().unwrap_or_else(PoisonError::into_inner);
    plan.begun[kind] += 1;
    let this = Some((kind, plan.begun[kind]));
    let deadline = Driver::the().settings.deadline;
    let (plan, timeout) = CHANGED.wait_timeout_while(plan, deadline, |plan| plan.held == this).unwrap_or_else(PoisonError::into_inner);
    if timeout.timed_out() {
        give_up(&format!("a step was held for {deadline:?} and not released"));
    }
    drop(plan);
    run();
    PLAN.lock().unwrap_or_else(PoisonError::into_inner).executed[kind] += 1;
}

/// Holds the `number`-th copy (`is_function` 0) or host function (1) that streams begin from now on, until the next call; 0 holds none. Aborts the
/// process after `RINGMEM_DOUBLE_DEADLINE_MS`.
#[unsafe(no_mangle)]
pub extern "C" fn ringmem_double_hold(is_function: u32, number: u64) {
    *PLAN.lock().unwrap_or_else(PoisonError::into_inner) = Plan::new(Some((usize::from(is_function != 0), number)));
    CHANGED.notify_all();
}

/// Returns the copies or host functions that streams executed since the last [`ringmem_double_hold`].
#[unsafe(no_mangle)]
pub extern "C" fn ringmem_double_executed(is_function: u32) -> u64 {
    PLAN.lock().unwrap_or_else(PoisonError::into_inner).executed[usize::from(is_function != 0)]
}
