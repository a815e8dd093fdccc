//! Everything between two relays: one program, which is also the router that it kills.

mod hostile;
mod processes;
mod sessions;
mod state;
mod two_hosts;
