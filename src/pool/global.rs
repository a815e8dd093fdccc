use std::boxed::Box;
use std::sync::{Arc, OnceLock};

use super::Pools;
use crate::backend::Backend;
use crate::config::Config;
use crate::{Error, Result};

static POOLS: OnceLock<Pools> = OnceLock::new();

/// Configures the process-wide pools, once. Later calls with the same arguments return the same pools.
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
/// let buffer = pool::global().map(|pools| pools.buffer::<f32>(1000)).transpose()?;
/// assert!(buffer.is_some());
/// assert!(matches!(pool::configure(&backend, 0, &Config::metal()), Err(Error::AlreadyExists { .. })));
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// [`AlreadyExists`](Error::AlreadyExists), with both configurations, if the pools exist with other arguments. Also those of
/// [`Pools::new`], after which the pools are not configured.
pub fn configure<B: Backend + ?Sized>(backend: &Arc<B>, device: u32, config: &Config) -> Result<&'static Pools> {
    let pools = match POOLS.get() {
        Some(pools) => pools,
        // One of several threads sets its pools. The others hold no memory yet.
        None => {
            let pools = Pools::new(backend, device, config)?;
            POOLS.get_or_init(|| pools)
        }
    };
    let chosen = |backend: u64, device: u32, config: &Config| std::format!("device {device} of backend {backend} with {config:?}");
    let is = (pools.backend().id(), pools.ordinal(), pools.config());
    let asked = (backend.id(), device, config);
    if is == asked {
        return Ok(pools);
    }
    let configs = [is, asked].map(|(backend, device, config)| chosen(backend, device, config));
    Err(Error::AlreadyExists { name: "process-wide pools".into(), configs: Some(Box::new(configs)) })
}

/// Returns the process-wide pools; `None` before [`configure`].
#[must_use]
#[doc(alias = "get_memory_pool")]
pub fn global() -> Option<&'static Pools> {
    POOLS.get()
}
