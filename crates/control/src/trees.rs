//! Several trees seen as one.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::attribute::{Attribute, AttributeError, AttributeTree};

/// Several trees seen as one. If two of them know a path, the first of them answers for it.
///
/// ```
/// # use std::sync::Arc;
/// # use homing_control::{Attribute, AttributeError, AttributeTree};
/// # struct Crypt;
/// # impl AttributeTree for Crypt {
/// #     fn list(&self) -> Vec<Attribute> {
/// #         vec![Attribute { path: "workqueue/crypt/nice".to_owned(), writable: true }]
/// #     }
/// #     fn get(&self, _: &str) -> Result<String, AttributeError> {
/// #         Ok("5".to_owned())
/// #     }
/// #     fn set(&self, _: &str, _: &str) -> Result<(), AttributeError> {
/// #         Ok(())
/// #     }
/// # }
/// use homing_control::Trees;
///
/// let trees = Trees::new([Arc::new(Trees::default()) as Arc<dyn AttributeTree>, Arc::new(Crypt)]);
/// assert_eq!(trees.get("workqueue/crypt/nice")?, "5"); // from the second one
/// assert_eq!(trees.list().len(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Default)]
pub struct Trees(Vec<Arc<dyn AttributeTree>>);

impl Trees {
    /// Combines these trees. They are asked in this order.
    pub fn new(trees: impl IntoIterator<Item = Arc<dyn AttributeTree>>) -> Self {
        Self(trees.into_iter().collect())
    }

    /// The answer of the first tree that knows the path.
    fn first<T>(
        &self,
        path: &str,
        ask: impl Fn(&dyn AttributeTree) -> Result<T, AttributeError>,
    ) -> Result<T, AttributeError> {
        let answers = self.0.iter().map(|tree| ask(tree.as_ref()));
        let mut known = answers.filter(|a| !matches!(a, Err(AttributeError::NotFound { .. })));
        known.next().unwrap_or_else(|| Err(AttributeError::not_found(path)))
    }
}

impl AttributeTree for Trees {
    fn list(&self) -> Vec<Attribute> {
        let mut by_path = BTreeMap::new();
        for attribute in self.0.iter().flat_map(|tree| tree.list()) {
            by_path.entry(attribute.path).or_insert(attribute.writable);
        }
        by_path.into_iter().map(|(path, writable)| Attribute { path, writable }).collect()
    }

    fn get(&self, path: &str) -> Result<String, AttributeError> {
        self.first(path, |tree| tree.get(path))
    }

    fn set(&self, path: &str, value: &str) -> Result<(), AttributeError> {
        self.first(path, |tree| tree.set(path, value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Attributes that hold their tree's name; they cannot be set.
    struct Named(&'static str, &'static [&'static str]);

    impl AttributeTree for Named {
        fn list(&self) -> Vec<Attribute> {
            let attribute = |path: &&str| Attribute { path: (*path).to_owned(), writable: false };
            self.1.iter().map(attribute).collect()
        }

        fn get(&self, path: &str) -> Result<String, AttributeError> {
            let known = self.1.contains(&path).then(|| self.0.to_owned());
            known.ok_or_else(|| AttributeError::not_found(path))
        }

        fn set(&self, path: &str, _: &str) -> Result<(), AttributeError> {
            self.get(path)?;
            Err(AttributeError::read_only(path))
        }
    }

    #[test]
    fn the_first_that_knows_the_path_has_it() {
        let first: Arc<dyn AttributeTree> = Arc::new(Named("first", &["b", "c"]));
        let trees = Trees::new([first, Arc::new(Named("second", &["a", "b"]))]);
        let paths: Vec<_> = trees.list().into_iter().map(|attribute| attribute.path).collect();
        assert_eq!(paths, ["a", "b", "c"]);
        assert_eq!(trees.get("b").unwrap(), "first");
        assert_eq!(trees.get("a").unwrap(), "second");
        let path = "a".to_owned();
        assert_eq!(trees.set("a", "x"), Err(AttributeError::ReadOnly { path }));
        let path = "d".to_owned();
        assert_eq!(trees.set("d", "x"), Err(AttributeError::NotFound { path }));
        assert!(Trees::default().get("a").is_err());
    }
}
