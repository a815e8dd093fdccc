use std::cell::{Cell, RefCell};
use std::fmt::Write;
use std::sync::Once;

use ringmem::backend::host::HostBackend;
use ringmem::channel::Channel;
use ringmem::control::Command;
use ringmem::memory::{Buffer, Device, GpuBuffer};
use ringmem::pool::Pool;
use ringmem::stream::{Module, Stream};
use ringmem_kernels::echo::{ECHO, Echo};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use crate::passes_with_visibility;

thread_local! {
    /// This thread's lines `LEVEL message field=value ..`, if it collects them; of spans `SPAN name field=value ..`.
    static LINES: RefCell<Option<Vec<String>>> = const { RefCell::new(None) };
    /// What the subscriber does at this thread's next event.
    static REACTION: RefCell<Option<Box<dyn FnOnce()>>> = const { RefCell::new(None) };
    /// The step of this thread's next span at which the subscriber panics.
    static PANIC_AT: Cell<Option<Step>> = const { Cell::new(None) };
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Step {
    New,
    Enter,
    Exit,
    Close,
}

fn reach(step: Step) {
    if PANIC_AT.get() == Some(step) {
        PANIC_AT.set(None);
        panic!("the test's subscriber panics");
    }
}

/// For all threads: tracing caches that an event has no subscriber if its first thread has none.
struct Collector;

fn collect(first: &str, fields: impl FnOnce(&mut Line)) {
    LINES.with_borrow_mut(|lines| {
        let Some(lines) = lines else { return };
        let mut line = Line(first.to_owned());
        fields(&mut line);
        lines.push(line.0);
    });
}

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        if field.name() == "message" {
            let (level, fields) = self.0.split_once(' ').unwrap_or((&self.0, ""));
            self.0 = format!("{level} {value:?}{}{fields}", if fields.is_empty() { "" } else { " " });
        } else {
            write!(self.0, " {}={value:?}", field.name()).unwrap();
        }
    }
}

impl Subscriber for Collector {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("ringmem")
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        reach(Step::New);
        collect(&format!("SPAN {}", span.metadata().name()), |line| span.record(line));
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        collect(event.metadata().level().as_str(), |line| event.record(line));
        if let Some(react) = REACTION.take() {
            react();
        }
    }

    fn enter(&self, _: &Id) {
        reach(Step::Enter);
    }

    fn exit(&self, _: &Id) {
        reach(Step::Exit);
    }

    fn try_close(&self, _: Id) -> bool {
        reach(Step::Close);
        true
    }
}

fn lines(work: impl FnOnce()) -> Vec<String> {
    static SUBSCRIBED: Once = Once::new();
    SUBSCRIBED.call_once(|| {
        tracing::subscriber::set_global_default(Collector).unwrap();
        // Another thread may have registered events.
        tracing::callsite::rebuild_interest_cache();
    });
    LINES.set(Some(Vec::new()));
    work();
    LINES.take().unwrap()
}

#[test]
fn each_queued_operation_emits_an_event() {
    let backend = HostBackend::builder().build().unwrap();
    let stream = Stream::new(&backend, 0).unwrap();
    let module = Module::load(&backend, &ringmem_kernels::IMAGE, &ringmem_kernels::ABI).unwrap();
    let [one, two] = [(); 2].map(|()| GpuBuffer::<u8>::new(Device::new(&backend, 0), 100).unwrap());
    let found = lines(|| {
        let one = stream.fill(one, .., 7).unwrap().detach();
        let (_, two) = stream.copy(one, two).unwrap().wait().unwrap();
        // SAFETY: `increment` uses the launch's 100 bytes.
        drop(unsafe { stream.launch_with(&module, "increment", two, &[100]) }.unwrap().wait().unwrap());
    });
    let found: Vec<_> = found.iter().filter(|line| line.contains("queued")).collect();
    assert_eq!(found.len(), 3, "{found:?}");
    for (line, wanted) in found.iter().zip(["operation=Fill bytes=100", "operation=DeviceCopy bytes=100", "kernel=\"increment\""]) {
        assert!(line.contains("queued") && line.contains("stream=") && line.ends_with(wanted), "{line}");
    }
}

#[test]
fn a_channel_reports_states_and_faults() {
    let backend = HostBackend::builder().build().unwrap();
    let found = lines(|| {
        let mut channel = Channel::open(&backend, 0, ECHO).unwrap();
        channel.send(Echo { words: [1; 8] }).unwrap();
        channel.recv().unwrap();
        channel.command(Command::PAUSE).unwrap();
        channel.close().unwrap();
    });
    let find = |message: &str| found.iter().find(|line| line.contains(message)).unwrap_or_else(|| panic!("{message} in {found:?}"));
    assert!(find("kernel active").starts_with("DEBUG") && find("kernel active").contains("kernel=\"echo\" epoch="));
    assert!(find("command=Command(PAUSE)").contains("command acknowledged"));
    assert!(find("kernel has left").ends_with("state=Some(Terminated) processed=1"));

    let found = lines(|| {
        let mut channel = Channel::open(&backend, 0, ECHO).unwrap();
        channel.drain().unwrap();
        channel.check().unwrap_err();
    });
    assert!(found.iter().any(|line| line.starts_with("WARN kernel does not continue")), "{found:?}");
}

#[test]
#[ignore = "needs its own environment"]
fn one_warning_of_an_unknown_visibility() {
    let backend = HostBackend::builder().build().unwrap();
    let found = lines(|| drop(Channel::open(&backend, 0, ECHO).unwrap()));
    assert_eq!(found.iter().filter(|line| line.starts_with("WARN visibility")).count(), 1, "{found:?}");
}

#[test]
fn a_channel_warns_once_of_an_unknown_visibility() {
    passes_with_visibility("unknown", "trace::one_warning_of_an_unknown_visibility");
}

#[test]
fn a_pool_reports_growth_trims_and_exhaustion() {
    let backend = HostBackend::builder().build().unwrap();
    let pool = Pool::builder(Device::new(&backend, 0)).slab(2 << 20).limit(2 << 20).build().unwrap();
    let found = lines(|| {
        drop(Buffer::<u8, _>::new(pool.clone(), 1000).unwrap());
        assert!(pool.trim_to(0) > 0);
        Buffer::<u8, _>::new(pool.clone(), 3 << 20).unwrap_err();
    });
    let mapped = lines(|| drop(Buffer::<u8, _>::new(Pool::builder(Device::new(&backend, 0)).build().unwrap(), 1000).unwrap()));
    assert!(mapped.iter().any(|line| line.starts_with("SPAN upstream allocation bytes=")), "{mapped:?}");
    for wanted in ["SPAN upstream allocation bytes=2097152", "SPAN trim keep=0", "DEBUG trimmed bytes=2097152"] {
        assert!(found.iter().any(|line| line == wanted), "{wanted} in {found:?}");
    }
    let exhausted = "WARN out of memory requested=3145728 reserved=0 limit=2097152";
    assert!(found.iter().any(|line| line == exhausted), "{found:?}");
    let held = Buffer::<u8, _>::new(pool.clone(), 1000).unwrap();
    drop(held);
    assert_eq!(lines(|| drop(Buffer::<u8, _>::new(pool.clone(), 1000).unwrap())), [""; 0]);
}

fn reacting(react: impl FnOnce() + 'static, work: impl FnOnce()) {
    lines(|| {
        REACTION.set(Some(Box::new(react)));
        work();
        assert!(REACTION.take().is_none(), "no event");
    });
}

#[test]
fn a_panicking_subscriber_disturbs_no_queued_work() {
    let backend = HostBackend::builder().build().unwrap();
    let stream = Stream::new(&backend, 0).unwrap();
    let buffer = GpuBuffer::<u8>::new(Device::new(&backend, 0), 1 << 20).unwrap();
    reacting(
        || panic!("the test's subscriber panics"),
        || assert_eq!(stream.fill(buffer, .., 7).unwrap().wait().unwrap().to_vec().unwrap(), vec![7; 1 << 20]),
    );
    reacting(
        || panic!("the test's subscriber panics"),
        || {
            let mut channel = Channel::open(&backend, 0, ECHO).unwrap();
            channel.send(Echo { words: [1; 8] }).unwrap();
            assert_eq!(channel.recv().unwrap().words, [1; 8]);
        },
    );
}

#[test]
fn a_subscriber_that_panics_at_a_span_loses_no_memory() {
    let backend = HostBackend::builder().build().unwrap();
    for step in [Step::New, Step::Enter, Step::Exit, Step::Close] {
        let pool = Pool::builder(Device::new(&backend, 0)).slab(2 << 20).limit(2 << 20).build().unwrap();
        lines(|| {
            for _ in 0..2 {
                PANIC_AT.set(Some(step));
                let buffer = Buffer::<u8, _>::new(pool.clone(), 1000).unwrap();
                assert_eq!((PANIC_AT.get(), pool.statistics().reserved_bytes), (None, 2 << 20), "{step:?}");
                drop(buffer);
                PANIC_AT.set(Some(step));
                assert_eq!((pool.trim_to(0), PANIC_AT.get()), (2 << 20, None), "{step:?}");
            }
        });
    }
    assert_eq!(backend.counters().device_live.bytes, 0);
}

#[test]
fn a_subscriber_may_read_statistics_and_metrics() {
    let backend = HostBackend::builder().build().unwrap();
    let pool = Pool::builder(Device::new(&backend, 0)).slab(2 << 20).limit(2 << 20).build().unwrap();
    let asked = pool.clone();
    reacting(move || assert_eq!(asked.statistics().returns, 0), || drop(Buffer::<u8, _>::new(pool, 3 << 20).unwrap_err()));
    let stream = Stream::new(&backend, 0).unwrap();
    stream.measure().unwrap();
    let (asked, buffer) = (stream.clone(), GpuBuffer::<u8>::new(Device::new(&backend, 0), 100).unwrap());
    reacting(move || drop(asked.metrics()), || drop(stream.fill(buffer, .., 7).unwrap().wait().unwrap()));
}
