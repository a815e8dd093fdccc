use crate::clean;
mod facts;
mod faults;
use crate::held;
mod hooked;
mod stacks;
mod traces;
mod tracking;
