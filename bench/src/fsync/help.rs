//! The text about the comparison: how to read it, and what to try.

/// Below the options.
pub(crate) const HELP: &str = "\
What is measured:
  bulk     so many new files, written and closed before the clock starts; each is opened, made
           durable and closed again. How fast is a program that has many files to sync?
  stream   each issuer writes a new file, syncs it, and goes on with the next. What does one sync
           take where many are under way?
  lone     one issuer of a stream, by itself and beside a bulk. Does the bulk take from others?

Strategies:
  fsync              the system call, on a thread for each issuer; with one issuer: serial
  linux-aio          io_submit with IOCB_CMD_FSYNC
  io_uring           with the workers that the kernel gives
  io_uring-workers   with as many workers as there are issuers
  posix-aio          aio_fsync of the C library, which has 20 threads at most
  tokio, tokio-all   tokio::fs::File::sync_all, a task for each issuer or for each file
  syncfs             the bound: all at once, and nobody is told which file failed
  syncfs-opened      the same for who has opened all files, as is needed to ask for each
  homing             Durable::fsync_and_wait, on a thread for each issuer
  homing-async       Durable::fsync of each file; each issuer begins all of its own, then waits;
                     in a stream it is a task that awaits each
  homing-many        Durable::fsync_many of all files
  homing-files       the same, each file by itself, as on filesystems that homing does not commit:
                     as many side by side as there are issuers; with one, as homing finds best

Disks:
  --loop makes filesystems on loop devices; --flush-delay puts them on disks in memory, served by
  FUSE, that take so long for a flush and do nothing else meanwhile. Both take root, and all of it
  goes with this program, even where that is killed. What is not to be had here is left out, and
  the report says why.

Examples:
  homing-bench fsync --dir . --shapes bulk
  homing-bench fsync --dir . --loop xfs,ext4 --flush-delay 0.2,1,5 --json > fsync.json
  homing-bench fsync --dir . --shapes bulk --fs-mark";
