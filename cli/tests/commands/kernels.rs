use std::ptr::NonNull;
use std::slice;

use ringmem::control::{Addresses, DeviceSide, Fault, Shared, State};
use ringmem::image::{Entry, KernelHost};
use ringmem::ring::spsc::{Consumer, Producer};
use ringmem::{Host, HostWord, Image, RingHeader, RingMessage};
use ringmem_kernels::histogram::{Chunk, Counted, Work, reference};
use ringmem_kernels::{ABI, Batch, Handler, IMAGE, Launch, Simulated, Single, persistent};

pub type Run = unsafe fn(&dyn KernelHost, &[u64]);

pub fn image(name: &'static str, run: Run) -> Image {
    let arguments = IMAGE.host.iter().find(|entry| entry.name == name).expect("a kernel of that name").arguments;
    Image { host: Box::leak(Box::new([Entry { name, arguments, run }])), ..IMAGE }
}

pub struct Count {
    data: NonNull<u8>,
    work: NonNull<Work>,
    bytes: u64,
    checksum: u64,
}

impl Count {
    /// # Safety
    ///
    /// `histogram`'s arguments; their memory is live while the value is used, and otherwise unused.
    unsafe fn new(host: &dyn KernelHost, arguments: &[u64]) -> Self {
        let data = host.translate(arguments[4], arguments[5]).expect("the data");
        let work = host.translate(arguments[6], size_of::<Work>() as u64).expect("the work").cast();
        Self { data, work, bytes: 0, checksum: 0 }
    }

    fn place(&self, chunk: Chunk) -> NonNull<u8> {
        // SAFETY: chunks are within the data.
        unsafe { self.data.add(chunk.offset as usize) }
    }

    pub fn flip(&mut self, chunk: Chunk) {
        // SAFETY: within the data, not empty; the host leaves unanswered chunks alone.
        unsafe { *self.place(chunk).as_ptr() ^= 1 };
    }

    pub fn swap(&mut self, chunk: Chunk) {
        // SAFETY: within the data, aligned, at least two words; the host leaves unanswered chunks alone.
        unsafe { slice::from_raw_parts_mut(self.place(chunk).cast::<u64>().as_ptr(), 2) }.swap(0, 1);
    }

    pub fn add(&mut self, chunk: Chunk) -> Counted {
        let words = chunk.length.div_ceil(8) as usize;
        // SAFETY: chunks are whole pages; chunk and work are otherwise unused.
        let (words, work) = unsafe { (slice::from_raw_parts(self.place(chunk).cast().as_ptr(), words), self.work.as_mut()) };
        self.checksum = self.checksum.wrapping_add(reference(words, chunk.length as usize, chunk.first_word, work));
        self.bytes += chunk.length;
        self.say(chunk)
    }

    pub fn say(&self, chunk: Chunk) -> Counted {
        Counted { id: chunk.id, status: 0, bytes: self.bytes, checksum: self.checksum }
    }
}

struct Counting<F> {
    count: Count,
    answer: F,
}

impl<'m, 'l, F: FnMut(&mut Count, Chunk) -> Counted> Handler<Simulated<'m>, Single<'l>> for Counting<F> {
    type Input = Chunk;
    type Output = Counted;

    unsafe fn answer(&mut self, _: &Single<'l>, batch: &mut Batch<'_, '_, Chunk, Counted, Simulated<'m>>) -> u64 {
        let mut refused = 0;
        for index in 0..batch.len() {
            // SAFETY: below the length; one lane.
            unsafe {
                batch.exchange(index, |chunk, slot| {
                    *slot = (self.answer)(&mut self.count, *chunk);
                    refused += slot.status;
                });
            }
        }
        refused
    }
}

/// `histogram` with another answer to each chunk.
///
/// # Safety
///
/// As [`Entry::run`], with `histogram`'s arguments, whose memory nothing else uses.
pub unsafe fn counting(host: &dyn KernelHost, arguments: &[u64], answer: impl FnMut(&mut Count, Chunk) -> Counted) {
    let launch = Launch { controls: arguments[0], epoch: arguments[1] as u32, idle_ns: arguments[2], batch: arguments[3], abi: ABI.hash };
    // SAFETY: the caller promises `histogram`'s arguments, whose memory is live until this returns and otherwise unused; the value does not
    // outlive this call.
    let mut handler = Counting { count: unsafe { Count::new(host, arguments) }, answer };
    // SAFETY: the caller promises that the control block, and the rings and telemetry that it names, are live and shared by their protocols
    // until this returns.
    unsafe { persistent(&Simulated(host), &Single(host), &launch, &mut handler) }
}

pub enum Reply<O> {
    Say(Vec<O>),
    Vanish,
    Fault(Fault),
}

/// Any number of answers to a message, and more when drained.
///
/// # Safety
///
/// As [`Entry::run`]; the first arguments are control block and epoch.
pub unsafe fn serve<I: RingMessage, O: RingMessage>(
    host: &dyn KernelHost,
    arguments: &[u64],
    mut reply: impl FnMut(I) -> Reply<O>,
    last_words: impl Fn() -> Vec<O>,
) {
    let block = host.translate(arguments[0], 128).expect("a control block").cast::<Shared<HostWord>>();
    // SAFETY: mapped by `translate`; the caller promises that the block is live until this returns.
    let block = unsafe { block.as_ref() };
    // SAFETY: the only kernel on the block.
    let mut control = unsafe { DeviceSide::attach(block, arguments[1] as u32) };
    assert!(control.agree(ABI.hash));
    let Addresses { input, output, .. } = control.addresses();
    // SAFETY: consumer of the one, producer of the other.
    let (mut input, mut output) = unsafe {
        let (input, output) = (ring::<I>(host, input.ring), ring::<O>(host, output.ring));
        (
            Consumer::<I, Host>::from_raw(input.0, input.1).expect("the input ring"),
            Producer::<O, Host>::from_raw(output.0, output.1).expect("the output ring"),
        )
    };
    control.enter(State::Ready);
    let (mut acted, mut times) = (0, 0);
    while control.is_current() {
        let (sequence, bits) = control.command();
        if sequence != acted {
            acted = sequence;
            control.enter(State::Active);
            if bits & 4 != 0 {
                control.enter(State::Draining);
            }
            control.acknowledge(sequence);
            if bits & 8 != 0 {
                control.enter(State::Terminated);
                return;
            }
        }
        match input.pop() {
            Ok(message) => match reply(message) {
                Reply::Say(all) => {
                    for one in all {
                        assert!(output.push(one).is_ok(), "no room for an answer");
                    }
                }
                Reply::Vanish => return,
                Reply::Fault(fault) => {
                    control.note(fault);
                    control.enter(State::Faulted);
                    return;
                }
            },
            Err(_) if control.state() == State::Draining => {
                last_words().into_iter().for_each(|one| assert!(output.push(one).is_ok(), "no room for an answer"));
                control.enter(State::Terminated);
                return;
            }
            Err(_) => {
                host.pause(times);
                times += 1;
            }
        }
    }
}

/// # Safety
///
/// A ring of `T` is at the address.
unsafe fn ring<T: RingMessage>(host: &dyn KernelHost, address: u64) -> (NonNull<u8>, u64) {
    let header = host.translate(address, 384).expect("a ring's header").cast::<RingHeader<HostWord>>();
    // SAFETY: mapped; made of words.
    let layout = unsafe { header.as_ref() }.geometry::<T>().expect("the ring that the host made");
    (host.translate(address, layout.size()).expect("the whole ring"), layout.size())
}

/// # Safety
///
/// As [`counting`].
pub unsafe fn serve_counts(
    host: &dyn KernelHost,
    arguments: &[u64],
    mut reply: impl FnMut(&mut Count, Chunk) -> Reply<Counted>,
    last_words: impl Fn() -> Vec<Counted>,
) {
    // SAFETY: the caller promises `histogram`'s arguments, whose memory is live until this returns and otherwise unused; the value does not
    // outlive this call.
    let mut count = unsafe { Count::new(host, arguments) };
    // SAFETY: the caller promises a control block and an epoch as the first arguments, and live memory that is shared by the kernel's
    // protocol.
    unsafe { serve(host, arguments, |chunk| reply(&mut count, chunk), last_words) }
}
