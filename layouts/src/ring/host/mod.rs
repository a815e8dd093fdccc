//! Rings in host memory.

macro_rules! each_kind {
    ($macro:ident) => {
        $macro! {
            Indexed[BareSlot] spsc;
            Flagged[WordSlot] flagged;
            Mpsc[WordSlot] mpsc;
            Mpmc[WordSlot] mpmc;
        }
    };
}

#[cfg(feature = "alloc")]
pub mod boxed;
mod filled;
pub mod framed;
pub mod lossy;
pub mod mailbox;
#[cfg(all(feature = "alloc", target_has_atomic = "ptr"))]
pub mod owned;
mod ring;
mod storage;

use core::fmt;

pub use ring::{HostKind, RingIn};
pub use storage::{BareSlot, Storage, WordSlot};

use super::header::{ConstantLine, ConsumerLine, MAGIC, ProducerLine, RingFlags, RingHeader};
use super::impls::shown;
use crate::HostWord;
use crate::host::HostCell;

impl RingHeader<HostWord> {
    /// No end attaches to it, so it has no ABI.
    pub(super) const fn inline(kind: RingFlags, capacity: u64, slot_size: usize, slots_offset: usize, start: u64) -> Self {
        const fn zeros<const N: usize>() -> [HostWord; N] {
            [const { HostWord::new(0) }; N]
        }
        Self {
            producer: ProducerLine { tail: HostWord::new(start), owner: HostWord::new(0), waiting: HostWord::new(0), _reserved: zeros() },
            consumer: ConsumerLine { head: HostWord::new(start), owner: HostWord::new(0), waiting: HostWord::new(0), _reserved: zeros() },
            constants: ConstantLine {
                magic: HostWord::new(MAGIC),
                abi: HostWord::new(0),
                capacity: HostWord::new(capacity),
                slot_size: HostWord::new(slot_size as u64),
                slots_offset: HostWord::new(slots_offset as u64),
                flags: HostWord::new(kind.bits()),
                message_kind: HostWord::new(0),
                _reserved: zeros(),
            },
        }
    }
}

macro_rules! rings {
    ($($kind:ident[$slot:ident] $module:ident;)+) => {$(
        pub mod $module {
            use core::mem::MaybeUninit;

            use crate::ring::{$kind, $slot};

            /// A ring with its slots in `S`: inline ([`Ring`]), borrowed, or boxed.
            ///
            /// ```
            /// # use ringmem_layouts as ringmem;
            /// use core::mem::MaybeUninit;
            #[doc = concat!("use ringmem::ring::", stringify!($module), "::RingIn;")]
            ///
            /// let mut memory = [const { MaybeUninit::uninit() }; 64];
            /// let ring = &mut RingIn::<u32, _>::over(&mut memory[..16])?;
            /// let (mut producer, mut consumer) = ring.split();
            /// assert!(producer.push(7).is_ok());
            /// assert_eq!((consumer.pop(), consumer.capacity()), (Ok(7), 16));
            /// # Ok::<(), ringmem::ring::LayoutError>(())
            /// ```
            pub type RingIn<T, S> = crate::ring::RingIn<$kind, T, S>;

            /// A ring of `N` values of any type, a power of two (checked at compile time).
            ///
            /// ```compile_fail
            /// # use ringmem_layouts as ringmem;
            #[doc = concat!("let ring = ringmem::ring::", stringify!($module), "::Ring::<u8, 6>::new(); // 6 is not a power of two")]
            /// ```
            pub type Ring<T, const N: usize> = RingIn<T, [MaybeUninit<$slot<T>>; N]>;
        }
    )+};
}

each_kind! { rings }

shown! {
    [K: HostKind<T>, T, S: Storage<K::Slot>] RingIn<K, T, S>: "Ring";
    [S: Storage<BareSlot<u64>>] framed::RingIn<S>: "framed::Ring";
    [T, S: Storage<HostWord>] lossy::RingIn<T, S>: "lossy::Ring";
    [T, const N: usize] mailbox::Mailbox<T, N>: "Mailbox";
    [T] HostCell<T>: "HostCell";
}
