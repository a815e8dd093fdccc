use std::path::{Path, PathBuf};
use std::time::Instant;

use ringmem::attach::AttachError;
use ringmem::monitor::{self, Published};
use ringmem::streaming::FileSource;
use ringmem::{Error, Layout, region, shared};

use super::no_region;
use crate::{Failure, chain};

pub(super) struct Region {
    pub path: PathBuf,
    pub published: Option<(u32, String)>,
    view: Option<View>,
    /// The last reading, or why there is none.
    pub reading: Result<Reading, String>,
    /// Messages per second between the last two readings; `None` if impossible.
    pub rate: Option<f64>,
    before: Option<(u64, Instant)>,
}

enum View {
    Channel(monitor::View),
    Ring(shared::View),
}

pub(super) enum Reading {
    Channel { figures: Box<monitor::Figures>, is_live: bool },
    Ring(shared::Figures),
}

impl Region {
    pub fn listed(Published { pid, name, path, .. }: Published) -> Self {
        Self { path, published: Some((pid, name)), view: None, reading: Err("not read yet".to_owned()), rate: None, before: None }
    }

    pub fn named(path: &Path) -> Result<Self, Failure> {
        let view = open(path).map_err(|error| match error {
            error @ Error::Attach(_) => no_region(path, &error),
            error => other_kind(path).map_or(Failure::Call(error), |other| no_region(path, &other)),
        })?;
        let reading = Err("not read yet".to_owned());
        Ok(Self { path: path.to_owned(), published: None, view: Some(view), reading, rate: None, before: None })
    }

    pub fn read(&mut self) {
        let view = match self.view.take().map_or_else(|| open(&self.path), Ok) {
            Ok(view) => self.view.insert(view),
            Err(error) => return self.reading = Err(chain(&error)),
        };
        let now = Instant::now();
        let read = match view {
            View::Channel(view) => view.read().map(|figures| Reading::Channel { figures: Box::new(figures), is_live: view.is_live() }),
            View::Ring(view) => view.read().map(Reading::Ring),
        };
        self.reading = read.map_err(|error| chain(&error));
        let count = match &self.reading {
            Ok(Reading::Channel { figures, .. }) => Some(figures.received),
            Ok(Reading::Ring(figures)) => Some(figures.indices.head),
            Err(_) => None,
        };
        self.rate =
            self.before.zip(count).and_then(|((before, at), count)| rate(count.wrapping_sub(before), now.duration_since(at).as_secs_f64()));
        self.before = count.map(|count| (count, now));
    }
}

/// Of a file of another kind, the user must change neither owner nor mode.
fn other_kind(path: &Path) -> Option<Error> {
    let mut file = FileSource::open(path).ok()?;
    let mut magic = [0; 8];
    let (needed, got) = (monitor::Page::DESCRIPTOR.size as u64, file.len());
    if got < magic.len() as u64 {
        return Some(AttachError::TooSmall { needed, got }.into());
    }
    file.read_exact(&mut magic, 0).ok()?;
    let (expected, got) = (monitor::MAGIC, u64::from_le_bytes(magic));
    (got != expected && got != region::MAGIC).then(|| AttachError::Magic { expected, got }.into())
}

fn rate(more: u64, seconds: f64) -> Option<f64> {
    (more < 1 << 62 && seconds > 0.0).then(|| more as f64 / seconds)
}

/// The error is for the kind of file whose magic was found.
fn open(path: &Path) -> ringmem::Result<View> {
    match monitor::View::open(path) {
        Ok(view) => Ok(View::Channel(view)),
        Err(page @ Error::Attach(AttachError::Magic { .. } | AttachError::TooSmall { .. })) => match shared::View::open(path) {
            Ok(view) => Ok(View::Ring(view)),
            Err(Error::Attach(AttachError::Magic { .. })) => Err(page),
            Err(ring) => Err(ring),
        },
        Err(error) => Err(error),
    }
}
