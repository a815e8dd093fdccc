/// One of [`DeviceOnly`], [`HostOnly`], [`Both`] and [`AtRunTime`].
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
#[derive(Clone, Copy, Debug)]
pub enum DeviceOnly {}

/// Pageable host memory.
#[derive(Clone, Copy, Debug)]
pub enum HostOnly {}

/// Pinned and managed memory.
#[derive(Clone, Copy, Debug)]
pub enum Both {}

/// Memory whose location is chosen at run time: no host slices; a device address unless pageable host memory.
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
