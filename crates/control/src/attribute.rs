//! What an attribute is: a path, and a text that can be read and perhaps written. This module knows
//! nothing of what the attributes mean.

use serde::{Deserialize, Serialize};

/// The live attributes of a part of a program, by path: `workqueue/crypt/max_active`.
///
/// Calls come from several threads at once and hold up the client that asked. They should not wait
/// for long, and must not wait for the end of the [`ControlSocket`](crate::ControlSocket) that
/// makes them.
///
/// ```
/// use homing_control::{Attribute, AttributeError, AttributeTree};
///
/// /// The number of the process.
/// struct Process;
///
/// impl AttributeTree for Process {
///     fn list(&self) -> Vec<Attribute> {
///         vec![Attribute { path: "process/id".to_owned(), writable: false }]
///     }
///     fn get(&self, path: &str) -> Result<String, AttributeError> {
///         match path {
///             "process/id" => Ok(std::process::id().to_string()),
///             _ => Err(AttributeError::not_found(path)),
///         }
///     }
///     fn set(&self, path: &str, _: &str) -> Result<(), AttributeError> {
///         self.get(path)?;
///         Err(AttributeError::read_only(path))
///     }
/// }
///
/// assert!(Process.get("process/id").is_ok() && Process.set("process/id", "1").is_err());
/// ```
pub trait AttributeTree: Send + Sync {
    /// All attributes there are at present, sorted by path.
    fn list(&self) -> Vec<Attribute>;

    /// The value at present.
    fn get(&self, path: &str) -> Result<String, AttributeError>;

    /// Changes the value. If this fails, nothing has changed.
    fn set(&self, path: &str, value: &str) -> Result<(), AttributeError>;
}

/// An attribute, without its value.
///
/// ```
/// use homing_control::Attribute;
///
/// let attribute = Attribute { path: "workqueue/crypt/nice".to_owned(), writable: true };
/// assert!(attribute.is_below("workqueue/crypt") && attribute.is_below(""));
/// assert!(!attribute.is_below("workqueue/cry"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attribute {
    /// Words separated by `/`, from the general to the particular.
    pub path: String,
    /// Whether it may be set.
    pub writable: bool,
}

impl Attribute {
    /// Whether the path is `prefix` or below it: `a/b` is below `a`, `ab` is not. Every path is
    /// below the empty prefix.
    pub fn is_below(&self, prefix: &str) -> bool {
        let prefix = prefix.trim_end_matches('/');
        let rest = self.path.strip_prefix(prefix);
        prefix.is_empty() || rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }
}

/// Why an attribute was not read or written.
///
/// ```
/// use homing_control::AttributeError;
///
/// let error = AttributeError::Value {
///     path: "volume".to_owned(),
///     value: "loud".to_owned(),
///     accepted: "a number from 0 to 255".to_owned(),
/// };
/// let text = r#"volume: "loud" is not accepted: use a number from 0 to 255"#;
/// assert_eq!(error.to_string(), text);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AttributeError {
    /// There is no attribute of this name, or it exists no longer.
    #[error("there is no attribute {path:?}: `homing ls` lists those there are")]
    NotFound {
        /// The path asked for.
        path: String,
    },
    /// The attribute can be read only.
    #[error("{path} can be read, not set: `homing ls` marks with rw what can be set")]
    ReadOnly {
        /// The attribute.
        path: String,
    },
    /// The attribute does not take this value.
    #[error("{path}: {value:?} is not accepted: use {accepted}")]
    Value {
        /// The attribute.
        path: String,
        /// The value refused.
        value: String,
        /// What the attribute takes, worded to be read after "use": `one of cpu, smt, cache`,
        /// `a number from 1 to 2048, or max`.
        accepted: String,
    },
    /// The value is acceptable, but reading or changing the attribute failed.
    #[error("{path}: {reason}")]
    Failed {
        /// The attribute.
        path: String,
        /// What happened, and what to do.
        reason: String,
    },
}

impl AttributeError {
    /// There is no such attribute.
    ///
    /// ```
    /// use homing_control::AttributeError;
    ///
    /// let error = AttributeError::refused("volume", "loud", "a number from 0 to 255");
    /// assert!(matches!(error, AttributeError::Value { .. }));
    /// for error in [AttributeError::not_found("loudness"), AttributeError::read_only("serial")] {
    ///     assert!(error.to_string().contains("`homing ls`"));
    /// }
    /// let error = AttributeError::failed("volume", "the device has gone: plug it in");
    /// assert_eq!(error.to_string(), "volume: the device has gone: plug it in");
    /// ```
    pub fn not_found(path: &str) -> Self {
        Self::NotFound { path: path.to_owned() }
    }

    /// The attribute can be read only.
    pub fn read_only(path: &str) -> Self {
        Self::ReadOnly { path: path.to_owned() }
    }

    /// The attribute does not take this value: see [`AttributeError::Value`].
    pub fn refused(path: &str, value: &str, accepted: impl Into<String>) -> Self {
        let (path, value) = (path.to_owned(), value.to_owned());
        Self::Value { path, value, accepted: accepted.into() }
    }

    /// Reading or changing the attribute failed, for this reason.
    pub fn failed(path: &str, reason: impl Into<String>) -> Self {
        Self::Failed { path: path.to_owned(), reason: reason.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_is_made_of_whole_words() {
        let nice = Attribute { path: "workqueue/crypt/nice".to_owned(), writable: true };
        for prefix in ["", "/", "workqueue", "workqueue/", "workqueue/crypt/nice"] {
            assert!(nice.is_below(prefix), "{prefix:?}");
        }
        for prefix in ["work", "workqueue/cry", "crypt", "workqueue/crypt/nice/x"] {
            assert!(!nice.is_below(prefix), "{prefix:?}");
        }
    }

    #[test]
    fn an_error_names_path_and_value_and_says_what_to_do() {
        let error = AttributeError::refused("q/scope", "42x", "one of cpu, smt").to_string();
        assert_eq!(error, "q/scope: \"42x\" is not accepted: use one of cpu, smt");
    }
}
