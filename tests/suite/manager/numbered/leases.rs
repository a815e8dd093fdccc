use super::*;

#[test]
fn a_released_buffer_lives_until_its_last_lease_ends() {
    let backend = backend();
    let manager = manager(&backend);
    let id = manager.register(buffer(&backend, &[1_u32, 2, 3, 4])).expect("room");
    let leases = [manager.lease(id).expect("live"), manager.lease(id).expect("live").into_owned()];
    let lease = &leases[1];
    assert_eq!(
        (lease.id(), lease.len(), lease.is_empty(), lease.size_bytes(), lease.location()),
        (id, 4, false, 16, MemoryLocation::Device)
    );
    assert!(lease.device_address().is_some());
    assert_eq!(manager.free(id).expect("live"), 2);
    assert_eq!(id_error(manager.lease(id)), IdError::Released { index: 0, leases: 2 });
    assert_eq!(id_error(manager.free(id)), IdError::Released { index: 0, leases: 2 });
    let [one, other] = leases;
    drop(one);
    assert_eq!((blocks(&backend), other.slice(1..3).expect("within").to_vec().expect("live")), (1, vec![2, 3]));
    drop(other);
    assert_eq!((blocks(&backend), manager.statistics().freed), (0, 1));
}

#[test]
fn lease_mut_is_exclusive() {
    let backend = backend();
    let manager = manager(&backend);
    let id = manager.register(buffer(&backend, &[0_u32; 4])).expect("room");
    let mut alone = manager.lease_mut(id).expect("live");
    assert!(is_busy(manager.lease(id)) && is_busy(manager.lease_mut(id)) && is_busy(manager.take(id)));
    alone.slice_mut(1..3).expect("within").fill(7).expect("live");
    alone.view_mut().slice(3..).expect("within").copy_from(&[9]).expect("live");
    assert_eq!(alone.slice(..2).expect("within").to_vec().expect("live"), [0, 7]);
    drop(alone);
    let lease = manager.lease(id).expect("live");
    assert!(is_busy(manager.lease_mut(id)));
    assert_eq!(lease.view().to_vec().expect("live"), [0, 7, 7, 9]);
}

#[test]
fn a_buffer_released_during_a_write_is_freed_after_the_write() {
    let backend = backend();
    let manager = manager(&backend);
    let id = manager.register(buffer(&backend, &[1_u32])).expect("room");
    let mut alone = manager.lease_mut(id).expect("live").into_owned();
    assert_eq!(manager.free(id).expect("live"), 1);
    alone.view_mut().fill(5).expect("live");
    assert_eq!(
        (alone.id(), alone.len(), alone.is_empty(), alone.size_bytes(), alone.location()),
        (id, 1, false, 4, MemoryLocation::Device)
    );
    assert_eq!((alone.view().to_vec().expect("live"), blocks(&backend)), (vec![5], 1));
    drop(alone);
    assert_eq!((blocks(&backend), manager.statistics().freed), (0, 1));
}

#[test]
fn a_forgotten_lease_keeps_its_buffer_until_the_manager_ends() {
    let backend = backend();
    let manager = manager(&backend);
    let [id, other] = [1_u8, 2].map(|value| manager.register(buffer(&backend, &[value])).expect("room"));
    std::mem::forget(manager.lease(id).expect("live"));
    std::mem::forget(manager.lease_mut(other).expect("live"));
    assert_eq!((manager.free(id).expect("live"), manager.free(other).expect("live")), (1, 1));
    assert_eq!((blocks(&backend), manager.statistics().kept()), (2, 2));
    drop(manager);
    assert_eq!(blocks(&backend), 0, "they go with the manager");
}

#[test]
#[cfg(target_os = "linux")]
fn take_of_a_lease_fails_in_a_fork() {
    let backend = backend();
    let manager = manager(&backend);
    let id = manager.register(buffer(&backend, &[1_u32, 2, 3, 4])).expect("room");
    let lease = manager.lease_mut(id).expect("live");
    // SAFETY: the child has only this thread, makes the tested call, and exits without destructors.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "no fork");
    if pid == 0 {
        // SAFETY: ends a child that waits forever.
        unsafe { libc::alarm(30) };
        let is_refused = matches!(lease.take(), Err(Error::Unsupported { .. }));
        // SAFETY: ends the child.
        unsafe { libc::_exit(i32::from(!is_refused)) };
    }
    let mut status = 0;
    // SAFETY: our child; a place for its status.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    assert_eq!(status, 0, "it has what is the other's, or waits");
    assert_eq!(lease.take().expect("here it is").to_vec().expect("live"), [1, 2, 3, 4]);
}
