//! A tree below a name, so that two of the same kind can be told apart.

use std::sync::Arc;

use crate::attribute::{Attribute, AttributeError, AttributeTree};

/// A tree whose paths begin with a name of yours. In [`Trees`](crate::Trees), the first of two
/// trees with the same paths hides the second: put one of them below a name.
///
/// ```
/// # use std::sync::Arc;
/// # use homing_control::{Attribute, AttributeError, AttributeTree};
/// # struct Cache;
/// # impl AttributeTree for Cache {
/// #     fn list(&self) -> Vec<Attribute> {
/// #         vec![Attribute { path: "cache/size".to_owned(), writable: true }]
/// #     }
/// #     fn get(&self, _: &str) -> Result<String, AttributeError> {
/// #         Ok("4096".to_owned())
/// #     }
/// #     fn set(&self, _: &str, _: &str) -> Result<(), AttributeError> {
/// #         Ok(())
/// #     }
/// # }
/// use homing_control::{Below, Trees};
///
/// let second: Arc<dyn AttributeTree> = Arc::new(Below::new("index", Arc::new(Cache)));
/// let trees = Trees::new([Arc::new(Cache) as Arc<dyn AttributeTree>, second]);
/// assert_eq!(trees.get("index/cache/size")?, "4096");
/// assert_eq!(trees.list().len(), 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Below {
    /// With a `/` behind it.
    prefix: String,
    tree: Arc<dyn AttributeTree>,
}

impl Below {
    /// Puts `tree` below `name`, which may be several words separated by `/`.
    pub fn new(name: &str, tree: Arc<dyn AttributeTree>) -> Self {
        Self { prefix: format!("{}/", name.trim_matches('/')), tree }
    }

    fn ask<T>(
        &self,
        path: &str,
        ask: impl Fn(&str) -> Result<T, AttributeError>,
    ) -> Result<T, AttributeError> {
        let Some(rest) = path.strip_prefix(&self.prefix) else {
            return Err(AttributeError::not_found(path));
        };
        ask(rest).map_err(|mut error| {
            let (AttributeError::NotFound { path: named }
            | AttributeError::ReadOnly { path: named }
            | AttributeError::Value { path: named, .. }
            | AttributeError::Failed { path: named, .. }) = &mut error;
            named.insert_str(0, &self.prefix);
            error
        })
    }
}

impl AttributeTree for Below {
    fn list(&self) -> Vec<Attribute> {
        let mut all = self.tree.list();
        for attribute in &mut all {
            attribute.path.insert_str(0, &self.prefix);
        }
        all
    }

    fn get(&self, path: &str) -> Result<String, AttributeError> {
        self.ask(path, |rest| self.tree.get(rest))
    }

    fn set(&self, path: &str, value: &str) -> Result<(), AttributeError> {
        self.ask(path, |rest| self.tree.set(rest, value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct One;

    impl AttributeTree for One {
        fn list(&self) -> Vec<Attribute> {
            vec![Attribute { path: "a/b".to_owned(), writable: false }]
        }

        fn get(&self, path: &str) -> Result<String, AttributeError> {
            let known = (path == "a/b").then(|| "1".to_owned());
            known.ok_or_else(|| AttributeError::not_found(path))
        }

        fn set(&self, path: &str, _: &str) -> Result<(), AttributeError> {
            self.get(path)?;
            Err(AttributeError::read_only(path))
        }
    }

    #[test]
    fn all_paths_begin_with_the_name_also_those_of_errors() {
        for name in ["x/y", "/x/y/"] {
            let below = Below::new(name, Arc::new(One));
            assert_eq!(below.list()[0].path, "x/y/a/b");
            assert_eq!(below.get("x/y/a/b").unwrap(), "1");
            let path = || "x/y/a/b".to_owned();
            assert_eq!(below.set(&path(), "2"), Err(AttributeError::ReadOnly { path: path() }));
            for missing in ["a/b", "x/ya/b", "x/y/c", "x/y"] {
                let path = missing.to_owned();
                assert_eq!(below.get(missing), Err(AttributeError::NotFound { path }));
            }
        }
    }
}
