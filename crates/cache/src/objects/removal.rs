//! Entries that left the cache, and who is told of it.

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
    /// There was no room: the policy chose it, or there was no room for it to begin with.
    Capacity,
    /// Its time was over.
    Expired,
    /// Another value was inserted for its key.
    Replaced,
    /// The program removed it.
    Removed,
}

/// Is told of each entry that left, once no lock is held.
pub(super) type Listener<K, V> = dyn Fn(K, V, Cause) + Send + Sync;

/// Entries that leave under a lock, to be dropped or told of once it is let go. One needs no memory.
pub(super) struct Departures<K, V> {
    first: Option<Departure<K, V>>,
    more: Vec<Departure<K, V>>,
}

pub(super) struct Departure<K, V> {
    pub(super) key: K,
    pub(super) value: V,
    pub(super) cause: Cause,
}

impl<K, V> Departures<K, V> {
    pub(super) const fn new() -> Self {
        Self { first: None, more: Vec::new() }
    }

    pub(super) fn push(&mut self, key: K, value: V, cause: Cause) {
        let departure = Departure { key, value, cause };
        if self.first.is_none() {
            self.first = Some(departure);
        } else {
            self.more.push(departure);
        }
    }

    /// Tells the listener, in the order in which they left.
    pub(super) fn tell(self, listener: Option<&Listener<K, V>>) {
        if let Some(listener) = listener {
            for Departure { key, value, cause } in self.first.into_iter().chain(self.more) {
                listener(key, value, cause);
            }
        }
    }
}
