//! Whether there is room for another thread.

use std::io;

use memmap2::MmapMut;

/// How much memory must be left to the process, in bytes. Chosen: for what a thread takes besides
/// its stack when it begins (measured: some 16 KiB), and for what all others may need meanwhile.
const ROOM: usize = 1 << 20;

/// Fails if a thread should not be created, because the process has next to no memory left (`ulimit
/// -v`). The standard library ends the whole process
/// if a thread gets no memory for its signal stack: the creation itself may succeed before that,
/// because the C library uses the stacks of threads that have ended again.
///
/// # Errors
/// `ENOMEM`.
///
/// ```
/// if homing_socket::check_room_for_thread().is_ok() {
///     std::thread::spawn(|| ()).join().unwrap();
/// }
/// ```
pub fn check_room_for_thread() -> io::Result<()> {
    MmapMut::map_anon(ROOM).map(drop)
}
