//! How keys are hashed unless the program says otherwise. Types of our own, so that the library
//! behind them can change without a change for programs.

use std::hash::{BuildHasher, Hasher};

/// The default hasher of a [`Cache`](super::Cache): fast, and seeded at random for each cache, so
/// keys are not easily chosen to collide. It is no cryptographic hash.
///
/// ```
/// use homing_cache::{Cache, RandomState};
///
/// struct Names(Cache<String, u64, RandomState>); // as without the third
/// let names = Names(Cache::new(100));
/// names.0.insert("one".to_owned(), 1);
/// assert_eq!(names.0.get("one"), Some(1));
/// ```
#[derive(Clone, Debug, Default)]
pub struct RandomState(foldhash::quality::RandomState);

impl BuildHasher for RandomState {
    type Hasher = DefaultHasher;

    #[inline]
    fn build_hasher(&self) -> DefaultHasher {
        DefaultHasher(self.0.build_hasher())
    }
}

/// The [`Hasher`] of [`RandomState`].
///
/// ```
/// use std::hash::BuildHasher;
/// use homing_cache::{DefaultHasher, RandomState};
///
/// let state = RandomState::default();
/// let hash = |_: DefaultHasher| state.hash_one("key");
/// assert_eq!(hash(state.build_hasher()), hash(state.build_hasher()));
/// ```
#[derive(Clone)]
pub struct DefaultHasher(foldhash::quality::FoldHasher<'static>);

impl std::fmt::Debug for DefaultHasher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DefaultHasher").finish_non_exhaustive()
    }
}

/// Whole numbers take a shorter way than their bytes would.
macro_rules! numbers {
    ($($write:ident: $number:ty),*) => {
        $(#[inline]
        fn $write(&mut self, number: $number) {
            self.0.$write(number);
        })*
    };
}

impl Hasher for DefaultHasher {
    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        self.0.write(bytes);
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.0.finish()
    }

    numbers!(write_u8: u8, write_u16: u16, write_u32: u32, write_u64: u64, write_u128: u128);
    numbers!(write_usize: usize);
}
