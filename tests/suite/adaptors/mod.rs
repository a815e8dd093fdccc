mod facts;
mod faults;
mod hooked;
mod stacks;
mod traces;
mod tracking;
