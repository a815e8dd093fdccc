use core::mem::MaybeUninit;
use core::ptr::NonNull;

use crate::HostWord;
use crate::host::HostCell;
use crate::ring::{LayoutError, Slot};

/// A slot of a host's SPSC ring: the bytes of a `T`.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use core::mem::MaybeUninit;
/// use ringmem::ring::{BareSlot, spsc};
///
/// let mut slots = [const { MaybeUninit::<BareSlot<u32>>::uninit() }; 8];
/// assert_eq!(size_of_val(&slots), 8 * 4);
/// let mut ring = spsc::RingIn::<u32, _>::over(&mut slots)?;
/// assert_eq!(ring.split().0.capacity(), 8);
/// # Ok::<(), ringmem::ring::LayoutError>(())
/// ```
pub type BareSlot<T> = HostCell<T>;

/// A slot of a host's flagged, MPSC or MPMC ring: a word, and the bytes of a `T`.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use core::mem::MaybeUninit;
/// use ringmem::ring::{WordSlot, mpsc};
///
/// let mut slots = [const { MaybeUninit::<WordSlot<u32>>::uninit() }; 8];
/// assert_eq!(size_of_val(&slots), 8 * 16);
/// let mut ring = mpsc::RingIn::<u32, _>::over(&mut slots)?;
/// assert_eq!(ring.split().0.capacity(), 8);
/// # Ok::<(), ringmem::ring::LayoutError>(())
/// ```
pub type WordSlot<T> = Slot<HostWord, HostCell<T>>;

/// Memory for the slots `C` of a ring, with any contents.
///
/// # Safety
///
/// Both methods return the same slots with the same contents while the storage lives, also after a move; no other code accesses them. Several
/// threads may call `as_ref` at once.
///
/// ```
/// # use ringmem_layouts as ringmem;
/// use core::mem::MaybeUninit;
///
/// use ringmem::ring::spsc::RingIn;
///
/// let mut slots = [const { MaybeUninit::uninit() }; 64]; // borrowed
/// let mut ring = RingIn::<u32, _>::over(&mut slots[..])?;
/// let (mut producer, mut consumer) = ring.split();
/// producer.push(7).unwrap();
/// assert_eq!(consumer.pop(), Ok(7));
/// # Ok::<(), ringmem::ring::LayoutError>(())
/// ```
pub unsafe trait Storage<C>: AsRef<[MaybeUninit<C>]> + AsMut<[MaybeUninit<C>]> {}

// SAFETY: the array is the slots.
unsafe impl<C, const N: usize> Storage<C> for [MaybeUninit<C>; N] {}
// SAFETY: an exclusive borrow, of the same slots while it lasts.
unsafe impl<C> Storage<C> for &mut [MaybeUninit<C>] {}
// SAFETY: an exclusive borrow, of the same slots while it lasts.
unsafe impl<C, const N: usize> Storage<C> for &mut [MaybeUninit<C>; N] {}
pub(super) fn capacity_of<C>(storage: &impl Storage<C>) -> Result<u64, LayoutError> {
    let capacity = storage.as_ref().len() as u64;
    if capacity.is_power_of_two() { Ok(capacity) } else { Err(LayoutError::NotAPowerOfTwo { capacity }) }
}

pub(super) fn slots_of<C>(storage: &impl Storage<C>) -> (NonNull<C>, u64) {
    let slots = storage.as_ref();
    (NonNull::from(slots).cast(), slots.len() as u64)
}
