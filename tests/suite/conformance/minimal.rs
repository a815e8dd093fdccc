use std::alloc::Layout;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use ringmem::backend::host::HostBackend;
use ringmem::backend::{
    Address, Backend, Block, Capabilities, Copy, Fill, Launch, MemoryInfo, MemoryLocation, ModuleId, Options, Prefetch, Request, StreamId,
    Ticket, Uses,
};
use ringmem::image::{Entry, KernelHost};
use ringmem::memory::Pinned;
use ringmem::peer::Peers;
use ringmem::stream::Stream;
use ringmem::{Abi, Error, Image, Result};

#[derive(Debug)]
pub struct Minimal(pub Arc<HostBackend>);

// SAFETY: each method forwards to another backend.
unsafe impl Backend for Minimal {
    fn id(&self) -> u64 {
        self.0.id()
    }
    fn erased(self: Arc<Self>) -> Arc<dyn Backend> {
        self
    }
    fn name(&self) -> &'static str {
        "minimal"
    }
    fn devices(&self) -> u32 {
        self.0.devices()
    }
    fn capabilities(&self, device: u32) -> Result<Capabilities> {
        let mut capabilities = self.0.capabilities(device)?;
        capabilities.mapping_granularity = None;
        Ok(capabilities)
    }
    fn memory_info(&self, device: u32) -> Result<Option<MemoryInfo>> {
        self.0.memory_info(device)
    }
    fn allocate(&self, request: &Request, on: Option<StreamId>) -> Result<Block> {
        self.0.allocate(request, on)
    }
    unsafe fn free(&self, block: &Block, uses: &Uses) -> Result<()> {
        // SAFETY: the caller promises that the block is freed once and that only `uses` still use it; it is the inner backend's.
        unsafe { self.0.free(block, uses) }
    }
    unsafe fn copy_now(&self, copy: &Copy) -> Result<()> {
        // SAFETY: the caller promises that both ends have all bytes, without overlap, that nothing else writes the source or accesses the target until this
        // returns, except one aligned word as a word, and that a source of one word is writable.
        unsafe { self.0.copy_now(copy) }
    }
    unsafe fn fill_now(&self, fill: &Fill) -> Result<()> {
        // SAFETY: the caller promises that the place has all elements, exclusively until this returns.
        unsafe { self.0.fill_now(fill) }
    }
    fn open_stream(&self, device: u32) -> Result<StreamId> {
        self.0.open_stream(device)
    }
    fn close_stream(&self, stream: StreamId) {
        self.0.close_stream(stream);
    }
    unsafe fn copy(&self, copy: &Copy, on: StreamId) -> Result<Ticket> {
        // SAFETY: the caller promises that both ends have all bytes, without overlap, that nothing else writes the source or accesses the target until the copy
        // is executed, and that a source of one word is writable.
        unsafe { self.0.copy(copy, on) }
    }
    unsafe fn fill(&self, fill: &Fill, on: StreamId) -> Result<Ticket> {
        // SAFETY: the caller promises that the place has all elements, exclusively until the fill is executed.
        unsafe { self.0.fill(fill, on) }
    }
    unsafe fn publish_now(&self, word: Address, value: u64) -> Result<()> {
        // SAFETY: the caller promises that the word has 8 bytes, which others access only as a word until this returns.
        unsafe { self.0.publish_now(word, value) }
    }
    unsafe fn publish(&self, word: Address, value: u64, since: Ticket, on: StreamId) -> Result<Ticket> {
        // SAFETY: the caller promises that the word has 8 bytes, which others access only as a word until the store is executed, and that `since` is of this
        // stream.
        unsafe { self.0.publish(word, value, since, on) }
    }
    fn stream_wait(&self, ticket: Ticket, stream: StreamId) -> Result<()> {
        self.0.stream_wait(ticket, stream)
    }
    fn record_position(&self, stream: StreamId) -> Result<Ticket> {
        self.0.record_position(stream)
    }
    fn is_complete(&self, ticket: Ticket) -> bool {
        self.0.is_complete(ticket)
    }
    fn wait(&self, ticket: Ticket, timeout: Option<Duration>) -> Result<bool> {
        self.0.wait(ticket, timeout)
    }
    fn outcome(&self, ticket: Ticket, timeout: Option<Duration>) -> Result<bool> {
        self.0.outcome(ticket, timeout)
    }
    fn synchronize(&self, stream: StreamId) -> Result<()> {
        self.0.synchronize(stream)
    }
    fn load(&self, image: &Image, expected: &Abi) -> Result<ModuleId> {
        self.0.load(image, expected)
    }
    fn unload(&self, module: ModuleId) {
        self.0.unload(module);
    }
    unsafe fn launch(&self, launch: &Launch<'_>, on: StreamId) -> Result<Ticket> {
        // SAFETY: until the kernel has ended, the caller promises its arguments, live memory for all its accesses, other accesses only by its protocol, and,
        // without concurrent managed access, no borrowed host slice of managed memory. The kernel is declared for as many groups and warps.
        unsafe { self.0.launch(launch, on) }
    }
    fn keep(&self, value: Box<dyn Send>, uses: &Uses, beyond: Option<&Block>) {
        self.0.keep(value, uses, beyond);
    }
    fn unreported(&self, error: Error) {
        self.0.unreported(error);
    }
}

fn minimal() -> Arc<Minimal> {
    Arc::new(Minimal(HostBackend::builder().device_memory(1 << 20).build().expect("a backend")))
}

struct Held {
    gate: &'static Gate,
    stream: StreamId,
}

#[derive(Default)]
struct Gate {
    is_open: Mutex<bool>,
    opened: Condvar,
}

unsafe fn wait(_: &dyn KernelHost, arguments: &[u64]) {
    // SAFETY: the launch passed the address of this never freed gate.
    let gate = unsafe { &*std::ptr::with_exposed_provenance::<Gate>(arguments[0] as usize) };
    let is_open = gate.is_open.lock().expect("no panic");
    drop(gate.opened.wait_while(is_open, |is_open| !*is_open));
}

impl Held {
    fn new(backend: &Minimal) -> Self {
        const ABI: Abi = Abi::of(&[]);
        const IMAGE: Image = Image { ptx: b"", host: &[Entry { name: "wait", arguments: 1, run: wait }], abi: ABI };
        let (gate, stream) = (Box::leak(Box::<Gate>::default()), backend.open_stream(0).expect("device 0"));
        let arguments = [std::ptr::from_ref(gate).expose_provenance() as u64];
        let module = backend.load(&IMAGE, &ABI).expect("our ABI");
        let launch =
            Launch { module, name: "wait", arguments: &arguments, groups: 1, warps: 1, stays: false, operands: &[], elements: None };
        // SAFETY: the kernel accesses only the gate.
        unsafe { backend.launch(&launch, stream) }.expect("queued");
        Self { gate, stream }
    }

    fn let_go(&self) {
        *self.gate.is_open.lock().expect("no panic") = true;
        self.gate.opened.notify_all();
    }
}

fn words(backend: &Minimal) -> Block {
    let layout = Layout::new::<[u64; 2]>();
    let request = Request { location: MemoryLocation::Pinned, device: 0, layout, options: Options::ZEROED };
    backend.allocate(&request, None).expect("room")
}

#[test]
fn a_default_copy_precedes_its_published_word() {
    let backend = minimal();
    let block = words(&backend);
    // SAFETY: both are within the block.
    let (to, word) = unsafe { (block.address_at(0).expect("bytes"), block.address_at(8).expect("bytes")) };
    let mut source = [7_u64];
    let copy = Copy { to, from: Address::Host(std::ptr::NonNull::from(&mut source).cast()), bytes: 8 };
    // SAFETY: valid for 8 bytes, disjoint, otherwise unused.
    unsafe { backend.copy_and_publish_now(&[copy], word, 9) }.expect("both are there");
    let host = block.host.expect("pinned").cast::<[u64; 2]>();
    // SAFETY: the block's words; nothing is queued.
    assert_eq!(unsafe { host.read() }, [7, 9]);
    let nowhere = Copy { to: Address::Device(ringmem::backend::DeviceAddress::new(8)), ..copy };
    // SAFETY: rejected.
    let refused = unsafe { backend.copy_and_publish_now(&[nowhere], word, 11) };
    assert!(matches!(refused, Err(Error::Foreign { layouts: None, .. })));
    // SAFETY: the block's words; nothing is queued.
    assert_eq!(unsafe { host.read() }[1], 9, "nothing is published after a copy that failed");
    // SAFETY: unused.
    unsafe { backend.free(&block, &Uses::NONE) }.expect("once");
}

#[test]
fn defaults_reject_features_that_a_backend_lacks() {
    let backend = minimal();
    let (stream, block) = (backend.open_stream(0).expect("device 0"), words(&backend));
    assert!(!backend.is_simulated() && backend.taints().is_none());
    assert!(!backend.defers_free(&block) && !backend.is_deferred(&block));
    backend.host_access(&block).expect("nothing is in the way");
    let prefetch = Prefetch { address: block.device_address.expect("pinned"), bytes: 16, to: Some(0) };
    assert!(matches!(backend.prefetch(&prefetch, stream), Err(Error::Unsupported { .. })));
    for enabled in [true, false] {
        backend.set_peer(0, 0, enabled).expect("a device reaches itself");
        assert!(matches!(backend.set_peer(0, 1, enabled), Err(Error::Unsupported { .. })));
    }
    let mut peers = Peers::new(Pinned::new(&backend, 0)).expect("streams");
    for set in [Peers::enable, Peers::disable] {
        set(&mut peers, 0, 0).expect("a device reaches itself");
        assert!(matches!(set(&mut peers, 0, 3), Err(Error::NoDevice { asked: 3, devices: 1 })));
        assert!(matches!(set(&mut peers, 4, 0), Err(Error::NoDevice { asked: 4, devices: 1 })));
    }
    assert!(backend.record(stream).expect("no event").is_none());
    let timed = Stream::new(&backend, 0).expect("device 0");
    let event = timed.record().expect("a mark");
    event.wait().expect("nothing failed");
    assert!(matches!(event.elapsed_since(&event), Err(Error::Unsupported { .. })));
    let ticket = backend.record_position(stream).expect("a mark");
    assert!(matches!(backend.elapsed(ticket, ticket), Err(Error::Unsupported { .. })));
    backend.forget(ticket);
    assert!(backend.now_ns() <= backend.now_ns());
    backend.close_stream(stream);
    // SAFETY: unused.
    unsafe { backend.free(&block, &Uses::NONE) }.expect("once");
}

#[test]
fn default_settle_waits_for_all_uses_and_returns_an_error() {
    use ringmem::backend::host::{Fault, Faults, Verb};
    let faults = Faults::new().on(Verb::Fill, Fault::from(1).when_executed());
    let backend = Minimal(HostBackend::builder().device_memory(1 << 20).faults(faults).build().expect("a backend"));
    let block = words(&backend);
    let mut uses = Uses::NONE;
    let held = Held::new(&backend);
    let streams = [backend.open_stream(0).expect("device 0"), held.stream];
    for (index, stream) in streams.into_iter().enumerate() {
        // SAFETY: within the block.
        let to = unsafe { block.address_at(8 * index as u64) }.expect("bytes");
        // SAFETY: only this fill accesses the word.
        let ticket = unsafe { backend.fill(&Fill::of(to, 5_u64, 1), stream) }.expect("queued");
        uses.add(ticket).expect("two streams");
    }
    let failed = uses.iter().next().expect("the first");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !backend.is_complete(failed) {
                std::thread::yield_now();
            }
            // A settle that waits only for the first use returns before this.
            std::thread::sleep(Duration::from_millis(20));
            held.let_go();
        });
        let outcome = uses.settle(&backend);
        assert!(uses.iter().all(|ticket| backend.is_complete(ticket)), "also after the first has failed");
        assert!(matches!(outcome, Err(Error::Injected { call: "fill", number: 1 })), "{outcome:?}");
    });
    uses.settle(&backend).expect("both are reported");
    streams.into_iter().for_each(|stream| backend.close_stream(stream));
    // SAFETY: the block's uses are complete.
    unsafe { backend.free(&block, &Uses::NONE) }.expect("once");
}

#[test]
fn a_value_kept_beyond_a_block_is_dropped_after_its_uses() {
    struct Tell(std::sync::mpsc::Sender<()>);
    impl Drop for Tell {
        fn drop(&mut self) {
            // The test may have failed already.
            let _ = self.0.send(());
        }
    }
    let backend = minimal();
    let (held, block) = (Held::new(&backend), words(&backend));
    let (sender, dropped) = std::sync::mpsc::channel();
    let ticket = backend.record_position(held.stream).expect("a live stream");
    backend.keep(Box::new(Tell(sender)), &Uses::of(ticket), Some(&block));
    backend.free_deferred();
    assert!(dropped.try_recv().is_err() && !backend.is_complete(ticket), "its use is not complete");
    held.let_go();
    dropped.recv_timeout(Duration::from_secs(30)).expect("its use is complete");
    backend.close_stream(held.stream);
    // SAFETY: unused.
    unsafe { backend.free(&block, &Uses::NONE) }.expect("once");
}
