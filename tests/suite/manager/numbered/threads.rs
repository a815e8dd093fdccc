use super::*;
use ringmem::manager::BufferId;
use std::collections::HashSet;
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

const THREADS: u64 = 8;
const TIMES: u64 = 2000;
const PLACES: usize = 16;

type Known = (u64, BufferId<u64>);

#[test]
fn eight_threads_see_whole_buffers_or_none() {
    let backend = backend();
    let manager = manager(&backend);
    let known: [Mutex<Option<Known>>; PLACES] = [const { Mutex::new(None) }; PLACES];
    let [registered, found] = [const { AtomicU64::new(0) }; 2];
    let released = Mutex::new(HashSet::new());
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (backend, manager, known) = (&backend, &manager, &known);
            let (registered, released, found) = (&registered, &released, &found);
            scope.spawn(move || {
                let mut random = thread + 1;
                for round in 0..TIMES {
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    let place = &known[(random >> 40) as usize % PLACES];
                    let noted = *place.lock().expect("no panic");
                    match (random >> 60, noted) {
                        (0..2, _) => {
                            let number = thread << 32 | round;
                            let id = manager.register(buffer(backend, &[number; 2])).expect("room");
                            registered.fetch_add(1, Relaxed);
                            *place.lock().expect("no panic") = Some((number, id));
                        }
                        (2, Some((_, id))) => {
                            if manager.free(id).is_ok() {
                                released.lock().expect("no panic").insert(id);
                            }
                        }
                        (3, Some((number, id))) => {
                            if let Ok(taken) = manager.take(id) {
                                released.lock().expect("no panic").insert(id);
                                assert_eq!(taken.to_vec().expect("live"), [number; 2]);
                            }
                        }
                        (4..6, Some((number, id))) => {
                            if let Ok(mut alone) = manager.lease_mut(id) {
                                alone.slice_mut(..1).expect("within").fill(0).expect("live");
                                alone.slice_mut(..1).expect("within").fill(number).expect("live");
                            }
                        }
                        (_, Some((number, id))) => {
                            if let Ok(lease) = manager.lease(id) {
                                assert_eq!(lease.view().to_vec().expect("live"), [number; 2]);
                                found.fetch_add(1, Relaxed);
                            }
                        }
                        (_, None) => {}
                    }
                }
            });
        }
    });
    let statistics = manager.statistics();
    assert!(found.load(Relaxed) > 100, "there was something to find");
    let released = released.into_inner().expect("no panic").len() as u64;
    assert_eq!((statistics.registered, statistics.released), (registered.load(Relaxed), released));
    assert_eq!((statistics.freed, statistics.leases), (statistics.released, 0));
    assert_eq!((blocks(&backend), statistics.used_bytes), (statistics.live(), statistics.live() * 16));
    assert_eq!(manager.clear(), statistics.live());
    assert_eq!(blocks(&backend), 0);
}
