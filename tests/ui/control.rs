use ringmem_layouts::control::{DeviceSide, HostSide, Shared, State, snapshot};
use ringmem_layouts::{ControlBlock, HostWord, Word};

fn host(hand: &mut HostSide<'_, HostWord>, block: &Shared<HostWord>) {
    hand.abandon();
    let _ = block.state.load_acquire();
}

fn device(hand: &mut DeviceSide<'_, HostWord>, block: &Shared<HostWord>) {
    hand.enter(State::Ready);
    let _ = block.command.load();
}

fn anybody(block: &Shared<HostWord>) -> ControlBlock<u64> {
    snapshot(block)
}

fn main() {
    let block: Shared<HostWord> = zerocopy::FromZeros::new_zeroed();
    // SAFETY: the only hand on the block.
    let mut hand = unsafe { DeviceSide::attach(&block, 0) };
    device(&mut hand, &block);
    println!("{:?}", anybody(&block).kernel_state());
    let _ = (host, <HostWord as Word>::new(0));
}
