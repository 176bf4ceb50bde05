//! Cuts a stream of bytes into lines of bounded length. Does no I/O.

/// A line, or what became of it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Line {
    /// Without its newline.
    Whole(Vec<u8>),
    /// It is longer than the limit. This is said as soon as it is known; the rest of the line is
    /// skipped, and the next one is read as usual.
    TooLong,
}

/// What has come and is not cut into lines yet.
#[derive(Debug)]
pub(crate) struct Lines {
    bytes: Vec<u8>,
    /// There is no newline before this index, so nothing is searched twice.
    searched: usize,
    length_max: usize,
    skipping: bool,
}

impl Lines {
    pub(crate) fn new(length_max: usize) -> Self {
        Self { bytes: Vec::new(), searched: 0, length_max, skipping: false }
    }

    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Whether a line has begun that has not ended.
    pub(crate) fn is_within_line(&self) -> bool {
        self.skipping || !self.bytes.is_empty()
    }

    /// The first byte of the line that has begun.
    pub(crate) fn first_byte(&self) -> Option<u8> {
        self.bytes.first().copied()
    }

    pub(crate) fn next(&mut self) -> Option<Line> {
        loop {
            let newline = self.bytes[self.searched..].iter().position(|byte| *byte == b'\n');
            let Some(length) = newline.map(|at| self.searched + at) else {
                self.searched = self.bytes.len();
                if self.skipping {
                    self.forget(self.bytes.len());
                } else if self.bytes.len() > self.length_max {
                    self.skipping = true;
                    self.forget(self.bytes.len());
                    return Some(Line::TooLong);
                }
                return None;
            };
            if self.skipping {
                self.skipping = false;
                self.forget(length + 1);
                continue;
            }
            if length > self.length_max {
                self.forget(length + 1);
                return Some(Line::TooLong);
            }
            let line = self.bytes[..length].to_vec();
            self.forget(length + 1);
            return Some(Line::Whole(line));
        }
    }

    fn forget(&mut self, count: usize) {
        self.bytes.drain(..count);
        self.searched = 0;
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    const LIMIT: usize = 4;

    proptest! {
        #[test]
        fn however_the_bytes_come_the_lines_are_the_same(
            bytes in vec(prop_oneof![Just(b'\n'), Just(b'a'), Just(b'b')], 0..60),
            chunk in 1_usize..20,
        ) {
            let mut lines = Lines::new(LIMIT);
            let mut found = Vec::new();
            for chunk in bytes.chunks(chunk) {
                lines.push(chunk);
                found.extend(std::iter::from_fn(|| lines.next()));
            }
            let mut parts: Vec<&[u8]> = bytes.split(|byte| *byte == b'\n').collect();
            let open = parts.pop().unwrap();
            let line = |part: &[u8]| match part.len() {
                0..=LIMIT => Line::Whole(part.to_vec()),
                _ => Line::TooLong,
            };
            let mut expected: Vec<_> = parts.into_iter().map(line).collect();
            if open.len() > LIMIT {
                expected.push(Line::TooLong); // known before it ends
            }
            prop_assert_eq!(found, expected);
            prop_assert_eq!(lines.is_within_line(), !open.is_empty());
        }
    }
}
