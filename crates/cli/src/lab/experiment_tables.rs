//! What `homing lab run` prints for people: simulated figures beside the published ones.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use homing_lab::experiments::{
    Cost, EXPERIMENTS, Experiment, GivenCosts, Kind, Measure, PRESETS, Row, bracket, error, hosts,
    is_published, places, policies, rows, words,
};
use homing_lab::fsync;

use crate::table::{align, grouped_digits, in_parts, table, texts};

/// The experiments and what they are.
pub(super) fn list() -> String {
    let mut table = table(&["experiment", "what it is"]);
    for experiment in &EXPERIMENTS {
        table.add_row([experiment.name, experiment.about]);
    }
    table.add_row([fsync::NAME, fsync::ABOUT]);
    texts(&table)
}

/// The machines that have names.
pub(super) fn machines() -> String {
    let mut table = table(&["machine", "CPUs", "what it is"]);
    for preset in &PRESETS {
        let cpus = preset.machine().cpus().len().to_string();
        table.add_row([preset.name.to_owned(), cpus, preset.about.to_owned()]);
    }
    texts(&table)
}

/// What things cost on a simulated machine, with the source of each figure.
pub(super) fn costs(costs: &[(&str, Cost)]) -> String {
    let mut table = table(&["cost", "value", "source"]);
    for (name, cost) in costs {
        table.add_row([(*name).to_owned(), cost.value.to_string(), cost.source.to_string()]);
    }
    texts(&table)
}

/// A table for each experiment, machine and load.
pub(super) fn measures(measures: &[Measure], costs: &GivenCosts) -> String {
    let (mut text, mut widest) = (String::new(), 0.0);
    for experiment in &EXPERIMENTS {
        let rows = rows(experiment, measures, costs);
        widest = rows.iter().filter_map(|row| row.delta_sd).fold(widest, f64::max);
        for (machine, scenario, here) in places(&rows) {
            let ((_, unit), baseline) = (experiment.metric, experiment.baseline);
            let name = experiment.name;
            let _ =
                writeln!(text, "{name} on {machine}, {scenario}; {unit}, %: against {baseline}");
            let _ = writeln!(text, "{}\n", table_of(experiment, &here));
            if let Some(table) = beside(experiment, &here) {
                let _ = writeln!(text, "{table}\n");
            }
        }
    }
    let seeds: BTreeSet<u64> = measures.iter().map(|measure| measure.key.seed).collect();
    if seeds.len() == 1 {
        text.push_str("one seed: nothing tells by how much another would differ; see --seeds\n");
    } else if !seeds.is_empty() {
        let _ = writeln!(
            text,
            "means of {} seeds; a change has a standard deviation of at most {widest:.2} points",
            seeds.len()
        );
    }
    text.push_str(
        "published: (published change)   *: parameters were fitted to it\n\
         !: the published change lies outside the bracket\n\n",
    );
    let is_there = |(word, _): &(&str, &str)| word.split(", ").any(|word| text.contains(word));
    let mut table = table(&["word", "what it means"]);
    table.add_rows(words().filter(is_there).map(|(word, meaning)| [word, meaning]));
    text.push_str(&texts(&table));
    text
}

/// As many digits as tell something.
fn figure(value: f64) -> String {
    if value < 1000.0 { format!("{value:.1}") } else { grouped_digits(&format!("{value:.0}")) }
}

/// The figures beside the one that is compared, a line for each policy and figure.
fn beside(experiment: &Experiment, rows: &[&Row]) -> Option<String> {
    let hosts = hosts(rows);
    let of = |row: &Row, about| row.beside(about).is_some_and(|figure| figure.published.is_some());
    let is_published =
        rows.iter().any(|row| experiment.beside.iter().any(|(_, about)| of(row, about)));
    let mut header = vec!["beside it".to_owned(), "policy".to_owned()];
    header.extend(is_published.then(|| "published".to_owned()));
    header.extend(hosts.iter().map(|host| (*host).to_owned()));
    let mut table = table(&header);
    for (_, about) in experiment.beside {
        for policy in policies(rows, experiment) {
            let of = |host: &&str| {
                let row = rows.iter().find(|r| r.key.policy == policy && r.key.host == **host);
                row.and_then(|row| row.beside(about))
            };
            let Some(first) = hosts.iter().find_map(of) else { continue };
            let published = first.published.map_or_else(String::new, |value| format!("{value:.2}"));
            let mut line = vec![(*about).to_owned(), policy.to_owned()];
            line.extend(is_published.then_some(published));
            line.extend(hosts.iter().map(|host| {
                of(host).map_or_else(String::new, |figure| {
                    let mark = if figure.kind == Kind::Fitted { "*" } else { "" };
                    format!("{:.2}{mark}", figure.value.mean)
                })
            }));
            table.add_row(line);
        }
    }
    align(&mut table, 2);
    (table.row_count() > 0).then(|| crate::table::in_parts(&table, 2))
}

fn table_of(experiment: &Experiment, rows: &[&Row]) -> String {
    let hosts = hosts(rows);
    let policies = policies(rows, experiment);
    let is_published = is_published(rows);
    let mut header = vec!["policy".to_owned()];
    header.extend(is_published.then(|| "published".to_owned()));
    header.extend(hosts.iter().flat_map(|host| [(*host).to_owned(), "%".to_owned()]));
    let brackets = hosts.len() > 1;
    if brackets {
        header.push("bracket, %".to_owned());
    }
    let mut table = table(&header);
    for policy in policies {
        let of = |host: &str| rows.iter().find(|r| r.key.policy == policy && r.key.host == host);
        let Some(first) = hosts.iter().find_map(|host| of(host)) else { continue };
        let published = match (first.published, first.published_delta_pct) {
            (Some(value), Some(delta)) => format!("{} ({delta:+.2})", figure(value)),
            (Some(value), None) => figure(value),
            (None, Some(delta)) => format!("({delta:+.2})"),
            _ => String::new(),
        };
        let mut line = vec![policy.to_owned()];
        line.extend(is_published.then_some(published));
        for host in &hosts {
            let Some(row) = of(host) else {
                line.extend([String::new(), String::new()]);
                continue;
            };
            let mark = if row.kind == Kind::Fitted { "*" } else { "" };
            line.push(format!("{}{mark}", figure(row.value.mean)));
            line.push(row.delta_pct.map_or_else(String::new, |delta| format!("{delta:+.2}")));
        }
        if brackets {
            line.push(told_bracket(rows, policy, first, experiment.baseline));
        }
        table.add_row(line);
    }
    let error =
        |host: &&str| error(experiment, rows.iter().copied().filter(|row| row.key.host == *host));
    if hosts.iter().any(|host| error(host).is_some()) {
        let mut errors = vec![experiment.error_name().to_owned()];
        errors.extend(is_published.then(String::new));
        for host in &hosts {
            let error = error(host).map_or_else(String::new, |error| format!("{error:.2}"));
            errors.extend([String::new(), error]);
        }
        errors.extend(brackets.then(String::new));
        table.add_row(errors);
    }
    align(&mut table, 1);
    in_parts(&table, 1 + usize::from(is_published))
}

fn told_bracket(rows: &[&Row], policy: &str, first: &Row, baseline: &str) -> String {
    let Some((low, high)) = bracket(rows, policy).filter(|_| policy != baseline) else {
        return String::new();
    };
    let outside = first.published_delta_pct.is_some_and(|delta| !(low..=high).contains(&delta));
    format!("{low:+.2}..{high:+.2}{}", if outside { " !" } else { "" })
}
