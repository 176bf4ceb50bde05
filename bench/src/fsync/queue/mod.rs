//! Queues that take requests to sync files and report their results later: the kernel's, and
//! POSIX's, behind one trait.

mod io_uring;
mod linux_aio;
mod posix_aio;

use std::fs::File;
use std::io;

pub(crate) use self::io_uring::IoUring;
pub(crate) use self::linux_aio::LinuxAio;
pub(crate) use self::posix_aio::PosixAio;

/// Syncs under way. Each has a slot, whose number is less than the depth of the queue.
pub(crate) trait Queue {
    /// Begins to sync `file`, which is kept until the sync has ended. The slot must be free.
    fn begin(&mut self, slot: usize, file: File) -> io::Result<()>;

    /// Waits for at least one of the syncs under way, of which there must be some. Returns the
    /// slots of those that have ended.
    ///
    /// # Errors
    /// Also if a sync failed.
    fn ended(&mut self) -> io::Result<Vec<usize>>;
}

/// What a kernel's answer to a sync means.
fn check(result: i64) -> io::Result<()> {
    if result < 0 {
        return Err(io::Error::from_raw_os_error(i32::try_from(-result).unwrap_or(libc::EIO)));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use super::*;

    /// Runs the test with each queue that is available here.
    fn with_each(depth: usize, test: impl Fn(&str, &mut dyn Queue)) {
        match LinuxAio::new(depth) {
            Ok(mut queue) => test("linux-aio", &mut queue),
            Err(error) => eprintln!("skipped: no Linux AIO here: {error}"),
        }
        match IoUring::new(depth, Some(4)) {
            Ok(mut queue) => test("io_uring", &mut queue),
            Err(error) => eprintln!("skipped: no io_uring here: {error}"),
        }
        test("posix-aio", &mut PosixAio::new(depth));
    }

    #[test]
    fn each_slot_ends_once_and_can_be_used_again() {
        let folder = tempfile::tempdir().unwrap();
        with_each(8, |name, queue| {
            for round in 0..3 {
                for slot in 0..8 {
                    let file = File::create(folder.path().join(format!("{round}-{slot}"))).unwrap();
                    queue.begin(slot, file).unwrap();
                }
                let mut ended = Vec::new();
                while ended.len() < 8 {
                    ended.extend(queue.ended().unwrap());
                }
                ended.sort_unstable();
                assert_eq!(ended, (0..8).collect::<Vec<_>>(), "{name}");
            }
        });
    }

    #[test]
    fn a_sync_that_fails_is_heard_of() {
        with_each(1, |name, queue| {
            // A pipe cannot be synced.
            let (reader, _writer) = io::pipe().unwrap();
            let begun = queue.begin(0, File::from(OwnedFd::from(reader)));
            let error = begun.and_then(|()| queue.ended()).expect_err(name);
            assert_eq!(error.raw_os_error(), Some(libc::EINVAL), "{name}");
        });
    }
}
