//! XTS by aws-lc, through its C interface: the safe crate does not offer this mode.
//!
//! The whole file is an unsafe island. What it relies on:
//!
//! * `XTS-1` A context is used by one thread at a time: it is behind a mutex.
//! * `XTS-2` A context that left [`Context::new`] has its cipher, key and direction set.
//! * `XTS-3` `EVP_CipherUpdate` of XTS writes as many bytes as it is given, and input and output
//!   may be the same buffer (aws-lc's `e_aes.c`, as its own tests use it).
#![allow(unsafe_code)]

use std::cell::Cell;
use std::ffi::c_int;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError, TryLockError};

use aws_lc_sys::{
    ERR_clear_error, EVP_CIPHER_CTX, EVP_CIPHER_CTX_free, EVP_CIPHER_CTX_new, EVP_CipherInit_ex,
    EVP_CipherUpdate, EVP_aes_256_xts,
};

use super::{CipherFailed, Direction, KEY_LEN};

/// Pairs of contexts: enough for several times as many threads as there are CPUs, so that a thread
/// nearly always finds its own free. 64: guessed; a pair is 2 KiB.
const PAIR_COUNT: usize = 64;

/// One key, one direction.
struct Context(NonNull<EVP_CIPHER_CTX>);

// SAFETY: a context is plain memory without ties to the thread that made it; `XTS-1` keeps it to
// one thread at a time.
unsafe impl Send for Context {}

impl Context {
    fn new(key: &[u8; KEY_LEN], direction: Direction) -> Option<Self> {
        // SAFETY: no preconditions; null means out of memory, which `NonNull` turns into `None`.
        let context = Self(NonNull::new(unsafe { EVP_CIPHER_CTX_new() })?);
        // SAFETY: no preconditions; it returns a pointer to a static.
        let cipher = unsafe { EVP_aes_256_xts() };
        let encrypt = c_int::from(direction == Direction::Encrypt);
        // SAFETY: the context is fresh and ours; `key` has the 64 bytes that this cipher reads; a
        // null engine is allowed, and a null IV means that it is set later.
        let done = unsafe {
            EVP_CipherInit_ex(
                context.0.as_ptr(),
                cipher,
                ptr::null_mut(),
                key.as_ptr(),
                ptr::null(),
                encrypt,
            )
        };
        succeeded(done).map(|()| context).ok()
    }

    fn apply(&mut self, number: u64, sector: &mut [u8]) -> Result<(), CipherFailed> {
        let mut tweak = [0; 16];
        tweak[..8].copy_from_slice(&number.to_le_bytes());
        // SAFETY: by `XTS-2` the context is set up, so null cipher, engine and key and a direction
        // of -1 mean "as before"; the IV has the 16 bytes that this cipher reads.
        let done = unsafe {
            EVP_CipherInit_ex(
                self.0.as_ptr(),
                ptr::null(),
                ptr::null_mut(),
                ptr::null(),
                tweak.as_ptr(),
                -1,
            )
        };
        succeeded(done)?;
        let length = c_int::try_from(sector.len()).map_err(|_| CipherFailed)?;
        let mut written: c_int = 0;
        // SAFETY: the input is `length` readable bytes; the output is the same buffer, as long,
        // which `XTS-3` allows; `written` outlives the call.
        let done = unsafe {
            EVP_CipherUpdate(
                self.0.as_ptr(),
                sector.as_mut_ptr(),
                &raw mut written,
                sector.as_ptr(),
                length,
            )
        };
        succeeded(done)?;
        if written == length { Ok(()) } else { Err(CipherFailed) }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: the pointer came from `EVP_CIPHER_CTX_new` and is freed once, here. This wipes
        // the key schedule.
        unsafe { EVP_CIPHER_CTX_free(self.0.as_ptr()) };
    }
}

fn succeeded(result: c_int) -> Result<(), CipherFailed> {
    if result == 1 {
        return Ok(());
    }
    // SAFETY: no preconditions; the queue is this thread's own, and nobody else reads it.
    unsafe { ERR_clear_error() };
    Err(CipherFailed)
}

struct Pair {
    encrypt: Context,
    decrypt: Context,
}

/// The contexts of one key. Each thread has a pair that it tries first.
pub(super) struct Contexts(Box<[Mutex<Pair>]>);

impl Contexts {
    /// `None` if aws-lc refuses the key or memory is short.
    pub(super) fn new(key: &[u8; KEY_LEN]) -> Option<Self> {
        let pair = || {
            let encrypt = Context::new(key, Direction::Encrypt)?;
            Some(Mutex::new(Pair { encrypt, decrypt: Context::new(key, Direction::Decrypt)? }))
        };
        (0..PAIR_COUNT).map(|_| pair()).collect::<Option<_>>().map(Self)
    }

    pub(super) fn apply<'a>(
        &self,
        direction: Direction,
        sectors: impl Iterator<Item = (u64, &'a mut [u8])>,
    ) -> Result<(), CipherFailed> {
        let own = own_index();
        let free = (0..PAIR_COUNT).find_map(|step| {
            match self.0[(own + step) % PAIR_COUNT].try_lock() {
                Ok(pair) => Some(pair),
                // The contexts hold no state between two calls, so a pair that a panic has
                // interrupted is as good as any.
                Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
                Err(TryLockError::WouldBlock) => None,
            }
        });
        let mut pair =
            free.unwrap_or_else(|| self.0[own].lock().unwrap_or_else(PoisonError::into_inner));
        let context = match direction {
            Direction::Encrypt => &mut pair.encrypt,
            Direction::Decrypt => &mut pair.decrypt,
        };
        for (number, sector) in sectors {
            context.apply(number, sector)?;
        }
        Ok(())
    }
}

impl std::fmt::Debug for Contexts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Contexts(key not shown)")
    }
}

/// Which pair this thread tries first: threads are numbered as they come.
fn own_index() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static OWN: Cell<usize> = Cell::new(NEXT.fetch_add(1, Ordering::Relaxed));
    }
    OWN.with(Cell::get) % PAIR_COUNT
}
