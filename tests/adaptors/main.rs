//! Memories over memories: what each does, and that any stack of them does what its lowest memory does.
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
