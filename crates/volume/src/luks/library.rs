//! All calls to `libcryptsetup` go through here: one caller at a time, and its messages are kept.
//!
//! The library's state is process-wide (its random generator, its log). Key derivation happens
//! inside, so containers are unlocked one after the other, which bounds the memory too.

use std::cell::RefCell;
use std::io;
use std::sync::{Mutex, Once, PoisonError};
use std::thread;

use libcryptsetup_rs::consts::vals::CryptLogLevel;
use libcryptsetup_rs::{LibcryptErr, c_logging_callback, set_log_callback};

thread_local! {
    static MESSAGES: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

// The callback's signature is the binding's.
#[allow(clippy::needless_pass_by_value)]
fn keep_message(level: CryptLogLevel, message: &str, _: Option<&mut ()>) {
    if matches!(level, CryptLogLevel::Error) {
        // The library calls back on the thread that called it.
        MESSAGES.with(|messages| messages.borrow_mut().push(message.trim().to_owned()));
    }
}

c_logging_callback!(keep_message_c, (), keep_message);

/// A failure of the library: its error number if it gave one, and what it said.
pub(super) struct Failed {
    pub(super) errno: Option<rustix::io::Errno>,
    pub(super) message: String,
}

/// Threads that derive a key together, at most (LUKS2 allows no more).
pub(super) const DERIVING_MAX: u64 = 4;
/// The usual stack of the threads of C programs.
const STACK_LEN: usize = 8 << 20;

/// Held by whoever uses the library.
static ALONE: Mutex<()> = Mutex::new(());

/// Fails if so many threads cannot be created now. `libargon2` does not expect that of the second:
/// it frees what the first one still uses. It creates none for one.
pub(super) fn check_threads(count: u64) -> io::Result<()> {
    if count < 2 {
        return Ok(());
    }
    // Otherwise these would be missing to somebody else's.
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let hold = Mutex::new(());
    let held = hold.lock().unwrap_or_else(PoisonError::into_inner);
    thread::scope(|scope| {
        let wait = || drop(hold.lock());
        let create = |_| thread::Builder::new().stack_size(STACK_LEN).spawn_scoped(scope, wait);
        let (created, refused): (Vec<_>, Vec<_>) = (0..count).map(create).partition(Result::is_ok);
        drop(held);
        // They are gone only when they have been joined.
        created.into_iter().flatten().for_each(|thread| _ = thread.join());
        refused.into_iter().next().map_or(Ok(()), |refused| refused.map(drop))
    })
}

/// Runs `call` with the library to itself.
pub(super) fn with<T>(call: impl FnOnce() -> Result<T, LibcryptErr>) -> Result<T, Failed> {
    static LOG: Once = Once::new();
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    LOG.call_once(|| set_log_callback::<()>(Some(keep_message_c), None));
    MESSAGES.with(|messages| messages.borrow_mut().clear());
    call().map_err(|error| {
        let errno = match &error {
            LibcryptErr::IOError(error) => rustix::io::Errno::from_io_error(error),
            _ => None,
        };
        let said = MESSAGES.with(|messages| messages.borrow().join("; "));
        Failed { errno, message: if said.is_empty() { error.to_string() } else { said } }
    })
}
