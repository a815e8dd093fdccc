use std::sync::{Arc, Barrier, Mutex};
use std::thread;

use ringmem::mirror::Side;

use super::{LEN, backend, launch, pinned, stream};

const ROUNDS: u32 = 300;

#[test]
fn blocking_and_queueing_threads_lose_no_writes() {
    let backend = backend();
    let mirror = Arc::new(Mutex::new(pinned(&backend)));
    let start = Arc::new(Barrier::new(4));
    let queueing = (0..2).map(|_| {
        let (mirror, start, stream) = (Arc::clone(&mirror), Arc::clone(&start), stream(&backend));
        thread::spawn(move || {
            start.wait();
            for round in 0..ROUNDS {
                let mut mirror = mirror.lock().expect("no panic");
                let launched = launch(&mut mirror, "add", &stream);
                if round % 3 == 0 {
                    mirror.sync_to_host_on(&stream).expect("queued");
                }
                drop(mirror);
                if round % 7 == 0 {
                    launched.wait().expect("it does not fail");
                }
            }
        })
    });
    let blocking = (0..2).map(|_| {
        let (mirror, start) = (Arc::clone(&mirror), Arc::clone(&start));
        thread::spawn(move || {
            start.wait();
            for round in 0..ROUNDS {
                let mut mirror = mirror.lock().expect("no panic");
                mirror.host_mut().expect("a copy").iter_mut().for_each(|element| *element += 1);
                if round % 5 == 0 {
                    mirror.compact(Side::Host).expect("a copy");
                }
            }
        })
    });
    let threads: Vec<_> = queueing.chain(blocking).collect();
    threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
    let mut mirror = mirror.lock().expect("no panic");
    assert_eq!(mirror.to_vec().expect("a copy"), [4 * ROUNDS; LEN]);
}
