//! Which copy of a mirrored buffer is the valid one.

use core::fmt;

/// One of the two copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// The host's.
    Host,
    /// The device's.
    Device,
}

impl Side {
    /// The other one.
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

/// What is done with the device's copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// It is read.
    Read,
    /// All of it is written, and nothing read that was in it before: a copy that is stale is not brought up to date.
    Write,
    /// It is read and written.
    Update,
}

/// Which copies of a [`MirroredBuffer`](super::MirroredBuffer) are valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// None: nothing was ever written.
    Uninitialized,
    /// The host's, and the device has none.
    HostOnly,
    /// The device's, and the host has none.
    DeviceOnly,
    /// Both, and they are equal.
    Synchronized,
    /// The host's, which was written last. The device's is stale, or not there yet.
    HostDirty,
    /// The device's, which was written last. The host's is stale, or not there yet.
    DeviceDirty,
}

impl State {
    /// Returns the name of the variant.
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
    /// Whether this side's copy is the last that was written, or equal to it.
    #[must_use]
    pub const fn is_valid(self, side: Side) -> bool {
        match side {
            Side::Host => matches!(self, Self::HostOnly | Self::Synchronized | Self::HostDirty),
            Side::Device => matches!(self, Self::DeviceOnly | Self::Synchronized | Self::DeviceDirty),
        }
    }

    /// Whether this side was written and the other has not seen it.
    #[must_use]
    pub const fn is_dirty(self, side: Side) -> bool {
        matches!((self, side), (Self::HostDirty, Side::Host) | (Self::DeviceDirty, Side::Device))
    }

    /// After a write to this side alone.
    pub(super) const fn dirty(side: Side) -> Self {
        match side {
            Side::Host => Self::HostDirty,
            Side::Device => Self::DeviceDirty,
        }
    }

    /// With a copy on this side alone.
    pub(super) const fn only(side: Side) -> Self {
        match side {
            Side::Host => Self::HostOnly,
            Side::Device => Self::DeviceOnly,
        }
    }
}
