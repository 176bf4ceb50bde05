//! The cells of a comparison, measured one after the other in several rounds.

use std::ops::ControlFlow;
use std::path::Path;

use anyhow::Context;
use indicatif::ProgressBar;
use tempfile::TempDir;

use crate::interrupt::Interrupt;
use crate::progress::bar;

/// The cells that are being measured, with a folder for throw-away files, and notes about those
/// that are missing.
pub(crate) struct Rounds<'a> {
    interrupt: &'a Interrupt,
    folder: TempDir,
    bar: ProgressBar,
    count: u64,
    measured: usize,
    notes: Vec<String>,
}

impl<'a> Rounds<'a> {
    /// Begins with none of `count` cells, in all rounds together.
    pub(crate) fn begin(count: u64, interrupt: &'a Interrupt) -> anyhow::Result<Self> {
        let folder = tempfile::Builder::new().prefix("homing-bench-").tempdir();
        let folder = folder.context("there is no folder for throw-away files")?;
        let bar = bar(count, "{wide_bar} {pos}/{len} {msg}, {eta} left")?;
        Ok(Self { interrupt, folder, bar, count, measured: 0, notes: Vec::new() })
    }

    /// Measures a cell. One that fails is left out, and does not take the others with it. After
    /// Ctrl-C nothing more is to be measured.
    pub(crate) fn measure<F>(
        &mut self,
        round: u32,
        cell: &str,
        measure: impl FnOnce(&Path, &Interrupt) -> anyhow::Result<F>,
    ) -> ControlFlow<(), Option<F>> {
        self.bar.set_message(format!("round {round}: {cell}"));
        let figures = match measure(self.folder.path(), self.interrupt) {
            Ok(figures) => {
                self.measured += 1;
                Some(figures)
            }
            Err(_) if self.interrupt.check().is_err() => {
                let (measured, count) = (self.measured, self.count);
                self.notes
                    .push(format!("interrupted in round {round}: {measured} of {count} cells"));
                return ControlFlow::Break(());
            }
            Err(error) => {
                self.notes.push(format!("left out in round {round}: {error:#}"));
                None
            }
        };
        self.bar.inc(1);
        ControlFlow::Continue(figures)
    }

    /// What is to be said of cells that are missing.
    pub(crate) fn end(self) -> Vec<String> {
        self.bar.finish_and_clear();
        self.notes
    }
}
