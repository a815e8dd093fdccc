//! Adaptors: each by itself, and stacks of them, which behave as their innermost memory.
use crate::clean;
mod facts;
mod faults;
use crate::held;
mod hooked;
mod stacks;
mod traces;
mod tracking;
