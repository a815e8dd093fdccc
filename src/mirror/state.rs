use core::fmt;

/// One of the two copies.
///
/// ```
/// use ringmem::backend::host::HostBackend;
/// use ringmem::memory::{Device, Pinned};
/// use ringmem::mirror::{MirroredBuffer, Side, State};
///
/// let backend = HostBackend::builder().build()?;
/// let mut mirror = MirroredBuffer::<u32, _, _>::new(Pinned::new(&backend, 0), Device::new(&backend, 0), 1000)?;
/// mirror.fill(7)?;
/// mirror.compact(Side::Device)?; // updates the device's copy and frees the host's
/// assert_eq!(mirror.state(), State::DeviceOnly);
/// assert_eq!(backend.counters().pinned_live.bytes, 0);
/// # Ok::<(), ringmem::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// The host's.
    Host,
    /// The device's.
    Device,
}

impl Side {
    /// Returns the other side.
    #[must_use]
    pub const fn other(self) -> Self {
        match self {
            Self::Host => Self::Device,
            Self::Device => Self::Host,
        }
    }
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Host => "host",
            Self::Device => "device",
        })
    }
}

/// An access to the device's copy.
///
/// ```
/// use ringmem::backend::host::HostBackend;
/// use ringmem::memory::{Device, Pinned};
/// use ringmem::mirror::{Access, MirroredBuffer};
/// use ringmem::stream::Stream;
///
/// let backend = HostBackend::builder().build()?;
/// let stream = Stream::new(&backend, 0)?;
/// let mut mirror = MirroredBuffer::<u32, _, _>::new(Pinned::new(&backend, 0), Device::new(&backend, 0), 1000)?;
/// mirror.fill(1)?;
/// // All elements are overwritten on the device: the host's copy is not uploaded.
/// mirror.through(Access::Write, |buffer| (stream.fill(buffer, .., 2).expect("queued").detach(), ()))?;
/// assert_eq!((mirror.to_vec()?[0], mirror.statistics().to_device.count), (2, 0));
/// # Ok::<(), ringmem::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// Reads it.
    Read,
    /// Writes all of it, unread.
    Write,
    /// Reads and writes it.
    Update,
}

/// The valid copies of a [`MirroredBuffer`](super::MirroredBuffer).
///
/// ```
/// use ringmem::backend::host::HostBackend;
/// use ringmem::memory::{Device, Pinned};
/// use ringmem::mirror::{MirroredBuffer, State};
///
/// let backend = HostBackend::builder().build()?;
/// let mut mirror = MirroredBuffer::<u32, _, _>::new(Pinned::new(&backend, 0), Device::new(&backend, 0), 4)?;
/// assert_eq!(mirror.state(), State::Uninitialized);
/// mirror.host_mut()?[0] = 7;
/// assert_eq!(mirror.state(), State::HostDirty);
/// mirror.device()?; // copies to the device
/// assert_eq!(mirror.state(), State::Synchronized);
/// # Ok::<(), ringmem::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[doc(alias = "BufferState")]
pub enum State {
    /// None: nothing was written.
    Uninitialized,
    /// The host's; the device has none.
    HostOnly,
    /// The device's; the host has none.
    DeviceOnly,
    /// Both, equal.
    Synchronized,
    /// The host's; the device's is stale or absent.
    HostDirty,
    /// The device's; the host's is stale or absent.
    DeviceDirty,
}

impl State {
    /// Returns the variant's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Uninitialized => "Uninitialized",
            Self::HostOnly => "HostOnly",
            Self::DeviceOnly => "DeviceOnly",
            Self::Synchronized => "Synchronized",
            Self::HostDirty => "HostDirty",
            Self::DeviceDirty => "DeviceDirty",
        }
    }
}

impl State {
    /// Returns whether this side has the last write.
    #[must_use]
    pub const fn is_valid(self, side: Side) -> bool {
        match side {
            Side::Host => matches!(self, Self::HostOnly | Self::Synchronized | Self::HostDirty),
            Side::Device => matches!(self, Self::DeviceOnly | Self::Synchronized | Self::DeviceDirty),
        }
    }

    /// Returns whether this side has writes that the other lacks.
    #[must_use]
    pub const fn is_dirty(self, side: Side) -> bool {
        matches!((self, side), (Self::HostDirty, Side::Host) | (Self::DeviceDirty, Side::Device))
    }

    pub(super) const fn dirty(side: Side) -> Self {
        match side {
            Side::Host => Self::HostDirty,
            Side::Device => Self::DeviceDirty,
        }
    }

    pub(super) const fn only(side: Side) -> Self {
        match side {
            Side::Host => Self::HostOnly,
            Side::Device => Self::DeviceOnly,
        }
    }
}
