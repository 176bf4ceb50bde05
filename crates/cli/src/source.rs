//! Reads attributes for people: one that is missing, because it is new, gone or of another version,
//! is a gap in the picture and no error.

use std::collections::{BTreeMap, BTreeSet};

use homing_control::{Client, ClientError};

use crate::attributes::ControlArgs;

/// Stands for what is not known.
pub(crate) const UNKNOWN: &str = "-";

/// A program's attributes.
pub(crate) struct Source {
    client: Client,
    paths: Vec<String>,
}

impl Source {
    /// Connects and learns which attributes at or below `prefix` there are.
    pub(crate) fn connect(control: &ControlArgs, prefix: &str) -> Result<Self, ClientError> {
        let mut client = control.connect()?;
        let paths = client.list(prefix)?.into_iter().map(|attribute| attribute.path).collect();
        Ok(Self { client, paths })
    }

    /// The names in `KIND/NAME/attribute`, each once, in order.
    pub(crate) fn names(&self, kind: &str) -> Vec<String> {
        let names = self.below(kind).filter_map(|rest| rest.rsplit_once('/'));
        // Not `dedup`: the paths of `a/b` are among those of `a`.
        let names: BTreeSet<_> = names.map(|(name, _)| name.to_owned()).collect();
        names.into_iter().collect()
    }

    /// The names in `KIND/NAME`, in the order of numbers if they are numbers.
    pub(crate) fn leaves(&self, kind: &str) -> Vec<String> {
        let mut names: Vec<_> = self.below(kind).map(ToOwned::to_owned).collect();
        names.sort_by_key(|name| name.parse::<u64>().unwrap_or(u64::MAX));
        names
    }

    fn below<'a>(&'a self, kind: &'a str) -> impl Iterator<Item = &'a str> {
        self.paths.iter().filter_map(move |path| path.strip_prefix(kind)?.strip_prefix('/'))
    }

    /// A value, without the newline at its end; `None` if it cannot be had.
    pub(crate) fn get(&mut self, path: &str) -> Result<Option<String>, ClientError> {
        match self.client.get(path) {
            Ok(value) => Ok(Some(value.trim_end().to_owned())),
            Err(ClientError::Attribute(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// The lines "KEY VALUE" of a flat keyed attribute.
pub(crate) fn keyed(text: &str) -> BTreeMap<&str, &str> {
    let pairs = text.lines().map(|line| line.split_once(' ').unwrap_or((line, "")));
    pairs.map(|(key, value)| (key, value.trim())).collect()
}
