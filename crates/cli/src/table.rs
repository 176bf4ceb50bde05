//! Tables for people, no wider than their terminal. What is not printed on a terminal is as wide as
//! it needs to be.

use comfy_table::{
    CellAlignment, ColumnConstraint, ContentArrangement, LineStyle, Row, Table, TableStyle, Width,
    presets,
};
use homing_control::printable_name;

/// Many rows, and no line between them.
const STYLE: TableStyle = TableStyle::new().header_separator(LineStyle::none().fill('─'));
/// Blanks between the columns of a table without rules.
const GAP: u16 = 2;
/// Where texts have less room than this, words do not look like lines any more.
const TEXT_MIN: u16 = 24;

/// A table with a rule below its header.
pub(crate) fn table<T: ToString>(header: &[T]) -> Table {
    let mut table = Table::new();
    table.load_style(STYLE);
    table.set_header(header.iter().map(ToString::to_string));
    table
}

/// Aligns the columns from `first` on, which hold numbers, to the right.
pub(crate) fn align(table: &mut Table, first: usize) {
    for column in table.column_iter_mut().skip(first) {
        column.set_cell_alignment(CellAlignment::Right);
    }
}

/// A table of figures. If it is wider than the terminal, it comes in parts, one below the other,
/// each with the first `keys` columns.
pub(crate) fn in_parts(table: &Table, keys: usize) -> String {
    parts_within(table, keys, table.width())
}

fn parts_within(table: &Table, keys: usize, width: Option<u16>) -> String {
    let widths = widths(table);
    let room = width.unwrap_or(u16::MAX);
    let own = sum(&widths[..keys.min(widths.len())]);
    let mut parts: Vec<Vec<usize>> = Vec::new();
    let mut taken = u16::MAX;
    for (column, width) in widths.iter().enumerate().skip(keys) {
        // The blanks behind the last one may be outside.
        if parts.is_empty() || taken.saturating_add(*width) > room.saturating_add(1) {
            parts.push(Vec::new());
            taken = own;
        }
        taken = taken.saturating_add(*width);
        parts.last_mut().expect("one was pushed").push(column);
    }
    if parts.len() < 2 {
        return table.trim_fmt();
    }
    let part = |shown: &Vec<usize>| {
        let mut part = table.clone();
        for (index, column) in part.column_iter_mut().enumerate() {
            if index >= keys && !shown.contains(&index) {
                column.set_constraint(ColumnConstraint::Hidden);
            }
        }
        part.trim_fmt()
    };
    parts.iter().map(part).collect::<Vec<_>>().join("\n\n")
}

/// A table whose last column holds texts. They are wrapped within the terminal.
pub(crate) fn texts(table: &Table) -> String {
    texts_within(table, table.width())
}

fn texts_within(table: &Table, width: Option<u16>) -> String {
    let mut widths = widths(table);
    widths.pop();
    let needed = sum(&widths).saturating_add(TEXT_MIN);
    let Some(width) = width.filter(|width| *width >= needed) else {
        return table.trim_fmt();
    };
    let mut table = table.clone();
    table.set_content_arrangement(ContentArrangement::Dynamic).set_width(width);
    for column in table.column_iter_mut().take(widths.len()) {
        column.set_constraint(ColumnConstraint::ContentWidth);
    }
    table.trim_fmt()
}

fn sum(widths: &[u16]) -> u16 {
    widths.iter().fold(0, |sum, width| sum.saturating_add(*width))
}

/// How much of a line each column takes.
fn widths(table: &Table) -> Vec<u16> {
    let of_content = table.column_max_content_widths().into_iter();
    let width = |(content, column): (u16, &comfy_table::Column)| {
        let least = match column.constraint() {
            Some(ColumnConstraint::LowerBoundary(Width::Fixed(width))) => *width,
            _ => 0,
        };
        least.max(content.saturating_add(column.padding_width()))
    };
    of_content.zip(table.column_iter()).map(width).collect()
}

/// A table without rules, with one line of text in each cell. Columns from `right_from` on are
/// aligned to the right. `least` has the least widths of the first columns, so that tables printed
/// one after the other look alike. The first column is in each part, if there are several.
pub(crate) fn plain(
    header: &[&str],
    rows: impl IntoIterator<Item = Vec<String>>,
    right_from: usize,
    least: &[u16],
) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(header.iter().map(|cell| printable_name(cell)));
    let printable = |row: Vec<String>| Row::from(row.iter().map(|cell| printable_name(cell)));
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
    in_parts(&table, 1) + "\n"
}

/// `1234567` as `1,234,567`.
pub(crate) fn grouped(number: u64) -> String {
    grouped_digits(&number.to_string())
}

/// As [`grouped`], from digits.
pub(crate) fn grouped_digits(digits: &str) -> String {
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped() {
        for (number, text) in
            [(0, "0"), (999, "999"), (1000, "1,000"), (12_345, "12,345"), (1_234_567, "1,234,567")]
        {
            assert_eq!(grouped(number), text);
        }
    }

    /// Columns of eight, six, eight and six.
    fn wide() -> Table {
        let mut table = table(&["policy", "one", "second", "last"]);
        table.add_row(["fifo", "1", "22", "333"]);
        table.add_row(["lru", "4", "5", "6"]);
        align(&mut table, 1);
        table
    }

    #[test]
    fn figures_come_in_parts_that_fit_each_with_its_keys() {
        let whole = " policy  one  second  last\n";
        for width in [None, Some(200), Some(27)] {
            let text = parts_within(&wide(), 1, width);
            assert!(text.starts_with(whole), "{width:?}: {text}");
        }
        let parts = parts_within(&wide(), 1, Some(22));
        let heads: Vec<_> = parts.lines().filter(|line| line.contains("policy")).collect();
        assert_eq!(heads, [" policy  one  second", " policy  last"]);
        assert!(parts.contains(" lru       4       5\n\n policy"), "{parts}");
        assert!(parts.lines().all(|line| line.chars().count() <= 22), "{parts}");
        // Where not even one column has room, each is alone.
        assert_eq!(parts_within(&wide(), 1, Some(5)).matches("policy").count(), 3);
    }

    #[test]
    fn texts_are_wrapped_within_the_width() {
        let mut table = table(&["name", "what it is"]);
        table.add_row(["wq", "work that is queued by many and done where the data is"]);
        let lines = |width| texts_within(&table, width).lines().map(str::len).collect::<Vec<_>>();
        assert_eq!(lines(None).len(), 3);
        let texts = texts_within(&table, Some(40));
        assert!(texts.lines().count() > 3, "{texts}");
        assert!(texts.lines().all(|line| line.chars().count() <= 40), "{texts}");
        // A word for each line would help nobody.
        assert_eq!(lines(Some(20)), lines(None));
    }
}
