use super::*;
use ringmem::error::IdError;
use ringmem::message::{BufferReference, ReferenceError};
use ringmem::ring::{PushError, spsc};
use ringmem::{Layout, RingMessage};
use zerocopy::IntoBytes;

const _: () = assert!(size_of::<BufferReference>() <= 64);

#[test]
fn a_reference_names_elements_and_copies_nothing() {
    let backend = backend();
    let manager = manager(&backend);
    let elements: Vec<f32> = (0_u16..1000).map(f32::from).collect();
    let id = manager.register(buffer(&backend, &elements)).expect("room");
    let before = backend.counters();
    let message = manager.reference(id, 100..300).expect("within").with_tag(42);
    let (lease, part) = manager.resolve::<f32>(&message).expect("live");
    assert_eq!((part.clone(), lease.id(), message.tag), (100..300, id, 42));
    assert_eq!(backend.counters(), before, "nothing was asked of the backend");
    assert_eq!(lease.slice(part).expect("within").to_vec().expect("live"), elements[100..300]);
    let whole = manager.reference(id, ..).expect("within");
    assert_eq!(manager.resolve::<f32>(&whole).expect("live").1, 0..1000);
}

#[test]
fn references_are_checked_at_both_ends() {
    let backend = backend();
    let manager = manager(&backend);
    let id = manager.register(buffer(&backend, &[0_u32; 10])).expect("room");
    assert!(matches!(manager.reference(id, 5..11), Err(Error::Range { offset: 5, len: 6, size: 10, element_bytes: 4 })));
    assert!(matches!(manager.reference(id, 11..), Err(Error::Range { .. })));
    let message = manager.reference(id, 2..10).expect("within");
    for (offset, length) in [(8, 36), (40, 4), (0, 44), (u64::MAX - 7, 4)] {
        let outcome = manager.resolve::<u32>(&BufferReference { offset, length, ..message });
        assert!(
            matches!(outcome, Err(Error::Range { offset: at, len, size: 40, element_bytes: 1 }) if (at, len) == (offset, length)),
            "{offset} {length}: {outcome:?}"
        );
    }
    for (offset, length) in [(1, 4), (4, 5), (u64::MAX - 3, 8)] {
        let outcome = manager.resolve::<u32>(&BufferReference { offset, length, ..message });
        assert!(
            matches!(outcome, Err(Error::Id(IdError::Reference(ReferenceError::Part { size: 4, .. })))),
            "{offset} {length}: {outcome:?}"
        );
    }
    assert_eq!(manager.resolve::<u32>(&BufferReference { offset: 40, length: 0, ..message }).expect("nothing at its end").1, 10..10);
    assert_eq!(manager.statistics().leases, 0, "what was refused has no lease");
}

#[test]
fn invalid_references_are_errors_with_facts() {
    let backend = backend();
    let [manager, stranger] = [(); 2].map(|()| manager(&backend));
    let id = manager.register(buffer(&backend, &[1_f32; 10])).expect("room");
    let message = manager.reference(id, ..).expect("within");
    let refused = |message: BufferReference| id_error(manager.resolve::<f32>(&message));
    assert_eq!(refused(BufferReference { id: message.id + 1, ..message }), IdError::Unknown { index: 1, slots: 1 });
    assert_eq!(refused(BufferReference { id: message.id + (1 << 32), ..message }), IdError::Stale { index: 0, expected: 1, got: 2 });
    assert_eq!(refused(BufferReference { id: u64::MAX, ..message }), IdError::Unknown { index: u32::MAX, slots: 1 });
    let foreign = IdError::Foreign { expected: stranger.number(), got: manager.number() };
    assert_eq!(id_error(stranger.resolve::<f32>(&message)), foreign);
    let outcome = manager.resolve::<i32>(&message);
    let expected = ReferenceError::Elements { expected: i32::DESCRIPTOR.hash, got: f32::DESCRIPTOR.hash };
    assert!(matches!(outcome, Err(Error::Id(IdError::Reference(error))) if error == expected), "{outcome:?}");
    let forged = BufferReference { element: i32::DESCRIPTOR.hash, ..message };
    assert_eq!(id_error(manager.resolve::<i32>(&forged)), IdError::Elements { expected: "f32", got: "i32" });
    assert!(matches!(manager.resolve::<f32>(&BufferReference::default()), Err(Error::Id(IdError::Reference(ReferenceError::Empty)))));
    manager.free(id).expect("live");
    assert_eq!(refused(message), IdError::Stale { index: 0, expected: 2, got: 1 });
    manager.register(buffer(&backend, &[2_f32; 10])).expect("room");
    assert_eq!(refused(message), IdError::Stale { index: 0, expected: 2, got: 1 }, "the next one's");
}

#[test]
fn flipped_bits_in_a_reference_never_resolve_out_of_bounds() {
    let backend = backend();
    let manager = manager(&backend);
    let id = manager.register(buffer(&backend, &[1_u64; 100])).expect("room");
    let message = manager.reference(id, 10..20).expect("within");
    let mut resolved = 0;
    for bit in 0..size_of::<BufferReference>() * 8 {
        let mut changed = message;
        changed.as_mut_bytes()[bit / 8] ^= 1 << (bit % 8);
        if let Ok((lease, part)) = manager.resolve::<u64>(&changed) {
            assert!(lease.id() == id && part.start <= part.end && part.end <= 100);
            resolved += 1;
        }
        if !manager.contains(id) {
            break;
        }
    }
    assert!(resolved > 0);
}

#[test]
fn references_pass_through_a_ring() {
    let backend = backend();
    let manager = manager(&backend);
    let ids: Vec<_> = (0..100_u64).map(|value| manager.register(buffer(&backend, &[value; 4])).expect("room")).collect();
    let mut ring = spsc::Ring::<BufferReference, 8>::new();
    let (mut producer, mut consumer) = ring.split();
    thread::scope(|scope| {
        let manager = &manager;
        scope.spawn(move || {
            let begun = Instant::now();
            for id in ids {
                let mut message = manager.reference(id, 1..3).expect("within").handed_over();
                while let Err(PushError::Full(back)) = producer.push(message) {
                    assert!(begun.elapsed() < LIMIT, "nobody takes them");
                    message = back;
                    thread::yield_now();
                }
            }
        });
        let begun = Instant::now();
        for value in 0..100_u64 {
            let message = loop {
                assert!(begun.elapsed() < LIMIT, "nobody sends them");
                match consumer.pop() {
                    Ok(message) => break message,
                    Err(_) => thread::yield_now(),
                }
            };
            let (lease, part) = manager.resolve::<u64>(&message).expect("live");
            assert_eq!(lease.slice(part).expect("within").to_vec().expect("live"), [value; 2]);
        }
    });
    assert_eq!((blocks(&backend), manager.statistics().freed), (0, 100), "each was given away and has gone");
}

#[test]
fn a_transferred_buffer_resolves_once_and_ends_with_the_lease() {
    let backend = backend();
    let manager = manager(&backend);
    let id = manager.register(buffer(&backend, &[1_u8, 2, 3])).expect("room");
    let message = manager.reference(id, ..).expect("within").handed_over();
    let outside = BufferReference { length: 4, ..message };
    assert!(matches!(manager.resolve::<u8>(&outside), Err(Error::Range { .. })));
    assert!(manager.contains(id), "a refusal takes nothing");
    let (lease, part) = manager.resolve::<u8>(&message).expect("live");
    assert_eq!(id_error(manager.resolve::<u8>(&message)), IdError::Released { index: 0, leases: 1 });
    assert_eq!((lease.slice(part).expect("within").to_vec().expect("live"), blocks(&backend)), (vec![1, 2, 3], 1));
    drop(lease);
    assert_eq!((blocks(&backend), manager.contains(id)), (0, false));
}

#[test]
fn one_of_four_threads_resolves_a_transferred_buffer() {
    let backend = backend();
    let manager = manager(&backend);
    for _ in 0..200 {
        let id = manager.register(buffer(&backend, &[1_u8])).expect("room");
        let message = manager.reference(id, ..).expect("within").handed_over();
        let taken = thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(|| manager.resolve::<u8>(&message).is_ok())).collect();
            threads.into_iter().map(|thread| usize::from(thread.join().expect("no panic"))).sum::<usize>()
        });
        assert_eq!((taken, blocks(&backend)), (1, 0));
    }
}

#[test]
fn references_have_their_kind_number() {
    assert_eq!(BufferReference::KIND.to_le_bytes(), *b"rm.bref\0");
}

#[cfg(target_os = "linux")]
mod other_process {
    use super::*;
    use crate::rig::in_fork::fork;
    use ringmem::shared;
    use std::io::stdin;
    use std::os::fd::{AsFd, AsRawFd};
    use std::process::{Child, Command, Stdio};

    const ROLE: &str = "RINGMEM_REGISTRY_ROLE";
    const SECOND: &str = "RINGMEM_REGISTRY_SECOND";

    fn next(consumer: &mut shared::Consumer<BufferReference>) -> BufferReference {
        let begun = Instant::now();
        loop {
            assert!(begun.elapsed() < LIMIT, "nobody sends a reference");
            match consumer.pop() {
                Ok(message) => return message,
                Err(_) => thread::sleep(Duration::from_micros(100)),
            }
        }
    }

    #[test]
    fn child_role() {
        if std::env::var_os(ROLE).is_none() {
            return;
        }
        let there = shared::Memory::from_fd(stdin().as_fd().try_clone_to_owned().expect("a descriptor")).expect("a ring");
        let back = shared::Memory::open(std::env::var_os(SECOND).expect("a path")).expect("a ring");
        let (mut consumer, mut producer) = (there.consumer().expect("ours"), back.producer().expect("ours"));
        let backend = backend();
        let manager = manager(&backend);
        let own = manager.register(buffer(&backend, &[9_u32; 4])).expect("room");
        let message = next(&mut consumer);
        let foreign = IdError::Foreign { expected: manager.number(), got: message.registry };
        assert_eq!(id_error(manager.resolve::<u32>(&message)), foreign);
        producer.push(message).expect("room");
        producer.push(manager.reference(own, ..).expect("within")).expect("room");
        next(&mut consumer);
    }

    struct Other(Child);

    impl Drop for Other {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    #[test]
    fn a_reference_resolves_only_in_its_own_process() {
        let backend = backend();
        let manager = manager(&backend);
        let id = manager.register(buffer(&backend, &[1_u32, 2, 3])).expect("room");
        let [there, back] = [(); 2].map(|()| shared::Memory::create::<BufferReference>(8).expect("a memfd"));
        let mut command = Command::new(std::env::current_exe().expect("a path"));
        command
            .args(["manager::numbered::messages::other_process::child_role", "--exact", "--nocapture", "--test-threads=1", "-q"])
            .env(ROLE, "1")
            .env(SECOND, format!("/proc/{}/fd/{}", std::process::id(), back.as_fd().as_raw_fd()))
            .stdin(Stdio::from(there.as_fd().try_clone_to_owned().expect("a descriptor")));
        let mut other = Other(command.spawn().expect("a process"));
        let (mut producer, mut consumer) = (there.producer().expect("ours"), back.consumer().expect("ours"));
        let sent = manager.reference(id, 1..).expect("within").with_tag(7);
        producer.push(sent).expect("room");
        let echoed = next(&mut consumer);
        assert_eq!(echoed, sent);
        let (lease, part) = manager.resolve::<u32>(&echoed).expect("ours");
        assert_eq!(lease.slice(part).expect("within").to_vec().expect("live"), [2, 3]);
        let theirs = next(&mut consumer);
        let foreign = IdError::Foreign { expected: manager.number(), got: theirs.registry };
        assert_eq!(id_error(manager.resolve::<u32>(&theirs)), foreign);
        producer.push(sent).expect("room");
        drop(lease);
        manager.free(id).expect("live");
        assert!(matches!(id_error(manager.resolve::<u32>(&echoed)), IdError::Stale { .. }), "it came back too late");
        let begun = Instant::now();
        let status = loop {
            assert!(begun.elapsed() < LIMIT, "the other process does not end");
            match other.0.try_wait().expect("our child") {
                Some(status) => break status,
                None => thread::sleep(Duration::from_millis(1)),
            }
        };
        assert!(status.success(), "{status}");
    }

    #[test]
    fn calls_on_registered_buffers_fail_in_a_fork() {
        let backend = backend();
        let manager = manager(&backend);
        let id = manager.register(buffer(&backend, &[1_u8])).expect("room");
        let message = manager.reference(id, ..).expect("within");
        let all_refuse = fork(|| {
            let all = [
                matches!(manager.resolve::<u8>(&message), Err(Error::Unsupported { .. })),
                matches!(manager.lease(id), Err(Error::Unsupported { .. })),
                matches!(manager.reference(id, ..), Err(Error::Unsupported { .. })),
                !manager.contains(id),
                manager.statistics() == ringmem::manager::Statistics::default(),
            ];
            all.into_iter().all(|is_refused| is_refused)
        });
        assert!(all_refuse);
        assert!(manager.resolve::<u8>(&message).is_ok());
    }
}
