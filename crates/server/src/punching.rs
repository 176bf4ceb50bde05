//! Writes long zeroes, and discards, a piece at a time, so that requests that wait for a worker or
//! a flush do not wait for gigabytes, and a client that has gone leaves little to be done.

use std::sync::Arc;

use homing::blocking;
use homing_volume::{Block, BlockError, Durability};

use crate::job::Job;
use crate::server::Shared;

/// What is done with a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Punch {
    Zeroes,
    Discard,
}

impl Punch {
    /// How much is done at a time. Zeroes are encrypted and written; a discard is mostly a note of
    /// the filesystem, which keeps other writers of the file waiting, 60 ms for so much; and each
    /// piece is looked for in the cache, as long as 1 ms for each GiB of that.
    pub(crate) const fn piece(self) -> u64 {
        match self {
            Self::Zeroes => 8 << 20,
            Self::Discard => 256 << 20,
        }
    }

    pub(crate) fn run(
        self,
        device: &dyn Block,
        offset: u64,
        length: u64,
    ) -> Result<(), BlockError> {
        match self {
            Self::Zeroes => device.write_zeroes(offset, length, Durability::Written),
            Self::Discard => device.discard(offset, length),
        }
    }
}

/// What a range weighs at most among a connection's requests in flight: two long ones leave room
/// for others.
pub(crate) const WEIGHT_MAX: u32 = 60 << 20;

pub(crate) struct Punching {
    pub(crate) what: Punch,
    pub(crate) job: Job,
    pub(crate) device: Arc<dyn Block>,
    pub(crate) shared: Arc<Shared>,
    /// The index of its export.
    pub(crate) export: usize,
    pub(crate) next: u64,
    pub(crate) end: u64,
    pub(crate) fua: bool,
}

impl Punching {
    /// Lets a worker write the next piece, after what others have asked for meanwhile.
    pub(crate) fn queue(self) {
        let shared = Arc::clone(&self.shared);
        shared.crypt.execute(move || self.go_on());
    }

    fn go_on(mut self) {
        if self.job.is_given_up() {
            return;
        }
        let length = self.what.piece().min(self.end - self.next);
        if let Err(error) = self.what.run(&*self.device, self.next, length) {
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
