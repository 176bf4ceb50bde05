//! Reads traces that are text: a key on each line, or in a column of CSV.
//!
//! Two keys are the same if their texts are the same. A decimal number (without zeros before it, of
//! 64 bits at most) stands for itself, so that neighbours are neighbours. The key of any other text
//! is its hash; of ten million texts, two have the same hash once in 400,000 traces. All requests
//! are reads of tenant 0. Fields of CSV up to and including the key may not be quoted.

use std::hash::Hasher;
use std::io::{self, Read};
use std::path::Path;
use std::str::FromStr;

use rustc_hash::FxHasher;

use super::builder::Builder;
use super::format::{name_of, read_error};
use super::{Trace, TraceError};

/// A longer line is taken to be no key: memory does not grow with it.
const LINE_LEN_MAX: usize = 1 << 16;
/// How much of a line an error quotes.
const TOLD_LEN: usize = 60;

/// A column of CSV.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Column {
    /// The first is 1. The file has no header.
    Number(usize),
    /// The name that the first line gives it.
    Name(String),
}

impl FromStr for Column {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse() {
            Ok(0) => Err("columns are counted from 1".to_owned()),
            Ok(number) => Ok(Self::Number(number)),
            Err(_) if text.trim().is_empty() => Err("a column has a number or a name".to_owned()),
            Err(_) => Ok(Self::Name(text.trim().to_owned())),
        }
    }
}

/// Where the key of the next line is.
enum Place<'a> {
    Line,
    /// In the column of this index.
    Column(usize),
    /// Nowhere: the line is the header, which has the column of this name.
    Header(&'a str),
}

/// A text that is being read.
struct Text<'a> {
    file: &'a Path,
    place: Place<'a>,
    requests_max: u64,
    /// Lines so far.
    line: u64,
    builder: Builder,
}

/// Reads all of `source`. The keys are in this column, or are whole lines.
pub(super) fn read(
    file: &Path,
    mut source: impl Read,
    column: Option<&Column>,
    requests_max: u64,
) -> Result<Trace, TraceError> {
    let place = match column {
        None => Place::Line,
        Some(Column::Number(number)) => Place::Column(number.saturating_sub(1)),
        Some(Column::Name(name)) => Place::Header(name),
    };
    let builder = Builder::new(name_of(file));
    let mut text = Text { file, place, requests_max, line: 0, builder };
    let mut buffer = vec![0; 2 * LINE_LEN_MAX];
    let (mut offset, mut len) = (0, 0);
    loop {
        let more = match source.read(&mut buffer[len..]) {
            Ok(more) => more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(read_error(file, offset, error)),
        };
        offset += more as u64;
        let seen = len;
        len += more;
        if more == 0 {
            if len > 0 {
                text.line(&buffer[..len])?;
            }
            return Ok(text.builder.build());
        }
        if let Some(end) = buffer[seen..len].iter().rposition(|byte| *byte == b'\n') {
            let end = seen + end;
            for line in buffer[..end].split(|byte| *byte == b'\n') {
                text.line(line)?;
            }
            buffer.copy_within(end + 1..len, 0);
            len -= end + 1;
        }
        if len > LINE_LEN_MAX {
            text.line += 1;
            let problem = format!("is longer than {LINE_LEN_MAX} bytes: is this text?");
            return Err(text.refused(&buffer[..len], &problem));
        }
    }
}

impl Text<'_> {
    fn line(&mut self, line: &[u8]) -> Result<(), TraceError> {
        self.line += 1;
        let key = match self.place {
            Place::Line => line.trim_ascii(),
            Place::Column(index) => self.field(line, index)?,
            Place::Header(name) => return self.header(line, name),
        };
        if key.is_empty() {
            return Err(self.refused(line, "has no key"));
        }
        if self.builder.len() as u64 == self.requests_max {
            let (file, requests_max) = (self.file.to_owned(), self.requests_max);
            return Err(TraceError::TooManyLines { file, line: self.line, requests_max });
        }
        if !self.builder.push(key_of(key), false, 0) {
            return Err(TraceError::TooManyPages { file: self.file.to_owned() });
        }
        Ok(())
    }

    fn header(&mut self, line: &[u8], name: &str) -> Result<(), TraceError> {
        let line = line.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(line);
        let mut names = line.split(|byte| *byte == b',').map(unquoted);
        let index = names.position(|one| one == name.as_bytes());
        let missing = || self.refused(line, &format!("is the header and names no {name:?}"));
        self.place = Place::Column(index.ok_or_else(missing)?);
        Ok(())
    }

    fn field<'line>(&self, line: &'line [u8], index: usize) -> Result<&'line [u8], TraceError> {
        let mut quoted = false;
        for (at, field) in line.split(|byte| *byte == b',').enumerate() {
            quoted |= field.contains(&b'"');
            if at < index {
                continue;
            }
            if quoted {
                return Err(self.refused(line, "has a quoted field: write it without quotes"));
            }
            return Ok(field.trim_ascii());
        }
        Err(self.refused(line, &format!("has no column {}", index + 1)))
    }

    fn refused(&self, line: &[u8], problem: &str) -> TraceError {
        let told = &line[..line.len().min(TOLD_LEN)];
        TraceError::Line {
            file: self.file.to_owned(),
            line: self.line,
            value: String::from_utf8_lossy(told).trim_end().to_owned(),
            problem: problem.to_owned(),
        }
    }
}

/// A name in a header, which may be quoted.
fn unquoted(name: &[u8]) -> &[u8] {
    let name = name.trim_ascii();
    name.strip_prefix(b"\"").and_then(|name| name.strip_suffix(b"\"")).unwrap_or(name)
}

fn key_of(text: &[u8]) -> u64 {
    number(text).unwrap_or_else(|| {
        let mut hasher = FxHasher::default();
        hasher.write(text);
        hasher.finish()
    })
}

/// The number whose only text this is.
fn number(text: &[u8]) -> Option<u64> {
    if text[0] == b'0' && text.len() > 1 {
        return None;
    }
    text.iter().try_fold(0_u64, |number, byte| {
        let digit = byte.wrapping_sub(b'0');
        (digit <= 9).then_some(())?;
        number.checked_mul(10)?.checked_add(u64::from(digit))
    })
}
