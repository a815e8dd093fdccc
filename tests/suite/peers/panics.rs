//! A clock that panics at each call: a copy of borrowed memory completes within its call.

use std::alloc::Layout;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};
use std::thread;

use ringmem::backend::host::Phase;
use ringmem::backend::{Backend, Block, Ticket, Uses};
use ringmem::memory::{Both, Memory};

use super::*;
use crate::rig::busy_stream::Held;
use crate::rig::panicking_clock::{clock, has_struck, strike};

#[derive(Clone)]
struct Late {
    memory: Pinned,
    ready: Arc<Mutex<Option<Ticket>>>,
}

// SAFETY: the upstream memory's blocks, ready later.
unsafe impl Memory for Late {
    type Visibility = Both;

    fn alloc(&self, layout: Layout, on: Option<&Stream>) -> ringmem::Result<Block> {
        let ready = *self.ready.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(Block { ready, ..self.memory.alloc(layout, on)? })
    }
    unsafe fn free(&self, block: &Block, uses: &Uses) -> ringmem::Result<()> {
        // SAFETY: the caller promises that the block is of this memory and freed once, with its uses; blocks are the pinned memory's, apart
        // from `ready`.
        unsafe { self.memory.free(block, uses) }
    }
    fn backend(&self) -> &Arc<dyn Backend> {
        self.memory.backend()
    }
    fn device(&self) -> u32 {
        self.memory.device()
    }
}

#[test]
fn a_panicking_staged_copy_completes_before_it_returns() {
    let mut number = 0;
    loop {
        number += 1;
        let backend = build(two().log(true).clock(clock()));
        let staging = Late { memory: Pinned::new(&backend, 0), ready: Arc::default() };
        let peers = Peers::new(staging.clone()).expect("streams");
        let (source, mut target) = (gpu(&backend, 0, &pattern(1)), gpu(&backend, 1, &pattern(2)));
        let work = Stream::new(&backend, 0).expect("a stream");
        let held = Held::new(&backend, &work);
        *staging.ready.lock().expect("nobody panics") = Some(backend.record_position(work.id()).expect("a live stream"));
        let outcome = thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(Duration::from_millis(20));
                held.let_go();
            });
            let outcome = catch_unwind(AssertUnwindSafe(|| {
                strike(number);
                peers.copy_with(&source, &mut target, with(Strategy::Staged { chunk: 5000, depth: 2 }), |_| {})
            }));
            let log = backend.call_log();
            let copies = |phase| log.iter().filter(|call| call.verb == Verb::Copy && call.phase == phase && call.ticket.is_some()).count();
            assert_eq!(copies(Phase::Called), copies(Phase::Executed), "call {number}: it goes on after its call");
            outcome
        });
        if !has_struck() {
            outcome.expect("it was not struck").expect("no fault");
            break;
        }
        assert!(outcome.is_err());
        *staging.ready.lock().expect("nobody panics") = None;
        peers.copy_with(&source, &mut target, with(Strategy::Staged { chunk: 5000, depth: 2 }), |_| {}).expect("no fault any more");
        assert!(target.to_vec().expect("a download") == pattern(1), "call {number}");
    }
    assert!(number > 12, "{number}: two ways of three chunks, each a wait and a copy at least");
}
