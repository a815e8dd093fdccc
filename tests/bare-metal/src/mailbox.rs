use cortex_m::singleton;
use cortex_m_semihosting::hprintln;
use ringmem_layouts::Local;
use ringmem_layouts::ring::mailbox::{LatestError, Mailbox, New, Reader, Writer};

use crate::START;
use crate::spsc::{Value, value};
use crate::tick::{self, Work};

/// Not inlined: its size is printed.
#[inline(never)]
fn publish(writer: &mut Writer<'_, Value, Local>, value: Value) {
    writer.publish(value);
}

#[inline(never)]
fn take(reader: &mut Reader<'_, Value, Local>) -> Result<New<Value>, LatestError> {
    reader.take_new()
}

struct Publishes(Writer<'static, Value, Local>);

impl Work for Publishes {
    fn attempt(&mut self, number: u32) -> bool {
        publish(&mut self.0, value(number));
        true
    }
}

struct Reads {
    reader: Reader<'static, Value, Local>,
    version: u32,
    read: u32,
    skipped: u32,
}

impl Work for Reads {
    fn attempt(&mut self, number: u32) -> bool {
        if number < self.version {
            return true;
        }
        let Ok(new) = take(&mut self.reader) else { return false };
        self.read += 1;
        self.skipped += new.skipped as u32;
        self.version = new.version as u32;
        assert_eq!(self.version, self.read + self.skipped, "versions that were read or skipped");
        assert_eq!(new.value, value(self.version - 1), "version {}", self.version);
        true
    }
}

pub fn interrupt_to_main(values: u32) {
    let Some(mailbox) = singleton!(: Mailbox<Value> = Mailbox::starting_at(START)) else { unreachable!("once") };
    let (writer, reader) = mailbox.split();
    let Some(theirs) = singleton!(: Publishes = Publishes(writer)) else { unreachable!("once") };
    let mut ours = Reads { reader, version: 0, read: 0, skipped: 0 };
    tick::share(values, theirs, &mut ours);
    hprintln!("mailbox, interrupt to main: {} values, {} read, {} skipped", values, ours.read, ours.skipped);
    assert!(ours.read >= 100 && ours.skipped >= 100, "too few were read, or skipped");
}
