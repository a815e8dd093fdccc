//! [`Ended`]: streams that have ended, and of whose failures somebody may still ask.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::StreamId;

/// So many streams are remembered: who asks for what failed on an older one is told that it is over, and the failure is counted as unreported.
const MOST: usize = 64;

/// What a stream has to tell.
pub(super) trait Untold {
    /// Failures that nobody was told of.
    fn untold(&self) -> u64;
}

/// The last few streams that ended with failures that nobody was told of. A buffer may outlive the stream that was to fill it.
pub(super) struct Ended<Q> {
    queues: Mutex<VecDeque<(StreamId, Arc<Q>)>>,
}

impl<Q> Default for Ended<Q> {
    fn default() -> Self {
        Self { queues: Mutex::default() }
    }
}

impl<Q: Untold> Ended<Q> {
    /// Remembers a stream, if it has something to tell; how many failures of others are forgotten for it.
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

    /// What nobody was told of so far.
    pub fn untold(&self) -> u64 {
        self.queues().iter().map(|(_, queue)| queue.untold()).sum()
    }

    fn queues(&self) -> MutexGuard<'_, VecDeque<(StreamId, Arc<Q>)>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
