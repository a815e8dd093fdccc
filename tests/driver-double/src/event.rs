use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use crate::code::{Answer, Code};
use crate::stream::Ticket;

pub const FLAGS: u32 = 3;
pub const UNTIMED: u32 = 2;

pub struct Event {
    pub device: u32,
    timed: bool,
    recorded: Mutex<Option<Recording>>,
}

#[derive(Clone)]
pub struct Recording {
    pub ticket: Ticket,
    pub at: Arc<OnceLock<Instant>>,
}

impl Event {
    pub const fn new(device: u32, flags: u32) -> Self {
        Self { device, timed: flags & UNTIMED == 0, recorded: Mutex::new(None) }
    }

    pub fn record(&self, recording: Recording) {
        *self.last() = Some(recording);
    }

    pub fn ticket(&self) -> Option<Ticket> {
        self.last().as_ref().map(|recording| recording.ticket.clone())
    }

    pub fn is_complete(&self) -> Answer<Instant> {
        let last = self.last();
        let recording = last.as_ref().filter(|_| self.timed).ok_or(Code::INVALID_HANDLE)?;
        recording.at.get().filter(|_| recording.ticket.at.is_done()).copied().ok_or(Code::NOT_READY)
    }

    fn last(&self) -> MutexGuard<'_, Option<Recording>> {
        self.recorded.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
