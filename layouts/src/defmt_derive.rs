//! `defmt::Format`; without the feature, a derive of nothing.

#[cfg(feature = "defmt")]
pub use defmt::Format;
#[cfg(not(feature = "defmt"))]
pub use ringmem_derive::NoFormat as Format;
