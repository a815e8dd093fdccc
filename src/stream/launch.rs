#![allow(clippy::result_large_err, reason = "what comes back is as large as what went in")]

use std::vec::Vec;

use ringmem_layouts::kernel::{Arguments, Kernel};

use super::metrics::Work;
use super::{Module, Operand, Pending, Queue, Queued, Stream};
use crate::backend::{DeviceAddress, Launch, Uses, same_backend};
use crate::memory::{DeviceReadable, Memory};
use crate::trace::event;
use crate::{Error, Result};
use sealed::Shown;

/// The operands of a launch: device-readable buffers and leases, alone or in nested pairs.
///
/// ```
/// use ringmem::backend::host::HostBackend;
/// use ringmem::memory::{Device, GpuBuffer};
/// use ringmem::stream::{Module, Stream};
///
/// let backend = HostBackend::builder().build()?;
/// let module = Module::load(&backend, &ringmem_kernels::IMAGE, &ringmem_kernels::ABI)?;
/// let bytes = GpuBuffer::<u8>::from_slice(Device::new(&backend, 0), &[1, 2, 3])?;
/// // SAFETY: `increment` uses 3 bytes, which the launch owns.
/// let bytes = unsafe { Stream::new(&backend, 0)?.launch_with(&module, "increment", bytes, &[3]) }?.wait()?;
/// assert_eq!(bytes.to_vec()?, [2, 3, 4]);
/// # Ok::<(), ringmem::Error>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be given to a launch",
    label = "the stream takes it by value and returns it",
    note = "operands are a `Buffer`, a `Lease` or a `LeaseMut` in memory that devices see, or nested pairs of these: `(a, (b, c))`"
)]
pub trait Operands: Queued + sealed::Places {}

impl<A: Operand> Operands for A where A::Memory: Memory<Visibility: DeviceReadable> {}
impl<A: Operands, B: Operands> Operands for (A, B) {}

impl Stream {
    /// Queues a kernel with one block by name. [`start`](Self::start) is typed; [`launch_with`](Self::launch_with) owns its buffers.
    ///
    /// # Errors
    ///
    /// [`NotFound`](crate::Error::NotFound), [`Arguments`](crate::Error::Arguments), [`OtherBackend`](crate::Error::OtherBackend),
    /// [`Residency`](crate::Error::Residency) or the driver's error; nothing was queued. Waiting may return
    /// [`KernelPanicked`](crate::Error::KernelPanicked).
    ///
    /// # Safety
    ///
    /// Until the kernel has ended, which only a wait for the launch shows:
    ///
    /// - the kernel is written for one block of one warp;
    /// - the arguments are the kernel's, and all memory that it accesses is live: wait before freeing a buffer, or list the launch by
    ///   [`Buffer::used_by`](crate::memory::Buffer::used_by);
    /// - host code and transfers access those bytes only by the kernel's own protocol;
    /// - without [`concurrent_managed_access`](crate::backend::Capabilities::concurrent_managed_access), no host slice of managed memory is
    ///   borrowed.
    pub unsafe fn launch(&self, module: &Module, name: &str, arguments: &[u64]) -> Result<Pending<()>> {
        // SAFETY: until the kernel has ended, the caller promises its arguments, live memory for all its accesses, other accesses only by its protocol, and,
        // without concurrent managed access, no borrowed host slice of managed memory. The kernel is written for one block of one warp.
        unsafe { self.queue_launch(module, name, arguments, [1, 1], false) }
    }

    /// # Safety
    ///
    /// As [`launch`](Self::launch), but the kernel is written for so many groups, and for as many warps in each.
    pub(crate) unsafe fn queue_launch(
        &self,
        module: &Module,
        name: &str,
        arguments: &[u64],
        [groups, warps]: [u32; 2],
        stays: bool,
    ) -> Result<Pending<()>> {
        same_backend(&*self.shared.backend, &**module.backend())?;
        let launch = Launch { module: module.id(), name, arguments, groups, warps, stays, operands: &[], elements: None };
        // SAFETY: until the kernel has ended, the caller promises its arguments, live memory for all its accesses, other accesses only by its protocol, and,
        // without concurrent managed access, no borrowed host slice of managed memory. The kernel is written for so many groups and warps.
        let ticket = self.queue(&[], Work::Kernel, |backend, id| unsafe { backend.launch(&launch, id) })?;
        event!(debug, stream = ticket.stream.get(), kernel = name, groups, warps, stays, "launch queued");
        Ok(Pending::new((), Some(ticket), self.clone()))
    }

    /// As [`launch`](Self::launch), with `groups` blocks, and typed: wrong arguments do not compile.
    ///
    /// ```
    /// use ringmem::backend::host::HostBackend;
    /// use ringmem::kernel::{DevicePointer, Kernel};
    /// use ringmem::memory::{Device, GpuBuffer};
    /// use ringmem::stream::{Module, Stream};
    /// # use ringmem::{Abi, Image, image::KernelHost};
    ///
    /// /// Adds one to so many words from the first on.
    /// const INCREMENT: Kernel<(DevicePointer<u64>, u64)> = Kernel::new("increment");
    /// # unsafe fn run(host: &dyn KernelHost, words: &[u64]) {
    /// #     let Some((first, count)) = INCREMENT.arguments(words) else { return };
    /// #     for place in (0..count).filter_map(|i| host.translate(first.add(i).address(), 8)) {
    /// #         // SAFETY: a live word, the launch's alone.
    /// #         unsafe { *place.cast::<u64>().as_mut() += 1 };
    /// #     }
    /// # }
    /// # const ABI: Abi = Abi::of(&[]);
    /// # const IMAGE: Image = Image { ptx: b"", host: &[INCREMENT.entry(run)], abi: ABI };
    ///
    /// let backend = HostBackend::builder().device_memory(1 << 20).build()?;
    /// let module = Module::load(&backend, &IMAGE, &ABI)?;
    /// let stream = Stream::new(&backend, 0)?;
    /// let words = GpuBuffer::<u64>::from_slice(Device::new(&backend, 0), &[1, 2, 3])?;
    /// let first = words.device_pointer().expect("it has bytes");
    /// // SAFETY: the words live until the launch has been waited for, and nobody else touches them meanwhile.
    /// unsafe { stream.start(&module, &INCREMENT, (first, 3), 1) }?.wait()?;
    /// assert_eq!(words.to_vec()?, [2, 3, 4]);
    /// # Ok::<(), ringmem::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`launch`](Self::launch); [`Size`](crate::Error::Size) for no groups or more than the device runs at once;
    /// [`Residency`](crate::Error::Residency) next to persistent kernels. A kernel that takes an [`Epoch`](crate::kernel::Epoch) is
    /// persistent.
    ///
    /// # Safety
    ///
    /// As [`launch`](Self::launch): a pointer may be stale. The kernel is written for `groups` blocks of one warp: two blocks of a kernel that was written for
    /// one would be two producers of a ring with one, for example.
    pub unsafe fn start<A: Arguments>(&self, module: &Module, kernel: &Kernel<A>, arguments: A, groups: u32) -> Result<Pending<()>> {
        // SAFETY: the types have checked the arguments. Until the kernel has ended, the caller promises live memory for all its accesses, other accesses only
        // by its protocol, and, without concurrent managed access, no borrowed host slice of managed memory. The kernel is written for so many groups of one
        // warp.
        unsafe { self.queue_launch(module, kernel.name(), arguments.words().as_ref(), [groups, 1], A::STAYS) }
    }

    /// Queues a kernel with one block; owns its `operands` until it has ended, then returns them.
    ///
    /// The arguments are the operands' device addresses, 0 without bytes, then `arguments`.
    ///
    /// ```
    /// # fn main() -> ringmem::Result<()> {
    /// use ringmem::backend::host::HostBackend;
    /// use ringmem::image::{Entry, KernelHost};
    /// use ringmem::memory::{Device, GpuBuffer};
    /// use ringmem::stream::{Module, Stream};
    /// use ringmem::{Abi, Image, LAYOUTS};
    ///
    /// /// Adds the third argument to so many numbers.
    /// unsafe fn add(host: &dyn KernelHost, arguments: &[u64]) {
    ///     let Some(first) = host.translate(arguments[0], 8 * arguments[1]) else { return };
    ///     for index in 0..arguments[1] as usize {
    ///         // SAFETY: translated for so many, which the launch owns.
    ///         unsafe { *first.cast::<u64>().add(index).as_mut() += arguments[2] };
    ///     }
    /// }
    ///
    /// let kernels = &[Entry { name: "add", arguments: 3, run: add }];
    /// let backend = HostBackend::builder().build()?;
    /// let module = Module::load(&backend, &Image { ptx: b"", host: kernels, abi: Abi::of(LAYOUTS) }, &Abi::of(LAYOUTS))?;
    /// let stream = Stream::new(&backend, 0)?;
    /// let numbers = GpuBuffer::<u64>::from_slice(Device::new(&backend, 0), &[1, 2, 3])?;
    /// // SAFETY: `add` uses three numbers, and they are the launch's.
    /// let numbers = unsafe { stream.launch_with(&module, "add", numbers, &[3, 10]) }?.detach();
    /// // SAFETY: `add` uses three numbers, and they are the launch's.
    /// let numbers = unsafe { stream.launch_with(&module, "add", numbers, &[3, 100]) }?.wait()?;
    /// assert_eq!(numbers.to_vec()?, [111, 112, 113]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// The operands, as [`launch`](Self::launch) or with [`OtherBackend`](crate::Error::OtherBackend);
    /// [`Unsupported`](crate::Error::Unsupported) for pageable host memory; nothing was queued.
    ///
    /// # Safety
    ///
    /// - the arguments are the kernel's; it accesses only the operands, does not write to a [`Lease`](crate::manager::Lease), and ends by
    ///   itself; other accesses follow [`launch`](Self::launch);
    /// - without [`concurrent_managed_access`](crate::backend::Capabilities::concurrent_managed_access), no host slice of managed memory is
    ///   borrowed until it has ended.
    pub unsafe fn launch_with<T: Operands>(&self, module: &Module, name: &str, operands: T, arguments: &[u64]) -> Queue<T> {
        let backend = self.backend();
        let queued = (|| {
            same_backend(&**backend, &**module.backend())?;
            let (mut all, mut works_on) = (Vec::new(), Vec::new());
            operands.each(&mut |shown| {
                same_backend(&**backend, shown.backend)?;
                if shown.operand.is_some() && shown.address.is_none() {
                    return Err(Error::Unsupported { what: "a launch on pageable host memory" });
                }
                all.push(shown.address.map_or(0, DeviceAddress::get));
                works_on.extend(shown.operand);
                Ok(())
            })?;
            all.extend_from_slice(arguments);
            // A refused launch queues nothing.
            operands.each(&mut |Shown { uses, last, .. }| {
                self.come_after(uses)?;
                self.come_after(&Uses::from(last))
            })?;
            let launch = Launch {
                module: module.id(),
                name,
                arguments: &all,
                groups: 1,
                warps: 1,
                stays: false,
                operands: &works_on,
                elements: None,
            };
            // SAFETY: the caller promises that the arguments are the kernel's, which accesses only the operands and ends by itself; the
            // launch owns the operands, after their uses, until the kernel has ended.
            let ticket = self.queue(&[], Work::Kernel, |backend, id| unsafe { backend.launch(&launch, id) })?;
            event!(debug, stream = ticket.stream.get(), kernel = name, "launch queued");
            Ok(Some(ticket))
        })();
        self.pending(queued, operands)
    }
}

mod sealed {
    use super::{DeviceReadable, Memory, Result, Uses};
    use crate::backend::{Backend, DeviceAddress, Operand, Ticket};
    use crate::stream;

    pub struct Shown<'a> {
        pub backend: &'a dyn Backend,
        pub address: Option<DeviceAddress>,
        pub operand: Option<Operand>,
        pub uses: &'a Uses,
        pub last: Option<Ticket>,
    }

    pub trait Places {
        fn each(&self, look: &mut dyn FnMut(Shown<'_>) -> Result<()>) -> Result<()>;
    }

    impl<A: stream::Operand> Places for A
    where
        A::Memory: Memory<Visibility: DeviceReadable>,
    {
        fn each(&self, look: &mut dyn FnMut(Shown<'_>) -> Result<()>) -> Result<()> {
            let elements = self.elements();
            let (backend, address) = (&**elements.memory().backend(), elements.device_address());
            let bytes = (elements.len() * size_of::<A::Element>()) as u64;
            let operand = elements.address().map(|address| Operand { address, bytes, is_written: self.is_written() });
            look(Shown { backend, address, operand, uses: elements.uses(), last: self.last() })
        }
    }

    impl<A: Places, B: Places> Places for (A, B) {
        fn each(&self, look: &mut dyn FnMut(Shown<'_>) -> Result<()>) -> Result<()> {
            self.0.each(look)?;
            self.1.each(look)
        }
    }
}
