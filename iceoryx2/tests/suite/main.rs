//! Links between rings and iceoryx2 services, in one process and between processes: one program, which is also the peer that it kills.

mod host;
mod links;
mod processes;
mod types;
