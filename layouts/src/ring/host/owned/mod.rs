mod bounded;
mod end;
pub mod framed;
pub mod lossy;
pub mod mailbox;
mod reborrow;
mod shared;
mod stream;

pub use end::{Owned, Reborrow};

use end::{own, own_bytes};
use shared::Consumes as _;

use super::{BareSlot, RingIn, Storage, WordSlot};
use crate::Local;
use crate::ring::{Flagged, Indexed, Mpmc, Mpsc};

macro_rules! rings {
    ($($kind:ident[$slot:ident] $module:ident;)+) => {$(
        pub mod $module {
            use super::*;

            /// A producer that shares ownership of its ring.
            ///
            /// ```
            /// # use ringmem_layouts as ringmem;
            #[doc = concat!("use ringmem::ring::", stringify!($module), "::{OwnedProducer, bounded};")]
            ///
            /// struct Log {
            ///     lines: OwnedProducer<String>,
            /// }
            ///
            /// let (lines, mut consumer) = bounded(16);
            /// let mut log = Log { lines };
            /// log.lines.push("started".to_owned())?;
            /// assert_eq!(consumer.pop().as_deref(), Ok("started"));
            /// # Ok::<(), ringmem::ring::PushError<String>>(())
            /// ```
            pub type OwnedProducer<T> = Owned<crate::ring::$module::Producer<'static, T, Local>>;

            /// A consumer that shares ownership of its ring.
            ///
            /// ```
            /// # use ringmem_layouts as ringmem;
            #[doc = concat!("use ringmem::ring::", stringify!($module), "::{OwnedConsumer, bounded};")]
            ///
            /// fn sum(mut consumer: OwnedConsumer<u32>) -> u32 {
            ///     consumer.try_iter().sum()
            /// }
            ///
            /// let (mut producer, consumer) = bounded(4);
            /// producer.push(3)?;
            /// producer.push(4)?;
            /// assert_eq!(std::thread::spawn(|| sum(consumer)).join().unwrap(), 7);
            /// # Ok::<(), ringmem::ring::PushError<u32>>(())
            /// ```
            pub type OwnedConsumer<T> = Owned<crate::ring::$module::Consumer<'static, T, Local>>;

            /// Allocates a ring of at least `capacity` slots (the next power of two, at least 1); its ends share ownership.
            ///
            /// ```
            /// # use ringmem_layouts as ringmem;
            #[doc = concat!("let (mut producer, mut consumer) = ringmem::ring::", stringify!($module), "::bounded::<String>(100);")]
            /// assert_eq!(producer.capacity(), 128);
            /// std::thread::spawn(move || producer.push("hello".to_owned()).is_ok()).join().unwrap();
            /// assert_eq!(consumer.pop().as_deref(), Ok("hello"));
            /// ```
            ///
            /// # Panics
            ///
            /// If the next power of two overflows, or its slots exceed `isize::MAX` bytes.
            #[must_use]
            pub fn bounded<T: Send + 'static>(capacity: usize) -> (OwnedProducer<T>, OwnedConsumer<T>) {
                crate::ring::$module::Boxed::with_capacity(capacity).into_ends()
            }
        }

        impl<T, S: Storage<$slot<T>>> RingIn<$kind, T, S> {
            /// Like [`split`](Self::split), with shared ownership.
            #[must_use]
            pub fn into_ends(self) -> (crate::ring::$module::OwnedProducer<T>, crate::ring::$module::OwnedConsumer<T>)
            where
                T: Send + 'static,
                S: Send + 'static,
            {
                own(self, |ring| {
                    let (producer, consumer) = ring.split();
                    let values = consumer.values();
                    (producer, consumer, values)
                })
            }
        }
    )+};
}

each_kind! { rings }
