use core::fmt;
use std::vec::Vec;

use crate::memory::{Buffer, Device, GpuBuffer, Host, Memory, Pinned};
use crate::stream::{Pending, Stream};
use crate::{MemoryVisibility, Rejected, Result};

/// Bytes copied, and the time.
///
/// ```
/// use ringmem::copy::Rate;
///
/// assert_eq!(Rate { bytes: 1 << 30, ns: 1 << 26 }.gb_per_s(), Some(16.0));
/// assert_eq!(Rate { bytes: 100, ns: 0 }.gb_per_s(), None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Bytes.
    pub bytes: u64,
    /// Nanoseconds.
    pub ns: u64,
}

impl Rate {
    /// Returns GB/s (10^9 bytes per second), unless no time passed.
    #[must_use]
    pub fn gb_per_s(self) -> Option<f64> {
        (self.ns > 0).then(|| self.bytes as f64 / self.ns as f64)
    }
}

/// Rates of copies between host and device.
///
/// ```
/// use ringmem::backend::host::HostBackend;
/// use ringmem::copy::bandwidth;
/// use ringmem::stream::Stream;
///
/// let backend = HostBackend::builder().build()?;
/// let measured = bandwidth(&Stream::new(&backend, 0)?, 1 << 20)?;
/// println!("{:?} GB/s to the device", measured.upload.gb_per_s());
/// # Ok::<(), ringmem::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bandwidth {
    /// From pinned memory to the device.
    pub upload: Rate,
    /// From the device to pinned memory.
    pub download: Rate,
    /// From pageable memory to the device.
    pub pageable_upload: Rate,
    /// From the device to pageable memory.
    pub pageable_download: Rate,
    /// Within the device.
    pub on_device: Rate,
    /// Whether the pinned memory was page-locked.
    pub is_pinned: bool,
}

/// The fastest counts: other load only adds time.
const TIMES: usize = 4;

/// Measures single copies of `bytes` bytes between host and device, by [`Backend::now_ns`](crate::backend::Backend::now_ns).
///
/// # Errors
///
/// [`Size`](crate::Error::Size) for no bytes; an allocation's or copy's error.
pub fn bandwidth(stream: &Stream, bytes: usize) -> Result<Bandwidth> {
    if bytes == 0 {
        return Err(crate::Error::Size { what: "size in bytes", asked: 0, least: 1, most: isize::MAX as u64 });
    }
    let (backend, device) = (stream.backend(), stream.device());
    let on_device = || GpuBuffer::<u8>::new(Device::new(backend, device), bytes);
    let pinned = Buffer::<u8, _>::new(Pinned::new(backend, device), bytes)?;
    let pageable = Buffer::<u8, _>::new(Host::new(backend, device), bytes)?;
    let is_pinned = pinned.is_pinned();
    let (upload, (pinned, target)) = measure(stream, pinned, on_device()?)?;
    let (download, (target, pinned)) = measure(stream, target, pinned)?;
    drop(pinned);
    let (pageable_upload, (pageable, target)) = measure(stream, pageable, target)?;
    let (pageable_download, (target, _)) = measure(stream, target, pageable)?;
    let (on_device, _) = measure(stream, target, on_device()?)?;
    Ok(Bandwidth { upload, download, pageable_upload, pageable_download, on_device, is_pinned })
}

type Ends<A, B> = (Buffer<u8, A>, Buffer<u8, B>);

fn measure<A: Memory, B: Memory>(stream: &Stream, from: Buffer<u8, A>, to: Buffer<u8, B>) -> Result<(Rate, Ends<A, B>)> {
    let (bytes, backend) = (from.size_bytes() as u64, stream.backend());
    let mut both = (from, to);
    let mut least = u64::MAX;
    for time in 0..=TIMES {
        let begun = backend.now_ns();
        both = stream.copy(both.0, both.1).and_then(Pending::wait).map_err(Rejected::into_error)?;
        let took = backend.now_ns().saturating_sub(begun);
        // The first copy includes page faults.
        if time > 0 {
            least = least.min(took);
        }
    }
    Ok((Rate { bytes, ns: least }, both))
}

/// GB/s: any bus of the last fifteen years is faster.
pub const LEAST_GB_PER_S: u64 = 2;

const FEW: u64 = 1 << 20;

/// Conditions of a measurement.
///
/// ```
/// use ringmem::MemoryVisibility;
/// use ringmem::copy::{Circumstances, Diagnosis, Rate, Suggestion, diagnose};
///
/// let circumstances = Circumstances { is_pinned: false, visibility: MemoryVisibility::SystemScope };
/// let slow = diagnose(Rate { bytes: 64 << 20, ns: 100_000_000 }, circumstances);
/// assert_eq!(slow, Diagnosis::Slow(vec![Suggestion::Pin]));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Circumstances {
    /// Whether the host's memory was locked.
    pub is_pinned: bool,
    /// Visibility of the device's memory.
    pub visibility: MemoryVisibility,
}

/// A possible cause of a low rate.
///
/// ```
/// use ringmem::MemoryVisibility;
/// use ringmem::copy::{Circumstances, Diagnosis, Rate, Suggestion, diagnose};
///
/// let circumstances = Circumstances { is_pinned: true, visibility: MemoryVisibility::SystemScope };
/// let Diagnosis::Slow(suggestions) = diagnose(Rate { bytes: 4096, ns: 10_000 }, circumstances) else { panic!("0.4 GB/s") };
/// assert_eq!(suggestions, [Suggestion::Join]);
/// println!("{}", suggestions[0]); // what to do
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Suggestion {
    /// Pageable memory: each transfer is copied twice.
    Pin,
    /// Small copies: latency dominates.
    Join,
    /// The driver shares the device with another system (WSL, Windows).
    Native,
    /// The link itself.
    Link,
}

impl fmt::Display for Suggestion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pin => "the memory is pageable: pin it (`Pinned`, or a pool of it), and see that the limit of locked memory allows it",
            Self::Join => "the transfers are small: join them (`copy::Coalescer`), or measure with more bytes",
            Self::Native => {
                "the driver shares the device with another system (WSL or Windows): keep the data on the device, or run on native Linux"
            }
            Self::Link => {
                "the link to the device is slow: check its lane count and generation, the device's power state, and other users of the link"
            }
        })
    }
}

/// The verdict on a rate.
///
/// ```
/// use ringmem::MemoryVisibility;
/// use ringmem::copy::{Circumstances, Diagnosis, Rate, diagnose};
///
/// let circumstances = Circumstances { is_pinned: true, visibility: MemoryVisibility::SystemScope };
/// assert_eq!(diagnose(Rate { bytes: 64 << 20, ns: 5_000_000 }, circumstances), Diagnosis::Fine); // 13 GB/s
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Diagnosis {
    /// The rate is not low.
    Fine,
    /// No time has passed.
    Unknown,
    /// Below [`LEAST_GB_PER_S`]; likely causes first.
    Slow(Vec<Suggestion>),
}

/// Judges a rate between host and device: `Unknown` if no time passed, `Fine` from 2 GB/s on, else `Slow` with each suggestion that applies:
/// [`Pin`](Suggestion::Pin) for pageable memory, [`Join`](Suggestion::Join) below 1 MiB, [`Native`](Suggestion::Native) unless `SystemScope`;
/// [`Link`](Suggestion::Link) if none does.
#[must_use]
pub fn diagnose(rate: Rate, circumstances: Circumstances) -> Diagnosis {
    let Circumstances { is_pinned, visibility } = circumstances;
    if rate.ns == 0 {
        return Diagnosis::Unknown;
    }
    if u128::from(rate.bytes) >= u128::from(LEAST_GB_PER_S) * u128::from(rate.ns) {
        return Diagnosis::Fine;
    }
    let apply = [
        (Suggestion::Pin, !is_pinned),
        (Suggestion::Join, rate.bytes < FEW),
        (Suggestion::Native, visibility != MemoryVisibility::SystemScope),
    ];
    let mut suggestions: Vec<_> = apply.into_iter().filter_map(|(suggestion, applies)| applies.then_some(suggestion)).collect();
    if suggestions.is_empty() {
        suggestions.push(Suggestion::Link);
    }
    Diagnosis::Slow(suggestions)
}

#[cfg(test)]
mod tests {
    use super::Diagnosis::{Fine, Slow, Unknown};
    use super::MemoryVisibility::{DeviceScope, ExplicitDma, SystemScope};
    use super::Suggestion::{Join, Link, Native, Pin};
    use super::*;
    use std::vec;

    #[test]
    fn diagnose_reports_causes_below_2_gb_per_s() {
        const MIB: u64 = 1 << 20;
        for (bytes, ns, is_pinned, visibility, expected) in [
            (0, 0, true, SystemScope, Unknown),
            (MIB, 0, false, ExplicitDma, Unknown),
            (u64::MAX, u64::MAX / 2, false, DeviceScope, Fine),
            (2_000_000, 1_000_000, false, DeviceScope, Fine),
            (1, 1, true, SystemScope, Slow(vec![Join])),
            (1_999_999, 1_000_000, true, SystemScope, Slow(vec![Link])),
            (u64::MAX, u64::MAX, true, SystemScope, Slow(vec![Link])),
            (MIB, MIB, false, SystemScope, Slow(vec![Pin])),
            (MIB - 1, MIB, true, SystemScope, Slow(vec![Join])),
            (MIB - 1, MIB, false, SystemScope, Slow(vec![Pin, Join])),
            (MIB, MIB, true, DeviceScope, Slow(vec![Native])),
            (MIB, MIB, true, ExplicitDma, Slow(vec![Native])),
            (MIB - 1, MIB, false, DeviceScope, Slow(vec![Pin, Join, Native])),
        ] {
            let circumstances = Circumstances { is_pinned, visibility };
            assert_eq!(diagnose(Rate { bytes, ns }, circumstances), expected, "{bytes} bytes in {ns} ns, {circumstances:?}");
        }
    }

    #[test]
    fn a_rate_is_bytes_per_nanosecond() {
        assert_eq!(Rate { bytes: 24_000, ns: 2000 }.gb_per_s(), Some(12.0));
        assert_eq!(Rate { bytes: 24_000, ns: 0 }.gb_per_s(), None);
    }
}
