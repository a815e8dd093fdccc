//! The sides that can access a memory, as types.

/// [`DeviceOnly`], [`HostOnly`] or [`Both`].
pub trait Visibility: sealed::Sealed + Send + Sync + 'static {}

/// Memory with host slices.
#[diagnostic::on_unimplemented(
    message = "the host cannot read this memory",
    label = "only a device can: copy it to the host",
    note = "`copy_to` and `to_vec` copy; pinned and unified buffers have slices"
)]
pub trait HostReadable: Visibility {}

/// Memory with a device address.
#[diagnostic::on_unimplemented(message = "no device sees this memory", label = "only the host does: copy it to a device")]
pub trait DeviceReadable: Visibility {}

/// Device memory: the host cannot borrow it.
#[derive(Clone, Copy, Debug)]
pub enum DeviceOnly {}

/// Pageable host memory.
#[derive(Clone, Copy, Debug)]
pub enum HostOnly {}

/// Pinned and managed memory.
#[derive(Clone, Copy, Debug)]
pub enum Both {}

impl Visibility for DeviceOnly {}
impl Visibility for HostOnly {}
impl Visibility for Both {}
impl HostReadable for HostOnly {}
impl HostReadable for Both {}
impl DeviceReadable for DeviceOnly {}
impl DeviceReadable for Both {}

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::DeviceOnly {}
    impl Sealed for super::HostOnly {}
    impl Sealed for super::Both {}
}
