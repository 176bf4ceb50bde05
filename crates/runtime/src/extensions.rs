//! Values that libraries keep with a runtime: one of each type, for as long as the runtime lasts.

use std::any::{Any, TypeId};
use std::fmt;
use std::sync::Arc;

use crate::sync::{Mutex, lock};

/// There are few values, so they are looked through one by one.
#[derive(Default)]
pub(crate) struct Extensions {
    kept: Mutex<Vec<(TypeId, Place)>>,
}

/// Where the value of a type is, once it has been made.
type Place = Arc<Mutex<Option<Arc<dyn Any + Send + Sync>>>>;

impl Extensions {
    /// The value of this type. It is made under the lock of its place, so that there is only one,
    /// and no other type's is in the way.
    pub(crate) fn get_or_make<T: Any + Send + Sync>(&self, make: impl FnOnce() -> T) -> Arc<T> {
        let place = self.place(TypeId::of::<T>());
        let mut place = lock(&place);
        if let Some(Ok(value)) = place.clone().map(Arc::downcast) {
            return value;
        }
        let value = Arc::new(make());
        *place = Some(Arc::<T>::clone(&value));
        value
    }

    fn place(&self, of: TypeId) -> Place {
        let mut kept = lock(&self.kept);
        if let Some((_, place)) = kept.iter().find(|(known, _)| *known == of) {
            return Arc::clone(place);
        }
        let place = Place::default();
        kept.push((of, Arc::clone(&place)));
        place
    }
}

impl fmt::Debug for Extensions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Extensions").finish_non_exhaustive()
    }
}
