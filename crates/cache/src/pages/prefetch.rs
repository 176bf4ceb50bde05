//! Reads pages before they are asked for, in the background. What finds no frame is not read, and an
//! error is left to whoever asks for the page.

use std::ops::Range;

use super::core::{CHUNK, Core};
use super::file::FileState;
use super::fill::{Begun, Demand};
use super::frame::Flags;
use crate::sync::lock;

/// Ranges that wait to be read: who has more to say is not heard.
const WANTED_MAX: usize = 64;

impl Core {
    pub(super) fn prefetch(&self, file: &FileState, pages: Range<u64>) {
        let mut wanted = lock(&self.wanted);
        if wanted.len() < WANTED_MAX && !pages.is_empty() {
            wanted.push_back((file.number, pages));
            drop(wanted);
            self.wake_service();
        }
    }

    /// Reads all that is wanted.
    pub(super) fn read_ahead(&self) {
        loop {
            let next = lock(&self.wanted).pop_front();
            let Some((number, pages)) = next else { return };
            if let Some(file) = self.file(number) {
                self.read_range_ahead(&file, pages);
            }
        }
    }

    fn read_range_ahead(&self, file: &FileState, pages: Range<u64>) {
        let mut buffer = Vec::new();
        let mut page = pages.start;
        // The number may be another, shorter file's by now.
        let pages_end = pages.end.min(self.pages_of(0, file.size).end);
        while page < pages_end {
            let end = pages_end.min((page / CHUNK + 1) * CHUNK);
            match self.begin(self.shard_of(file, page), file, page..end, Demand::Ahead) {
                Begun::Full(_) => return,
                Begun::Present | Begun::Wait(_) => page += 1,
                Begun::Loading(loading) => {
                    page = loading.pages.end;
                    buffer.resize(loading.len(), 0);
                    if self.fetch(file, &loading.pages, &mut buffer).is_err() {
                        return;
                    }
                    loading.complete(&buffer, Flags::NONE);
                }
            }
        }
    }
}
