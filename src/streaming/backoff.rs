use std::time::Duration;

#[derive(Default)]
pub(super) struct Backoff(u32);

impl Backoff {
    pub(super) fn reset(&mut self) {
        self.0 = 0;
    }

    pub(super) fn wait(&mut self) {
        match self.0 {
            0..64 => std::hint::spin_loop(),
            64..256 => std::thread::yield_now(),
            _ => std::thread::sleep(Duration::from_micros(50)),
        }
        self.0 = self.0.saturating_add(1);
    }
}
