//! The report as a page for a browser: one file that needs no other.

use std::fmt::Write;

use super::help::LEGEND;
use super::report::Report;
use super::table::{Grid, grids, headline};

const STYLE: &str = "\
body { font: 14px/1.5 system-ui, sans-serif; max-width: 72em; margin: 2em auto; padding: 0 1em; }
table { border-collapse: collapse; margin: 1.5em 0; }
caption { text-align: left; font-weight: bold; }
th, td { padding: .15em .8em; text-align: right; font-variant-numeric: tabular-nums; }
th:first-child, td:first-child { text-align: left; }
thead th { border-bottom: 1px solid; }
td small { display: block; opacity: .6; }
";

/// The whole page.
pub(crate) fn render(report: &Report) -> String {
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n\
         <title>Caches side by side</title>\n<style>\n{STYLE}</style>\n\
         <h1>Caches side by side</h1>\n<p>{}</p>\n",
        escape(&headline(report))
    );
    for grid in grids(report) {
        add(&mut page, &grid);
    }
    page.push_str("<ul>\n");
    let notes = report.notes.iter().map(|note| format!("Note: {note}"));
    for line in notes.chain(LEGEND.map(str::to_owned)) {
        // Writing to a string cannot fail.
        let _ = writeln!(page, "<li>{}</li>", escape(&line));
    }
    page.push_str("</ul>\n</html>\n");
    page
}

fn add(page: &mut String, grid: &Grid) {
    let mut add = |part: &str| page.push_str(part);
    add(&format!("<table>\n<caption>{}</caption>\n<thead><tr><th>peer</th>", escape(&grid.title)));
    for title in &grid.columns {
        add(&format!("<th>{}</th>", escape(title)));
    }
    add("</tr></thead>\n<tbody>\n");
    for (peer, figures) in &grid.rows {
        add(&format!("<tr><td>{}</td>", escape(peer)));
        for shown in figures {
            let [median, beside] = [&shown.median, &shown.beside].map(|text| escape(text));
            add(&format!("<td>{median}<small>{beside}</small></td>"));
        }
        add("</tr>\n");
    }
    add("</tbody>\n</table>\n");
}

/// Escapes text for an element.
fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::report;
    use super::*;

    #[test]
    fn the_page_has_everything_and_what_is_no_markup_is_escaped() {
        let page = render(&report());
        assert!(page.contains("<caption>read-0.99-100k, 2 threads</caption>"), "{page}");
        assert!(page.contains("<td>moka</td><td>450<small>300..600</small></td>"), "{page}");
        assert!(page.contains("something &lt;odd&gt;") && !page.contains("<odd>"), "{page}");
        assert_eq!(page.matches("<tr>").count(), page.matches("</tr>").count());
    }
}
