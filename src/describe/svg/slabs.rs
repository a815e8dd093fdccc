//! A picture of a pool: a bar for each slab, with parts coloured by state. Adjacent narrow parts are one box.

use std::fmt::{self, Formatter};

use super::{colours, text};
use crate::pool::{PartState, SlabView};

/// In pixels.
const BAR: u32 = 880;
const SIDE: u32 = 24;
const HEIGHT: u32 = 26;
const STEP: u32 = 58;
const TOP: u32 = 72;
/// Narrower parts are not drawn alone.
const NARROW: f64 = 2.0;

/// The colours of the parts.
const STATES: [(PartState, &str, &str); 4] = [
    (PartState::Live, "live", "host"),
    (PartState::Cached, "cached", "device"),
    (PartState::Pending, "pending", "other1"),
    (PartState::Free, "free", "none"),
];

struct Run {
    state: PartState,
    start: u64,
    end: u64,
    parts: u64,
    is_narrow: bool,
}

pub fn write(slabs: &[SlabView], f: &mut Formatter<'_>) -> fmt::Result {
    let (width, height) = (BAR + 2 * SIDE, TOP + slabs.len() as u32 * STEP);
    let bytes: u64 = slabs.iter().map(|slab| slab.bytes).sum();
    let what = if slabs.len() == 1 { "slab" } else { "slabs" };
    let title = format!("{} {what}, {bytes} bytes", slabs.len());
    writeln!(
        f,
        r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img">
<title>{title}</title>
<style>{}
g path{{stroke-width:.5}}</style>
<rect class="page" width="{width}" height="{height}"/>
<text class="title" x="{SIDE}" y="26">{title}</text>"#,
        colours::STYLE,
    )?;
    for ((state, name, class), x) in STATES.iter().zip((SIDE..).step_by(220)) {
        writeln!(f, r#"<g class="{class}"><path d="M{x} 36h14v12h-14Z"/></g>"#)?;
        writeln!(f, r#"<text class="muted" x="{}" y="46">{name}: {} bytes</text>"#, x + 20, of(slabs, *state))?;
    }
    let longest = slabs.iter().map(|slab| slab.bytes).max().unwrap_or(1).max(1);
    for (slab, top) in slabs.iter().zip((TOP..).step_by(STEP as usize)) {
        bar(slab, f64::from(BAR) / longest as f64, top, f)?;
    }
    writeln!(f, "</svg>")
}

fn of(slabs: &[SlabView], state: PartState) -> u64 {
    slabs.iter().flat_map(|slab| &slab.parts).filter(|part| part.2 == state).map(|part| part.1).sum()
}

fn bar(slab: &SlabView, scale: f64, top: u32, f: &mut Formatter<'_>) -> fmt::Result {
    let SlabView { number, device_address, bytes, .. } = slab;
    let at = device_address.map_or(String::new(), |address| format!(" at {:#x}", address.get()));
    let live = of(std::slice::from_ref(slab), PartState::Live);
    let label = format!("slab {number}{at}: {bytes} bytes, {live} live");
    writeln!(f, r#"<text class="muted" x="{SIDE}" y="{}">{}</text>"#, top + 14, text(&label))?;
    for Run { state, start, end, parts, .. } in runs(slab, scale) {
        let (_, name, class) = STATES.into_iter().find(|known| known.0 == state).unwrap_or(STATES[3]);
        let (x, width) = (f64::from(SIDE) + start as f64 * scale, (end - start) as f64 * scale);
        let (y, bytes, what) = (top + 20, end - start, if parts == 1 { "part" } else { "parts" });
        writeln!(f, r#"<g class="{class}"><title>{parts} {name} {what}, {bytes} bytes at {start}</title>"#)?;
        writeln!(f, r#"<path d="M{x:.2} {y}h{width:.2}v{HEIGHT}h-{width:.2}Z"/></g>"#)?;
    }
    Ok(())
}

fn runs(slab: &SlabView, scale: f64) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for &(start, bytes, state) in &slab.parts {
        let (end, is_narrow) = (start + bytes, bytes as f64 * scale < NARROW);
        match runs.last_mut() {
            Some(run) if is_narrow && run.is_narrow && run.state == state => (run.end, run.parts) = (end, run.parts + 1),
            _ => runs.push(Run { state, start, end, parts: 1, is_narrow }),
        }
    }
    runs
}
