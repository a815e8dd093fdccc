use std::boxed::Box;
use std::sync::{Arc, OnceLock};

use super::Pools;
use crate::backend::Backend;
use crate::backend::host::HostBackend;
use crate::config::Config;
use crate::trace::event;
use crate::{Error, Result};

static GLOBAL: OnceLock<Global> = OnceLock::new();

struct Global {
    pools: Pools,
    /// Created by [`global`], not by [`configure`]: errors say so.
    is_default: bool,
}

/// Configures the process-wide pools, once, before the first call of [`global`]. Later calls with the same arguments return the same pools.
///
/// For several devices, use one [`Pools`] each.
///
/// ```
/// # fn main() -> ringmem::Result<()> {
/// use ringmem::Error;
/// use ringmem::backend::host::HostBackend;
/// use ringmem::config::Config;
/// use ringmem::pool;
///
/// let backend = HostBackend::builder().build()?;
/// pool::configure(&backend, 0, &Config::host())?;
/// // Anywhere else:
/// let buffer = pool::global()?.buffer::<f32>(1000)?;
/// assert_eq!(buffer.len(), 1000);
/// assert!(matches!(pool::configure(&backend, 0, &Config::metal()), Err(Error::AlreadyExists { .. })));
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// [`AlreadyExists`](Error::AlreadyExists), with both configurations, if the pools exist with other arguments; it says whether [`global`] created
/// them. Also those of [`Pools::new`], after which the pools are not configured.
pub fn configure<B: Backend + ?Sized>(backend: &Arc<B>, device: u32, config: &Config) -> Result<&'static Pools> {
    let Global { pools, is_default } = match GLOBAL.get() {
        Some(global) => global,
        // Of several threads, the first to get here sets its pools. Those of the others are dropped; they hold no memory yet.
        None => {
            let pools = Pools::new(backend, device, config)?;
            GLOBAL.get_or_init(|| Global { pools, is_default: false })
        }
    };
    let present = (pools.backend().id(), pools.ordinal(), pools.config());
    let asked = (backend.id(), device, config);
    if present == asked {
        return Ok(pools);
    }
    let [mut present, asked] =
        [present, asked].map(|(backend, device, config)| std::format!("device {device} of backend {backend} with {config:?}"));
    if *is_default {
        present.push_str(" (the default of the first call of `pool::global`; call `pool::configure` before it)");
    }
    Err(Error::AlreadyExists { name: "process-wide pools".into(), configs: Some(Box::new([present, asked])) })
}

/// Returns the process-wide pools. Without an earlier [`configure`], the first call creates them with defaults:
///
/// - With the feature `cuda` on a machine with a GPU: its device 0, with [`Config::cuda`].
/// - Otherwise: a simulated device of the [host backend](crate::backend::host), with [`Config::host`].
///   [`is_simulated`](Backend::is_simulated) of their backend, and [`is_device_backed`](crate::memory::Buffer::is_device_backed) of a buffer, tell the
///   two apart. To fail without a GPU, or to use another backend of the program, `configure` the pools.
///
/// ```
/// use ringmem::pool;
///
/// let mut buffer = pool::global()?.buffer::<u32>(1000)?; // no configuration
/// buffer.fill(7)?;
/// assert_eq!(buffer.to_vec()?, [7; 1000]);
/// # Ok::<(), ringmem::Error>(())
/// ```
///
/// # Errors
///
/// The error of opening the backend, for example [`Driver`](Error::Driver) of a GPU that cannot be used. The next call tries again.
#[doc(alias = "get_memory_pool")]
pub fn global() -> Result<&'static Pools> {
    match GLOBAL.get() {
        Some(global) => Ok(&global.pools),
        None => create_default(),
    }
}

#[cold]
fn create_default() -> Result<&'static Pools> {
    let (backend, config) = default_backend()?;
    let pools = Pools::new(&backend, 0, &config)?;
    Ok(&GLOBAL.get_or_init(|| Global { pools, is_default: true }).pools)
}

fn default_backend() -> Result<(Arc<dyn Backend>, Config)> {
    #[cfg(feature = "cuda")]
    match crate::backend::cuda::CudaBackend::open() {
        Ok(backend) => return Ok((backend, Config::cuda())),
        // The driver is absent, or a stub, or finds no GPU that the process may use.
        Err(Error::NoDriver { .. } | Error::NoDevice { .. } | Error::Driver { code: 34 | 100, .. }) => {}
        Err(error) => return Err(error),
    }
    event!(warn, "no GPU: the process-wide pools are of a simulated device");
    Ok((HostBackend::builder().build()?, Config::host()))
}
