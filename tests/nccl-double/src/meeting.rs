use std::collections::{BTreeMap, BTreeSet};
use std::ffi::c_void;
use std::slice;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::driver::{self, HostFunction, cuLaunchHostFunc, cuMemFreeHost, cuMemHostAlloc, cuMemcpyDtoHAsync_v2, cuMemcpyHtoDAsync_v2};
use crate::reduce::reduce;
use crate::{Answer, DEADLINE, INVALID_ARGUMENT, INVALID_USAGE, POISON, REMOTE_ERROR, UNHANDLED_CUDA_ERROR, give_up};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum What {
    AllReduce(i32),
    Broadcast(u32),
    Send(u32),
    Receive(u32),
}

impl What {
    const fn is_pair(self) -> bool {
        matches!(self, Self::Send(_) | Self::Receive(_))
    }
}

#[derive(Clone, Copy)]
pub struct Operation {
    pub comm: usize,
    pub stream: usize,
    pub what: What,
    pub from: u64,
    pub to: u64,
    pub element: i32,
    pub bytes: usize,
}

pub struct Comm {
    id: u64,
    pub rank: u32,
    pub ranks: u32,
    pub context: usize,
    pub lost: u32,
    is_aborted: bool,
    /// Operations so far: by all, and by sender and receiver.
    numbers: BTreeMap<Option<(u32, u32)>, u64>,
    unfinished: usize,
    staging: Vec<usize>,
}

#[derive(Default)]
struct World {
    ids: u64,
    comms: BTreeMap<usize, Comm>,
    meetings: BTreeMap<Key, Meeting>,
    /// Ranks that called an operation of all ranks, by clique.
    connected: BTreeMap<u64, BTreeSet<u32>>,
}

/// Clique, sender and receiver unless all, number.
type Key = (u64, Option<(u32, u32)>, u64);

#[derive(Default)]
struct Meeting {
    parts: BTreeMap<u32, (What, i32, Vec<u8>)>,
    taken: u32,
}

struct Step {
    operation: Operation,
    key: Key,
    staging: usize,
}

struct Job {
    comm: usize,
    steps: Vec<Step>,
}

static WORLD: Mutex<World> = Mutex::new(World { ids: 0, comms: BTreeMap::new(), meetings: BTreeMap::new(), connected: BTreeMap::new() });
static CHANGED: Condvar = Condvar::new();

fn world() -> MutexGuard<'static, World> {
    WORLD.lock().unwrap_or_else(PoisonError::into_inner)
}

fn wait_until(what: &str, mut is_so: impl FnMut(&mut World) -> bool) -> MutexGuard<'static, World> {
    let begun = Instant::now();
    let mut world = world();
    while !is_so(&mut world) {
        let left = DEADLINE.saturating_sub(begun.elapsed());
        if left.is_zero() {
            give_up(&format!("{what} has waited {DEADLINE:?} for another rank"));
        }
        world = CHANGED.wait_timeout(world, left).unwrap_or_else(PoisonError::into_inner).0;
    }
    world
}

pub fn new_id() -> u64 {
    let mut world = world();
    world.ids += 1;
    world.ids
}

/// Adds communicators, then waits for other ranks.
pub fn join(all: &[(u64, u32, u32, usize)]) -> Answer<Vec<usize>> {
    let mut handles = Vec::new();
    for &(id, ranks, rank, context) in all {
        let mut world = world();
        if id == 0 || id > world.ids || ranks == 0 || rank >= ranks {
            return Err(INVALID_ARGUMENT);
        }
        let mut others = world.comms.values().filter(|comm| comm.id == id);
        if others.any(|comm| comm.rank == rank || comm.ranks != ranks || comm.context == context) {
            return Err(INVALID_USAGE);
        }
        let handle = world.comms.keys().next_back().map_or(0xCC00, |last| last + 1);
        let numbers = BTreeMap::new();
        let comm = Comm { id, rank, ranks, context, lost: 0, is_aborted: false, numbers, unfinished: 0, staging: Vec::new() };
        world.comms.insert(handle, comm);
        handles.push(handle);
    }
    CHANGED.notify_all();
    for &(id, ranks, ..) in all {
        drop(wait_until("making a communicator", |world| world.comms.values().filter(|comm| comm.id == id).count() == ranks as usize));
    }
    Ok(handles)
}

pub fn with<T>(comm: usize, run: impl FnOnce(&mut Comm) -> Answer<T>) -> Answer<T> {
    world().comms.get_mut(&comm).ok_or(INVALID_ARGUMENT).and_then(run)
}

pub fn lose(code: u32) {
    world().comms.values_mut().for_each(|comm| comm.lost = code);
    CHANGED.notify_all();
}

/// Returns the number of communicators.
#[unsafe(no_mangle)]
pub extern "C" fn ringmem_nccl_live() -> u64 {
    world().comms.len() as u64
}

pub fn end(comm: usize, aborts: bool) -> Answer {
    let (id, context) = with(comm, |comm| Ok((comm.id, comm.context)))?;
    if aborts {
        let mut world = world();
        for (&handle, other) in world.comms.iter_mut().filter(|(_, other)| other.id == id) {
            if handle == comm {
                other.is_aborted = true;
            } else if other.lost == 0 {
                other.lost = REMOTE_ERROR;
            }
        }
        CHANGED.notify_all();
    }
    let mut world = wait_until("ending a communicator", |world| world.comms.get(&comm).is_none_or(|comm| comm.unfinished == 0));
    let staging = world.comms.remove(&comm).map(|comm| comm.staging).unwrap_or_default();
    drop(world);
    driver::within(context, || {
        // SAFETY: allocated by `launch`, unused.
        staging.into_iter().try_for_each(|place| unsafe { cuMemFreeHost(place as *mut c_void) })
    })
}

/// Queues a job for each communicator and stream. The first operation of all ranks waits for the others' calls.
pub fn launch(operations: &[Operation]) -> Answer {
    let mut jobs: Vec<(usize, Job)> = Vec::new();
    for &operation in operations {
        let Operation { comm, stream, what, bytes, .. } = operation;
        let context = with(comm, |comm| Ok(comm.context))?;
        let mut staging = std::ptr::null_mut();
        // SAFETY: writes one address.
        driver::within(context, || unsafe { cuMemHostAlloc(&raw mut staging, bytes.max(1), 0) })?;
        let step = with(comm, |comm| {
            let pair = match what {
                What::AllReduce(_) | What::Broadcast(_) => None,
                What::Send(peer) => Some((comm.rank, peer)),
                What::Receive(peer) => Some((peer, comm.rank)),
            };
            comm.staging.push(staging.addr());
            let number = comm.numbers.entry(pair).or_default();
            *number += 1;
            Ok(Step { operation, key: (comm.id, pair, *number), staging: staging.addr() })
        })?;
        match jobs.iter_mut().find(|(on, job)| (*on, job.comm) == (stream, comm)) {
            Some((_, job)) => job.steps.push(step),
            None => jobs.push((stream, Job { comm, steps: vec![step] })),
        }
    }
    for operation in operations.iter().filter(|operation| !operation.what.is_pair()) {
        let mut world = world();
        let Some(&Comm { id, rank, .. }) = world.comms.get(&operation.comm) else { return Err(INVALID_ARGUMENT) };
        world.connected.entry(id).or_default().insert(rank);
    }
    CHANGED.notify_all();
    for operation in operations.iter().filter(|operation| !operation.what.is_pair()) {
        let (id, ranks) = with(operation.comm, |comm| Ok((comm.id, comm.ranks)))?;
        drop(wait_until("connecting", |world| world.connected.get(&id).is_some_and(|ones| ones.len() == ranks as usize)));
    }
    jobs.into_iter().try_for_each(|(stream, job)| queue(stream, job))
}

fn queue(stream: usize, job: Job) -> Answer {
    let comm = job.comm;
    let context = with(comm, |comm| {
        comm.unfinished += 1;
        Ok(comm.context)
    })?;
    let copies: Vec<_> = job.steps.iter().map(|step| (step.operation, step.staging as *mut c_void)).collect();
    driver::within(context, || {
        for (Operation { what, from, bytes, .. }, staging) in &copies {
            if !matches!(what, What::Receive(_)) {
                // SAFETY: pinned memory of this size, until the job has finished; the driver checks the other end.
                unsafe { cuMemcpyDtoHAsync_v2(*staging, *from, *bytes, stream) }?;
            }
        }
        host(stream, meet, job)?;
        for (Operation { what, to, bytes, .. }, staging) in &copies {
            if !matches!(what, What::Send(_)) {
                // SAFETY: as above.
                unsafe { cuMemcpyHtoDAsync_v2(*to, *staging, *bytes, stream) }?;
            }
        }
        host(stream, finish, comm)
    })
}

fn host<T>(stream: usize, function: HostFunction, data: T) -> Answer {
    // SAFETY: the function takes its data once.
    unsafe { cuLaunchHostFunc(stream, function, Box::into_raw(Box::new(data)).cast()) }
}

unsafe extern "C" fn finish(data: *mut c_void) {
    // SAFETY: the data of this function, taken once.
    let comm = *unsafe { Box::from_raw(data.cast::<usize>()) };
    if let Some(comm) = world().comms.get_mut(&comm) {
        comm.unfinished -= 1;
    }
    CHANGED.notify_all();
}

unsafe extern "C" fn meet(data: *mut c_void) {
    // SAFETY: as above.
    let Job { comm, steps } = *unsafe { Box::from_raw(data.cast::<Job>()) };
    let Ok((rank, ranks)) = with(comm, |comm| Ok((comm.rank, comm.ranks))) else { return };
    // SAFETY: pinned memory of this size, between the stream's copies.
    let place = |step: &Step| unsafe { slice::from_raw_parts_mut(step.staging as *mut u8, step.operation.bytes) };
    for step in steps.iter().filter(|step| !matches!(step.operation.what, What::Receive(_))) {
        let part = (step.operation.what, step.operation.element, place(step).to_vec());
        world().meetings.entry(step.key).or_default().parts.insert(rank, part);
    }
    CHANGED.notify_all();
    for step in &steps {
        let what = step.operation.what;
        let is_met = |meeting: &Meeting| match what {
            What::Send(_) => meeting.taken > 0,
            What::Receive(_) => !meeting.parts.is_empty(),
            _ => meeting.parts.len() == ranks as usize,
        };
        let is_aborted = |world: &World| world.comms.get(&comm).is_none_or(|comm| comm.is_aborted);
        let is_lost = |world: &World| world.comms.get(&comm).is_none_or(|comm| comm.lost != 0);
        let mut world = wait_until(&format!("{what:?}"), |world| {
            is_aborted(world) || !is_lost(world) && world.meetings.get(&step.key).is_some_and(is_met)
        });
        if is_aborted(&world) {
            steps.iter().for_each(|step| place(step).fill(POISON));
            return;
        }
        let Some(meeting) = world.meetings.get_mut(&step.key) else { continue };
        if !matches!(what, What::Send(_)) {
            meeting.met(&step.operation, place(step));
            meeting.taken += 1;
        }
        let is_over = match what {
            What::Send(_) => true,
            What::Receive(_) => false,
            _ => meeting.taken == ranks,
        };
        if is_over {
            world.meetings.remove(&step.key);
        }
        drop(world);
        CHANGED.notify_all();
    }
}

impl Meeting {
    fn met(&self, operation: &Operation, result: &mut [u8]) {
        let Operation { what, element, .. } = *operation;
        for (rank, (other, their, bytes)) in &self.parts {
            let is_pair = matches!((what, other), (What::Receive(_), What::Send(_)));
            if !(is_pair || what == *other) || element != *their || bytes.len() != result.len() {
                give_up(&format!("{what:?} of {} bytes meets {other:?} of {} bytes of rank {rank}", result.len(), bytes.len()));
            }
        }
        let mut parts = self.parts.iter();
        match what {
            What::AllReduce(operation) => {
                let Some((_, (.., first))) = parts.next() else { return };
                result.copy_from_slice(first);
                parts.for_each(|(_, (.., bytes))| reduce(element, operation, result, bytes));
            }
            What::Broadcast(root) => result.copy_from_slice(&self.parts[&root].2),
            _ => parts.for_each(|(_, (.., bytes))| result.copy_from_slice(bytes)),
        }
    }
}

/// NCCL's checks of a call.
pub fn check(operation: &Operation) -> Answer {
    let mut context = 0;
    // SAFETY: writes one handle; the driver checks the stream.
    unsafe { driver::cuStreamGetCtx(operation.stream, &raw mut context) }?;
    with(operation.comm, |comm| {
        let peer = match operation.what {
            What::AllReduce(reduce) => {
                if (0..4).contains(&reduce) {
                    comm.rank
                } else {
                    u32::MAX
                }
            }
            What::Broadcast(peer) | What::Send(peer) | What::Receive(peer) => peer,
        };
        match (peer < comm.ranks, comm.context == context, comm.lost) {
            (false, ..) => Err(INVALID_ARGUMENT),
            (_, false, _) => Err(UNHANDLED_CUDA_ERROR),
            (true, true, lost) => {
                if lost == 0 {
                    Ok(())
                } else {
                    Err(lost)
                }
            }
        }
    })
}
