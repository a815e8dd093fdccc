use cudarc::driver::sys::CUdevice;
use ringmem_layouts::ring::mpmc::SystemAtomics;
use std::vec::Vec;

use super::driver::{Driver, attribute};
use super::{CudaBackend, Inner, code};
use crate::backend::Capabilities;
use crate::{Error, Result};

#[derive(Clone, Copy, Debug)]
pub(super) struct Facts {
    pub managed: bool,
    pub concurrent_managed_access: bool,
    pub native_atomics: bool,
    pub integrated: bool,
    /// Host memory has the same device address, and accesses have scopes.
    pub system_scope: bool,
    pub writes_words: bool,
    pub pools: bool,
    pub cooperative: bool,
    pub processors: u32,
}

const SCOPED: u32 = 7;

pub(super) const LARGEST_ALIGN: u64 = 2 << 20;

impl Facts {
    pub fn ask(driver: &Driver, device: CUdevice) -> Result<Self> {
        let calls = driver.calls();
        let number = |which| driver.attribute(device, which);
        let has = |which| number(which).map(|value| value != 0);
        let mapped = has(attribute::CAN_MAP_HOST_MEMORY)? && has(attribute::UNIFIED_ADDRESSING)?;
        // An older driver rejects the attribute.
        let newer = |which| match has(which) {
            Err(Error::Driver { code: code::number::INVALID_VALUE, .. }) => Ok(false),
            answer => answer,
        };
        Ok(Self {
            managed: has(attribute::MANAGED_MEMORY)? && calls.cuMemAllocManaged.is_some(),
            concurrent_managed_access: has(attribute::CONCURRENT_MANAGED_ACCESS)?,
            native_atomics: has(attribute::HOST_NATIVE_ATOMICS)?,
            integrated: has(attribute::INTEGRATED)?,
            system_scope: mapped && number(attribute::CAPABILITY_MAJOR)? >= SCOPED,
            writes_words: newer(attribute::WRITES_WORDS)? && calls.cuStreamWriteValue64_v2.is_some(),
            pools: newer(attribute::MEMORY_POOLS)? && calls.has_pools(),
            cooperative: has(attribute::COOPERATIVE_LAUNCH)? && calls.cuLaunchCooperativeKernel.is_some(),
            processors: number(attribute::PROCESSORS)?,
        })
    }
}

impl Inner {
    pub(super) fn able(&self, ordinal: u32) -> Result<Capabilities> {
        let device = self.device(ordinal)?;
        let facts = &device.facts;
        let peers = (0..self.devices.len() as u32)
            .filter_map(|peer| self.reaches(device, peer).map(|reaches| reaches.then_some(peer)).transpose())
            .collect::<Result<Vec<u32>>>()?;
        Ok(Capabilities {
            unified: facts.managed,
            concurrent_managed_access: facts.concurrent_managed_access,
            system_scope: facts.system_scope,
            host_native_atomics: facts.native_atomics,
            shared_memory: facts.integrated,
            stream_ordered: device.pool.is_some(),
            largest_align: LARGEST_ALIGN,
            peers,
        })
    }
}

impl CudaBackend {
    /// Returns a proof that read-modify-writes of pinned memory are atomic between host and device; `None` if not reported.
    ///
    /// # Errors
    ///
    /// [`NoDevice`](crate::Error::NoDevice), the driver's error.
    pub fn system_atomics(&self, device: u32) -> Result<Option<SystemAtomics>> {
        let has = self.inner.device(device)?.facts.native_atomics;
        // SAFETY: the device reports it.
        Ok(has.then(|| unsafe { SystemAtomics::assume() }))
    }
}
