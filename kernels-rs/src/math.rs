//! Functions of floats that a device computes with one instruction and `core` does not have. They are rounded correctly, so host and device have the same results.
//! Two exceptions: the bits of a NaN, and the last bit of a `mul_add` of `f32` whose result is subnormal, which a host without that instruction may round twice.
//!
//! They are no methods, because `std` has methods of these names, which a host that links it would call instead.
//!
//! ```
//! use ringmem_kernels::kernels;
//! use ringmem_kernels::math::{mul_add, sqrt};
//!
//! kernels! {
//!     /// The distance of each point from the origin.
//!     pub grid fn lengths(x: &f32, y: &f32, length: &mut f32) {
//!         *length = sqrt(mul_add(*x, *x, y * y));
//!     }
//! }
//! # fn main() {
//! assert_eq!(sqrt(mul_add(3.0, 3.0, 16.0_f64)), 5.0);
//! # }
//! ```

/// Returns the square root of an `f32` or `f64`; NaN of a negative number.
#[inline(always)]
#[must_use]
pub fn sqrt<T: Float>(x: T) -> T {
    T::root(x)
}

/// Returns `x * factor + summand` of `f32` or `f64`, rounded once.
#[inline(always)]
#[must_use]
pub fn mul_add<T: Float>(x: T, factor: T, summand: T) -> T {
    T::fused(x, factor, summand)
}

/// `f32` and `f64`.
pub trait Float: sealed::Float {}

mod sealed {
    pub trait Float: Copy {
        fn root(x: Self) -> Self;
        fn fused(x: Self, factor: Self, summand: Self) -> Self;
    }
}

impl<T: sealed::Float> Float for T {}

#[cfg(target_os = "cuda")]
macro_rules! floats {
    ($($float:ident $register:ident $root:literal $fused:literal)+) => {$(
        impl sealed::Float for $float {
            #[inline(always)]
            fn root(x: Self) -> Self {
                let root;
                // SAFETY: the instruction reads and writes these registers alone.
                unsafe {
                    core::arch::asm!($root, out($register) root, in($register) x.to_bits(), options(pure, nomem, nostack));
                }
                Self::from_bits(root)
            }

            #[inline(always)]
            fn fused(x: Self, factor: Self, summand: Self) -> Self {
                let sum;
                // SAFETY: the instruction reads and writes these registers alone.
                unsafe {
                    core::arch::asm!(
                        $fused, out($register) sum, in($register) x.to_bits(), in($register) factor.to_bits(), in($register) summand.to_bits(),
                        options(pure, nomem, nostack)
                    );
                }
                Self::from_bits(sum)
            }
        }
    )+};
}

#[cfg(target_os = "cuda")]
floats! {
    f32 reg32 "sqrt.rn.f32 {}, {};" "fma.rn.f32 {}, {}, {}, {};"
    f64 reg64 "sqrt.rn.f64 {}, {};" "fma.rn.f64 {}, {}, {}, {};"
}

#[cfg(not(target_os = "cuda"))]
macro_rules! floats {
    ($($float:ident $root:ident $fused:ident)+) => {$(
        impl sealed::Float for $float {
            fn root(x: Self) -> Self {
                libm::$root(x)
            }

            fn fused(x: Self, factor: Self, summand: Self) -> Self {
                libm::$fused(x, factor, summand)
            }
        }
    )+};
}

#[cfg(not(target_os = "cuda"))]
floats! {
    f32 sqrtf fmaf
    f64 sqrt fma
}

#[cfg(test)]
mod tests {
    use super::{mul_add, sqrt};

    #[test]
    fn results_are_rounded_once() {
        // 1 + 2^-23 squared needs 47 bits: the product alone rounds to 1 + 2^-22.
        let next = f32::from_bits(1.0_f32.to_bits() + 1);
        assert_eq!(mul_add(next, next, -(1.0 + f32::EPSILON * 2.0)), f32::EPSILON * f32::EPSILON);
        let next = f64::from_bits(1.0_f64.to_bits() + 1);
        assert_eq!(mul_add(next, next, -(1.0 + f64::EPSILON * 2.0)), f64::EPSILON * f64::EPSILON);
        assert_eq!((sqrt(2.0_f32).to_bits(), sqrt(2.0_f64).to_bits()), (0x3fb5_04f3, 0x3ff6_a09e_667f_3bcd));
        assert!(sqrt(-1.0_f32).is_nan() && sqrt(-0.0_f64).is_sign_negative());
    }
}
