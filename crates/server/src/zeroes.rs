//! Writes long zeroes a piece at a time, so that requests that wait for a worker or a flush do not
//! wait for gigabytes, and a client that has gone leaves little to be done.

use std::sync::Arc;

use homing::blocking;
use homing_volume::{Block, Durability};

use crate::job::Job;
use crate::server::Shared;

/// How much is written at a time.
pub(crate) const PIECE: u64 = 8 << 20;

/// What zeroes weigh at most among a connection's requests in flight: two long ones leave room for
/// others.
pub(crate) const WEIGHT_MAX: u32 = 60 << 20;

pub(crate) struct Zeroes {
    pub(crate) job: Job,
    pub(crate) device: Arc<dyn Block>,
    pub(crate) shared: Arc<Shared>,
    /// The index of its export.
    pub(crate) export: usize,
    pub(crate) next: u64,
    pub(crate) end: u64,
    pub(crate) fua: bool,
}

impl Zeroes {
    /// Lets a worker write the next piece, after what others have asked for meanwhile.
    pub(crate) fn queue(self) {
        let shared = Arc::clone(&self.shared);
        shared.crypt.execute(move || self.go_on());
    }

    fn go_on(mut self) {
        if self.job.is_cut_off() {
            return;
        }
        let length = PIECE.min(self.end - self.next);
        let written = self.device.write_zeroes(self.next, length, Durability::Written);
        if let Err(error) = written {
            return self.job.answer(Err(error));
        }
        self.next += length;
        if self.next < self.end {
            self.queue();
        } else if self.fua {
            self.flush();
        } else {
            self.job.answer(Ok(()));
        }
    }

    fn flush(self) {
        let Self { job, device, shared, export, .. } = self;
        let queue = shared.flushes[export].clone();
        queue.execute(move || {
            let done = Box::new(move |result| job.answer(result));
            blocking(|| device.flush_through(&shared.durable, done));
        });
    }
}
