//! The smallest possible pool: threads that read one crossbeam channel.

use std::thread;

use crossbeam_channel::Sender;

use super::Pool;

type Job = Box<dyn FnOnce() + Send>;

/// A channel of closures without a bound.
pub(crate) struct CbChannel(Sender<Job>);

impl Pool for CbChannel {
    fn start(workers: usize) -> anyhow::Result<Self> {
        let (sender, receiver) = crossbeam_channel::unbounded::<Job>();
        for _ in 0..workers {
            let receiver = receiver.clone();
            thread::Builder::new().spawn(move || receiver.iter().for_each(|job| job()))?;
        }
        Ok(Self(sender))
    }

    fn submit(&'static self, work: impl FnOnce() + Send + 'static) {
        // Receivers go only when this sender does.
        let _ = self.0.send(Box::new(work));
    }
}
