//! The attribute tree: every live attribute of a runtime under the kernel's name, for programs and
//! for `homing-control`'s socket.
//!
//! ```text
//! module/…           of the runtime: default_affinity_scope, watchdog_thresh, …
//! workqueue/NAME/…   of each workqueue: affinity_scope, max_active, counters, …
//! pod/SCOPE/…        how the machine is cut
//! cpu/ID             what each CPU's workers have done
//! pool/ID            the queues that workqueues with equal attributes share
//! thread/ID          what each thread does
//! ```

mod module;
mod workqueue;

use std::sync::Arc;

use homing_control::{Attribute, AttributeError, AttributeTree, Switch};
use homing_topology::Scope;

use crate::runtime::Runtime;
use crate::shared::Shared;

/// The live attributes of a runtime, read and written as text by path. Cheap to clone.
///
/// ```
/// use homing_control::AttributeTree;
/// use homing_runtime::Runtime;
///
/// let runtime = Runtime::new()?;
/// let crypt = runtime.workqueue("crypt").build()?;
/// let attributes = runtime.attributes();
/// let scope = format!("default ({})", runtime.default_affinity_scope());
/// assert_eq!(attributes.get("workqueue/crypt/affinity_scope")?, scope);
/// attributes.set("workqueue/crypt/affinity_scope", "numa")?;
/// assert_eq!(crypt.affinity().scope.name(), "numa");
/// let error = attributes.set("workqueue/crypt/nice", "99").unwrap_err();
/// assert!(error.to_string().contains("-20 to 19"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct RuntimeAttributes {
    shared: Arc<Shared>,
}

impl Runtime {
    /// The attribute tree. To offer it to `homing ls`, `get`, `set` and `wq`, give it to a
    /// [`homing_control::ControlSocket`].
    ///
    /// ```
    /// use std::sync::Arc;
    ///
    /// use homing_control::{Client, ControlSocket};
    /// use homing_runtime::Runtime;
    ///
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("control");
    /// let runtime = Runtime::new()?;
    /// let _socket = ControlSocket::listen(&path, Arc::new(runtime.attributes()))?;
    /// assert_eq!(Client::connect(&path)?.get("module/watchdog_thresh")?, "30");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn attributes(&self) -> RuntimeAttributes {
        RuntimeAttributes { shared: Arc::clone(self.shared()) }
    }
}

impl AttributeTree for RuntimeAttributes {
    fn list(&self) -> Vec<Attribute> {
        let mut all = module::list(&self.shared);
        all.extend(workqueue::list(&self.shared));
        all.sort_by(|one, other| one.path.cmp(&other.path));
        all
    }

    fn get(&self, path: &str) -> Result<String, AttributeError> {
        let found = match words(path)[..] {
            ["workqueue", name, attribute] => workqueue::get(&self.shared, name, attribute),
            ref words => module::get(&self.shared, words),
        };
        found.ok_or_else(|| AttributeError::not_found(path))
    }

    fn set(&self, path: &str, value: &str) -> Result<(), AttributeError> {
        // Values that come from files end with a newline.
        let value = value.trim();
        let words = words(path);
        let writable = match words[..] {
            ["workqueue", name, attribute] => workqueue::is_writable(&self.shared, name, attribute),
            ["module", name] => module::is_writable(name),
            _ => false,
        };
        if !writable {
            // Or there is no such attribute. Reading it would not do: reading `module/decisions`
            // takes them.
            if !self.list().iter().any(|attribute| attribute.path == path) {
                return Err(AttributeError::not_found(path));
            }
            return Err(AttributeError::read_only(path));
        }
        let set = match words[..] {
            ["workqueue", name, attribute] => workqueue::set(&self.shared, name, attribute, value),
            ["module", name] => module::set(&self.shared, name, value),
            _ => Ok(()),
        };
        set.map_err(|refused| match refused {
            Refused::Value(accepted) => AttributeError::refused(path, value, accepted),
            Refused::Failed(reason) => AttributeError::failed(path, reason),
            Refused::Gone => AttributeError::not_found(path),
        })
    }
}

fn words(path: &str) -> Vec<&str> {
    path.split('/').collect()
}

/// Why a value was not set.
enum Refused {
    /// The value is none of these.
    Value(String),
    Failed(String),
    /// The workqueue is no longer there.
    Gone,
}

impl Refused {
    fn value(accepted: impl Into<String>) -> Self {
        Self::Value(accepted.into())
    }
}

fn flag(value: &str) -> Result<bool, Refused> {
    value.parse().map(|Switch(on)| on).map_err(|_| Refused::value(Switch::FORM))
}

fn scope(value: &str, also: &str) -> Result<Scope, Refused> {
    value.parse().map_err(|_| {
        let all = Scope::ALL.map(|scope| scope.to_string()).join(", ");
        Refused::value(format!("one of {all}{also}"))
    })
}

#[cfg(test)]
mod tests;
