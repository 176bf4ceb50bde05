//! Where items wait until a worker takes them: the home queues of each pool, with lanes for CPUs.

pub(crate) mod home_queue;
pub(crate) mod lanes;
pub(crate) mod pools;
