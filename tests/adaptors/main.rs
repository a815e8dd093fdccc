//! Adaptors: each by itself, and stacks of them, which behave as their innermost memory.
#![cfg(feature = "std")]

#[path = "../clean/mod.rs"]
mod clean;
mod facts;
mod faults;
mod held;
mod hooked;
mod stacks;
mod traces;
mod tracking;
