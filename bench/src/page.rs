//! The layout of a report: parts with an empty line between them, and notes at its end.

use std::fmt::Write;

use comfy_table::{LineStyle, TableStyle};

/// The style of tables in a terminal. Ranges stand below their medians: lines between the rows
/// would be too much.
pub(crate) const TERMINAL: TableStyle =
    TableStyle::new().header_separator(LineStyle::none().fill('─').junction('─'));

/// Where the text is to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// Columns, or boxes.
    Terminal,
    /// Tables for a README.
    Markdown,
}

/// Adds `part` below what is there.
pub(crate) fn section(text: &mut String, part: &str) {
    // Writing to a string cannot fail.
    let _ = write!(text, "\n\n{part}");
}

/// Adds the last part: notes on this run, and the meaning of the figures.
pub(crate) fn end(text: &mut String, notes: &[String], legend: &[&str]) {
    let notes = notes.iter().map(|note| format!("- Note: {note}"));
    let legend = legend.iter().map(|line| format!("- {line}"));
    section(text, &notes.chain(legend).collect::<Vec<_>>().join("\n"));
    text.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_notes_stand_before_the_legend_and_below_the_rest() {
        let mut text = "a machine".to_owned();
        section(&mut text, "a table");
        end(&mut text, &["something odd".to_owned()], &["x is y", "z is more"]);
        assert_eq!(text, "a machine\n\na table\n\n- Note: something odd\n- x is y\n- z is more\n");
    }
}
