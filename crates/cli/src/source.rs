//! Reads attributes for people: one that is missing, because it is new, gone or of another version,
//! is a gap in the picture and no error.

use std::collections::{BTreeMap, BTreeSet};

use comfy_table::{CellAlignment, ColumnConstraint, Table, Width, presets};
use homing_control::{Client, ClientError, printable_name};

use crate::attributes::ControlArgs;

/// Stands for what is not known.
pub(crate) const UNKNOWN: &str = "-";
/// Blanks between columns.
const GAP: u16 = 2;

/// A program's attributes.
pub(crate) struct Source {
    client: Client,
    paths: Vec<String>,
}

impl Source {
    /// Connects and learns which attributes at or below `prefix` there are.
    pub(crate) fn connect(control: &ControlArgs, prefix: &str) -> Result<Self, ClientError> {
        let mut client = control.connect()?;
        let paths = client.list(prefix)?.into_iter().map(|attribute| attribute.path).collect();
        Ok(Self { client, paths })
    }

    /// The names in `KIND/NAME/attribute`, each once, in order.
    pub(crate) fn names(&self, kind: &str) -> Vec<String> {
        let names = self.below(kind).filter_map(|rest| rest.rsplit_once('/'));
        // Not `dedup`: the paths of `a/b` are among those of `a`.
        let names: BTreeSet<_> = names.map(|(name, _)| name.to_owned()).collect();
        names.into_iter().collect()
    }

    /// The names in `KIND/NAME`, in the order of numbers if they are numbers.
    pub(crate) fn leaves(&self, kind: &str) -> Vec<String> {
        let mut names: Vec<_> = self.below(kind).map(ToOwned::to_owned).collect();
        names.sort_by_key(|name| name.parse::<u64>().unwrap_or(u64::MAX));
        names
    }

    fn below<'a>(&'a self, kind: &'a str) -> impl Iterator<Item = &'a str> {
        self.paths.iter().filter_map(move |path| path.strip_prefix(kind)?.strip_prefix('/'))
    }

    /// A value, without the newline at its end; `None` if it cannot be had.
    pub(crate) fn get(&mut self, path: &str) -> Result<Option<String>, ClientError> {
        match self.client.get(path) {
            Ok(value) => Ok(Some(value.trim_end().to_owned())),
            Err(ClientError::Attribute(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// The lines "KEY VALUE" of a flat keyed attribute.
pub(crate) fn keyed(text: &str) -> BTreeMap<&str, &str> {
    let pairs = text.lines().map(|line| line.split_once(' ').unwrap_or((line, "")));
    pairs.map(|(key, value)| (key, value.trim())).collect()
}

/// A table without rules, with one line of text in each cell. Columns from `right_from` on are
/// aligned to the right. `least` has the least widths of the first columns, so that tables printed
/// one after the other look alike.
pub(crate) fn table(
    header: &[&str],
    rows: impl IntoIterator<Item = Vec<String>>,
    right_from: usize,
    least: &[u16],
) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(header.iter().map(|cell| printable_name(cell)));
    let printable = |row: Vec<String>| row.into_iter().map(|cell| printable_name(&cell));
    table.add_rows(rows.into_iter().map(printable));
    for (index, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, GAP));
        if let Some(width) = least.get(index) {
            let least = Width::Fixed(width + GAP);
            column.set_constraint(ColumnConstraint::LowerBoundary(least));
        }
        if index >= right_from {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.trim_fmt() + "\n"
}
