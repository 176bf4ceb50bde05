//! What takes part in a comparison: a name and a way to build a policy, either one of the list of
//! [`policies`] or one of your own, with other settings.

use std::fmt;
use std::sync::Arc;

use crate::policies::{self, Entry, UnknownPolicy};
use crate::policy::{AnyPolicy, Setup};

type Build = dyn for<'a> Fn(&Setup<'a>) -> Box<dyn AnyPolicy + 'a> + Send + Sync;

/// A policy that takes part.
#[derive(Clone)]
pub struct Candidate {
    name: String,
    build: Arc<Build>,
}

impl Candidate {
    /// A policy that is in no list.
    pub fn new<F>(name: &str, build: F) -> Self
    where
        F: for<'a> Fn(&Setup<'a>) -> Box<dyn AnyPolicy + 'a> + Send + Sync + 'static,
    {
        Self { name: name.to_owned(), build: Arc::new(build) }
    }

    /// The policy of this name.
    pub fn named(name: &str) -> Result<Self, UnknownPolicy> {
        policies::entry(name).map(Self::from)
    }

    /// All policies that there are.
    pub fn all() -> Vec<Self> {
        policies::ALL.iter().map(Self::from).collect()
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Builds the policy.
    pub fn build<'a>(&self, setup: &Setup<'a>) -> Box<dyn AnyPolicy + 'a> {
        (self.build)(setup)
    }
}

impl From<&'static Entry> for Candidate {
    fn from(entry: &'static Entry) -> Self {
        Self::new(entry.name, |setup| entry.build(setup))
    }
}

impl fmt::Debug for Candidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Candidate").field("name", &self.name).finish_non_exhaustive()
    }
}
