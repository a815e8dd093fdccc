use std::io::{self, BufWriter, Write};
use std::sync::Once;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::{Hide, Show};
use ratatui::crossterm::terminal::{
    BeginSynchronizedUpdate, EndSynchronizedUpdate, EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use ratatui::crossterm::{Command, execute, queue};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Paragraph, Row, Table, TableState};
use ratatui::{Frame, Terminal};
use ringmem::control::State;
use ringmem::watchdog::Verdict;

use super::keys::{Key, Keys};
use super::reading::{Reading, Region};
use super::{INTERVAL, Watched, report};
use crate::terminal::fitted;
use crate::{Failure, Outcome};

const RESIZED: Duration = Duration::from_millis(100);

/// The terminal has to be restored.
static IS_SHOWN: AtomicBool = AtomicBool::new(false);

/// Restores the terminal; also from panics and signal threads.
pub(crate) fn restore() {
    if IS_SHOWN.swap(false, SeqCst) {
        let mut leave = String::new();
        let _ = EndSynchronizedUpdate.write_ansi(&mut leave);
        let _ = LeaveAlternateScreen.write_ansi(&mut leave);
        let _ = Show.write_ansi(&mut leave);
        // The panicking thread may have borrowed `io::stdout`.
        let _ = rustix::io::write(rustix::stdio::stdout(), leave.as_bytes());
        let _ = disable_raw_mode();
    }
}

struct Shown;

impl Shown {
    fn new() -> io::Result<Self> {
        static HOOK: Once = Once::new();
        HOOK.call_once(|| {
            let previous = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |panic| {
                // First: the message stays visible.
                restore();
                previous(panic);
            }));
        });
        IS_SHOWN.store(true, SeqCst);
        let shown = Self;
        enable_raw_mode()?;
        Ok(shown)
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        restore();
    }
}

pub(super) fn show(watched: &mut Watched<'_>, on: crate::Terminal, out: &mut dyn Write) -> Outcome {
    let failed = |error: io::Error| Failure::Fact(format!("cannot control the terminal: {error}"));
    let mut keys = Keys::open().map_err(failed)?;
    let shown = Shown::new().map_err(failed)?;
    let mut out = BufWriter::with_capacity(1 << 16, out);
    execute!(out, EnterAlternateScreen, Hide)?;
    let mut terminal = Terminal::new(CrosstermBackend::new(out))?;
    let mut selected = TableState::new().with_selected(0);
    let mut due = Instant::now() + INTERVAL;
    loop {
        queue!(terminal.backend_mut(), BeginSynchronizedUpdate)?;
        let drawn = terminal.draw(|frame| draw(frame, &watched.regions, &mut selected, on.has_colours))?.area.as_size();
        execute!(terminal.backend_mut(), EndSynchronizedUpdate)?;
        loop {
            let pressed = keys.wait(due.saturating_duration_since(Instant::now()).min(RESIZED)).map_err(failed)?;
            for key in &pressed {
                match key {
                    Key::Quit => {
                        drop(shown);
                        return Ok(());
                    }
                    Key::Down => selected.select_next(),
                    Key::Up => selected.select_previous(),
                }
            }
            // Keys do not change the times of readings.
            if Instant::now() >= due {
                watched.read()?;
                due = Instant::now() + INTERVAL;
                break;
            }
            if !pressed.is_empty() || terminal.size()? != drawn {
                break;
            }
        }
    }
}

fn draw(frame: &mut Frame<'_>, regions: &[Region], selected: &mut TableState, has_colours: bool) {
    selected.select(Some(selected.selected().unwrap_or(0).min(regions.len().saturating_sub(1))));
    let rows = u16::try_from(regions.len() + 1).unwrap_or(u16::MAX).min(frame.area().height / 2);
    let [table, figures, keys] =
        Layout::vertical([Constraint::Length(rows), Constraint::Fill(1), Constraint::Length(1)]).areas(frame.area());
    let bad = if has_colours { Style::new().fg(Color::Red) } else { Style::new() };
    let widths = [8, 0, 12, 9, 9, 9].map(|width| if width == 0 { Constraint::Fill(1) } else { Constraint::Length(width) });
    let head = Row::new(["pid", "name", "state", "msg/s", "waiting", "p99"]).style(Modifier::BOLD);
    let rows = regions.iter().map(|region| Row::new(cells(region)).style(if is_bad(region) { bad } else { Style::new() }));
    frame.render_stateful_widget(Table::new(rows, widths).header(head).row_highlight_style(Modifier::REVERSED), table, selected);
    let lines = match selected.selected().and_then(|at| regions.get(at)) {
        Some(region) => report::lines(region),
        None => vec!["no channel is published".to_owned()],
    };
    let width = usize::from(figures.width).max(1);
    let text: Vec<Line<'_>> =
        lines.iter().flat_map(|line| fitted(line, width).lines().map(|line| Line::from(line.to_owned())).collect::<Vec<_>>()).collect();
    frame.render_widget(Paragraph::new(text), figures);
    frame.render_widget(Line::from("q quit, up and down select").style(Modifier::DIM), keys);
}

fn cells(region: &Region) -> [String; 6] {
    let pid = region.published.as_ref().map_or_else(String::new, |(pid, _)| pid.to_string());
    let rate = report::per_second(region.rate);
    let [state, waiting, p99] = match &region.reading {
        Err(_) => ["unreadable".to_owned(), String::new(), String::new()],
        Ok(Reading::Ring(ring)) => ["ring".to_owned(), waiting([ring.indices.fill().ok(), None]), String::new()],
        Ok(Reading::Channel { figures, is_live }) => {
            let state = match figures.idle_for_ns() {
                _ if !*is_live => "dead".to_owned(),
                Some(ns) if !figures.control.kernel_state().is_some_and(State::has_ended) => format!("idle {}", report::time(Some(ns))),
                _ => report::state(figures),
            };
            let p99 = figures.round_trips.percentile(99).map_or_else(String::new, |ns| report::time(Some(ns)));
            [state, waiting(figures.rings.map(|ring| ring.fill().ok())), p99]
        }
    };
    [pid, report::name(region), state, rate, waiting, p99]
}

fn waiting([input, output]: [Option<u64>; 2]) -> String {
    match (input, output) {
        (Some(input), Some(output)) => format!("{input}+{output}"),
        (Some(fill), None) => fill.to_string(),
        _ => "corrupt".to_owned(),
    }
}

fn is_bad(region: &Region) -> bool {
    match &region.reading {
        Err(_) => true,
        Ok(Reading::Ring(ring)) => ring.indices.fill().is_err(),
        Ok(Reading::Channel { figures, is_live }) => {
            !is_live || matches!(figures.verdict(), Verdict::Stuck { .. } | Verdict::Ended(State::Faulted))
        }
    }
}
