//! [`Message`]: a [`RingMessage`] as a service's payload; [`Payload`], for bytes too.

use core::fmt::{self, Debug};
use core::mem::MaybeUninit;
use core::slice;

use iceoryx2::port::publisher::Publisher;
use iceoryx2::port::subscriber::Subscriber;
use iceoryx2::port::{LoanError, ReceiveError};
use iceoryx2::prelude::{IceoryxSend, PayloadHeader as _, Service, ZeroCopySend};
use iceoryx2::sample::Sample;
use iceoryx2::sample_mut::SampleMut;
use ringmem::RingMessage;

/// A ring's message as a service's payload, because a foreign `T` cannot implement iceoryx2's `ZeroCopySend`.
///
/// It has the layout of `T`, and `T`'s name without its module as iceoryx2's type name.
///
/// ```
/// use ringmem_iceoryx2::Message;
///
/// assert_eq!(Message(7_u32).0, 7);
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub struct Message<T>(pub T);

impl<T: RingMessage> Debug for Message<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Message<{}>({} bytes)", T::DESCRIPTOR.name, size_of::<T>())
    }
}

// SAFETY: by `Layout`, `T` is made of numbers without pointers or padding, with a C layout; `repr(transparent)` adds nothing. Equal names do not mean
// equal layouts, so a link compares ABI hashes before it makes a port.
unsafe impl<T: RingMessage> ZeroCopySend for Message<T> {
    unsafe fn type_name() -> &'static str {
        T::DESCRIPTOR.name
    }
}

/// A payload: [`Message`] or `[u8]`.
pub trait Payload: IceoryxSend + Debug + sealed::Sealed + 'static {
    /// The element of the ring: `T` or `[u8]`.
    type Ring: ?Sized;

    #[doc(hidden)]
    fn receive<S: Service>(from: &Subscriber<S, Self, ()>) -> Result<Option<Sample<S, Self, ()>>, ReceiveError>;

    #[doc(hidden)]
    fn get<S: Service>(sample: &Sample<S, Self, ()>) -> &Self::Ring;

    #[doc(hidden)]
    fn size<S: Service>(sample: &Sample<S, Self, ()>) -> usize;

    #[doc(hidden)]
    fn loan<S: Service>(from: &Publisher<S, Self, ()>, message: &Self::Ring) -> Result<SampleMut<S, Self, ()>, LoanError>;
}

impl<T: RingMessage> Payload for Message<T> {
    type Ring = T;

    fn receive<S: Service>(from: &Subscriber<S, Self, ()>) -> Result<Option<Sample<S, Self, ()>>, ReceiveError> {
        from.receive()
    }

    fn get<S: Service>(sample: &Sample<S, Self, ()>) -> &T {
        &sample.payload().0
    }

    fn size<S: Service>(_: &Sample<S, Self, ()>) -> usize {
        size_of::<T>()
    }

    fn loan<S: Service>(from: &Publisher<S, Self, ()>, message: &T) -> Result<SampleMut<S, Self, ()>, LoanError> {
        let mut sample = from.loan_uninit()?;
        let place: *mut MaybeUninit<Self> = sample.payload_mut();
        // SAFETY: the sample's payload, borrowed exclusively; `Message<T>` is `repr(transparent)`.
        let place = unsafe { &mut *place.cast::<MaybeUninit<T>>() };
        slice::from_mut(place).write_copy_of_slice(slice::from_ref(message));
        // SAFETY: just written.
        Ok(unsafe { sample.assume_init() })
    }
}

impl Payload for [u8] {
    type Ring = [u8];

    fn receive<S: Service>(from: &Subscriber<S, Self, ()>) -> Result<Option<Sample<S, Self, ()>>, ReceiveError> {
        from.receive()
    }

    fn get<S: Service>(sample: &Sample<S, Self, ()>) -> &[u8] {
        sample.payload()
    }

    fn size<S: Service>(sample: &Sample<S, Self, ()>) -> usize {
        usize::try_from(sample.header().number_of_elements()).unwrap_or(usize::MAX)
    }

    fn loan<S: Service>(from: &Publisher<S, Self, ()>, message: &[u8]) -> Result<SampleMut<S, Self, ()>, LoanError> {
        Ok(from.loan_slice_uninit(message.len())?.write_from_slice(message))
    }
}

mod sealed {
    pub trait Sealed {}
    impl<T: ringmem::RingMessage> Sealed for super::Message<T> {}
    impl Sealed for [u8] {}
}
