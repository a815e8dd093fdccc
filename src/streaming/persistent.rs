use core::fmt;
use core::ops::Range;

use super::stage::Stage;
use super::stage::sealed::{self, Requests, Work};
use super::{Cause, Chunk, Streamer};
use crate::RingMessage;
use crate::attach::AttachError;
use crate::channel::{Channel, Closed, Options, ReceiveError, SendError};
use crate::control::Command;
use crate::dump::Dump;
use crate::stream::Module;
use crate::watchdog::Verdict;
use crate::{Error, Rejected, Result};

/// The messages of each chunk.
///
/// ```
/// use ringmem::streaming::{Cause, Chunk, Dialogue};
/// use ringmem_kernels::transform::{Applied, Apply, Operation};
///
/// struct Add(u8);
///
/// impl Dialogue for Add {
///     type Question = Apply;
///     type Answer = Applied;
///
///     fn ask(&mut self, chunk: &Chunk) -> Apply {
///         Apply { id: chunk.index, offset: chunk.place, length: chunk.length, operation: Operation::Add(self.0).word() }
///     }
///     fn number(answer: &Applied) -> u64 {
///         answer.id
///     }
///     fn answered(&mut self, chunk: &Chunk, answer: Applied) -> Result<(), Cause> {
///         if answer.status == 0 { Ok(()) } else { Err(chunk.refused()) }
///     }
/// }
/// ```
pub trait Dialogue {
    /// The message to the kernel.
    type Question: RingMessage;
    /// The message from the kernel.
    type Answer: RingMessage;

    /// Returns a chunk's message: once per chunk, in order.
    fn ask(&mut self, chunk: &Chunk) -> Self::Question;

    /// Returns the number of an answer's chunk.
    fn number(answer: &Self::Answer) -> u64;

    /// Handles a chunk's answer, in order.
    ///
    /// # Errors
    ///
    /// Any error, such as [`Chunk::refused`], stops the job.
    fn answered(&mut self, chunk: &Chunk, answer: Self::Answer) -> Result<(), Cause>;
}

/// A persistent kernel that answers a message for each chunk.
///
/// After an interruption with chunks at the kernel, jobs fail with [`Busy`](Error::Busy): late answers would be ambiguous.
///
/// ```
/// # use ringmem::streaming::{Cause, Chunk, Dialogue};
/// # use ringmem_kernels::transform::{Applied, Apply, Operation};
/// # struct Add(u8);
/// # impl Dialogue for Add {
/// #     type Question = Apply;
/// #     type Answer = Applied;
/// #     fn ask(&mut self, chunk: &Chunk) -> Apply {
/// #         Apply { id: chunk.index, offset: chunk.place, length: chunk.length, operation: Operation::Add(self.0).word() }
/// #     }
/// #     fn number(answer: &Applied) -> u64 {
/// #         answer.id
/// #     }
/// #     fn answered(&mut self, chunk: &Chunk, answer: Applied) -> Result<(), Cause> {
/// #         if answer.status == 0 { Ok(()) } else { Err(chunk.refused()) }
/// #     }
/// # }
/// use ringmem::backend::host::HostBackend;
/// use ringmem::channel::Options;
/// use ringmem::stream::Module;
/// use ringmem::streaming::{Job, Persistent, Streamer};
///
/// let backend = HostBackend::builder().build()?;
/// let module = Module::load(&backend, &ringmem_kernels::IMAGE, &ringmem_kernels::ABI)?;
/// let mut streamer = Streamer::builder(&backend, 0).chunk(4096).build()?;
/// let options = Options { arguments: &[streamer.address(), streamer.size()], ..Options::new("transform") };
/// // SAFETY: the arguments are the streamer's memory. `transform` uses only chunks that were requested and that it has not answered.
/// let mut kernel = unsafe { Persistent::open(&streamer, &module, &options, Add(1))? }; // the dialogue of `Dialogue`'s example
/// let mut sink = Vec::new();
/// streamer.run(Job::new(&mut &[7_u8; 10_000][..]).to(&mut sink), &mut kernel)?;
/// assert_eq!(sink, [8; 10_000]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Persistent<D: Dialogue> {
    channel: Channel<D::Question, D::Answer>,
    /// Messages and results.
    pub dialogue: D,
    question: Option<(Chunk, D::Question)>,
    high_water: [usize; 2],
    unanswered: Range<u64>,
    home: u64,
}

impl<D: Dialogue> Persistent<D> {
    /// Launches a kernel for a streamer's chunks; keeps the streamer's memory.
    ///
    /// # Errors
    ///
    /// As [`Channel::open_raw`].
    ///
    /// # Safety
    ///
    /// As [`Channel::open_raw`]; the arguments may name the [streamer's memory](Streamer::address). Of it the kernel uses only chunks that
    /// were requested and not answered, whatever a `dialogue` requests.
    pub unsafe fn open(streamer: &Streamer, module: &Module, options: &Options<'_>, dialogue: D) -> Result<Self> {
        // SAFETY: until the kernel has left, the caller promises live memory in the arguments, used as the kernel documents, and no host slice of managed
        // memory without concurrent access. The streamer's memory is kept below; the streamer does not write a requested chunk before its answer.
        let mut channel = unsafe { Channel::open_raw(streamer.backend(), streamer.device(), module, options)? };
        channel.keep_alive(streamer.memory());
        Ok(Self { channel, dialogue, question: None, high_water: [0; 2], unanswered: 0..0, home: streamer.address() })
    }

    /// Returns the channel.
    #[must_use]
    pub const fn channel(&self) -> &Channel<D::Question, D::Answer> {
        &self.channel
    }

    /// Returns the channel, mutably.
    ///
    /// # Safety
    ///
    /// It is not moved out, and no message makes the kernel use the streamer's memory.
    pub unsafe fn channel_mut(&mut self) -> &mut Channel<D::Question, D::Answer> {
        &mut self.channel
    }

    /// As [`Channel::command`].
    pub fn command(&mut self, command: Command) -> Result<()> {
        self.channel.command(command)
    }

    /// As [`Channel::watch`].
    pub fn watch(&mut self) -> Verdict {
        self.channel.watch()
    }

    /// As [`Channel::dump`].
    #[allow(clippy::result_large_err, reason = "as there")]
    pub fn dump(&mut self) -> Result<Dump, Rejected<Dump>> {
        self.channel.dump()
    }

    /// As [`Channel::keep_alive`].
    pub fn keep_alive(&mut self, value: impl Send + 'static) {
        self.channel.keep_alive(value);
    }

    /// Returns the high-water marks of the input and output rings.
    #[must_use]
    pub const fn high_water(&self) -> [usize; 2] {
        self.high_water
    }

    /// Drains and closes; returns the kernel's last state and the dialogue.
    ///
    /// # Errors
    ///
    /// [`Cause::Order`] for an answer without a request; as [`Channel::close`].
    pub fn close(mut self) -> Result<(Closed, D), Cause> {
        self.channel.drain()?;
        if let Some(answer) = self.receive()? {
            return Err(Cause::Order { got: D::number(&answer), expected: None });
        }
        Ok((self.channel.close()?, self.dialogue))
    }

    fn receive(&mut self) -> Result<Option<D::Answer>, Cause> {
        let waiting = self.channel.output_waiting().map_err(|error| cause("output", error))?;
        self.high_water[1] = self.high_water[1].max(waiting);
        match self.channel.try_recv() {
            Ok(answer) => Ok(Some(answer)),
            Err(ReceiveError::Empty) => Ok(None),
            Err(ReceiveError::Corrupt(corrupt)) => Err(Cause::Ring { ring: "output", corrupt }),
            Err(ReceiveError::Flush(error)) => Err(error.into()),
        }
    }
}

impl<D: Dialogue> Stage for Persistent<D> {}

impl<D: Dialogue> sealed::Stage for Persistent<D> {
    fn work(&mut self) -> Work<'_> {
        Work::Requested(self)
    }
}

impl<D: Dialogue> Requests for Persistent<D> {
    fn begin(&mut self, home: u64) -> Result<(), Cause> {
        if home != self.home {
            // The kernel uses chunks at its own address.
            return Err(Error::Foreign { call: "stream", address: self.home, layouts: None }.into());
        }
        if !self.unanswered.is_empty() {
            return Err(Error::Busy { what: "the kernel may still use the chunks of an interrupted run" }.into());
        }
        (self.question, self.unanswered) = (None, 0..0);
        // Else it would count as a later chunk's answer.
        if let Some(answer) = self.receive()? {
            return Err(Cause::Order { got: D::number(&answer), expected: None });
        }
        Ok(())
    }

    fn request(&mut self, chunk: &Chunk) -> Result<bool, Cause> {
        let question = match self.question.take() {
            Some((of, question)) if of == *chunk => question,
            _ => self.dialogue.ask(chunk),
        };
        // Sending may panic.
        self.unanswered.end = chunk.index + 1;
        let (question, outcome) = match self.channel.try_send(question) {
            // If flushes keep failing, the next receive fails.
            Ok(()) | Err(SendError::Flush { message: None, .. }) => {
                self.high_water[0] = self.high_water[0].max(self.channel.untaken().unwrap_or(0));
                return Ok(true);
            }
            Err(SendError::Full(question)) => (question, Ok(false)),
            Err(SendError::Kernel { error, message }) => (message, Err(error.into())),
            Err(SendError::Flush { error, message: Some(question) }) => (question, Err(error.into())),
            Err(SendError::Corrupt(question, corrupt)) => (question, Err(cause("input", corrupt.into()))),
        };
        self.unanswered.end = chunk.index;
        self.question = Some((*chunk, question));
        outcome
    }

    fn answered(&mut self, chunk: &Chunk) -> Result<bool, Cause> {
        let Some(answer) = self.receive()? else { return Ok(false) };
        let got = D::number(&answer);
        if got != chunk.index {
            return Err(Cause::Order { got, expected: Some(chunk.index) });
        }
        self.unanswered.start = chunk.index + 1;
        self.dialogue.answered(chunk, answer).map(|()| true)
    }

    fn may_have(&self, chunk: &Chunk) -> bool {
        self.unanswered.contains(&chunk.index)
    }

    fn check(&mut self) -> Result<(), Cause> {
        self.channel.check().map_err(Error::into)
    }
}

fn cause(ring: &'static str, error: Error) -> Cause {
    match error {
        Error::Attach(AttachError::Corrupt(corrupt)) => Cause::Ring { ring, corrupt },
        error => error.into(),
    }
}

impl<D: Dialogue> fmt::Debug for Persistent<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Persistent").field("channel", &self.channel).field("high_water", &self.high_water).finish_non_exhaustive()
    }
}
