//! Blocks as tensors.

use std::ptr::{NonNull, null, null_mut};
use std::thread::spawn;

use ringmem::dlpack::{DlDataType, DlDevice, DlManagedTensorVersioned, Taken};
use ringmem_capi::dlpack::{Tensor, ringmem_dlpack_lend};
use ringmem_capi::pool::{Memory, ringmem_pool_free};
use ringmem_capi::status::Status;

use crate::rig::{Double, Step, soon};
use crate::{Address, KIB, MIB, NO_POOL, NULL, Opened, Opening, alone, holds_in_a_forked_child, succeeds, text};

type Lent = NonNull<DlManagedTensorVersioned>;

fn try_lend(pool: &Opening, address: Address, dtype: (u8, u8), shape: &[i64], stream: Address) -> Result<Lent, Status> {
    let mut tensor: *mut Tensor = null_mut();
    let ndim = shape.len() as i32;
    // SAFETY: an open pool, a shape of that length, a live stream, and a place for the result.
    match unsafe { ringmem_dlpack_lend(pool.0, address, dtype.0, dtype.1, ndim, shape.as_ptr(), stream, &raw mut tensor) } {
        Status::Ok => Ok(NonNull::new(tensor.cast()).expect("a tensor")),
        status => Err(status),
    }
}

#[track_caller]
fn lend(pool: &Opening, address: Address, bytes: usize, stream: Address) -> Lent {
    try_lend(pool, address, (1, 8), &[bytes as i64], stream).unwrap_or_else(|status| panic!("{status:?}: {}", text()))
}

fn delete(tensor: Lent) {
    // SAFETY: live, and not used again.
    unsafe { DlManagedTensorVersioned::delete(tensor) };
}

fn data(tensor: Lent) -> Address {
    // SAFETY: live.
    unsafe { tensor.as_ref() }.dl_tensor.data
}

#[test]
fn host_memory_of_simulated_devices_is_a_tensor_of_the_cpu() {
    let devices = Opened::simulated(16 * MIB);
    for memory in [Memory::Pinned, Memory::Managed] {
        let pool = devices.pool(memory, 0);
        let address = pool.allocate(24 * 4, NULL);
        let tensor = try_lend(&pool, address, (DlDataType::FLOAT, 32), &[2, 3, 4], NULL).unwrap_or_else(|_| panic!("{}", text()));
        // SAFETY: live.
        assert_eq!((unsafe { tensor.as_ref() }.dl_tensor.device, data(tensor)), (DlDevice::HOST, address));
        assert!(address.addr().is_multiple_of(256));
        // SAFETY: a valid tensor, which nothing else uses.
        let mut taken = unsafe { Taken::<f32>::from_raw(tensor) }.expect("a valid tensor");
        taken.as_mut_slice().expect("on the host").fill(1.5);
        assert_eq!((taken.len(), pool.statistics().live), (24, 1));
        spawn(move || drop(taken)).join().expect("no panic");
        assert_eq!(pool.statistics().live, 0);
    }
}

#[test]
fn a_lent_block_is_freed_by_its_tensor_alone() {
    let devices = Opened::simulated(16 * MIB);
    let pool = devices.pool(Memory::Pinned, 0);
    let address = pool.allocate(KIB, NULL);
    let tensor = lend(&pool, address, KIB, NULL);
    // SAFETY: an open pool. The call is refused.
    assert_eq!(unsafe { ringmem_pool_free(pool.0, address, NULL) }, Status::Invalid);
    assert!(text().contains("is lent: its tensor frees it"), "{}", text());
    assert_eq!(try_lend(&pool, address, (1, 8), &[1], NULL), Err(Status::Invalid), "once");
    assert_eq!(pool.statistics().live, 1);
    delete(tensor);
    assert_eq!(pool.statistics().live, 0);
}

#[test]
fn a_tensor_outlives_its_pool() {
    let devices = Opened::simulated(16 * MIB);
    let pool = devices.pool(Memory::Pinned, 0);
    let tensor = lend(&pool, pool.allocate(KIB, NULL), KIB, NULL);
    pool.close();
    drop(devices);
    // SAFETY: memory of the host, which the tensor owns.
    unsafe { data(tensor).cast::<u8>().write_bytes(7, KIB) };
    let tensor = tensor.as_ptr().expose_provenance();
    spawn(move || delete(NonNull::new(std::ptr::with_exposed_provenance_mut(tensor)).expect("a tensor"))).join().expect("no panic");
}

#[test]
fn invalid_tensors_are_refused_and_the_block_stays_the_callers() {
    let devices = Opened::simulated(16 * MIB);
    let pool = devices.pool(Memory::Pinned, 0);
    let address = pool.allocate(KIB, NULL);
    let kib = KIB as i64;
    let unknown: Address = std::ptr::without_provenance_mut(0x1200);
    for (address, dtype, shape, stream, fact) in [
        (address, (1, 8), &[kib + 1][..], NULL, "the tensor has 1025 bytes"),
        (address, (1, 64), &[kib / 8, 2], NULL, "the tensor has 2048 bytes"),
        (address, (1, 64), &[i64::MAX], NULL, "the tensor has 18446744073709551615 bytes"),
        (address, (1, 8), &[i64::MAX, 2], NULL, "from dimension 0 on"),
        (address, (1, 8), &[3, -1], NULL, "dimension 1 has size -1"),
        (address, (1, 8), &[1; 65], NULL, "65 dimensions, at most 64"),
        (address, (1, 4), &[1], NULL, "`bits` is 4"),
        (unknown, (1, 8), &[1], NULL, "no live block of this pool at 0x1200"),
        (address, (1, 8), &[1], unknown, "no stream 0x1200 of simulated device 0"),
    ] {
        let status = try_lend(&pool, address, dtype, shape, stream);
        assert!(status == Err(Status::Invalid) && text().contains(fact), "{status:?}: {}", text());
    }
    let mut tensor = null_mut();
    // SAFETY: each pointer is null or valid.
    unsafe {
        assert_eq!(ringmem_dlpack_lend(NO_POOL, address, 1, 8, 0, null(), NULL, &raw mut tensor), Status::Invalid);
        assert_eq!(ringmem_dlpack_lend(pool.0, address, 1, 8, 1, null(), NULL, &raw mut tensor), Status::Invalid);
        assert!(text().contains("`shape` is a null pointer"), "{}", text());
        assert_eq!(ringmem_dlpack_lend(pool.0, address, 1, 8, -1, null(), NULL, &raw mut tensor), Status::Invalid);
        assert_eq!(ringmem_dlpack_lend(pool.0, address, 1, 8, i32::MAX, [1].as_ptr(), NULL, &raw mut tensor), Status::Invalid);
        assert_eq!(ringmem_dlpack_lend(pool.0, address, 1, 8, 0, null(), NULL, null_mut()), Status::Invalid);
    }
    assert!(tensor.is_null());
    let of_device = devices.pool(Memory::Device, 0);
    let other = of_device.allocate(KIB, NULL);
    assert_eq!(try_lend(&of_device, other, (1, 8), &[kib], NULL), Err(Status::Unsupported));
    of_device.free(other, NULL);
    delete(try_lend(&pool, address, (2, 64), &[], NULL).expect("one number"));
    assert_eq!(pool.statistics().live, 0);
}

alone! {
    fn the_stream_of_a_consumer_waits_for_the_streams_of_the_block() {
        let (devices, double) = (Opened::cuda(), Double::new());
        let pool = devices.pool(Memory::Device, 0);
        let (home, recorded, consumer) = (devices.stream(), devices.stream(), devices.stream());
        for stream in [home, recorded] {
            let (x, y) = (pool.allocate(KIB, home), pool.allocate(KIB, home));
            devices.fill(x, 5, KIB, home);
            devices.fill(y, 0, KIB, home);
            devices.synchronize(home);
            pool.record(y, recorded);
            double.hold(Step::Copy, 1);
            devices.copy(y, x, KIB, stream);
            let tensor = lend(&pool, y, KIB, consumer);
            // SAFETY: live.
            assert_eq!(unsafe { tensor.as_ref() }.dl_tensor.device, DlDevice { device_type: DlDevice::CUDA, device_id: 0 });
            // Reads 5 after the held copy, else 0.
            let reader = {
                let (devices, address, consumer) = (devices.0.expose_provenance(), data(tensor).addr(), consumer.addr());
                spawn(move || {
                    let devices = std::mem::ManuallyDrop::new(Opened(std::ptr::with_exposed_provenance_mut(devices)));
                    devices.read(std::ptr::without_provenance_mut(address), KIB, std::ptr::without_provenance_mut(consumer))
                })
            };
            std::thread::sleep(std::time::Duration::from_millis(20));
            assert!(!reader.is_finished() && double.executed(Step::Copy) == 0, "the copy is not executed");
            double.hold(Step::Copy, 0);
            assert_eq!(reader.join().expect("no panic"), [5; KIB]);
            delete(tensor);
            pool.free(x, home);
        }
        assert_eq!(pool.statistics().live, 0);
    }

    fn a_tensor_frees_its_block_after_the_work_of_its_consumer() {
        let (devices, double) = (Opened::cuda(), Double::new());
        let pool = devices.pool(Memory::Device, 0);
        let (home, consumer, to) = (devices.stream(), devices.stream(), pool.allocate(KIB, NULL));
        let x = pool.allocate(KIB, home);
        devices.fill(x, 3, KIB, home);
        devices.synchronize(home);
        let tensor = lend(&pool, x, KIB, consumer);
        double.hold(Step::Copy, 1);
        devices.copy(to, x, KIB, consumer);
        delete(tensor);
        let y = pool.allocate(KIB, home);
        assert_ne!(y, x, "the consumer still reads it");
        devices.fill(y, 4, KIB, home);
        assert_eq!(double.executed(Step::Copy), 0, "no call has waited");
        double.hold(Step::Copy, 0);
        assert_eq!(devices.read(to, KIB, consumer), [3; KIB]);
        // The stream may end before the tensor.
        let tensor = lend(&pool, y, KIB, consumer);
        // SAFETY: open devices; a stream that was created here, and is used by no other call.
        succeeds(unsafe { ringmem_capi::devices::ringmem_stream_destroy(devices.0, 0, consumer) });
        delete(tensor);
        pool.free(to, NULL);
        pool.trim(0);
        assert!(soon(|| pool.statistics().reserved_bytes == 0), "{:?}", pool.statistics());
    }

    fn pinned_and_managed_tensors_have_their_device_types() {
        let devices = Opened::cuda();
        let stream = devices.stream();
        for (memory, device_type) in [(Memory::Pinned, DlDevice::CUDA_HOST), (Memory::Managed, DlDevice::CUDA_MANAGED)] {
            let pool = devices.pool(memory, 64 * MIB);
            let address = pool.allocate(KIB, stream);
            let tensor = lend(&pool, address, KIB, stream);
            // SAFETY: live.
            assert_eq!(unsafe { tensor.as_ref() }.dl_tensor.device, DlDevice { device_type, device_id: 0 });
            assert_eq!(data(tensor), address);
            pool.close();
            delete(tensor);
        }
    }

    fn a_tensor_in_a_forked_child_stays_the_parents() {
        let devices = Opened::cuda();
        let pool = devices.pool(Memory::Device, 0);
        let stream = devices.stream();
        let tensor = lend(&pool, pool.allocate(MIB, stream), MIB, stream);
        let double = Double::new();
        let unlent = pool.allocate(KIB, stream);
        // This tensor has the last reference to its pool.
        let closed = devices.pool(Memory::Pinned, 0);
        let last = lend(&closed, closed.allocate(MIB, stream), MIB, stream);
        closed.close();
        holds_in_a_forked_child(|| {
            let before = double.all_calls();
            delete(tensor);
            delete(last);
            let refused = try_lend(&pool, unlent, (1, 8), &[1], stream) == Err(Status::Unsupported);
            refused && double.all_calls() == before && !text().contains("no live block")
        });
        assert_eq!(pool.statistics().live, 2);
        delete(tensor);
        delete(last);
        pool.free(unlent, stream);
        assert_eq!(pool.statistics().live, 0);
    }
}
