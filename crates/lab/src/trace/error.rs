//! What can go wrong while a trace is read. Reading any file ends in a trace or in one of these
//! errors.

use std::path::PathBuf;

/// Why a trace could not be read. Names the file, the offset in its uncompressed bytes, or the
/// line, and the value found there.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TraceError {
    /// The file could not be opened.
    #[error("cannot open {}", file.display())]
    Open {
        /// The file.
        file: PathBuf,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// The file could not be read on, or what it holds could not be decompressed.
    #[error("cannot read {} beyond byte {offset} of its contents", file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// How many bytes had been read.
        offset: u64,
        /// What the operating system or the decompressor said.
        source: std::io::Error,
    },
    /// The file begins with something else.
    #[error(
        "{} begins with {found:?}, not with \"CTR1\": a trace is a CTR1 container, plain or \
         compressed with zstd", file.display()
    )]
    Magic {
        /// The file.
        file: PathBuf,
        /// Its first bytes, as text.
        found: String,
    },
    /// The file ends before its header does.
    #[error(
        "{} ends at byte {len}, within the 16 bytes of its header: it was cut short", file.display()
    )]
    Header {
        /// The file.
        file: PathBuf,
        /// Where it ends.
        len: usize,
    },
    /// A container of another version.
    #[error("{} is a CTR1 container of version {version}, at byte 4: version 1 is known", file.display())]
    Version {
        /// The file.
        file: PathBuf,
        /// The version it says it has.
        version: u32,
    },
    /// The file ends too early.
    #[error(
        "{} ends at byte {offset} with {whole} whole records, but says at byte 8 that it has \
         {claimed}: it was cut short", file.display()
    )]
    Short {
        /// The file.
        file: PathBuf,
        /// Where it ends.
        offset: u64,
        /// Records that are there.
        whole: u64,
        /// Records that should be there.
        claimed: u64,
    },
    /// The file goes on behind its last record.
    #[error("{} goes on at byte {offset}, behind the {claimed} records that it says it has", file.display())]
    Long {
        /// The file.
        file: PathBuf,
        /// Where it should end.
        offset: u64,
        /// Records that it should have.
        claimed: u64,
    },
    /// A record that stands for no access.
    #[error("{}: the record at byte {offset} (key {key}) has a run of 0: a run is 1 or more", file.display())]
    EmptyRun {
        /// The file.
        file: PathBuf,
        /// Where the record begins.
        offset: u64,
        /// Its key.
        key: u64,
    },
    /// A run that goes beyond the last key.
    #[error(
        "{}: the record at byte {offset} has a run of {run} from key {key}, beyond the last key \
         {}", file.display(), u64::MAX
    )]
    RunOverflow {
        /// The file.
        file: PathBuf,
        /// Where the record begins.
        offset: u64,
        /// Its key.
        key: u64,
        /// Its run.
        run: u32,
    },
    /// More requests than the reader was told to take.
    #[error(
        "{}: the record at byte {offset} has a run of {run} and makes it more than {requests_max} \
         requests: raise the limit if there is memory for them", file.display()
    )]
    TooManyRequests {
        /// The file.
        file: PathBuf,
        /// Where the record begins.
        offset: u64,
        /// Its run.
        run: u32,
        /// The limit.
        requests_max: u64,
    },
    /// A line of a text that is not understood.
    #[error("{}: line {line}, {value:?}, {problem}", file.display())]
    Line {
        /// The file.
        file: PathBuf,
        /// Which line; the first is 1.
        line: u64,
        /// How the line begins.
        value: String,
        /// What is wrong with it.
        problem: String,
    },
    /// More requests in a text than the reader was told to take.
    #[error(
        "{}: line {line} makes it more than {requests_max} requests: raise the limit if there is \
         memory for them", file.display()
    )]
    TooManyLines {
        /// The file.
        file: PathBuf,
        /// Which line; the first is 1.
        line: u64,
        /// The limit.
        requests_max: u64,
    },
    /// More different pages than there are numbers for.
    #[error("{} has more than {} different pages", file.display(), super::PAGES_MAX)]
    TooManyPages {
        /// The file, or the name of the trace.
        file: PathBuf,
    },
    /// More traces than there are numbers for tenants.
    #[error("{count} traces cannot be mixed: a tenant is one of {}", 1 << 16)]
    TooManyTenants {
        /// How many were given.
        count: usize,
    },
}
