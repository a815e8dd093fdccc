//! A lane that reads a ring. The machine observes its accesses, unlike the host's.

use std::sync::LazyLock;
use std::sync::atomic::Ordering::Relaxed;

use ringmem_layouts::image::KernelHost;
use ringmem_layouts::{HostWord, RingHeader};
use ringmem_ptx_machine::{Device, Fault, Image, Kind};

/// Waits until the word at `poll + slot * stride` is above `(index & kept) << shift`, loads the slot, then releases it.
static IMAGE: LazyLock<Image> = LazyLock::new(|| {
    let text = "
.version 6.3
.target sm_70
.address_size 64
.visible .entry reader(.param .u64 poll, .param .u64 stride, .param .u64 kept, .param .u64 shift,
    .param .u64 head, .param .u64 slots, .param .u64 bytes, .param .u64 mask, .param .u64 count)
{
    .reg .b32 %shift;
    .reg .b64 %poll, %stride, %kept, %head, %slots, %bytes, %mask, %count, %index, %at, %end, %bound, %value;
    .reg .pred %p;
    ld.param.u64 %poll, [poll];
    ld.param.u64 %stride, [stride];
    ld.param.u64 %kept, [kept];
    ld.param.u32 %shift, [shift];
    ld.param.u64 %head, [head];
    ld.param.u64 %slots, [slots];
    ld.param.u64 %bytes, [bytes];
    ld.param.u64 %mask, [mask];
    ld.param.u64 %count, [count];
    mov.u64 %index, 0;
WAIT:
    and.b64 %at, %index, %mask;
    mad.lo.u64 %at, %at, %stride, %poll;
    and.b64 %bound, %index, %kept;
    shl.b64 %bound, %bound, %shift;
    ld.acquire.sys.b64 %value, [%at];
    setp.gt.u64 %p, %value, %bound;
    @%p bra FOUND;
    nanosleep.u32 100;
    bra WAIT;
FOUND:
    and.b64 %at, %index, %mask;
    mad.lo.u64 %at, %at, %bytes, %slots;
    add.u64 %end, %at, %bytes;
READ:
    setp.ge.u64 %p, %at, %end;
    @%p bra RELEASE;
    ld.b64 %value, [%at];
    add.u64 %at, %at, 8;
    bra READ;
RELEASE:
    add.u64 %index, %index, 1;
    st.release.sys.b64 [%head], %index;
    setp.lt.u64 %p, %index, %count;
    @%p bra WAIT;
    ret;
}";
    Image::parse(text).unwrap_or_else(|fault| panic!("{fault}"))
});

pub struct Reader<'r> {
    pub head: &'r HostWord,
    pub count: u64,
    /// From `poll` to `mask`, without `head`.
    rest: [u64; 7],
}

fn address<T>(place: &T) -> u64 {
    (&raw const *place).expose_provenance() as u64
}

impl<'r> Reader<'r> {
    /// Of a ring from index 0: the kernel writes the tail of `written` and polls the head of `polled`, before the slots.
    pub fn of_split(written: &RingHeader<HostWord>, polled: &'r RingHeader<HostWord>, count: u64) -> Self {
        let [capacity, bytes, offset] =
            [&polled.constants.capacity, &polled.constants.slot_size, &polled.constants.slots_offset].map(|word| word.load(Relaxed));
        let rest = [address(&written.producer.tail), 0, u64::MAX, 0, address(polled) + offset, bytes, capacity - 1];
        Self { head: &polled.consumer.head, count, rest }
    }

    pub fn of(ring: &'r RingHeader<HostWord>, count: u64) -> Self {
        Self::of_split(ring, ring, count)
    }

    /// Polls the flag of each slot.
    pub fn of_flagged(ring: &'r RingHeader<HostWord>, count: u64) -> Self {
        let mut reader = Self::of(ring, count);
        let [.., slots, bytes, mask] = reader.rest;
        reader.rest[..4].copy_from_slice(&[slots, bytes, !mask, 1]);
        reader
    }

    /// Of one word, until it is not 0.
    pub fn of_word(word: &HostWord, head: &'r HostWord) -> Self {
        Self { head, count: 1, rest: [address(word), 0, u64::MAX, 0, 0, 0, 0] }
    }

    /// Ends well if `host` refuses an address.
    pub fn run(&self, gpu: &Device, host: &dyn KernelHost) -> Result<(), Fault> {
        let [poll, stride, kept, shift, slots, bytes, mask] = self.rest;
        let arguments = [poll, stride, kept, shift, address(self.head), slots, bytes, mask, self.count];
        let ended = gpu.run(&IMAGE, "reader", &arguments, host, 1, 2);
        ended.or_else(|fault| if fault.kind == Kind::OutOfBounds { Ok(()) } else { Err(fault) })
    }
}
