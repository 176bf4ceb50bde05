//! The terminal: drawn again at each look and each key, and at the end left as it was before.

use std::fs::File;
use std::io::{self, IsTerminal};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender, TryRecvError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use homing_control::ClientError;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::{DefaultTerminal, crossterm};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::termios::{QueueSelector, tcflush};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::TopArgs;
use super::rates::Rates;
use super::sample::Sample;
use super::screen::{View, draw};

/// How late a new look may be drawn, or a signal be noticed.
const LATE: Duration = Duration::from_millis(50);
/// How long after a signal the program ends in any case.
const LATEST: Duration = Duration::from_secs(1);

pub(super) fn run(args: &TopArgs, first: Sample) -> anyhow::Result<()> {
    let ended = Arc::new(AtomicBool::new(false));
    end_on_signals(&ended)?;
    let looks = begin_to_look(args)?;
    let keyboard = Keyboard::open().context("cannot read the keyboard")?;
    let terminal = ratatui::try_init();
    // Restore the terminal even if only half of it was set up.
    let restored = Restored;
    let mut terminal = terminal.context("cannot draw on this terminal")?;
    let mut live = Live::new(args, first);
    let result = live.go_on(&mut terminal, &keyboard, &looks, &ended);
    drop(restored);
    result
}

/// Puts the terminal back as it was when dropped; `ratatui` sees to panics.
struct Restored;

impl Drop for Restored {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

/// Sets the flag at a signal. The thread that reads the keyboard may be held by a terminal that is
/// gone, and not see the flag: then the program ends without it.
fn end_on_signals(ended: &Arc<AtomicBool>) -> anyhow::Result<()> {
    let signals = Signals::new([SIGHUP, SIGINT, SIGTERM]).context("cannot handle signals")?;
    let ended = Arc::clone(ended);
    let end = move |mut signals: Signals| {
        let Some(signal) = signals.forever().next() else { return };
        ended.store(true, Ordering::Relaxed);
        thread::sleep(LATEST);
        ratatui::restore();
        std::process::exit(128 + signal);
    };
    let named = thread::Builder::new().name("top signals".to_owned());
    named.spawn(move || end(signals)).context("cannot start a thread")?;
    Ok(())
}

/// The terminal from which crossterm reads keys, and which it would read for ever once that is
/// gone.
struct Keyboard(Option<File>);

impl Keyboard {
    fn open() -> io::Result<Self> {
        let other = if io::stdin().is_terminal() { None } else { Some(File::open("/dev/tty")?) };
        Ok(Self(other))
    }

    fn terminal(&self) -> BorrowedFd<'_> {
        self.0.as_ref().map_or(rustix::stdio::stdin(), AsFd::as_fd)
    }

    /// Waits for keys for a while. Returns whether there are some; `None` if the terminal is gone.
    fn wait(&self, at_most: Duration) -> io::Result<Option<bool>> {
        let mut polled = [PollFd::from_borrowed_fd(self.terminal(), PollFlags::IN)];
        let at_most = Timespec::try_from(at_most).expect("it is short");
        match poll(&mut polled, Some(&at_most)) {
            // As when the window gets a new size.
            Err(Errno::INTR) => return Ok(Some(false)),
            polled => polled?,
        };
        let (seen, gone) = (polled[0].revents(), PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL);
        Ok((!seen.intersects(gone)).then_some(seen.contains(PollFlags::IN)))
    }

    /// Drops the keys that crossterm does not see: if more than a kilobyte comes at a time, as from
    /// a text that was pasted, the rest.
    fn drop_rest(&self) {
        // If this fails, the rest is dropped next time.
        let _ = tcflush(self.terminal(), QueueSelector::IFlush);
    }
}

type Look = Result<Sample, ClientError>;

/// Looks again and again on a separate thread: a program that is stopped does not answer for
/// seconds.
fn begin_to_look(args: &TopArgs) -> anyhow::Result<Receiver<Look>> {
    let (send, looks) = mpsc::sync_channel(1);
    let (control, interval) = (args.control.clone(), args.interval);
    let look = move || look_until_nobody_sees(&send, interval, || Sample::read(&control));
    thread::Builder::new().name("top".to_owned()).spawn(look).context("cannot start a thread")?;
    Ok(looks)
}

fn look_until_nobody_sees(send: &SyncSender<Look>, interval: Duration, look: impl Fn() -> Look) {
    let mut next = Instant::now() + interval;
    loop {
        thread::sleep(next.saturating_duration_since(Instant::now()));
        // Looks that were missed are left out.
        next = Instant::now() + interval;
        if send.send(look()).is_err() {
            return;
        }
    }
}

/// What a key does.
enum Pressed {
    End,
    Changed,
    Nothing,
}

struct Live {
    view: View,
    before: Sample,
    left: u64,
}

impl Live {
    fn new(args: &TopArgs, first: Sample) -> Self {
        let view = View {
            program: args.control.socket.display().to_string(),
            rates: Rates::between(None, &first),
            colors: crate::output::has_colors(),
            ..View::default()
        };
        Self { view, before: first, left: args.count.unwrap_or(u64::MAX) }
    }

    fn go_on(
        &mut self,
        terminal: &mut DefaultTerminal,
        keyboard: &Keyboard,
        looks: &Receiver<Look>,
        ended: &AtomicBool,
    ) -> anyhow::Result<()> {
        let mut changed = true;
        while self.left > 0 && !ended.load(Ordering::Relaxed) {
            if changed {
                terminal.draw(|frame| draw(frame, &self.view)).context("cannot draw")?;
            }
            changed = false;
            let keys = keyboard.wait(LATE).context("cannot read the keyboard")?;
            let Some(mut unseen) = keys else { return Ok(()) };
            while event::poll(Duration::ZERO).context("cannot read the keyboard")? {
                unseen = false;
                match event::read().context("cannot read the keyboard")? {
                    Event::Key(key) if key.kind != KeyEventKind::Release => {
                        match self.pressed(key) {
                            Pressed::End => return Ok(()),
                            Pressed::Changed => changed = true,
                            Pressed::Nothing => {}
                        }
                    }
                    Event::Resize(..) => changed = true,
                    _ => {}
                }
            }
            if unseen {
                keyboard.drop_rest();
            }
            match looks.try_recv() {
                Ok(look) => changed |= self.seen(look),
                Err(TryRecvError::Empty) => {}
                Err(TryRecvError::Disconnected) => {
                    return Err(anyhow!("the thread that looks has ended"));
                }
            }
        }
        Ok(())
    }

    fn pressed(&mut self, key: crossterm::event::KeyEvent) -> Pressed {
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('q') | KeyCode::Esc => return Pressed::End,
            KeyCode::Char('c' | 'd') if control => return Pressed::End,
            KeyCode::Char(' ') => self.view.paused = !self.view.paused,
            KeyCode::Char('s') => self.view.order = self.view.order.next(),
            _ => return Pressed::Nothing,
        }
        Pressed::Changed
    }

    /// Takes in a look. Returns whether there is something new to draw.
    fn seen(&mut self, look: Look) -> bool {
        match look {
            Ok(now) => {
                self.left = self.left.saturating_sub(1);
                if !self.view.paused {
                    self.view.rates = Rates::between(Some(&self.before), &now);
                }
                self.view.trouble = None;
                self.before = now;
            }
            Err(error) => self.view.trouble = Some(error.to_string()),
        }
        true
    }
}
