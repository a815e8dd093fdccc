use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Release};

use ringmem::image::{Entry, KernelHost};
use ringmem::{Abi, Image, LAYOUTS};

/// Host kernels. A backend whose devices run PTX needs [another image](super::Subject::image) with these kernels:
///
/// - `hold(words)`: release-stores 1 to the first 64-bit word; ends when an acquire load of the second is not 0.
/// - `increment(bytes, count)`: adds 1 to each of `count` bytes, wrapping.
pub const IMAGE: Image = Image {
    ptx: b"",
    host: &[Entry { name: "hold", arguments: 1, run: hold }, Entry { name: "increment", arguments: 2, run: increment }],
    abi: Abi::of(LAYOUTS),
};

/// # Safety
///
/// The argument is the address of two live words, which all sides access as atomics.
unsafe fn hold(host: &dyn KernelHost, arguments: &[u64]) {
    let word = |address| {
        let place = host.translate(address, 8).expect("a mapped word");
        // SAFETY: `translate` mapped a word; the caller promises that it is live and accessed as an atomic on all sides.
        unsafe { place.cast::<AtomicU64>().as_ref() }
    };
    // SYNC POINT: the kernel runs. Pairs with Subject::hold.
    word(arguments[0]).store(1, Release);
    let mut times = 0;
    // SYNC POINT: the kernel may end. Pairs with Held::drop.
    while word(arguments[0] + 8).load(Acquire) == 0 {
        host.pause(times);
        times = times.saturating_add(1);
    }
}

/// # Safety
///
/// The arguments are the address and the number of live, initialised bytes, which no other code uses.
unsafe fn increment(host: &dyn KernelHost, arguments: &[u64]) {
    let place = host.translate(arguments[0], arguments[1]).expect("mapped bytes");
    for i in 0..arguments[1] as usize {
        // SAFETY: mapped for that many bytes.
        let byte = unsafe { place.add(i) };
        // SAFETY: mapped, below the count; the caller promises that the bytes are live and that no other code uses them.
        let value = unsafe { byte.read() };
        // SAFETY: the byte that was read above; the caller promises that no other code uses it.
        unsafe { byte.write(value.wrapping_add(1)) };
    }
}
