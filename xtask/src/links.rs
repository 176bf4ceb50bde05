//! Links between the repository's Markdown files: each leads to a file, and to a heading of it.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// Notes the links of a Markdown file that lead nowhere.
pub(crate) fn check(name: &str, path: &Path, text: &str, problems: &mut Vec<String>) {
    for link in links(text) {
        let (target, heading) =
            link.split_once('#').map_or((link, None), |(target, heading)| (target, Some(heading)));
        let to = if target.is_empty() {
            path.to_owned()
        } else {
            path.parent().unwrap_or(Path::new("")).join(target)
        };
        if !to.exists() {
            problems.push(format!("{name}: the link {link} leads nowhere"));
        } else if let Some(heading) = heading
            && to.extension().is_some_and(|kind| kind == "md")
            && let Ok(text) = fs::read_to_string(&to)
            && !headings(&text).iter().any(|known| known == heading)
        {
            problems.push(format!("{name}: the link {link} leads to no heading"));
        }
    }
}

/// The lines that are no code.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut is_code = false;
    text.lines().filter(move |line| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        !is_code && !is_fence
    })
}

/// Where links lead within the repository.
fn links(text: &str) -> impl Iterator<Item = &str> {
    let of_line = |line| {
        let ends = str::match_indices(line, "](");
        ends.filter_map(move |(at, _)| line[at + 2..].split([')', ' ']).next())
    };
    let all = prose(text).flat_map(of_line);
    all.filter(|link| !link.is_empty() && !link.contains("://") && !link.starts_with("mailto:"))
}

/// The headings of a Markdown file, as links name them.
fn headings(text: &str) -> Vec<String> {
    let mut times: BTreeMap<String, usize> = BTreeMap::new();
    let headings = prose(text).filter_map(|line| {
        let (marks, words) = line.split_once(' ')?;
        (!marks.is_empty() && marks.chars().all(|mark| mark == '#')).then_some(words)
    });
    let named = headings.map(|words| {
        let words = words.trim().to_lowercase();
        let kept = words.chars().filter(|c| c.is_alphanumeric() || [' ', '-', '_'].contains(c));
        let name: String = kept.map(|c| if c == ' ' { '-' } else { c }).collect();
        let before = times.entry(name.clone()).or_default();
        *before += 1;
        if *before == 1 { name } else { format!("{name}-{}", *before - 1) }
    });
    named.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_and_headings_are_found() {
        let text = "[a](docs/a.md#x) [b](https://example.org) [c](#here \"there\") [d](d.md)\n\
                    ```sh\n# no heading\nb[0](c)\n```\n";
        assert_eq!(links(text).collect::<Vec<_>>(), ["docs/a.md#x", "#here", "d.md"]);
        let text = "# A file\n#text\n## `homing serve`: what it does\n```\n# code\n```\n# A file";
        assert_eq!(headings(text), ["a-file", "homing-serve-what-it-does", "a-file-1"]);
    }

    #[test]
    fn links_that_lead_nowhere_are_problems() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.md");
        let text = "# One\n[a](#one) [b](a.md#one) [c](#two) [d](b.md \"titled\")";
        fs::write(&path, text).unwrap();
        let mut problems = Vec::new();
        check("a.md", &path, text, &mut problems);
        assert_eq!(problems.len(), 2, "{problems:?}");
        assert!(problems[0].contains("#two") && problems[1].contains("b.md"));
    }
}
