//! [`MemoryVisibility`]: whether host and running kernel see each other's stores.
//!
//! [`Facts::gather`] queries system and device for [`classify`]. `RINGMEM_VISIBILITY` (`system`, `device` or `dma`) overrides the result.

use core::fmt;
use std::boxed::Box;
use std::string::String;
use std::sync::Arc;

use crate::Result;
use crate::backend::{Backend, Capabilities};
use crate::trace::event;

/// The visibility of stores between host and running kernel, in memory that both map.
///
/// ```
/// use ringmem::MemoryVisibility;
/// use ringmem::backend::host::HostBackend;
///
/// let backend = HostBackend::builder().build()?;
/// let detected = MemoryVisibility::detect(&backend, 0)?;
/// println!("{}: {}", detected.visibility, detected.why);
/// # Ok::<(), ringmem::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MemoryVisibility {
    /// Each side sees the other's stores, in the order of fences.
    SystemScope,
    /// Stores are visible after a launch or a driver copy.
    DeviceScope,
    /// No shared memory: each access is a transfer.
    ExplicitDma,
}

/// Distinguished operating systems.
///
/// ```
/// use ringmem::MemoryVisibility;
/// use ringmem::visibility::{Facts, Os, classify};
///
/// let facts = Facts { os: Os::Windows, kernel: None, concurrent_managed_access: Some(true), system_scope: None };
/// assert_eq!(classify(&facts).0, MemoryVisibility::SystemScope);
/// assert_eq!(classify(&Facts { os: Os::MacOs, ..facts }).0, MemoryVisibility::DeviceScope);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Os {
    /// Linux, native or in WSL.
    Linux,
    /// Windows.
    Windows,
    /// macOS.
    MacOs,
    /// Any other system.
    Other,
}

/// The inputs of [`classify`].
///
/// ```
/// use ringmem::backend::Backend;
/// use ringmem::backend::host::HostBackend;
/// use ringmem::visibility::{Facts, classify};
///
/// let backend = HostBackend::builder().system_scope(false).build()?;
/// let facts = Facts::gather(&backend.capabilities(0)?);
/// let (visibility, why) = classify(&facts);
/// println!("{visibility}: {why}, from {facts:?}");
/// assert_eq!(facts.system_scope, Some(false));
/// # Ok::<(), ringmem::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Operating system.
    pub os: Os,
    /// `/proc/version`, if readable.
    pub kernel: Option<String>,
    /// Whether the host may access managed memory under a kernel, if known.
    pub concurrent_managed_access: Option<bool>,
    /// Whether pinned memory is mutually visible, if known.
    pub system_scope: Option<bool>,
}

/// The detected visibility and its reason.
///
/// ```
/// use ringmem::MemoryVisibility;
/// use ringmem::backend::host::HostBackend;
/// use ringmem::visibility::Detected;
///
/// let backend = HostBackend::builder().build()?;
/// let Detected { visibility, overridden, warning, .. } = MemoryVisibility::detect(&backend, 0)?;
/// if let Some(warning) = warning {
///     eprintln!("RINGMEM_VISIBILITY: {warning}");
/// }
/// assert!(overridden.is_some() || visibility != MemoryVisibility::ExplicitDma);
/// # Ok::<(), ringmem::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Detected {
    /// Visibility to use.
    pub visibility: MemoryVisibility,
    /// Reason.
    pub why: &'static str,
    /// Environment variable's value; a valid one sets `visibility`.
    pub overridden: Option<Box<str>>,
    /// For an unknown value, or one unlike the detection.
    pub warning: Option<&'static str>,
}

/// The variable that overrides the detection.
pub const VARIABLE: &str = "RINGMEM_VISIBILITY";

impl MemoryVisibility {
    /// Detects the visibility between host and device, unless [`VARIABLE`] sets it.
    ///
    /// # Errors
    ///
    /// [`NoDevice`](crate::Error::NoDevice).
    pub fn detect<B: Backend + ?Sized>(backend: &Arc<B>, device: u32) -> Result<Detected> {
        // Not Unicode: unknown.
        let asked = std::env::var_os(VARIABLE).map(|asked| asked.to_string_lossy().into_owned());
        let detected = overrule(&Facts::gather(&backend.capabilities(device)?), asked.as_deref());
        if let Some(warning) = detected.warning {
            event!(warn, variable = VARIABLE, value = detected.overridden.as_deref(), warning, "visibility");
        }
        Ok(detected)
    }

    /// Returns the name in `RINGMEM_VISIBILITY` and in messages.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::SystemScope => "system",
            Self::DeviceScope => "device",
            Self::ExplicitDma => "dma",
        }
    }
}

impl Facts {
    /// Gathers the facts of this machine and a device.
    #[must_use]
    pub fn gather(capabilities: &Capabilities) -> Self {
        let os = match std::env::consts::OS {
            "linux" | "android" => Os::Linux,
            "windows" => Os::Windows,
            "macos" => Os::MacOs,
            _ => Os::Other,
        };
        let kernel = if os == Os::Linux { std::fs::read_to_string("/proc/version").ok() } else { None };
        let Capabilities { concurrent_managed_access, system_scope, .. } = *capabilities;
        Self { os, kernel, concurrent_managed_access: Some(concurrent_managed_access), system_scope: Some(system_scope) }
    }
}

/// Returns the visibility and its reason. Unknown device facts are assumed as usual on the system.
///
/// - Linux: `SystemScope` if the device sees pinned memory at system scope, or if that is unknown and the kernel is known. Else `DeviceScope`.
/// - Windows: `SystemScope` with concurrent managed access. Else `DeviceScope`.
/// - WSL 2 and macOS: `DeviceScope`.
/// - WSL 1, which has no device, and other systems: `ExplicitDma`.
#[must_use]
pub fn classify(facts: &Facts) -> (MemoryVisibility, &'static str) {
    use MemoryVisibility::{DeviceScope, ExplicitDma, SystemScope};
    match facts.os {
        Os::Linux => match (subsystem(facts.kernel.as_deref().unwrap_or_default()), facts.system_scope) {
            (Some(Subsystem::Second), _) => (DeviceScope, "WSL 2: the driver moves pages only between launches"),
            (Some(Subsystem::First), _) => (ExplicitDma, "WSL 1 has no device"),
            (None, Some(false)) => (DeviceScope, "the device does not see the host's stores while a kernel runs"),
            (None, Some(true)) => (SystemScope, "Linux, and the device sees pinned memory at system scope"),
            (None, None) if facts.kernel.as_deref().is_none_or(|text| text.trim().is_empty()) => {
                (DeviceScope, "Linux, but neither its version nor the device's scope is known")
            }
            (None, None) => (SystemScope, "Linux, not under WSL"),
        },
        Os::Windows if facts.concurrent_managed_access == Some(true) => (SystemScope, "Windows, with concurrent managed access"),
        Os::Windows => (DeviceScope, "Windows, without concurrent managed access"),
        Os::MacOs => (DeviceScope, "macOS: the host reads only after a kernel has ended"),
        Os::Other => (ExplicitDma, "an unknown operating system"),
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Subsystem {
    First,
    Second,
}

/// Later text may name a builder at Microsoft.
fn subsystem(version: &str) -> Option<Subsystem> {
    let release = version.strip_prefix("Linux version ").unwrap_or(version).split_whitespace().next()?.to_ascii_lowercase();
    if !release.contains("microsoft") {
        return None;
    }
    Some(if release.contains("standard") || release.contains("wsl2") { Subsystem::Second } else { Subsystem::First })
}

fn overrule(facts: &Facts, asked: Option<&str>) -> Detected {
    let (visibility, why) = classify(facts);
    let Some(asked) = asked.filter(|asked| !asked.is_empty()) else {
        return Detected { visibility, why, overridden: None, warning: None };
    };
    let overridden = Some(asked.into());
    let known = [MemoryVisibility::SystemScope, MemoryVisibility::DeviceScope, MemoryVisibility::ExplicitDma];
    match known.into_iter().find(|known| known.name().eq_ignore_ascii_case(asked)) {
        None => Detected { visibility, why, overridden, warning: Some("ignored: it must be `system`, `device` or `dma`") },
        Some(asked) => {
            let warning = if asked == visibility {
                None
            } else if asked == MemoryVisibility::SystemScope {
                Some(
                    "stronger than the detected visibility: a kernel may never see a host store that it waits for; unset it unless you are sure",
                )
            } else {
                Some("differs from the detected visibility")
            };
            Detected { visibility: asked, why: "set by RINGMEM_VISIBILITY", overridden, warning }
        }
    }
}

impl fmt::Display for MemoryVisibility {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::MemoryVisibility::{DeviceScope, ExplicitDma, SystemScope};
    use super::*;

    fn facts(os: Os, kernel: Option<&str>, managed: Option<bool>, scope: Option<bool>) -> Facts {
        Facts { os, kernel: kernel.map(Into::into), concurrent_managed_access: managed, system_scope: scope }
    }

    #[test]
    fn every_system_has_its_visibility() {
        let debian = "Linux version 6.12.48+deb13-amd64 (debian-kernel@lists.debian.org) (gcc 14.2.0) #1 SMP";
        let wsl2 = "Linux version 5.15.153.1-microsoft-standard-WSL2 (root@941d701f84f1) (gcc 11.2.0) #1 SMP";
        let azure = "Linux version 5.15.0-1064-azure (build@microsoft.com) (gcc 11.4.0) #73-Ubuntu";
        for (os, kernel, managed, scope, expected) in [
            (Os::Linux, Some(debian), Some(true), Some(true), SystemScope),
            (Os::Linux, Some(debian), None, None, SystemScope),
            (Os::Linux, Some(debian), Some(true), Some(false), DeviceScope),
            (Os::Linux, Some(azure), None, None, SystemScope),
            (Os::Linux, Some(wsl2), Some(true), Some(true), DeviceScope),
            (Os::Linux, Some("5.15.90.1-MICROSOFT-Standard"), None, None, DeviceScope),
            (Os::Linux, Some("microsoft-standard-WSL2"), None, None, DeviceScope),
            (Os::Linux, Some("Linux version 4.4.0-19041-Microsoft (Microsoft@Microsoft.com)"), None, None, ExplicitDma),
            (Os::Linux, Some("Microsoft"), None, Some(true), ExplicitDma),
            (Os::Linux, Some("Linux version 6.1.0-wslike (somebody)"), None, None, SystemScope),
            (Os::Linux, Some(""), None, None, DeviceScope),
            (Os::Linux, Some(" \n"), None, Some(true), SystemScope),
            (Os::Linux, None, None, None, DeviceScope),
            (Os::Linux, None, None, Some(true), SystemScope),
            (Os::Windows, None, Some(true), Some(true), SystemScope),
            (Os::Windows, None, Some(false), Some(true), DeviceScope),
            (Os::Windows, None, None, None, DeviceScope),
            (Os::MacOs, None, Some(true), Some(true), DeviceScope),
            (Os::Other, Some(debian), Some(true), Some(true), ExplicitDma),
        ] {
            let facts = facts(os, kernel, managed, scope);
            assert_eq!(classify(&facts).0, expected, "{facts:?}");
        }
    }

    #[test]
    fn the_environment_overrides_with_a_warning() {
        let facts = facts(Os::Linux, None, None, Some(false));
        let plain = overrule(&facts, None);
        assert_eq!((plain.visibility, &plain.overridden, plain.warning), (DeviceScope, &None, None));
        assert_eq!(overrule(&facts, Some("")), plain);
        for (asked, expected, warned) in [("device", DeviceScope, false), ("System", SystemScope, true), ("DMA", ExplicitDma, true)] {
            let detected = overrule(&facts, Some(asked));
            assert_eq!((detected.visibility, detected.warning.is_some()), (expected, warned), "{asked}");
            assert_eq!(detected.overridden.as_deref(), Some(asked));
        }
        let nonsense = overrule(&facts, Some("everything"));
        assert_eq!((nonsense.visibility, nonsense.why), (plain.visibility, plain.why));
        assert!(nonsense.warning.is_some());
    }
}
