//! Links between the repository's Markdown files: each leads to a file, and to a heading of it.

use std::fs;
use std::path::Path;

/// Notes the links of a Markdown file that lead nowhere.
pub(crate) fn check(name: &str, path: &Path, text: &str, problems: &mut Vec<String>) {
    for (target, heading) in links(text) {
        let to = if target.is_empty() {
            path.to_owned()
        } else {
            path.parent().unwrap_or(Path::new("")).join(target)
        };
        if !to.exists() {
            problems.push(format!("{name}: the link {target} leads nowhere"));
        } else if let Some(heading) = heading
            && let Ok(text) = fs::read_to_string(&to)
            && !headings(&text).any(|known| known == heading)
        {
            problems.push(format!("{name}: {target} has no heading #{heading}"));
        }
    }
}

/// Relative targets of links, each with the heading that it leads to, if any.
fn links(text: &str) -> impl Iterator<Item = (&str, Option<&str>)> {
    text.match_indices("](").filter_map(|(at, _)| {
        let link = text[at + 2..].split(')').next()?;
        let (target, heading) =
            link.split_once('#').map_or((link, None), |(target, heading)| (target, Some(heading)));
        let is_ours = !link.is_empty() && !link.contains("://") && !link.contains(' ');
        is_ours.then_some((target, heading))
    })
}

/// The headings of a Markdown file, as links name them.
fn headings(text: &str) -> impl Iterator<Item = String> {
    let headings = text.lines().filter(|line| line.starts_with('#'));
    headings.map(|line| {
        let words = line.trim_start_matches('#').trim().to_lowercase();
        let kept = words.chars().filter(|c| c.is_alphanumeric() || [' ', '-', '_'].contains(c));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_and_headings_are_found() {
        let text = "[a](docs/a.md#x) [b](https://example.org) [c](#here) [d](d.md)";
        let found = [("docs/a.md", Some("x")), ("", Some("here")), ("d.md", None)];
        assert_eq!(links(text).collect::<Vec<_>>(), found);
        let text = "# A file\ntext\n## `homing serve`: what it does\n";
        assert_eq!(headings(text).collect::<Vec<_>>(), ["a-file", "homing-serve-what-it-does"]);
    }

    #[test]
    fn links_that_lead_nowhere_are_problems() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.md");
        let text = "# One\n[a](#one) [b](a.md#one) [c](#two) [d](b.md)";
        fs::write(&path, text).unwrap();
        let mut problems = Vec::new();
        check("a.md", &path, text, &mut problems);
        assert_eq!(problems.len(), 2, "{problems:?}");
        assert!(problems[0].contains("#two") && problems[1].contains("b.md"));
    }
}
