//! How long a client is waited for.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::time::Duration;

use crate::clients::Clients;
use crate::peer::IN_FLIGHT_BYTES_MAX;

/// How long a client is waited for.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    /// When the wait began, in milliseconds as [`Clients`] counts them, times [`BYTES_A_MS`], so
    /// that few bytes count too; 0 if the client is not waited for. Bytes that it moves meanwhile
    /// move this on, by the time that they count for.
    since: AtomicU64,
    /// Bytes that the client has moved the other way since the wait began, or since it last moved
    /// what it is waited for.
    otherwise: AtomicUsize,
}

/// Bytes in a millisecond that keep a client from being cut off: 256 KiB/s. Guessed: slower than
/// any link, and faster than a client that sends a byte now and then to look alive.
const BYTES_A_MS: u64 = 256;

/// What is left of the patience at least. Guessed: several round trips around the world.
const LATE_MS: u64 = 1000;

impl Waiting {
    pub(crate) fn begin(&self, clients: &Clients) {
        if !self.lasts() {
            self.otherwise.store(0, Relaxed);
            self.since.store(clients.now_ms() * BYTES_A_MS, Relaxed);
        }
    }

    /// As [`Waiting::begin`], for a client that did not go on while somebody else was waited for,
    /// so long: of its patience no more than that is used, and [`LATE_MS`] are left.
    pub(crate) fn begin_late(&self, clients: &Clients, waited: Duration) {
        if !self.lasts() {
            let used =
                (waited.as_millis() as u64).min(clients.patience_ms().saturating_sub(LATE_MS));
            self.otherwise.store(0, Relaxed);
            self.since.store(clients.now_ms().saturating_sub(used).max(1) * BYTES_A_MS, Relaxed);
        }
    }

    pub(crate) fn end(&self) {
        self.since.store(0, Relaxed);
    }

    pub(crate) fn lasts(&self) -> bool {
        self.since.load(Relaxed) > 0
    }

    /// The client has moved this many bytes of what it is waited for.
    pub(crate) fn moved(&self, bytes: usize, clients: &Clients) {
        if self.lasts() {
            self.otherwise.store(0, Relaxed);
            self.advance(bytes, clients);
        }
    }

    /// The client has moved this many bytes of something else. They count up to what any client
    /// need have on the way.
    pub(crate) fn moved_otherwise(&self, bytes: usize, clients: &Clients) {
        if self.lasts() && self.otherwise.fetch_add(bytes, Relaxed) < IN_FLIGHT_BYTES_MAX {
            self.advance(bytes, clients);
        }
    }

    fn advance(&self, bytes: usize, clients: &Clients) {
        // Another thread may end the wait meanwhile: then it stays ended.
        let now = clients.now_ms() * BYTES_A_MS;
        let then = |since| (since > 0).then(|| now.min(since + bytes as u64));
        let _ = self.since.fetch_update(Relaxed, Relaxed, then);
    }

    pub(crate) fn lasts_ms(&self, now_ms: u64) -> u64 {
        let since = self.since.load(Relaxed);
        if since == 0 { 0 } else { now_ms.saturating_sub(since / BYTES_A_MS) }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn few_bytes_at_a_time_count_as_many_do() {
        let clients = Clients::new(1, 1, Vec::new(), Duration::ZERO, Duration::ZERO);
        let (few, many) = (Waiting::default(), Waiting::default());
        few.begin(&clients);
        many.begin(&clients);
        let began = [&few, &many].map(|waiting| waiting.since.load(Relaxed));
        // Longer than what the moved bytes count for.
        thread::sleep(Duration::from_millis(100));
        for _ in 0..80 {
            few.moved(200, &clients);
        }
        many.moved(80 * 200, &clients);
        let gained = [few.since.load(Relaxed) - began[0], many.since.load(Relaxed) - began[1]];
        assert!(gained[0] == gained[1] && gained[0] > 0, "{gained:?}");
    }

    #[test]
    fn who_could_go_on_already_is_given_little_more_time() {
        let clients = Clients::new(1, 1, Vec::new(), Duration::from_secs(10), Duration::ZERO);
        thread::sleep(Duration::from_millis(20));
        let lasts = |waited| {
            let waiting = Waiting::default();
            waiting.begin_late(&clients, Duration::from_millis(waited));
            waiting.lasts_ms(clients.now_ms() + 20_000) - 20_000
        };
        assert!((15..5000).contains(&lasts(15)));
        // The server has not been there for longer than this test.
        assert!((15..9500).contains(&lasts(60_000)));
    }

    #[test]
    fn what_moves_the_other_way_counts_for_so_long_and_anew_for_each_wait() {
        let clients = Clients::new(1, 1, Vec::new(), Duration::ZERO, Duration::ZERO);
        let waiting = Waiting::default();
        waiting.moved_otherwise(IN_FLIGHT_BYTES_MAX, &clients);
        assert!(!waiting.lasts(), "it is not waited for");
        let gained = |bytes| {
            let before = waiting.since.load(Relaxed);
            thread::sleep(Duration::from_millis(20));
            waiting.moved_otherwise(bytes, &clients);
            waiting.since.load(Relaxed) - before
        };
        thread::sleep(Duration::from_millis(20));
        waiting.begin(&clients);
        assert!(gained(IN_FLIGHT_BYTES_MAX) > 0, "what came before does not count");
        assert_eq!(gained(1 << 20), 0);
        waiting.moved(1, &clients);
        assert!(gained(IN_FLIGHT_BYTES_MAX) > 0 && gained(1) == 0);
        waiting.end();
        waiting.begin(&clients);
        assert!(gained(1) > 0);
        waiting.end();
        waiting.moved(1, &clients);
        assert!(!waiting.lasts(), "what has ended stays so");
    }
}
