use std::convert::Infallible;

/// The number of messages that a call on slices moved.
pub trait Count {
    fn count(self) -> usize;
}

impl Count for usize {
    fn count(self) -> usize {
        self
    }
}

impl Count for Result<usize, Infallible> {
    fn count(self) -> usize {
        self.unwrap()
    }
}
