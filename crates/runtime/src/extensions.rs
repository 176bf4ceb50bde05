//! Values that libraries keep with a runtime: one of each type, for as long as the runtime lasts.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use crate::sync::{Mutex, lock};

/// There are few values, so they are looked through one by one.
#[derive(Default)]
pub(crate) struct Extensions {
    kept: Mutex<Vec<Arc<dyn Any + Send + Sync>>>,
}

impl Extensions {
    /// The value of this type. It is made under the lock, so that there is only one.
    pub(crate) fn get_or_make<T: Any + Send + Sync>(&self, make: impl FnOnce() -> T) -> Arc<T> {
        let mut kept = lock(&self.kept);
        let known = kept.iter().find(|value| value.is::<T>());
        if let Some(Ok(value)) = known.map(|value| Arc::clone(value).downcast()) {
            return value;
        }
        let value = Arc::new(make());
        kept.push(Arc::<T>::clone(&value));
        value
    }
}

impl fmt::Debug for Extensions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Extensions").finish_non_exhaustive()
    }
}
