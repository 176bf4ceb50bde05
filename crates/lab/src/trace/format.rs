//! Reads traces in any of the formats, plain or compressed with zstd.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use super::text::Column;
use super::{REQUESTS_MAX, Trace, TraceError, container, text};

const ZSTD_MAGIC: [u8; 4] = [0x28, 0xB5, 0x2F, 0xFD];
/// Bytes of a file that are read at a time.
const PIECE_LEN: usize = 1 << 16;

/// What a file with a trace looks like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Format {
    /// A container: binary, with runs, writes and tenants.
    Ctr,
    /// Text: a key on each line.
    Txt,
    /// Text: a key in this column of each line, columns with commas between them.
    Csv(Column),
}

impl Trace {
    /// Reads a container of at most [`REQUESTS_MAX`] requests from a file.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, TraceError> {
        Self::load_as(path, &Format::Ctr, REQUESTS_MAX)
    }

    /// Reads a trace in this format, of at most so many requests, from a file.
    pub fn load_as(
        path: impl AsRef<Path>,
        format: &Format,
        requests_max: u64,
    ) -> Result<Self, TraceError> {
        let path = path.as_ref();
        let file = File::open(path)
            .map_err(|source| TraceError::Open { file: path.to_owned(), source })?;
        Self::read_as(path, file, format, requests_max)
    }

    /// Reads a container of at most so many requests. `name` is what errors call its source, and
    /// the last part of it becomes the trace's name, without extensions.
    pub fn read(
        name: impl AsRef<Path>,
        source: impl Read,
        requests_max: u64,
    ) -> Result<Self, TraceError> {
        Self::read_as(name, source, &Format::Ctr, requests_max)
    }

    /// Like [`Trace::read`], of another format.
    pub fn read_as(
        name: impl AsRef<Path>,
        source: impl Read,
        format: &Format,
        requests_max: u64,
    ) -> Result<Self, TraceError> {
        let file = name.as_ref();
        let mut source = BufReader::with_capacity(PIECE_LEN, source);
        let head = source.fill_buf().map_err(|source| read_error(file, 0, source))?;
        if head.starts_with(&ZSTD_MAGIC) {
            let plain =
                zstd::Decoder::with_buffer(source).map_err(|source| read_error(file, 0, source))?;
            parse(file, plain, format, requests_max)
        } else {
            parse(file, source, format, requests_max)
        }
    }
}

fn parse(
    file: &Path,
    source: impl Read,
    format: &Format,
    requests_max: u64,
) -> Result<Trace, TraceError> {
    match format {
        Format::Ctr => container::read(file, source, requests_max),
        Format::Txt => text::read(file, source, None, requests_max),
        Format::Csv(column) => text::read(file, source, Some(column), requests_max),
    }
}

pub(super) fn read_error(file: &Path, offset: u64, source: io::Error) -> TraceError {
    TraceError::Read { file: file.to_owned(), offset, source }
}

/// `traces/oltp.ctr.zst` is called `oltp`.
pub(super) fn name_of(path: &Path) -> String {
    let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
    let name = name.strip_suffix(".zst").unwrap_or(&name);
    let known = [".ctr", ".txt", ".csv"].iter().find_map(|end| name.strip_suffix(end));
    known.unwrap_or(name).to_owned()
}
