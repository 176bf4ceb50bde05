//! A trace in memory: one `u32` for each request.
//!
//! Pages are numbered from 0 by first appearance, so that a policy can keep what it knows of a page
//! in a vector. The top bit of a request says that it is a write.

mod builder;
mod container;
mod error;
mod format;
mod interleave;
mod numbering;
mod text;

pub use error::TraceError;
pub use format::Format;
pub use text::Column;

use builder::Builder;

use crate::policy::Request;

/// How many different pages a trace may have: what a request has bits for.
pub const PAGES_MAX: usize = WRITE as usize;
/// How many requests [`Trace::load`] takes. Guessed: a file of a few bytes can stand for this many.
/// They take 1 GiB, and their keys and the table of keys up to 8 GiB more.
pub const REQUESTS_MAX: u64 = 1 << 28;

/// The bit of a request that says that it is a write.
const WRITE: u32 = 1 << 31;

/// Accesses to pages, in order. Never changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    name: String,
    requests: Vec<u32>,
    keys: Vec<u64>,
    /// One for each request, unless all are 0.
    tenants: Option<Vec<u16>>,
    writes: u64,
}

impl Trace {
    /// A trace from keys and whether they are written.
    pub fn from_keys(
        name: &str,
        keys: impl IntoIterator<Item = (u64, bool)>,
    ) -> Result<Self, TraceError> {
        let mut builder = Builder::new(name.to_owned());
        for (key, write) in keys {
            if !builder.push(key, write, 0) {
                return Err(TraceError::TooManyPages { file: name.into() });
            }
        }
        Ok(builder.build())
    }

    /// The name of the trace: its file's, without folder and extensions.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How many requests it has.
    pub fn len(&self) -> usize {
        self.requests.len()
    }

    /// Whether it has no request.
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// How many different pages it has; they are numbered from 0 to this.
    pub fn pages(&self) -> usize {
        self.keys.len()
    }

    /// How many of its requests are writes.
    pub fn writes(&self) -> u64 {
        self.writes
    }

    /// The key that each page had in the source.
    pub fn keys(&self) -> &[u64] {
        &self.keys
    }

    /// The tenant of each request; none if it is 0 for all.
    pub fn tenants(&self) -> Option<&[u16]> {
        self.tenants.as_deref()
    }

    /// The request at a position.
    ///
    /// # Panics
    ///
    /// If there is no such request.
    #[inline]
    pub fn request(&self, index: usize) -> Request {
        let tenant = self.tenants.as_ref().map_or(0, |tenants| tenants[index]);
        unpack(self.requests[index], tenant)
    }

    /// All requests, in order.
    pub fn requests(&self) -> impl ExactSizeIterator<Item = Request> {
        (0..self.len()).map(|index| self.request(index))
    }

    /// The requests as they are kept: page and, in the top bit, whether it is a write.
    pub(crate) fn packed(&self) -> &[u32] {
        &self.requests
    }
}

/// A request from how it is kept.
#[inline]
pub(crate) fn unpack(packed: u32, tenant: u16) -> Request {
    Request { page: packed & !WRITE, write: packed & WRITE != 0, tenant }
}
