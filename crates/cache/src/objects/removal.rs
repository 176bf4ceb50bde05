//! Entries that left the cache, and how the listener is told about them.

use std::panic::resume_unwind;
use std::thread::panicking;

use crate::panics;

/// Why an entry left the cache.
///
/// ```
/// use homing_cache::{Cache, Cause};
///
/// let (tell, told) = std::sync::mpsc::channel();
/// let listener = move |key, (), cause| tell.send((key, cause)).unwrap();
/// let cache = Cache::builder().capacity(1).listener(listener).build()?;
/// cache.insert("one", ());
/// cache.insert("two", ());
/// cache.remove("two");
/// assert_eq!(told.recv()?, ("one", Cause::Capacity));
/// assert_eq!(told.recv()?, ("two", Cause::Removed));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Cause {
    /// There was no room: the policy evicted the entry, or turned it away when it was inserted.
    Capacity,
    /// Its lifetime was over.
    Expired,
    /// Another value was inserted for its key.
    Replaced,
    /// The program removed it.
    Removed,
}

/// The program's listener. It is called for each entry that left, once no lock is held.
pub(super) type Listener<K, V> = dyn Fn(K, V, Cause) + Send + Sync;

/// Entries that leave under a lock. This is made before the lock is taken, and dropped after it is
/// released; dropping it tells the listener. So the listener hears of them even if the program's
/// code panics under the lock. A single entry needs no memory.
pub(super) struct Departures<'a, K, V> {
    listener: Option<&'a Listener<K, V>>,
    first: Option<Departure<K, V>>,
    more: Vec<Departure<K, V>>,
}

pub(super) struct Departure<K, V> {
    pub(super) key: K,
    pub(super) value: V,
    pub(super) cause: Cause,
}

impl<'a, K, V> Departures<'a, K, V> {
    pub(super) const fn new(listener: Option<&'a Listener<K, V>>) -> Self {
        Self { listener, first: None, more: Vec::new() }
    }

    /// Adds an entry. Returns its number, for [`value`](Self::value).
    pub(super) fn push(&mut self, key: K, value: V, cause: Cause) -> usize {
        let departure = Departure { key, value, cause };
        if self.first.is_none() {
            self.first = Some(departure);
            return 0;
        }
        self.more.push(departure);
        self.more.len()
    }

    /// The value of the entry with this number.
    pub(super) fn value(&self, at: usize) -> &V {
        let departure = if at == 0 { self.first.as_ref() } else { self.more.get(at - 1) };
        &departure.expect("it was pushed").value
    }
}

impl<K, V> Drop for Departures<'_, K, V> {
    /// Tells the listener of all entries in the order in which they left, even if it panics for
    /// some.
    fn drop(&mut self) {
        let Some(listener) = self.listener else { return };
        let all = self.first.take().into_iter().chain(std::mem::take(&mut self.more));
        let tell = |Departure { key, value, cause }| listener(key, value, cause);
        match panics::each(all, tell) {
            // One panic is passed on, unless the thread is panicking already: that would end the
            // process.
            Some(panicked) if panicking() => panics::drop_quietly(panicked),
            Some(panicked) => resume_unwind(panicked),
            None => {}
        }
    }
}
