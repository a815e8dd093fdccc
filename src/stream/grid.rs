//! Launches of kernels over buffers: [`Stream::run`] and [`Stream::submit`].
//!
//! # Why they are safe
//!
//! 1. The parameters of a [`GridKernel`] are types, and each argument implements [`Lent`] or [`Given`] for its parameter only.
//! 2. An output is borrowed mutably or owned by the launch, so that no other argument is the same memory. Each element is written by one thread.
//! 3. The numbers of elements are compared before anything is queued; `&[T]` is checked at each index, by the kernel.
//! 4. The launch comes after the listed uses of its buffers. [`run`](Stream::run) returns when the kernel has ended, also after an error or a panic, and
//!    [`submit`](Stream::submit) lists it as a use of each buffer.
//! 5. Memory of another device is refused, and so is every launch on a device where the host may not access managed memory meanwhile.
//!
//! # From arguments to words
//!
//! Each argument adds itself to `Arguments`: the words of its parameter ([`grid`](ringmem_layouts::grid)) with their number, the memory as an operand, which a
//! failure taints if it is written, and the uses that the launch comes after. Nothing is queued before the last has succeeded, so that an error changes
//! nothing.
//!
//! ```text
//!   (&x, &mut y, 2.0)    words      3 | address of x | address of y | 2.0
//!   for three elements   sizes      1   1              1              1
//!                        operands       x, read        y, written
//! ```

#![allow(clippy::result_large_err, reason = "what comes back is as large as what went in")]

use std::boxed::Box;
use std::thread;
use std::vec::Vec;

use ringmem_layouts::grid::{All, Element, ElementMut, GridKernel, Parameter, Scalar};

use super::metrics::Work;
use super::{Queue, Queued, Source, Stream, Target};
use crate::backend::{self, DeviceAddress, Elements, Launch, Ticket, Uses, same_backend, until_complete};
use crate::memory::{Buffer, DeviceReadable, Memory, Slice, SliceMut};
use crate::trace::event;
use crate::{DeviceBytes, Error, Result};
use sealed::{Arguments, Lend};

/// An argument of [`Stream::run`] for a parameter `P`, or a tuple of them.
///
/// | parameter of the kernel | `P` | argument |
/// |---|---|---|
/// | `x: &T`, `x: &[T]` | `Element<T, x>`, `All<T, x>` | `&Buffer<T, _>`, `Slice<T, _>` |
/// | `x: &mut T` | `ElementMut<T, x>` | `&mut Buffer<T, _>`, `SliceMut<T, _>` |
/// | `x: T` | `Scalar<T, x>` | `T` |
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be lent for the parameter `{P}`",
    label = "does not fit this parameter",
    note = "`Element<T, x>` is `x: &T` and `All<T, x>` is `x: &[T]`: lend a `&Buffer<T, _>` or a `Slice<T, _>` of memory that devices see; `ElementMut<T, x>` is `x: &mut T`: lend a `&mut Buffer<T, _>` or a `SliceMut<T, _>`; `Scalar<T, x>` is `x: T`: pass a `T`",
    note = "arguments are a tuple, one for each parameter but `Index`, in their order: `(&x, &mut y, 2.0)`, and `(&mut y,)` for one"
)]
pub trait Lent<P>: Lend<P> {}

/// An argument of [`Stream::submit`] for a parameter `P`, or a tuple of them: as [`Lent`], but a buffer or a lease itself.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be given for the parameter `{P}`",
    label = "does not fit this parameter",
    note = "`Element<T, x>` is `x: &T`, `ElementMut<T, x>` is `x: &mut T` and `All<T, x>` is `x: &[T]`: give a `Buffer<T, _>` in memory that devices see, the stream takes it by value and returns it; `Scalar<T, x>` is `x: T`: pass a `T`",
    note = "arguments are a tuple, one for each parameter but `Index`, in their order: `(x, y, 2.0)`, and `(y,)` for one"
)]
pub trait Given<P>: Lend<P> {
    /// The buffer or lease; `()` for a value.
    type Back: Queued;

    /// Returns it.
    fn back(self) -> Self::Back;
}

impl Stream {
    /// Calls a kernel for each element of buffers, and waits until it has ended.
    ///
    /// ```
    /// use ringmem::backend::host::HostBackend;
    /// use ringmem::memory::{Device, GpuBuffer};
    /// use ringmem::stream::Stream;
    /// use ringmem_kernels::kernels;
    ///
    /// kernels! {
    ///     /// y = a x + y
    ///     grid fn saxpy(x: &f32, y: &mut f32, a: f32) {
    ///         *y += a * *x;
    ///     }
    /// }
    ///
    /// # fn main() -> ringmem::Result<()> {
    /// let backend = HostBackend::builder().build()?;
    /// let memory = Device::new(&backend, 0);
    /// let x = GpuBuffer::<f32>::from_slice(memory.clone(), &[1.0, 2.0, 3.0])?;
    /// let mut y = GpuBuffer::<f32>::from_slice(memory, &[10.0, 20.0, 30.0])?;
    /// Stream::new(&backend, 0)?.run(SAXPY, (&x, &mut y, 2.0))?;
    /// assert_eq!(y.to_vec()?, [12.0, 24.0, 36.0]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Without elements it does nothing.
    ///
    /// # Errors
    ///
    /// - [`Lengths`](Error::Lengths) for buffers of different lengths; [`Size`](Error::Size) for an impossible shape.
    /// - [`OtherBackend`](Error::OtherBackend); [`Unsupported`](Error::Unsupported) for memory of another device, for pageable host memory, and on a device
    ///   with managed memory but without [concurrent access](crate::backend::Capabilities::concurrent_managed_access) to it.
    /// - [`Abi`](Error::Abi) and the driver's error for the image, which the first launch on a stream loads; [`Busy`](Error::Busy) if a running kernel
    ///   prevents that, or the allocation of local memory.
    /// - [`Residency`](Error::Residency) if persistent kernels leave no room for a block.
    /// - An error of the kernel, after which its outputs are [tainted](crate::backend::Taints).
    pub fn run<P, A: Lent<P>>(&self, kernel: GridKernel<P>, arguments: A) -> Result<()> {
        let mut all = Arguments::new(self, kernel.name());
        arguments.lend(&mut all)?;
        let mut ended = Ended::new(self);
        // SAFETY: the arguments are borrowed until this returns, and the drop of `ended` waits for the kernel before, also after a panic.
        ended.last = unsafe { self.queue_grid(kernel, &all) }?;
        ended.last.map_or(Ok(()), |ticket| self.backend().outcome(ticket, None).map(drop))
    }

    /// As [`run`](Self::run), but returns at once, and owns the buffers until the kernel has ended. The [`Pending`](super::Pending) returns them.
    ///
    /// ```
    /// # use ringmem::backend::host::HostBackend;
    /// # use ringmem::memory::{Device, GpuBuffer};
    /// # use ringmem::stream::Stream;
    /// # use ringmem_kernels::kernels;
    /// # kernels! {
    /// #     grid fn saxpy(x: &f32, y: &mut f32, a: f32) { *y += a * *x; }
    /// # }
    /// # fn main() -> ringmem::Result<()> {
    /// # let backend = HostBackend::builder().build()?;
    /// # let memory = Device::new(&backend, 0);
    /// # let x = GpuBuffer::<f32>::from_slice(memory.clone(), &[1.0, 2.0, 3.0])?;
    /// # let y = GpuBuffer::<f32>::from_slice(memory, &[10.0, 20.0, 30.0])?;
    /// # let stream = Stream::new(&backend, 0)?;
    /// let (x, y, ()) = stream.submit(SAXPY, (x, y, 2.0))?.detach(); // the next one comes after it
    /// let (_, y, ()) = stream.submit(SAXPY, (x, y, 10.0))?.wait()?;
    /// assert_eq!(y.to_vec()?, [22.0, 44.0, 66.0]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// The buffers, with an error as of [`run`](Self::run); nothing was queued.
    pub fn submit<P, A: Given<P>>(&self, kernel: GridKernel<P>, arguments: A) -> Queue<A::Back> {
        let mut all = Arguments::new(self, kernel.name());
        // Dropped before the arguments, if a panic keeps the launch from being listed.
        let _ended = Ended::new(self);
        let queued = match arguments.lend(&mut all) {
            // SAFETY: the `Pending` owns the arguments, and lists the launch as their use.
            Ok(()) => unsafe { self.queue_grid(kernel, &all) },
            Err(error) => Err(error),
        };
        self.pending(queued, arguments.back())
    }

    /// # Safety
    ///
    /// Until the kernel has ended, the arguments' memory is live, nothing writes it but the kernel, and nothing accesses its outputs.
    unsafe fn queue_grid<P>(&self, kernel: GridKernel<P>, all: &Arguments<'_>) -> Result<Option<Ticket>> {
        let Some((_, count)) = all.first.filter(|&(_, count)| count > 0) else { return Ok(None) };
        let module = self.module_of(kernel.image())?;
        all.after.iter().try_for_each(|uses| self.come_after(uses))?;
        let [threads, blocks] = kernel.shape();
        let elements = Elements { count, threads, blocks, words: &all.sizes };
        let name = kernel.name();
        let launch = Launch {
            module: module.id(),
            name,
            arguments: &all.words,
            groups: 1,
            warps: 1,
            stays: false,
            operands: &all.operands,
            elements: Some(elements),
        };
        // SAFETY: the words are the kernel's parameters, by their types. It accesses the arguments' memory only, by the contract of `GridKernel`, which the
        // caller keeps live and unshared; it ends when all elements are processed.
        let ticket = self.queue(&[], Work::Kernel, |backend, id| unsafe { backend.launch(&launch, id) })?;
        event!(debug, stream = ticket.stream.get(), kernel = name, count, "launch queued");
        Ok(Some(ticket))
    }
}

/// Waits, when it is dropped, for a launch whose arguments end then. After a panic that is whatever was queued.
struct Ended<'a> {
    stream: &'a Stream,
    last: Option<Ticket>,
    /// A panic from before, in whose destructors this is used, says nothing about the launch.
    was_panicking: bool,
}

impl<'a> Ended<'a> {
    fn new(stream: &'a Stream) -> Self {
        Self { stream, last: None, was_panicking: thread::panicking() }
    }
}

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        let backend = self.stream.backend();
        let last = match self.last {
            None if thread::panicking() && !self.was_panicking => self.stream.record_position().ok(),
            last => last,
        };
        if let Some(last) = last {
            until_complete(&**backend, last);
        }
    }
}

mod sealed {
    use super::*;

    /// The words of a launch, and the memory that they address.
    pub struct Arguments<'a> {
        pub stream: &'a Stream,
        pub kernel: &'static str,
        /// The first parameter with an element for each call, and the length of its buffer and all others of this kind.
        pub first: Option<(&'static str, u64)>,
        pub words: Vec<u64>,
        /// Words of each parameter.
        pub sizes: Vec<u8>,
        pub operands: Vec<backend::Operand>,
        pub after: Vec<Uses>,
    }

    impl<'a> Arguments<'a> {
        pub fn new(stream: &'a Stream, kernel: &'static str) -> Self {
            // The first parameter of the entry is the count.
            Self { stream, kernel, first: None, words: std::vec![0], sizes: std::vec![1], operands: Vec::new(), after: Vec::new() }
        }

        pub fn elements<T: DeviceBytes, M: Memory<Visibility: DeviceReadable>>(
            &mut self,
            parameter: &'static str,
            slice: Slice<'_, T, M>,
            last: Option<Ticket>,
            is_written: bool,
        ) -> Result<()> {
            let len = slice.len() as u64;
            let (first, count) = *self.first.get_or_insert((parameter, len));
            if len != count {
                return Err(Error::Lengths { kernel: self.kernel, parameters: Box::new([first, parameter]), lengths: [count, len] });
            }
            if let Some(first) = self.words.first_mut() {
                *first = count;
            }
            self.buffer(slice, last, is_written)
        }

        pub fn buffer<T: DeviceBytes, M: Memory<Visibility: DeviceReadable>>(
            &mut self,
            slice: Slice<'_, T, M>,
            last: Option<Ticket>,
            is_written: bool,
        ) -> Result<()> {
            let memory = slice.memory();
            same_backend(&**self.stream.backend(), &**memory.backend())?;
            let bytes = (slice.len() * size_of::<T>()) as u64;
            let address = slice.device_address();
            if let Some(place) = slice.address().filter(|_| bytes > 0) {
                if address.is_none() {
                    return Err(Error::Unsupported { what: "a launch on pageable host memory" });
                }
                if slice.device().is_some_and(|device| device != self.stream.device()) {
                    return Err(Error::Unsupported { what: "a kernel over memory of another device: copy it first" });
                }
                self.operands.push(backend::Operand { address: place, bytes, is_written });
            }
            self.after.extend([*slice.uses(), Uses::from(last)]);
            self.word(address.map_or(0, DeviceAddress::get));
            Ok(())
        }

        pub fn whole<T: DeviceBytes, M: Memory<Visibility: DeviceReadable>>(
            &mut self,
            slice: Slice<'_, T, M>,
            last: Option<Ticket>,
        ) -> Result<()> {
            self.buffer(slice, last, false)?;
            self.word(slice.len() as u64);
            Ok(())
        }

        fn word(&mut self, word: u64) {
            self.words.push(word);
            self.sizes.push(1);
        }

        pub fn value<T: DeviceBytes>(&mut self, value: &T) -> Result<()> {
            let (words, rest) = value.as_bytes().as_chunks::<8>();
            let size = words.len() + usize::from(!rest.is_empty());
            if size == 0 {
                return Ok(());
            }
            let most = u64::from(u8::MAX) * 8;
            let size = u8::try_from(size).map_err(|_| Error::Size {
                what: "bytes of a kernel's value",
                asked: size_of::<T>() as u64,
                least: 0,
                most,
            })?;
            self.words.extend(words.iter().map(|&word| u64::from_ne_bytes(word)));
            if !rest.is_empty() {
                let mut last = [0; 8];
                last[..rest.len()].copy_from_slice(rest);
                self.words.push(u64::from_ne_bytes(last));
            }
            self.sizes.push(size);
            Ok(())
        }
    }

    pub trait Lend<P> {
        fn lend(&self, all: &mut Arguments<'_>) -> Result<()>;
    }
}

/// Implements both traits for tuples: the parameters' types and the arguments' have the same places.
macro_rules! tuples {
    ($(($($parameter:ident $argument:ident $place:tt),+))+) => {$(
        impl<$($parameter, $argument: Lend<$parameter>),+> Lend<($($parameter,)+)> for ($($argument,)+) {
            fn lend(&self, all: &mut Arguments<'_>) -> Result<()> {
                $(self.$place.lend(all)?;)+
                Ok(())
            }
        }
        impl<$($parameter, $argument: Lent<$parameter>),+> Lent<($($parameter,)+)> for ($($argument,)+) {}
        impl<$($parameter, $argument: Given<$parameter>),+> Given<($($parameter,)+)> for ($($argument,)+) {
            type Back = ($($argument::Back,)+);

            fn back(self) -> Self::Back {
                ($(self.$place.back(),)+)
            }
        }
    )+};
}

tuples! {
    (P0 A0 0)
    (P0 A0 0, P1 A1 1)
    (P0 A0 0, P1 A1 1, P2 A2 2)
    (P0 A0 0, P1 A1 1, P2 A2 2, P3 A3 3)
    (P0 A0 0, P1 A1 1, P2 A2 2, P3 A3 3, P4 A4 4)
    (P0 A0 0, P1 A1 1, P2 A2 2, P3 A3 3, P4 A4 4, P5 A5 5)
    (P0 A0 0, P1 A1 1, P2 A2 2, P3 A3 3, P4 A4 4, P5 A5 5, P6 A6 6)
    (P0 A0 0, P1 A1 1, P2 A2 2, P3 A3 3, P4 A4 4, P5 A5 5, P6 A6 6, P7 A7 7)
    (P0 A0 0, P1 A1 1, P2 A2 2, P3 A3 3, P4 A4 4, P5 A5 5, P6 A6 6, P7 A7 7, P8 A8 8)
    (P0 A0 0, P1 A1 1, P2 A2 2, P3 A3 3, P4 A4 4, P5 A5 5, P6 A6 6, P7 A7 7, P8 A8 8, P9 A9 9)
    (P0 A0 0, P1 A1 1, P2 A2 2, P3 A3 3, P4 A4 4, P5 A5 5, P6 A6 6, P7 A7 7, P8 A8 8, P9 A9 9, P10 A10 10)
    (P0 A0 0, P1 A1 1, P2 A2 2, P3 A3 3, P4 A4 4, P5 A5 5, P6 A6 6, P7 A7 7, P8 A8 8, P9 A9 9, P10 A10 10, P11 A11 11)
}

/// Implements [`Lent`] for a borrowed argument.
macro_rules! lent {
    ($($marker:ident: $argument:ty, |$this:ident, $all:ident, $name:ident| $lend:expr;)+) => {$(
        impl<T: DeviceBytes, M: Memory<Visibility: DeviceReadable>, $name: Parameter> Lend<$marker<T, $name>> for $argument {
            fn lend(&self, $all: &mut Arguments<'_>) -> Result<()> {
                let $this = self;
                $lend
            }
        }
        impl<T: DeviceBytes, M: Memory<Visibility: DeviceReadable>, $name: Parameter> Lent<$marker<T, $name>> for $argument {}
    )+};
}

lent! {
    Element: &Buffer<T, M>, |this, all, N| all.elements(N::NAME, this.as_view(), None, false);
    Element: Slice<'_, T, M>, |this, all, N| all.elements(N::NAME, *this, None, false);
    ElementMut: &mut Buffer<T, M>, |this, all, N| all.elements(N::NAME, this.as_view(), None, true);
    ElementMut: SliceMut<'_, T, M>, |this, all, N| all.elements(N::NAME, this.as_view(), None, true);
    All: &Buffer<T, M>, |this, all, N| all.whole(this.as_view(), None);
    All: Slice<'_, T, M>, |this, all, N| all.whole(*this, None);
}

impl<T: DeviceBytes, N: Parameter> Lend<Scalar<T, N>> for T {
    fn lend(&self, all: &mut Arguments<'_>) -> Result<()> {
        all.value(self)
    }
}

impl<T: DeviceBytes, N: Parameter> Lent<Scalar<T, N>> for T {}

impl<T: DeviceBytes, N: Parameter> Given<Scalar<T, N>> for T {
    type Back = ();

    fn back(self) {}
}

/// Implements [`Given`] for buffers and leases. The error of another element or memory is that of [`Given`], which names the parameter.
macro_rules! given {
    ($($marker:ident: $operand:ident, |$this:ident, $all:ident, $name:ident| $lend:expr;)+) => {$(
        #[diagnostic::do_not_recommend]
        impl<A: $operand<Element = T, Memory: Memory<Visibility: DeviceReadable>>, T: DeviceBytes, $name: Parameter> Lend<$marker<T, $name>> for A {
            fn lend(&self, $all: &mut Arguments<'_>) -> Result<()> {
                let $this = self;
                $lend
            }
        }
        #[diagnostic::do_not_recommend]
        impl<A: $operand<Element = T, Memory: Memory<Visibility: DeviceReadable>>, T: DeviceBytes, $name: Parameter> Given<$marker<T, $name>> for A {
            type Back = A;

            fn back(self) -> A {
                self
            }
        }
    )+};
}

given! {
    Element: Source, |this, all, N| all.elements(N::NAME, this.elements(), this.last(), false);
    ElementMut: Target, |this, all, N| all.elements(N::NAME, this.elements(), this.last(), true);
    All: Source, |this, all, N| all.whole(this.elements(), this.last());
}
