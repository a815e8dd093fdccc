//! Tensors in memory of a CUDA device as buffers.
#![allow(clippy::result_large_err, reason = "what comes back is as large as what went in")]

use std::boxed::Box;
use std::sync::Arc;

use super::{DlDevice, Element, Taken};
use crate::backend::cuda::CudaBackend;
use crate::backend::{Backend, DeviceAddress, StreamId, Uses};
use crate::error::TensorError;
use crate::memory::{Buffer, Device, GpuBuffer, layout};
use crate::{Rejected, Result};

impl<T: Element> Taken<T> {
    /// Makes a tensor in memory of a CUDA device a buffer. The deleter is called after the buffer's drop and its uses.
    ///
    /// `after` is the stream that was passed to the producer, which has ordered its work before: its position is the buffer's first use. Without one, the
    /// producer's work is complete.
    ///
    /// # Errors
    ///
    /// The tensor, with [`Tensor`](crate::Error::Tensor) if it is in other memory or read-only; [`Closed`](crate::Error::Closed) for a stream that is not open;
    /// as [`CudaBackend::adopt`], of which [`Unsupported`](crate::Error::Unsupported) is memory that this backend allocated or has adopted.
    pub fn into_buffer(self, backend: &Arc<CudaBackend>, after: Option<StreamId>) -> Result<GpuBuffer<T>, Rejected<Self>> {
        match self.adopted(backend, after) {
            Ok(buffer) => Ok(buffer),
            Err(error) => Err(Rejected { error, value: self }),
        }
    }

    fn adopted(&self, backend: &Arc<CudaBackend>, after: Option<StreamId>) -> Result<GpuBuffer<T>> {
        let got = self.device;
        let (DlDevice::CUDA, Ok(device)) = (got.device_type, u32::try_from(got.device_id)) else {
            return Err(TensorError::Device { call: "into_buffer", got }.into());
        };
        self.writable()?;
        backend.capabilities(device)?;
        let position = after.map(|stream| backend.record_position(stream)).transpose()?;
        let memory = Device::new(backend, device);
        if self.is_empty() {
            return Buffer::new(memory, 0);
        }
        let layout = layout::<T>(self.len())?;
        // A share: after an error, `self` has the tensor.
        let keeps = Box::new(Arc::clone(&self.owned));
        // SAFETY: the elements are that device's memory until the deleter is called, by the invariant, and `keeps` prevents that. `Taken::from_raw` demands
        // that nothing else accesses them, except work of the producer that `after` orders.
        let block = unsafe { backend.adopt(device, DeviceAddress::new(self.address()), layout, keeps) }?;
        // SAFETY: `memory` frees blocks of this backend, of which this is one, and nothing else frees it. It has the layout of the elements, and is ready after
        // `position`.
        Ok(unsafe { Buffer::of_block(memory, &block, self.len(), Uses::from(position)) })
    }
}
