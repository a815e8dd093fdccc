/// One of [`DeviceOnly`], [`HostOnly`], [`Both`] and [`AtRunTime`].
///
/// ```
/// use std::sync::Arc;
///
/// use ringmem::backend::host::HostBackend;
/// use ringmem::memory::{Buffer, Memory, Pinned, Unified, Visibility};
///
/// type Shared<V> = Arc<dyn Memory<Visibility = V>>;
///
/// fn total<V: Visibility>(buffers: &[Buffer<u8, Shared<V>>]) -> usize {
///     buffers.iter().map(Buffer::size_bytes).sum()
/// }
///
/// let backend = HostBackend::builder().build()?;
/// let memories: [Shared<_>; 2] = [Arc::new(Pinned::new(&backend, 0)), Arc::new(Unified::new(&backend, 0))];
/// let [one, other] = memories.map(|memory| Buffer::new(memory, 100));
/// assert_eq!(total(&[one?, other?]), 200);
/// # Ok::<(), ringmem::Error>(())
/// ```
pub trait Visibility: sealed::Sealed + Send + Sync + 'static {}

/// Memory with host slices.
///
/// ```
/// use ringmem::backend::host::HostBackend;
/// use ringmem::memory::{Buffer, HostReadable, Memory, Pinned};
///
/// fn sum<M: Memory<Visibility: HostReadable>>(buffer: &Buffer<u32, M>) -> ringmem::Result<u32> {
///     Ok(buffer.as_slice()?.iter().sum())
/// }
///
/// let backend = HostBackend::builder().build()?;
/// assert_eq!(sum(&Buffer::from_slice(Pinned::new(&backend, 0), &[1, 2, 3])?)?, 6);
/// # Ok::<(), ringmem::Error>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "the host cannot read this memory",
    label = "only a device can: copy it to the host",
    note = "`copy_to` and `to_vec` copy; pinned and unified buffers have slices"
)]
pub trait HostReadable: Visibility {}

/// Memory with a device address, except some locations of [`AtRunTime`].
///
/// ```
/// use ringmem::backend::host::HostBackend;
/// use ringmem::memory::{Buffer, Device, DeviceReadable, Memory};
///
/// /// The argument of a launch.
/// fn argument<M: Memory<Visibility: DeviceReadable>>(buffer: &Buffer<u32, M>) -> u64 {
///     buffer.device_address().map_or(0, |address| address.get())
/// }
///
/// let backend = HostBackend::builder().build()?;
/// assert_ne!(argument(&Buffer::new(Device::new(&backend, 0), 100)?), 0);
/// # Ok::<(), ringmem::Error>(())
/// ```
#[diagnostic::on_unimplemented(message = "no device sees this memory", label = "only the host does: copy it to a device")]
pub trait DeviceReadable: Visibility {}

/// Device memory, without host slices.
///
/// ```
/// use ringmem::backend::host::HostBackend;
/// use ringmem::memory::{Buffer, Device, DeviceOnly, Limited, Memory};
///
/// /// Device memory of any kind: plain, limited, pooled.
/// fn upload<M: Memory<Visibility = DeviceOnly>>(memory: M, values: &[f32]) -> ringmem::Result<Buffer<f32, M>> {
///     Buffer::from_slice(memory, values)
/// }
///
/// let backend = HostBackend::builder().build()?;
/// let buffer = upload(Limited::new(Device::new(&backend, 0), 1 << 20), &[1.0, 2.0])?;
/// assert_eq!(buffer.to_vec()?, [1.0, 2.0]); // `as_slice` would not compile
/// # Ok::<(), ringmem::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub enum DeviceOnly {}

/// Pageable host memory.
///
/// ```
/// use ringmem::backend::host::HostBackend;
/// use ringmem::memory::{Buffer, Host, HostOnly, Memory};
///
/// fn read<M: Memory<Visibility = HostOnly>>(buffer: &Buffer<u32, M>) -> ringmem::Result<&[u32]> {
///     buffer.as_slice() // `device_address` would not compile
/// }
///
/// let backend = HostBackend::builder().build()?;
/// assert_eq!(read(&Buffer::from_slice(Host::new(&backend, 0), &[1, 2])?)?, [1, 2]);
/// # Ok::<(), ringmem::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub enum HostOnly {}

/// Pinned and managed memory.
///
/// ```
/// use std::sync::Arc;
///
/// use ringmem::backend::host::HostBackend;
/// use ringmem::memory::{Both, Buffer, Memory, Pinned, Unified};
///
/// let (backend, is_managed) = (HostBackend::builder().build()?, true);
/// let memory: Arc<dyn Memory<Visibility = Both>> =
///     if is_managed { Arc::new(Unified::new(&backend, 0)) } else { Arc::new(Pinned::new(&backend, 0)) };
/// let mut buffer = Buffer::<u32, _>::new(memory, 4)?;
/// buffer.as_mut_slice()?.fill(7);
/// assert!(buffer.device_address().is_some());
/// # Ok::<(), ringmem::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub enum Both {}

/// Memory whose location is chosen at run time: no host slices; a device address unless pageable host memory.
///
/// ```
/// use ringmem::backend::MemoryLocation;
/// use ringmem::backend::host::HostBackend;
/// use ringmem::config::Config;
/// use ringmem::memory::{AtRunTime, Buffer, Memory};
/// use ringmem::pool::Pools;
///
/// fn sum<M: Memory<Visibility = AtRunTime>>(buffer: &Buffer<u32, M>) -> ringmem::Result<u32> {
///     Ok(buffer.to_vec()?.iter().sum()) // a copy, in any location
/// }
///
/// let pools = Pools::new(&HostBackend::builder().build()?, 0, &Config::host())?;
/// let mut buffer = pools.buffer_in::<u32>(MemoryLocation::Pinned, 10)?;
/// buffer.fill(7)?;
/// assert_eq!(sum(&buffer)?, 70);
/// # Ok::<(), ringmem::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub enum AtRunTime {}

impl Visibility for DeviceOnly {}
impl Visibility for HostOnly {}
impl Visibility for Both {}
impl Visibility for AtRunTime {}
impl HostReadable for HostOnly {}
impl HostReadable for Both {}
impl DeviceReadable for DeviceOnly {}
impl DeviceReadable for Both {}
impl DeviceReadable for AtRunTime {}

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::DeviceOnly {}
    impl Sealed for super::HostOnly {}
    impl Sealed for super::Both {}
    impl Sealed for super::AtRunTime {}
}
