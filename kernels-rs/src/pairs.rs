use ringmem_layouts::Machine;

/// A [`Machine`] that accesses two neighbouring words at once, in 16 bytes, as lanes do in [paired](ringmem_layouts::ring::paired) rings.
pub trait Pairs: Machine {
    /// Relaxed load.
    ///
    /// # Safety
    ///
    /// The pair is aligned to 16 bytes.
    unsafe fn load_pair(pair: &[Self::Word; 2]) -> [u64; 2];
    /// Relaxed store.
    ///
    /// # Safety
    ///
    /// The pair is aligned to 16 bytes.
    unsafe fn store_pair(pair: &[Self::Word; 2], values: [u64; 2]);
}
