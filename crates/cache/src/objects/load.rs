//! Values that are loaded when they are missed, once for all callers that ask. `flight` has the
//! protocol.

use std::borrow::Borrow;
use std::convert::Infallible;
use std::future::Future;
use std::hash::{BuildHasher, Hash};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::task::{Context, Poll};

use super::Cache;
use super::cache::Inner;
use super::flight::{AnyError, Flight, Landing};
use super::group::Group;
use super::removal::Departures;
use super::shard::{InFlight, Insertion, Shard};
use crate::sync::Arc;

impl<K: Hash + Eq, V: Clone, S: BuildHasher> Cache<K, V, S> {
    /// The value of a key, loaded if there is none. If several callers miss the same key at the
    /// same time, one of them loads it, on its own thread and without holding a lock. The others
    /// wait, and share its value or its error. Errors are not cached unless
    /// [`error_time_to_live`](super::Builder::error_time_to_live) is set. If the loader panics, one
    /// of the waiting callers loads. If a key is inserted or removed while its value is being
    /// loaded, the loaded value is returned but not cached, because it may be stale.
    ///
    /// A loader that asks for its own key, even through other loaders, waits for itself. So does a
    /// thread that waits here for a future that only this thread would poll.
    ///
    /// ```
    /// # use homing_cache::Cache;
    /// # use std::io::{Error, ErrorKind};
    /// let cache: Cache<String, usize> = Cache::new(100);
    /// let failed = cache.get_or_load("size", || Err(Error::from(ErrorKind::NotFound)));
    /// assert_eq!(failed.unwrap_err().kind(), ErrorKind::NotFound);
    /// assert_eq!(cache.get_or_load("size", || Ok::<_, Error>(42))?, 42);
    /// assert_eq!(cache.get("size"), Some(42));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn get_or_load<Q, E>(
        &self,
        key: &Q,
        load: impl FnOnce() -> Result<V, E>,
    ) -> Result<V, std::sync::Arc<E>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
        E: Send + Sync + 'static,
    {
        self.load_for(None, key, load)
    }

    /// [`get_or_load`](Self::get_or_load) for a group: a value that is loaded belongs to it.
    ///
    /// # Panics
    ///
    /// If the group belongs to another cache.
    ///
    /// ```
    /// # use homing_cache::Cache;
    /// let cache: Cache<u32, String> = Cache::new(100);
    /// let tenant = cache.group("tenant");
    /// let name = cache.get_or_load_in(&tenant, &7, || String::from_utf8(b"seven".to_vec()))?;
    /// assert_eq!((&*name, tenant.stats().weight), ("seven", 1));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn get_or_load_in<Q, E>(
        &self,
        group: &Group,
        key: &Q,
        load: impl FnOnce() -> Result<V, E>,
    ) -> Result<V, std::sync::Arc<E>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
        E: Send + Sync + 'static,
    {
        self.inner.check(group);
        self.load_for(Some(group), key, load)
    }

    /// [`get_or_load`](Self::get_or_load) for values that cannot fail to load.
    ///
    /// ```
    /// # use homing_cache::Cache;
    /// let cache: Cache<u32, u32> = Cache::new(100);
    /// assert_eq!(cache.get_or_insert_with(&12, || 12 * 12), 144);
    /// assert_eq!(cache.get_or_insert_with(&12, || unreachable!("it is there")), 144);
    /// ```
    pub fn get_or_insert_with<Q>(&self, key: &Q, make: impl FnOnce() -> V) -> V
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        match self.get_or_load(key, || Ok::<_, Infallible>(make())) {
            Ok(value) => value,
            Err(error) => match *error {},
        }
    }

    fn load_for<Q, E>(
        &self,
        group: Option<&Group>,
        key: &Q,
        load: impl FnOnce() -> Result<V, E>,
    ) -> Result<V, std::sync::Arc<E>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
        E: Send + Sync + 'static,
    {
        let hash = self.inner.common.hash(key);
        let of = Some(Shard::<K, V>::number_of(group));
        if let Some(value) = self.inner.get(hash, key, of) {
            return Ok(value);
        }
        self.inner.missed_for(group);
        loop {
            match self.inner.join(hash, key, group) {
                Joined::Held(value) => return Ok(value),
                Joined::Loading(flight) => {
                    if let Some(result) = self.inner.shared(hash, &flight, flight.wait()) {
                        return result;
                    }
                }
                Joined::Mine(loading) => return loading.end(load()),
            }
        }
    }

    /// [`get_or_load`](Self::get_or_load) for futures. If the future that loads is dropped, one of
    /// the waiting futures loads. `load` is polled only by the caller that loads.
    ///
    /// ```
    /// # use homing_cache::Cache;
    /// # fn block_on<F: Future>(future: F) -> F::Output {
    /// #     let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    /// #     let mut future = std::pin::pin!(future);
    /// #     loop {
    /// #         if let std::task::Poll::Ready(output) = future.as_mut().poll(&mut context) {
    /// #             return output;
    /// #         }
    /// #     }
    /// # }
    /// # block_on(async {
    /// let cache: Cache<u32, String> = Cache::new(100);
    /// let load = async || String::from_utf8(b"seven".to_vec()); // from a database
    /// assert_eq!(cache.get_or_load_async(&7, load()).await?, "seven");
    /// let tenant = cache.group("tenant");
    /// assert_eq!(cache.get_or_load_in_async(&tenant, &8, load()).await?, "seven");
    /// assert_eq!(tenant.stats().weight, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn get_or_load_async<Q, E>(
        &self,
        key: &Q,
        load: impl Future<Output = Result<V, E>>,
    ) -> Result<V, std::sync::Arc<E>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
        E: Send + Sync + 'static,
    {
        self.load_for_async(None, key, load).await
    }

    /// [`get_or_load_in`](Self::get_or_load_in) for futures.
    ///
    /// # Panics
    ///
    /// If the group belongs to another cache.
    pub async fn get_or_load_in_async<Q, E>(
        &self,
        group: &Group,
        key: &Q,
        load: impl Future<Output = Result<V, E>>,
    ) -> Result<V, std::sync::Arc<E>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
        E: Send + Sync + 'static,
    {
        self.inner.check(group);
        self.load_for_async(Some(group), key, load).await
    }

    async fn load_for_async<Q, E>(
        &self,
        group: Option<&Group>,
        key: &Q,
        load: impl Future<Output = Result<V, E>>,
    ) -> Result<V, std::sync::Arc<E>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
        E: Send + Sync + 'static,
    {
        let hash = self.inner.common.hash(key);
        let of = Some(Shard::<K, V>::number_of(group));
        if let Some(value) = self.inner.get(hash, key, of) {
            return Ok(value);
        }
        self.inner.missed_for(group);
        loop {
            match self.inner.join(hash, key, group) {
                Joined::Held(value) => return Ok(value),
                Joined::Loading(flight) => {
                    let landing = Waiting { flight: &flight, number: None }.await;
                    if let Some(result) = self.inner.shared(hash, &flight, landing) {
                        return result;
                    }
                }
                Joined::Mine(loading) => return loading.end(load.await),
            }
        }
    }
}

/// A shard that has more loads and remembered errors than this remembers no more errors: a client
/// that asks for keys that do not exist must not be able to fill the memory.
const ERRORS_MAX: usize = 1024;

/// Fewer flights than this are searched for errors to forget each time that their number has
/// doubled; more of them, when the time of an error is over.
const ERRORS_FEW: usize = 64;

/// What a caller finds after a miss.
enum Joined<'a, K: Hash + Eq + Borrow<Q>, V: Clone, S: BuildHasher, Q: ToOwned<Owned = K> + ?Sized>
{
    /// Another caller has loaded it by now.
    Held(V),
    /// Another caller is loading it.
    Loading(Arc<Flight<V>>),
    /// Nobody is loading it, so this caller has to.
    Mine(Loading<'a, K, V, S, Q>),
}

impl<K: Hash + Eq, V: Clone, S: BuildHasher> Inner<K, V, S> {
    fn join<'a, Q>(
        &'a self,
        hash: u64,
        key: &'a Q,
        group: Option<&'a Group>,
    ) -> Joined<'a, K, V, S, Q>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        let now = self.common.error_lifetime.map(|_| self.common.time());
        let expires = self.common.now();
        let owned = key.to_owned();
        // Dropped after the lock is released, on each way out.
        let mut stale = Vec::new();
        let mut shard = self.part(hash).shard.write();
        let is_it = |it: &InFlight<K, V>| it.hash == hash && it.key.borrow() == key;
        let many = shard.flights.len();
        if let Some(now) = now
            && (many < ERRORS_FEW && many.is_power_of_two()
                || many >= ERRORS_FEW && shard.errors_over <= now)
        {
            shard.forget_errors(now, &mut stale);
        }
        if let Ok(found) = shard.flights.find_entry(hash, is_it) {
            if found.get().error_until.is_none_or(|until| now.is_some_and(|now| now < until)) {
                return Joined::Loading(Arc::clone(&found.get().flight));
            }
            stale.push(found.remove().0);
        }
        if let Some(frame) = shard.find(hash, key)
            && !expires
                .is_some_and(|now| shard.times.is_over(frame, now, self.common.lifetimes.idle))
        {
            shard.entry(frame).mark.used(self.common.habits.epoch());
            if let Some(now) = expires {
                shard.times.read(frame, now);
            }
            return Joined::Held(shard.entry(frame).value.clone());
        }
        let flight = Flight::new();
        let of_this = InFlight { hash, key: owned, flight: Arc::clone(&flight), error_until: None };
        shard.flights.insert_unique(hash, of_this, |it| it.hash);
        drop(shard);
        Joined::Mine(Loading { inner: self, hash, key, group, flight, ended: false })
    }

    /// What a caller that waited gets, or `None` if it has to look again.
    fn shared<E: Send + Sync + 'static>(
        &self,
        hash: u64,
        flight: &Arc<Flight<V>>,
        landing: Landing<V>,
    ) -> Option<Result<V, std::sync::Arc<E>>> {
        match landing {
            Landing::Value(value) => Some(Ok(value)),
            Landing::Error(error) => {
                let error = error.downcast().ok();
                if error.is_none() {
                    // The error is of another caller's type, and says nothing to this one.
                    let is_it = |it: &InFlight<K, V>| Arc::ptr_eq(&it.flight, flight);
                    let mut shard = self.part(hash).shard.write();
                    let stale = shard.take_flight(hash, is_it);
                    drop(shard);
                    drop(stale);
                }
                error.map(Err)
            }
            Landing::Abandoned => None,
        }
    }
}

/// Held by the caller that loads. If it is dropped before the load has ended, another caller has to
/// load.
struct Loading<
    'a,
    K: Hash + Eq + Borrow<Q>,
    V: Clone,
    S: BuildHasher,
    Q: ToOwned<Owned = K> + ?Sized,
> {
    inner: &'a Inner<K, V, S>,
    hash: u64,
    key: &'a Q,
    group: Option<&'a Group>,
    flight: Arc<Flight<V>>,
    ended: bool,
}

impl<K, V, S, Q> Loading<'_, K, V, S, Q>
where
    K: Hash + Eq + Borrow<Q>,
    V: Clone,
    S: BuildHasher,
    Q: ToOwned<Owned = K> + ?Sized,
{
    fn end<E: Send + Sync + 'static>(self, result: Result<V, E>) -> Result<V, std::sync::Arc<E>> {
        // The listener is told after the flight has landed, because it may wait for a thread that
        // waits for the flight.
        let mut gone = self.inner.common.departures();
        let mut loading = self;
        match result {
            Ok(value) => {
                loading.cache(value.clone(), &mut gone);
                let landed = catch_unwind(AssertUnwindSafe(move || {
                    let mut loading = loading;
                    // Cloned before the load counts as ended, because cloning may panic.
                    let shared = value.clone();
                    loading.ended = true;
                    loading.flight.land(Landing::Value(shared));
                    value
                }));
                drop(gone);
                Ok(landed.unwrap_or_else(|panicked| resume_unwind(panicked)))
            }
            Err(error) => {
                let error = std::sync::Arc::new(error);
                loading.fail();
                loading.ended = true;
                let shared: AnyError = std::sync::Arc::<E>::clone(&error);
                loading.flight.land(Landing::Error(shared));
                Err(error)
            }
        }
    }

    /// Takes the flight out of the table and puts the value into the cache, under one hold of the
    /// lock: a caller that comes finds one or the other.
    fn cache(&self, value: V, gone: &mut Departures<K, V>) {
        let common = &self.inner.common;
        let terms = common.terms_of(|| self.key.to_owned(), &value);
        let now = common.now();
        // Declared before the guard, so that it is dropped after it, even if the program's code
        // panics.
        let mut insertion;
        let mut shard = self.inner.part(self.hash).shard.write();
        let flight = shard.take_flight(self.hash, |it| Arc::ptr_eq(&it.flight, &self.flight));
        let Some(InFlight { hash, key, .. }) = flight else {
            // Released before the value is dropped.
            drop(shard);
            return;
        };
        insertion = Insertion::new(hash, key, value, terms, self.group);
        self.inner.put(&mut shard, &mut insertion, now, gone);
        drop(shard);
    }

    fn fail(&self) {
        let common = &self.inner.common;
        let until = common.error_lifetime.map(|lifetime| common.time().saturating_add(lifetime));
        let mut shard = self.inner.part(self.hash).shard.write();
        let is_it = |it: &InFlight<K, V>| Arc::ptr_eq(&it.flight, &self.flight);
        let mut ended = None;
        if let Some(until) = until
            && shard.flights.len() <= ERRORS_MAX
        {
            shard.remember_error(self.hash, is_it, until);
        } else {
            ended = shard.take_flight(self.hash, is_it);
        }
        drop(shard);
        drop(ended);
    }
}

impl<K, V, S, Q> Drop for Loading<'_, K, V, S, Q>
where
    K: Hash + Eq + Borrow<Q>,
    V: Clone,
    S: BuildHasher,
    Q: ToOwned<Owned = K> + ?Sized,
{
    fn drop(&mut self) {
        if !self.ended {
            let mut shard = self.inner.part(self.hash).shard.write();
            let ended = shard.take_flight(self.hash, |it| Arc::ptr_eq(&it.flight, &self.flight));
            drop(shard);
            drop(ended);
            self.flight.land(Landing::Abandoned);
        }
    }
}

/// Waits for a flight, as a future.
struct Waiting<'a, V: Clone> {
    flight: &'a Flight<V>,
    number: Option<usize>,
}

impl<V: Clone> Future for Waiting<'_, V> {
    type Output = Landing<V>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Landing<V>> {
        let flight = self.flight;
        flight.poll(context, &mut self.number)
    }
}

impl<V: Clone> Drop for Waiting<'_, V> {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            self.flight.leave(number);
        }
    }
}
