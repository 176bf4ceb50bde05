//! What a log holds, as attributes.
//!
//! ```text
//! log/NAME/{first,durable,last}_sequence   ro  the first record that is kept, the last durable one, the last one
//! log/NAME/pending_bytes                   ro  appended and not durable: in memory
//! log/NAME/kept_bytes                      ro  on the disk: what recovery would read
//! ```

use homing_control::{Attribute, AttributeError, AttributeTree};

use super::Log;

const ALL: [&str; 5] =
    ["durable_sequence", "first_sequence", "kept_bytes", "last_sequence", "pending_bytes"];

/// The attributes of a log, read as text by path: [`Log::attributes`].
///
/// ```
/// # let runtime = homing_runtime::Runtime::new()?;
/// # let durable = homing_durable::Durable::new(&runtime)?;
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("log");
/// use homing_control::AttributeTree;
/// use homing_durable::{Log, LogAttributes};
///
/// let (log, _) = Log::open(&durable, &path)?;
/// let attributes: LogAttributes = log.attributes("orders");
/// let last = log.append(b"one")?;
/// assert_eq!(attributes.get("log/orders/durable_sequence")?, "0");
/// log.commit_and_wait(last)?;
/// assert_eq!(attributes.get("log/orders/durable_sequence")?, "1");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct LogAttributes {
    log: Log,
    root: String,
}

impl Log {
    /// The attribute tree, for a [`ControlSocket`](homing_control::ControlSocket). Its paths begin
    /// with `log/` and this name. It keeps the log open, as a clone does, until
    /// [`Log::close`].
    pub fn attributes(&self, name: &str) -> LogAttributes {
        LogAttributes { log: self.clone(), root: format!("log/{name}/") }
    }
}

impl AttributeTree for LogAttributes {
    fn list(&self) -> Vec<Attribute> {
        let attribute =
            |name: &&str| Attribute { path: format!("{}{name}", self.root), writable: false };
        ALL.iter().map(attribute).collect()
    }

    fn get(&self, path: &str) -> Result<String, AttributeError> {
        Ok(match path.strip_prefix(&self.root) {
            Some("first_sequence") => self.log.first_sequence().to_string(),
            Some("durable_sequence") => self.log.durable_sequence().to_string(),
            Some("last_sequence") => self.log.last_sequence().to_string(),
            Some("pending_bytes") => self.log.pending_bytes().to_string(),
            Some("kept_bytes") => self.log.kept_bytes().to_string(),
            _ => return Err(AttributeError::not_found(path)),
        })
    }

    fn set(&self, path: &str, _: &str) -> Result<(), AttributeError> {
        self.get(path)?;
        Err(AttributeError::read_only(path))
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use homing_runtime::Runtime;

    use super::*;
    use crate::Durable;

    #[test]
    fn all_that_is_listed_can_be_read_and_nothing_set() {
        let runtime = Runtime::new().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let durable = Durable::new(&runtime).unwrap();
        let (log, _) = Log::open(&durable, folder.path().join("log")).unwrap();
        log.commit_and_wait(log.append(&[7; 100]).unwrap()).unwrap();
        log.append(&[8; 100]).unwrap();
        let tree = log.attributes("a");
        let all = tree.list();
        assert!(all.is_sorted_by(|one, other| one.path < other.path));
        let values = all.iter().map(|attribute| tree.get(&attribute.path).unwrap());
        let values: Vec<u64> = values.map(|value| value.parse().unwrap()).collect();
        assert_eq!((values[0], values[1], values[3]), (1, 1, 2));
        assert!(values[2] > 100 && values[4] > 100, "{values:?}");
        for attribute in all {
            assert!(!attribute.writable && tree.set(&attribute.path, "1").is_err());
        }
        assert!(tree.get("log/b/kept_bytes").is_err() && tree.get("log/a").is_err());
    }
}
