use std::cell::RefCell;
use std::ffi::c_void;
use std::mem;

use crate::meeting::{self, Operation, What};
use crate::reduce::SIZES;
use crate::{Answer, INVALID_ARGUMENT, INVALID_USAGE, driver, faults};

/// `ncclUniqueId`: a clique's number, then zeroes.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Id([u8; 128]);

#[derive(Default)]
struct Group {
    depth: u32,
    error: u32,
    joins: Vec<(usize, (u64, u32, u32, usize))>,
    operations: Vec<Operation>,
}

thread_local! {
    static GROUP: RefCell<Group> = RefCell::default();
}

impl Group {
    /// At once, unless grouped.
    fn run(self) -> Answer {
        let joins: Vec<_> = self.joins.iter().map(|&(_, join)| join).collect();
        for ((place, _), handle) in self.joins.iter().zip(meeting::join(&joins)?) {
            // SAFETY: caller's promise, until the group ends.
            unsafe { (*place as *mut usize).write(handle) };
        }
        meeting::launch(&self.operations)
    }

    fn add(add: impl FnOnce(&mut Self)) -> Answer {
        GROUP
            .with_borrow_mut(|group| {
                add(group);
                if group.depth == 0 { mem::take(group) } else { Self::default() }
            })
            .run()
    }

    fn ended() -> Self {
        GROUP.with_borrow_mut(|group| {
            group.depth = group.depth.saturating_sub(1);
            if group.depth == 0 { mem::take(group) } else { Self::default() }
        })
    }
}

fn answered(symbol: &str, planned: Option<u32>, run: impl FnOnce() -> Answer) -> u32 {
    let code = planned.unwrap_or_else(|| run().err().unwrap_or(0));
    if code != 0 && symbol == "ncclGroupEnd" {
        GROUP.with_borrow_mut(|group| *group = Group::default());
    } else if code != 0 {
        GROUP.with_borrow_mut(|group| group.error = if group.depth == 0 { 0 } else { code });
    }
    code
}

fn operation(comm: usize, stream: usize, what: What, (from, to): (u64, u64), count: usize, element: i32) -> Answer {
    let size = usize::try_from(element).ok().and_then(|element| SIZES.get(element)).ok_or(INVALID_ARGUMENT)?;
    let operation = Operation { comm, stream, what, from, to, element, bytes: count * size };
    meeting::check(&operation)?;
    Group::add(|group| group.operations.push(operation))
}

macro_rules! calls {
    ($(fn $name:ident($($argument:ident: $type:ty),* $(,)?) $body:block)+) => {$(
        #[doc = concat!("`", stringify!($name), "` of NCCL. Safety: pointers are valid as its documentation asks.")]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> u32 {
            let name = stringify!($name);
            answered(name, faults::called(name), || $body)
        }
    )+};
}

calls! {
    fn ncclGetUniqueId(id: *mut Id) {
        let mut bytes = [0; 128];
        bytes[..8].copy_from_slice(&meeting::new_id().to_le_bytes());
        // SAFETY: caller's promise.
        unsafe { id.write(Id(bytes)) };
        Ok(())
    }

    fn ncclCommInitRank(comm: *mut usize, ranks: i32, id: Id, rank: i32) {
        let (number, rest) = id.0.split_at(8);
        if ranks < 1 || rank < 0 || rest.iter().any(|&byte| byte != 0) {
            return Err(INVALID_ARGUMENT);
        }
        let number = number.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte));
        let join = (number, ranks as u32, rank as u32, driver::context()?);
        Group::add(|group| group.joins.push((comm.addr(), join)))
    }

    fn ncclCommDestroy(comm: usize) {
        meeting::end(comm, false)
    }

    fn ncclCommAbort(comm: usize) {
        meeting::end(comm, true)
    }

    fn ncclCommGetAsyncError(comm: usize, code: *mut u32) {
        let lost = meeting::with(comm, |comm| Ok(comm.lost))?;
        // SAFETY: caller's promise.
        unsafe { code.write(lost) };
        Ok(())
    }

    fn ncclGroupStart() {
        GROUP.with_borrow_mut(|group| group.depth += 1);
        Ok(())
    }

    fn ncclGroupEnd() {
        if GROUP.with_borrow(|group| group.depth) == 0 {
            return Err(INVALID_USAGE);
        }
        let group = Group::ended();
        if group.error == 0 { group.run() } else { Err(group.error) }
    }

    fn ncclAllReduce(from: u64, to: u64, count: usize, element: i32, reduce: i32, comm: usize, stream: usize) {
        operation(comm, stream, What::AllReduce(reduce), (from, to), count, element)
    }

    fn ncclBroadcast(from: u64, to: u64, count: usize, element: i32, root: i32, comm: usize, stream: usize) {
        operation(comm, stream, What::Broadcast(root.cast_unsigned()), (from, to), count, element)
    }

    fn ncclSend(from: u64, count: usize, element: i32, peer: i32, comm: usize, stream: usize) {
        operation(comm, stream, What::Send(peer.cast_unsigned()), (from, from), count, element)
    }

    fn ncclRecv(to: *mut c_void, count: usize, element: i32, peer: i32, comm: usize, stream: usize) {
        operation(comm, stream, What::Receive(peer.cast_unsigned()), (0, to.addr() as u64), count, element)
    }
}
