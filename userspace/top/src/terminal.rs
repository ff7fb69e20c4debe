//! The loop of the live view. The terminal is as before when it ends: by a key, a signal, an error or a
//! panic.

use std::io::IsTerminal as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::TopError;
use crate::sample::{Sample, Source};
use crate::view::{Action, View};

/// The longest time until a signal or a sample is noticed.
const TICK: Duration = Duration::from_millis(100);

type Samples = Receiver<Result<Sample, String>>;

/// Shows samples until a key or a signal ends it.
pub(crate) fn show(source: impl Source, interval: Duration) -> Result<(), TopError> {
    if !std::io::stdout().is_terminal() {
        return Err(TopError::NoTerminal);
    }
    let ended = Arc::new(AtomicBool::new(false));
    // Not SIGHUP, which ends the process: its terminal is gone, so that nothing can be restored, and
    // crossterm reads from it for ever.
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, ended.clone()).map_err(TopError::Terminal)?;
    }
    let (to, samples) = channel();
    let sampler = thread::Builder::new().name("samples".into());
    // A program that does not answer holds up this thread, and not the keys. It ends with the process.
    sampler.spawn(move || take_samples(source, interval, &to)).map_err(TopError::Thread)?;
    let mut terminal = ratatui::try_init().map_err(TopError::Terminal)?;
    let shown = drive(&mut terminal, &samples, &ended);
    let restored = ratatui::try_restore();
    shown.and(restored).map_err(TopError::Terminal)
}

fn take_samples(mut source: impl Source, interval: Duration, to: &Sender<Result<Sample, String>>) {
    while to.send(source.sample()).is_ok() {
        thread::sleep(interval);
    }
}

fn drive(terminal: &mut DefaultTerminal, samples: &Samples, ended: &AtomicBool) -> std::io::Result<()> {
    let mut view = View::default();
    while !ended.load(Ordering::Relaxed) {
        samples.try_iter().for_each(|sample| view.update(sample));
        terminal.draw(|frame| frame.render_widget(&view, frame.area()))?;
        if !event::poll(TICK)? {
            continue;
        }
        // Any other event, of a changed size above all, draws again.
        if let Event::Key(key) = event::read()? {
            match command(key) {
                Some(Command::Quit) => return Ok(()),
                Some(Command::Act(action)) => view.act(action),
                None => {}
            }
        }
    }
    Ok(())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Command {
    Quit,
    Act(Action),
}

fn command(key: KeyEvent) -> Option<Command> {
    if key.kind == KeyEventKind::Release {
        return None;
    }
    Some(match key.code {
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => Command::Quit,
        KeyCode::Char('q') | KeyCode::Esc => Command::Quit,
        KeyCode::Up | KeyCode::Char('k') => Command::Act(Action::Up),
        KeyCode::Down | KeyCode::Char('j') => Command::Act(Action::Down),
        KeyCode::Char('s') => Command::Act(Action::Sort),
        KeyCode::Char('r') => Command::Act(Action::Reverse),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_commands() {
        let plain = |code| command(KeyEvent::new(code, KeyModifiers::NONE));
        assert_eq!(plain(KeyCode::Char('q')), Some(Command::Quit));
        assert_eq!(plain(KeyCode::Char('s')), Some(Command::Act(Action::Sort)));
        assert_eq!(plain(KeyCode::Down), Some(Command::Act(Action::Down)));
        assert_eq!(plain(KeyCode::Char('c')), None);
        let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(command(interrupt), Some(Command::Quit));
    }
}
