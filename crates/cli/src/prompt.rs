//! Asks at the terminal for a line that is not shown, and takes its bytes as they are, as
//! `cryptsetup` does. Whichever signal ends the program meanwhile, the terminal is left as it was.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, Once, PoisonError};

use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use signal_hook::consts::SIGQUIT;
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;
use zeroize::Zeroizing;

use crate::stop::{beside, ending_signals};

/// The longest line that a terminal hands over, with its end.
const LINE_MAX: usize = 4096;

/// The terminal at which a question is being asked, and its settings before that.
static ASKED: Mutex<Option<(File, Termios)>> = Mutex::new(None);
/// Other code handles signals by now.
static LEFT_TO_OTHERS: AtomicBool = AtomicBool::new(false);

/// Asks `question`, and returns the line without its end.
///
/// # Errors
/// If there is no terminal, or its input has ended.
pub(crate) fn hidden(question: &str) -> io::Result<Zeroizing<Vec<u8>>> {
    watch_signals()?;
    let mut terminal = OpenOptions::new().read(true).write(true).open("/dev/tty")?;
    let as_it_was = tcgetattr(&terminal)?;
    let mut hidden = as_it_was.clone();
    hidden.local_modes.remove(LocalModes::ECHO);
    hidden.local_modes.insert(LocalModes::ECHONL | LocalModes::ICANON | LocalModes::ISIG);
    let _restore = Restore;
    *asked() = Some((terminal.try_clone()?, as_it_was));
    // What was typed before the question is no answer to it.
    tcsetattr(&terminal, OptionalActions::Flush, &hidden)?;
    terminal.write_all(question.as_bytes())?;
    // Room for as much as it may become: if it grew, it would leave copies behind.
    let mut line = Zeroizing::new(Vec::with_capacity(LINE_MAX));
    let mut byte = Zeroizing::new([0]);
    loop {
        match terminal.read(&mut *byte) {
            Ok(0) if line.is_empty() => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(0) => return Ok(line),
            Ok(_) if byte[0] == b'\n' => return Ok(line),
            Ok(_) if line.len() == LINE_MAX => {
                return Err(io::Error::other(format!("it is longer than {LINE_MAX} bytes")));
            }
            Ok(_) => line.push(byte[0]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Whether this is the first process of a PID namespace, as in a container. The kernel keeps
/// signals from it for which it has no handler, so it cannot end by the default one.
pub(crate) fn is_first_process() -> bool {
    std::process::id() == 1
}

/// To be called by code that handles signals itself: until then they end the program.
pub(crate) fn leave_signals_to_others() {
    LEFT_TO_OTHERS.store(true, Ordering::SeqCst);
}

struct Restore;

impl Drop for Restore {
    fn drop(&mut self) {
        restore();
    }
}

fn restore() {
    if let Some((terminal, as_it_was)) = asked().take() {
        // A terminal that is gone needs nothing.
        let _ = tcsetattr(&terminal, OptionalActions::Now, &as_it_was);
    }
}

fn asked() -> std::sync::MutexGuard<'static, Option<(File, Termios)>> {
    ASKED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Watches for ever, since taking a handler away again would leave signals without effect: from the
/// first question on, or from when this is called.
pub(crate) fn watch_signals() -> io::Result<()> {
    static WATCHED: Once = Once::new();
    let mut outcome = Ok(());
    WATCHED.call_once(|| {
        let all = ending_signals().into_iter().chain([SIGQUIT]);
        outcome = Signals::new(all).and_then(|signals| beside(|| end_by(signals)));
    });
    outcome
}

fn end_by(mut signals: Signals) {
    for signal in signals.forever() {
        restore();
        if !LEFT_TO_OTHERS.load(Ordering::SeqCst) || signal == SIGQUIT {
            if is_first_process() {
                std::process::exit(128 + signal);
            }
            // This does not return.
            let _ = emulate_default_handler(signal);
        }
    }
}
