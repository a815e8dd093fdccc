//! Links between rings and iceoryx2 services. This program is also the peer that the tests kill.

mod host;
mod links;
mod processes;
mod types;
