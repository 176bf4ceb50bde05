//! The page cache's background work on a workqueue.

use homing::pages::{Background, Job};
use homing::{Runtime, Workqueue, WorkqueueError};

/// Writes back, reclaims and reads ahead on the workqueue `writeback`.
pub struct OnWorkqueue(Workqueue);

impl OnWorkqueue {
    /// Makes the workqueue. It makes progress even if no thread can be created, since memory may
    /// depend on it.
    pub fn new(runtime: &Runtime) -> Result<Self, WorkqueueError> {
        Ok(Self(runtime.workqueue("writeback").mem_reclaim().blocking().build()?))
    }
}

impl Background for OnWorkqueue {
    fn spawn(&self, job: Job) {
        // If the runtime has ended, the job is dropped; a flush then writes back itself.
        self.0.execute(job);
    }
}
