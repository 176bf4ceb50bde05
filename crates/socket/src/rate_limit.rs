//! Limits warnings that clients can cause as often as they like: some are logged, and the others
//! counted.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// As the kernel limits its messages: at most this many in each period, which begins with a
/// message.
const BURST: u32 = 10;
const PERIOD: Duration = Duration::from_secs(5);

/// Lets ten warnings through in five seconds, and counts the others. Each place that warns has its
/// own.
///
/// ```
/// use homing_socket::RateLimit;
///
/// static LIMIT: RateLimit = RateLimit::new();
/// let mut logged = 0;
/// for _ in 0..1000 {
///     // `left_out`: how many there were since the last, if any.
///     LIMIT.log(|left_out| {
///         assert_eq!(left_out, None);
///         logged += 1;
///     });
/// }
/// assert!(logged < 1000);
/// ```
#[derive(Debug)]
pub struct RateLimit(Mutex<Period>);

#[derive(Debug)]
struct Period {
    began: Option<Instant>,
    logged: u32,
    left_out: u64,
}

impl RateLimit {
    /// A limit that has let nothing through yet.
    pub const fn new() -> Self {
        Self(Mutex::new(Period { began: None, logged: 0, left_out: 0 }))
    }

    /// Calls `log`, unless it has been called often of late, with the number of warnings left out
    /// since the last call, if there are any.
    pub fn log(&self, log: impl FnOnce(Option<u64>)) {
        if let Some(left_out) = self.admit(Instant::now()) {
            log((left_out > 0).then_some(left_out));
        }
    }

    fn admit(&self, now: Instant) -> Option<u64> {
        let mut period = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if period.began.is_none_or(|began| now.duration_since(began) >= PERIOD) {
            (period.began, period.logged) = (Some(now), 0);
        }
        if period.logged == BURST {
            period.left_out += 1;
            return None;
        }
        period.logged += 1;
        Some(std::mem::take(&mut period.left_out))
    }
}

impl Default for RateLimit {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_counted_and_not_logged() {
        let (limit, start) = (RateLimit::new(), Instant::now());
        let at = |ms| limit.admit(start + Duration::from_millis(ms));
        let logged = (0..1000).filter(|ms| at(*ms) == Some(0)).count();
        assert_eq!(logged, BURST as usize);
        assert_eq!(at(4999), None);
        assert_eq!(at(5000), Some(1000 - u64::from(BURST) + 1), "it tells of those left out");
        assert_eq!(at(5001), Some(0), "once");
    }
}
