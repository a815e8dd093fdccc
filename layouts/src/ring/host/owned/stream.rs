use super::Owned;
use crate::attach::Corrupt;
use crate::ring::{ReadBytes, WriteBytes};

impl<E: WriteBytes> WriteBytes for Owned<E> {
    fn write_some(&mut self, bytes: &[u8]) -> Result<usize, Corrupt> {
        self.bare_mut().write_some(bytes)
    }
    fn has_room(&mut self) -> bool {
        self.bare_mut().has_room()
    }
}

impl<E: ReadBytes> ReadBytes for Owned<E> {
    fn read_some(&mut self, into: &mut [u8]) -> Result<usize, Corrupt> {
        self.bare_mut().read_some(into)
    }
    fn has_bytes(&mut self) -> bool {
        self.bare_mut().has_bytes()
    }
}
