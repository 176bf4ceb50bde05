//! Gathers requests, in order, into a trace.

use super::numbering::Numbering;
use super::{Trace, WRITE};

/// A trace in the making.
pub(super) struct Builder {
    name: String,
    numbering: Numbering,
    requests: Vec<u32>,
    /// Empty as long as every tenant is 0.
    tenants: Vec<u16>,
    writes: u64,
}

impl Builder {
    pub(super) fn new(name: String) -> Self {
        let numbering = Numbering::default();
        Self { name, numbering, requests: Vec::new(), tenants: Vec::new(), writes: 0 }
    }

    /// How many requests there are.
    pub(super) fn len(&self) -> usize {
        self.requests.len()
    }

    /// Appends a request. Returns false if there are more pages than numbers.
    pub(super) fn push(&mut self, key: u64, write: bool, tenant: u16) -> bool {
        let Some(page) = self.numbering.number(key) else { return false };
        if tenant != 0 && self.tenants.is_empty() {
            self.tenants.resize(self.requests.len(), 0);
        }
        if tenant != 0 || !self.tenants.is_empty() {
            self.tenants.push(tenant);
        }
        self.requests.push(if write { page | WRITE } else { page });
        self.writes += u64::from(write);
        true
    }

    pub(super) fn build(self) -> Trace {
        let tenants = (!self.tenants.is_empty()).then_some(self.tenants);
        Trace {
            name: self.name,
            requests: self.requests,
            keys: self.numbering.into_keys(),
            tenants,
            writes: self.writes,
        }
    }
}
