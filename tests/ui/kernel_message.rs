use ringmem_kernels::{SharedLayout, kernels};

#[derive(Clone, Copy)]
#[repr(u32)]
pub enum Kind {
    Star,
    Planet,
}

#[derive(Clone, Copy, SharedLayout)]
#[repr(C)]
#[layout(message = 1)]
pub struct Body {
    id: u64,
    mass: f64,
}

#[derive(Clone, Copy, SharedLayout)]
#[repr(C)]
#[layout(message = 2)]
pub struct Answer {
    status: u64,
}

/// The bytes of a given format.
#[derive(Clone, Copy, SharedLayout)]
#[repr(C, packed)]
#[layout(message = 3)]
pub struct Wire {
    kind: u8,
    length: u32,
}

kernels! {
    pub persistent fn step(now: &Body, then: &mut Answer) {
        let _ = (now, Kind::Star as u32, Kind::Planet as u32);
        then.status = 1;
    }

    pub persistent fn copy(now: &Body, then: &mut Body) {
        *then = *now;
    }

    pub persistent fn shorten(now: &[Answer; 2], then: &mut Wire) {
        let _ = now;
        *then = Wire { kind: 1, length: 2 };
    }

    pub flagged fn count(total: &mut u64, now: &u32, then: &mut u64) {
        *total += u64::from(*now);
        *then = *total;
    }
}

fn main() {}
