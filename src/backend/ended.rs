//! [`Ended`]: ended streams with unreported failures.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::StreamId;

/// An older stream's waiters succeed; its failures count as unreported.
const MOST: usize = 64;

pub(super) trait Untold {
    fn untold(&self) -> u64;
}

pub(super) struct Ended<Q> {
    queues: Mutex<VecDeque<(StreamId, Arc<Q>)>>,
}

impl<Q> Default for Ended<Q> {
    fn default() -> Self {
        Self { queues: Mutex::default() }
    }
}

impl<Q: Untold> Ended<Q> {
    /// Returns the number of forgotten failures.
    pub fn keep(&self, id: StreamId, queue: Arc<Q>) -> u64 {
        let mut queues = self.queues();
        queues.retain(|(_, queue)| queue.untold() > 0);
        if queue.untold() == 0 {
            return 0;
        }
        let oldest = if queues.len() < MOST { None } else { queues.pop_front() };
        queues.push_back((id, queue));
        oldest.map_or(0, |(_, queue)| queue.untold())
    }

    pub fn get(&self, id: StreamId) -> Option<Arc<Q>> {
        self.queues().iter().find(|(ended, _)| *ended == id).map(|(_, queue)| Arc::clone(queue))
    }

    pub fn untold(&self) -> u64 {
        self.queues().iter().map(|(_, queue)| queue.untold()).sum()
    }

    fn queues(&self) -> MutexGuard<'_, VecDeque<(StreamId, Arc<Q>)>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
