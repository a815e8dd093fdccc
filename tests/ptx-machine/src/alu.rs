use crate::code::{Binary, Class, Compare, Half, Rounding, Type, Unary, Update};

const F32: u8 = 4;

fn f32_of(bits: u64) -> f32 {
    f32::from_bits(bits as u32)
}

const fn f64_of(bits: u64) -> f64 {
    f64::from_bits(bits)
}

fn of_f32(value: f32) -> u64 {
    // Every operation's NaN is canonical.
    if value.is_nan() { 0x7fff_ffff } else { value.to_bits().into() }
}

const fn of_f64(value: f64) -> u64 {
    if value.is_nan() { 0x7fff_ffff_ffff_ffff } else { value.to_bits() }
}

fn extreme<T: PartialOrd + Copy>(a: T, b: T, is_nan: [bool; 2], wants_less: bool, sign_of_a: bool) -> T {
    match is_nan {
        [true, _] => b,
        [_, true] => a,
        _ => {
            let a_is_less = if a == b { sign_of_a } else { a < b };
            if a_is_less == wants_less { a } else { b }
        }
    }
}

fn binary_float(operation: Binary, ty: Type, a: u64, b: u64) -> Option<u64> {
    macro_rules! on {
        ($of:ident, $to:ident) => {{
            let (x, y) = ($of(a), $of(b));
            Some($to(match operation {
                Binary::Add => x + y,
                Binary::Sub => x - y,
                Binary::Div => x / y,
                Binary::Min => extreme(x, y, [x.is_nan(), y.is_nan()], true, x.is_sign_negative()),
                Binary::Max => extreme(x, y, [x.is_nan(), y.is_nan()], false, x.is_sign_negative()),
                Binary::CopySign => y.copysign(x),
                _ => return None,
            }))
        }};
    }
    if ty.bytes == F32 { on!(f32_of, of_f32) } else { on!(f64_of, of_f64) }
}

pub fn binary(operation: Binary, ty: Type, a: u64, b: u64) -> Option<u64> {
    if ty.is_float() {
        return binary_float(operation, ty, a, b);
    }
    let (a, b) = (ty.cut(a), if matches!(operation, Binary::ShiftLeft | Binary::ShiftRight) { b & 0xffff_ffff } else { ty.cut(b) });
    let (x, y) = (ty.signed(a), ty.signed(b));
    let value = match operation {
        Binary::Add => a.wrapping_add(b),
        Binary::Sub => a.wrapping_sub(b),
        // Unspecified on devices; all ones here.
        Binary::Div | Binary::Rem if b == 0 => u64::MAX,
        Binary::Div if ty.is_signed() => x.wrapping_div(y).cast_unsigned(),
        Binary::Div => a / b,
        Binary::Rem if ty.is_signed() => x.wrapping_rem(y).cast_unsigned(),
        Binary::Rem => a % b,
        Binary::Min if ty.is_signed() => x.min(y).cast_unsigned(),
        Binary::Min => a.min(b),
        Binary::Max if ty.is_signed() => x.max(y).cast_unsigned(),
        Binary::Max => a.max(b),
        Binary::And => a & b,
        Binary::Or => a | b,
        Binary::Xor => a ^ b,
        Binary::ShiftLeft => {
            u32::try_from(b).ok().and_then(|count| if count < ty.bits() { a.checked_shl(count) } else { None }).unwrap_or(0)
        }
        Binary::ShiftRight if ty.is_signed() => (x >> b.min(u64::from(ty.bits()) - 1)).cast_unsigned(),
        Binary::ShiftRight => {
            if b < u64::from(ty.bits()) {
                a >> b
            } else {
                0
            }
        }
        Binary::CopySign => return None,
    };
    Some(ty.cut(value))
}

pub fn unary(operation: Unary, ty: Type, a: u64) -> Option<u64> {
    if ty.is_float() && operation != Unary::Move {
        macro_rules! on {
            ($of:ident, $to:ident) => {{
                let x = $of(a);
                return Some($to(match operation {
                    Unary::Negate => -x,
                    Unary::Absolute => x.abs(),
                    Unary::SquareRoot => x.sqrt(),
                    Unary::Reciprocal => 1.0 / x,
                    _ => return None,
                }));
            }};
        }
        if ty.bytes == F32 { on!(f32_of, of_f32) } else { on!(f64_of, of_f64) }
    }
    let a = ty.cut(a);
    let unused = 64 - ty.bits();
    Some(ty.cut(match operation {
        Unary::Move => a,
        Unary::Not if ty.class == Class::Predicate => a ^ 1,
        Unary::Not => !a,
        Unary::Negate => a.wrapping_neg(),
        Unary::Absolute => ty.signed(a).unsigned_abs(),
        Unary::CountOnes => a.count_ones().into(),
        Unary::LeadingZeros => (a.leading_zeros() - unused).into(),
        Unary::Reverse => a.reverse_bits() >> unused,
        Unary::SquareRoot | Unary::Reciprocal => return None,
    }))
}

pub fn multiply(half: Half, ty: Type, a: u64, b: u64) -> u64 {
    if ty.is_float() {
        return if ty.bytes == F32 { of_f32(f32_of(a) * f32_of(b)) } else { of_f64(f64_of(a) * f64_of(b)) };
    }
    let product = if ty.is_signed() {
        (i128::from(ty.signed(a)) * i128::from(ty.signed(b))).cast_unsigned()
    } else {
        u128::from(ty.cut(a)) * u128::from(ty.cut(b))
    };
    match half {
        Half::Low => ty.cut(product as u64),
        Half::High => ty.cut((product >> ty.bits()) as u64),
        Half::Wide => Type { bytes: ty.bytes * 2, ..ty }.cut(product as u64),
    }
}

pub fn multiply_add(half: Half, ty: Type, [a, b, c]: [u64; 3]) -> u64 {
    let sum = multiply(half, ty, a, b).wrapping_add(c);
    if half == Half::Wide { Type { bytes: ty.bytes * 2, ..ty }.cut(sum) } else { ty.cut(sum) }
}

pub fn fused_multiply_add(ty: Type, [a, b, c]: [u64; 3]) -> u64 {
    if ty.bytes == F32 { of_f32(f32_of(a).mul_add(f32_of(b), f32_of(c))) } else { of_f64(f64_of(a).mul_add(f64_of(b), f64_of(c))) }
}

/// With `unordered`, comparisons with NaN are true (`ltu` and its kind).
pub fn compare(operation: Compare, ty: Type, a: u64, b: u64, unordered: bool) -> bool {
    use std::cmp::Ordering;
    let order = match (ty.class, ty.bytes) {
        (Class::Float, F32) => f32_of(a).partial_cmp(&f32_of(b)),
        (Class::Float, _) => f64_of(a).partial_cmp(&f64_of(b)),
        (Class::Signed, _) => Some(ty.signed(a).cmp(&ty.signed(b))),
        _ => Some(ty.cut(a).cmp(&ty.cut(b))),
    };
    let Some(order) = order else {
        return operation == Compare::NotNumbers || (unordered && operation != Compare::Numbers);
    };
    match operation {
        Compare::Equal => order == Ordering::Equal,
        Compare::NotEqual => order != Ordering::Equal,
        Compare::Less => order == Ordering::Less,
        Compare::LessEqual => order != Ordering::Greater,
        Compare::Greater => order == Ordering::Greater,
        Compare::GreaterEqual => order != Ordering::Less,
        Compare::Numbers => true,
        Compare::NotNumbers => false,
    }
}

fn round(value: f64, rounding: Rounding) -> f64 {
    match rounding {
        Rounding::Nearest => value.round_ties_even(),
        Rounding::Zero => value.trunc(),
        Rounding::Down => value.floor(),
        Rounding::Up => value.ceil(),
    }
}

pub fn convert(to: Type, from: Type, rounding: Option<Rounding>, saturates: bool, bits: u64) -> Option<u64> {
    match (to.is_float(), from.is_float()) {
        (false, false) => {
            let value = integer(from, bits);
            let (low, high) = range(to);
            let value = if saturates { value.clamp(low, high) } else { value };
            Some(to.extend(value as u64))
        }
        (false, true) => {
            let value = if from.bytes == F32 { f32_of(bits).into() } else { f64_of(bits) };
            if value.is_nan() {
                return Some(if to.bytes == 8 || from.bytes == 8 { 1 << (to.bits() - 1) } else { 0 });
            }
            let (low, high) = range(to);
            Some(to.extend((round(value, rounding?) as i128).clamp(low, high) as u64))
        }
        (true, false) => {
            if rounding != Some(Rounding::Nearest) {
                return None;
            }
            let value = integer(from, bits);
            let value = if saturates { value.clamp(0, 1) } else { value };
            Some(if to.bytes == F32 { of_f32(value as f32) } else { of_f64(value as f64) })
        }
        (true, true) => {
            let value = if from.bytes == F32 { f32_of(bits).into() } else { f64_of(bits) };
            let value: f64 = match (from.bytes == to.bytes, rounding) {
                (true, Some(rounding)) => round(value, rounding),
                (_, None | Some(Rounding::Nearest)) => value,
                (false, _) => return None,
            };
            let value = if saturates { if value.is_nan() { 0.0 } else { value.clamp(0.0, 1.0) } } else { value };
            Some(if to.bytes == F32 { of_f32(value as f32) } else { of_f64(value) })
        }
    }
}

fn integer(ty: Type, bits: u64) -> i128 {
    if ty.is_signed() { ty.signed(bits).into() } else { ty.cut(bits).into() }
}

fn range(ty: Type) -> (i128, i128) {
    if ty.is_signed() { (-(1 << (ty.bits() - 1)), (1 << (ty.bits() - 1)) - 1) } else { (0, (1 << ty.bits()) - 1) }
}

pub fn update(operation: Update, ty: Type, old: u64, [b, c]: [u64; 2]) -> Option<u64> {
    Some(ty.cut(match operation {
        Update::Add => return binary(Binary::Add, ty, old, b),
        Update::And => old & b,
        Update::Or => old | b,
        Update::Xor => old ^ b,
        Update::Min => return binary(Binary::Min, ty, old, b),
        Update::Max => return binary(Binary::Max, ty, old, b),
        Update::Exchange => b,
        Update::CompareExchange => {
            if ty.cut(old) == ty.cut(b) {
                c
            } else {
                old
            }
        }
        Update::Increment => {
            if ty.cut(old) >= ty.cut(b) {
                0
            } else {
                old + 1
            }
        }
        Update::Decrement => {
            if old == 0 || ty.cut(old) > ty.cut(b) {
                b
            } else {
                old - 1
            }
        }
    }))
}
