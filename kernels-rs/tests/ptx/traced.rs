//! Records all stores of PTX to one word.

use ringmem_kernels::echo::Echo;
use ringmem_layouts::control::State;

use crate::machine::{recorded, run_image};
use crate::memory::Device;
use crate::rig::Rig;

/// A kernel of the image.
pub struct Entry(&'static str);

pub fn echo() -> Entry {
    Entry("echo")
}

/// As the module of the same name of `persistent`, where the kernel is a function of the host.
pub fn trace(
    rig: &mut Rig<'_, Echo, Echo>,
    device: &Device,
    kernel: Entry,
    host: impl FnOnce(&mut Rig<'_, Echo, Echo>),
) -> (Vec<State>, bool) {
    assert_eq!(rig.state(), Some(State::Created), "as prepared");
    let arguments = rig.arguments(&[]);
    let state_word = (&raw const rig.block.state).addr() as u64;
    let (((), ended), written) = recorded(state_word, || rig.run(move || run_image(kernel.0, &arguments, device), host));
    (rig.states(&written), ended.is_err())
}
