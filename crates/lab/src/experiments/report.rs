//! One page with everything: tables next to the published ones, plots, what was fitted, what is
//! predicted, and what is not modeled. It needs no other files, and no scripts.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use plotters::prelude::*;

use super::{
    EXPERIMENTS, Experiment, Kind, Measure, Row, SOURCES, Settings, Stat, bracket, error, hosts,
    is_published, places, policies, report_compared, report_loads, rows, words,
};
use crate::plot::{COLOURS, MARKS, mark};

/// What the simulation leaves out.
const NOT_MODELLED: [&str; 12] = [
    "locks of workqueue pools and run queues (those of the shared wakequeue are)",
    "what is in caches, memory bandwidth, clock frequency: moved data costs a fixed time",
    "why a worker needs so long for 32 KiB: AES with hardware support would take some 15 us; the \
     published rows allow no less than what was fitted",
    "fio's exact order of verification, dm-crypt's limits on pages",
    "scheduling groups (autogroup, systemd): with them the rows SYSTEM fit worse",
    "idle states beyond one latency, steering of interrupts",
    "builds as real processes: fork, exec, make itself",
    "contention in waiting for request tags (fsync, 32 issuers)",
    "cores that differ: all of a machine are equally fast, also where a capture's are not",
    "what homing's monitor costs beyond waking, what auto's choices cost, and whether an item is \
     queued at all",
    "of homing: blocking items, several workqueues beside each other, nice, max_active",
    "memory: the kernel before generations, contention for locks, TLB shootdowns, more than one \
     thread of background reclaim",
];

/// Writes the page.
///
/// `whole`: none of the runs that were asked for is missing.
pub fn report(measures: &[Measure], whole: bool, settings: &Settings) -> String {
    let mut page = String::from(HEAD);
    let seeds: BTreeSet<u64> = measures.iter().map(|measure| measure.key.seed).collect();
    let _ = write!(
        page,
        "<p>{} runs; seeds: {}; {} s of simulated time measured in each (in \
         udp-rr a tenth of that, in mglru-mixed a quarter, in items on this machine 2 s at most). \
         homing {}.</p>",
        measures.len(),
        seeds.len(),
        settings.measured_ns as f64 / 1e9,
        env!("CARGO_PKG_VERSION")
    );
    if seeds.len() == 1 {
        page.push_str(
            "<p>One seed tells nothing of deviations: those that are shown as 0 are not known.</p>",
        );
    }
    if !whole {
        page.push_str("<p><strong>Stopped before the end: runs are missing, and means may be of fewer seeds.</strong></p>");
    }
    page.push_str("<h2>Words</h2><dl>");
    for (word, meaning) in words() {
        let _ = write!(page, "<dt>{}</dt><dd>{}</dd>", escaped(word), escaped(meaning));
    }
    page.push_str("</dl>");
    for experiment in &EXPERIMENTS {
        let rows = rows(experiment, measures, &settings.costs);
        if !rows.is_empty() {
            section(&mut page, experiment, &rows);
        }
    }
    report_compared::section(&mut page, measures);
    report_loads::section(&mut page);
    costs(&mut page, settings);
    page.push_str("<h2>What is not modelled</h2><ul>");
    for what in NOT_MODELLED {
        let _ = write!(page, "<li>{}</li>", escaped(what));
    }
    page.push_str("</ul><h2>Sources</h2><dl>");
    for (name, source) in SOURCES {
        let _ = write!(page, "<dt>{name}</dt><dd>{}</dd>", escaped(source));
    }
    page.push_str("</dl></main></body></html>\n");
    // What does not fit is scrolled by itself, also by keys, not with the page.
    page.replace("<table>", "<div class=\"wide\" tabindex=\"0\"><table>")
        .replace("</table>", "</table></div>")
        .replace("<th", "<th scope=\"col\"")
        .replace("<svg ", "<svg role=\"img\" aria-label=\"the table above, drawn\" ")
}

const HEAD: &str = r#"<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>homing lab</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
:root { color-scheme: light dark; --line: #8884; --fit: #940; }
@media (prefers-color-scheme: dark) { :root { --fit: #f93; } }
body { font: 15px/1.5 system-ui, sans-serif; margin: 0; }
main { max-width: 78rem; margin: auto; padding: 1rem 2rem 4rem; }
table { border-collapse: collapse; margin: .5rem 0 1.5rem; font-variant-numeric: tabular-nums; }
th, td { padding: .2rem .7rem; white-space: nowrap; border-bottom: 1px solid var(--line); text-align: right; }
th:first-child, td:first-child { text-align: left; position: sticky; left: 0; background: Canvas; }
td.fitted { color: var(--fit); } td.own { font-weight: 600; }
.wide, .plot { overflow-x: auto; } .plot { background: #fff; width: fit-content; max-width: 100%; }
.plot svg { min-width: 40rem; max-width: 100%; height: auto; } dt { font-weight: 600; }
th.text, td.text { text-align: left; white-space: normal; } h2 { margin-top: 3rem; } dd { margin-bottom: .5rem; overflow-wrap: anywhere; }
small { opacity: .8; }
</style></head><body><main>
<h1>homing lab</h1>
<p>Published experiments on simulated machines. Simulated figures are means over seeds with their
standard deviation. <span style="color:var(--fit)">Fitted*</span> figures are met because parameters
were chosen so; all others come out of the model. The rows of homing run its own decisions.
One parameter was chosen by rows that are not marked: what new-idle balance costs on the host
rare-newidle (see Loads).</p>
"#;

fn section(page: &mut String, experiment: &Experiment, rows: &[Row]) {
    let _ = write!(page, "<h2>{}</h2><p>{}.</p>", experiment.name, escaped(experiment.about));
    for (machine, scenario, here) in places(rows) {
        let _ = write!(page, "<h3>{}, {}</h3>", escaped(machine), escaped(scenario));
        table(page, experiment, &here);
        for &(_, about) in experiment.beside {
            table_beside(page, experiment, &here, about);
        }
        if let Some(plot) = plot(experiment, &here) {
            let _ = write!(page, "<div class=\"plot\">{plot}</div>{}", legend(&here));
        }
    }
}

fn table(page: &mut String, experiment: &Experiment, rows: &[&Row]) {
    let hosts = hosts(rows);
    let policies = policies(rows, experiment);
    let (_, unit) = experiment.metric;
    let is_published = is_published(rows);
    let _ = write!(page, "<table><tr><th>{unit}</th>");
    page.push_str(if is_published { "<th>published</th>" } else { "" });
    for host in &hosts {
        let (host, baseline) = (escaped(host), escaped(experiment.baseline));
        let _ = write!(page, "<th>{host}</th><th>against {baseline}</th>");
    }
    let brackets = hosts.len() > 1;
    page.push_str(if brackets { "<th>bracket over the hosts</th></tr>" } else { "</tr>" });
    for policy in &policies {
        let of = |host: &str| rows.iter().find(|r| r.key.policy == *policy && r.key.host == host);
        let Some(first) = hosts.iter().find_map(|host| of(host)) else { continue };
        let published = match (first.published, first.published_delta_pct) {
            (Some(value), Some(delta)) => format!("{value:.1} <small>({delta:+.2} %)</small>"),
            (Some(value), None) => format!("{value:.1}"),
            (None, Some(delta)) => format!("{delta:+.2} %"),
            _ => String::new(),
        };
        let own = if policy.starts_with("homing") { " class=\"own\"" } else { "" };
        let _ = write!(page, "<tr><td{own}>{}</td>", escaped(policy));
        if is_published {
            let _ = write!(page, "<td>{published}</td>");
        }
        for host in &hosts {
            let Some(row) = of(host) else {
                page.push_str("<td></td><td></td>");
                continue;
            };
            let class = if row.kind == Kind::Fitted { " class=\"fitted\"" } else { "" };
            let delta = row.delta_pct.map_or_else(String::new, |delta| format!("{delta:+.2} %"));
            let _ = write!(
                page,
                "<td{class}>{:.1}{} <small>± {:.1}</small></td><td>{delta}</td>",
                row.value.mean,
                star(row.kind),
                row.value.sd
            );
        }
        if brackets {
            let found = bracket(rows, policy).filter(|_| *policy != experiment.baseline);
            let told = found.map_or_else(String::new, |(low, high)| {
                let inside = |delta| (low..=high).contains(&delta);
                let outside = first.published_delta_pct.is_some_and(|delta| !inside(delta));
                let note = if outside { " <small>published: outside</small>" } else { "" };
                format!("{low:+.2}..{high:+.2} %{note}")
            });
            let _ = write!(page, "<td>{told}</td>");
        }
        page.push_str("</tr>");
    }
    let error = |host: &&str| error(experiment, of_host(rows, host));
    if hosts.iter().any(|host| error(host).is_some()) {
        let _ = write!(page, "<tr><td>{}</td>", experiment.error_name());
        page.push_str(if is_published { "<td></td>" } else { "" });
        for host in &hosts {
            let error = error(host).map_or_else(String::new, |error| format!("{error:.2}"));
            let _ = write!(page, "<td></td><td>{error}</td>");
        }
        page.push_str(if brackets { "<td></td></tr>" } else { "</tr>" });
    }
    page.push_str("</table>");
}

fn of_host<'a>(rows: &[&'a Row], host: &str) -> impl Iterator<Item = &'a Row> {
    rows.iter().copied().filter(move |row| row.key.host == host)
}

fn star(kind: Kind) -> &'static str {
    if kind == Kind::Fitted { "*" } else { "" }
}

/// Writes the table of a figure that is shown next to the one that is compared.
fn table_beside(page: &mut String, experiment: &Experiment, rows: &[&Row], about: &str) {
    if !rows.iter().any(|row| row.beside(about).is_some()) {
        return;
    }
    let hosts = hosts(rows);
    let figures = || rows.iter().filter_map(|row| row.beside(about));
    let is_published = figures().any(|figure| figure.published.is_some());
    let _ = write!(page, "<table><tr><th>{}</th>", escaped(about));
    page.push_str(if is_published { "<th>published</th>" } else { "" });
    for host in &hosts {
        let _ = write!(page, "<th>{}</th>", escaped(host));
    }
    page.push_str("</tr>");
    for policy in policies(rows, experiment) {
        let of = |host: &str| rows.iter().find(|r| r.key.policy == policy && r.key.host == host);
        let figures: Vec<_> =
            hosts.iter().map(|host| of(host).and_then(|row| row.beside(about))).collect();
        if figures.iter().all(Option::is_none) {
            continue;
        }
        let published = figures.iter().flatten().find_map(|figure| figure.published);
        let published = published.map_or_else(String::new, |value| format!("{value:.2}"));
        let _ = write!(page, "<tr><td>{}</td>", escaped(policy));
        if is_published {
            let _ = write!(page, "<td>{published}</td>");
        }
        for figure in figures {
            let Some(figure) = figure else {
                page.push_str("<td></td>");
                continue;
            };
            let class = if figure.kind == Kind::Fitted { " class=\"fitted\"" } else { "" };
            let Stat { mean, sd, .. } = figure.value;
            let mark = star(figure.kind);
            let _ = write!(page, "<td{class}>{mean:.2}{mark} <small>± {sd:.2}</small></td>");
        }
        page.push_str("</tr>");
    }
    page.push_str("</table>");
}

/// The legend: which colour is which host.
fn legend(rows: &[&Row]) -> String {
    let mut text = String::from("<p><small>");
    text.push_str(if is_published(rows) { "published: the black bars; " } else { "" });
    for (number, host) in hosts(rows).into_iter().enumerate() {
        let RGBColor(red, green, blue) = COLOURS[number % COLOURS.len()];
        let mark = MARKS[number % MARKS.len()];
        let _ = write!(
            text,
            "<span style=\"color:rgb({red},{green},{blue})\">{mark}</span> {}  ",
            escaped(host)
        );
    }
    text.push_str("</small></p>");
    text
}

/// Changes against the baseline: the published ones as lines, the simulated ones as dots with
/// their spread.
fn plot(experiment: &Experiment, rows: &[&Row]) -> Option<String> {
    let rows: Vec<&Row> = rows
        .iter()
        .copied()
        .filter(|row| row.key.policy != experiment.baseline && row.delta_pct.is_some())
        .collect();
    if rows.len() < 2 {
        return None;
    }
    let hosts = hosts(&rows);
    let policies = policies(&rows, experiment);
    let ends = rows.iter().filter_map(|row| bar(row)).flatten();
    let all = ends.chain(rows.iter().filter_map(|row| row.published_delta_pct));
    let (low, high) =
        all.fold((0.0_f64, 0.0_f64), |(low, high), value| (low.min(value), high.max(value)));
    let margin = (high - low).max(0.5) * 0.12;
    let mut svg = String::new();
    {
        let size = (900, 60 + 34 * policies.len() as u32);
        let root = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        let mut chart = ChartBuilder::on(&root)
            .margin(8)
            .margin_right(24)
            .x_label_area_size(30)
            .y_label_area_size(190)
            .build_cartesian_2d(
                low - margin..high + margin,
                (policies.len() as f64 - 0.4)..-0.6_f64,
            )
            .ok()?;
        let names = policies.clone();
        chart
            .configure_mesh()
            .disable_y_mesh()
            .y_labels(policies.len() * 2 + 1)
            .y_label_formatter(&|at| {
                let here = |(place, _): &(usize, &&str)| (at - *place as f64).abs() < 0.01;
                let name = names.iter().enumerate().find(here);
                name.map_or_else(String::new, |(_, name)| (*name).to_owned())
            })
            .x_desc(format!("change against {}, %", experiment.baseline))
            .draw()
            .ok()?;
        for (place, policy) in policies.iter().enumerate() {
            let of = rows.iter().filter(|row| row.key.policy == *policy);
            for row in of {
                let number = hosts.iter().position(|host| *host == row.key.host).unwrap_or(0);
                let at = place as f64 - 0.25 + 0.15 * number as f64;
                if let Some(published) = row.published_delta_pct {
                    let ends = [(published, place as f64 - 0.4), (published, place as f64 + 0.4)];
                    chart.draw_series([PathElement::new(ends, BLACK.stroke_width(3))]).ok()?;
                }
                let (delta, ends) = (row.delta_pct?, bar(row)?.map(|end| (end, at)));
                let color = COLOURS[number % COLOURS.len()];
                chart.draw_series([PathElement::new(ends, color.stroke_width(1))]).ok()?;
                mark(chart.plotting_area(), color, number, (delta, at)).ok()?;
            }
        }
        root.present().ok()?;
    }
    Some(svg)
}

/// The ends of the error bar of a change.
fn bar(row: &Row) -> Option<[f64; 2]> {
    let (delta, spread) = (row.delta_pct?, row.delta_sd?);
    Some([delta - spread, delta + spread])
}

fn costs(page: &mut String, settings: &Settings) {
    page.push_str(
        "<h2>Costs</h2><table><tr><th>cost</th><th>value</th><th class=\"text\">source</th></tr>",
    );
    for (name, cost) in settings.costs.usual().all() {
        let _ = write!(
            page,
            "<tr><td>{name}</td><td>{}</td><td class=\"text\">{}</td></tr>",
            cost.value,
            escaped(&cost.source.to_string())
        );
    }
    page.push_str("</table>");
}

pub(super) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::{GivenCosts, Key};

    fn measure(policy: &str, seed: u64, mib_s: f64) -> Measure {
        let key = Key {
            experiment: "wq".to_owned(),
            machine: "m".to_owned(),
            scenario: "HIGH".to_owned(),
            policy: policy.to_owned(),
            host: "cfs".to_owned(),
            seed,
        };
        Measure { key, values: [("mib_s".to_owned(), mib_s)].into() }
    }

    /// The numbers in an attribute, in each line with `mark`.
    fn numbers(svg: &str, mark: &str, attribute: &str) -> Vec<Vec<f64>> {
        let of = |line: &str| {
            let (_, from) = line.split_once(&format!(" {attribute}=\""))?;
            let (text, _) = from.split_once('"')?;
            Some(text.split([' ', ',']).filter_map(|number| number.parse().ok()).collect())
        };
        svg.lines().filter(|line| line.contains(mark)).filter_map(of).collect()
    }

    #[test]
    fn bars_are_in_points_of_the_axis_and_all_within_it() {
        let runs = [
            ("SYSTEM", [90.0, 110.0]),
            ("CACHE", [40.0, 60.0]),
            ("homing", [200.0, 200.0]),
            ("homing auto", [150.0, 250.0]),
        ];
        let measures: Vec<_> = runs
            .iter()
            .flat_map(|(policy, rates)| (0..).zip(rates).map(|(seed, r)| measure(policy, seed, *r)))
            .collect();
        let wq = Experiment::find("wq").unwrap();
        let rows = rows(wq, &measures, &GivenCosts::default());
        let svg = plot(wq, &rows.iter().collect::<Vec<_>>()).unwrap();
        let dots: Vec<f64> = numbers(&svg, "<circle", "cx").concat();
        let bars = numbers(&svg, "stroke=\"#0072B2\"", "points");
        assert_eq!((dots.len(), bars.len()), (3, 3), "{svg}");
        // From -50 to 100 per cent.
        let point = (dots[1] - dots[0]) / 150.0;
        let sd = 200.0_f64.sqrt();
        let expected = [sd.hypot(sd / 2.0), 2.0 * sd, (5.0 * sd).hypot(2.0 * sd)];
        for ((bar, dot), spread) in bars.iter().zip(dots).zip(expected) {
            let (left, right) = (bar[0], bar[2]);
            assert!((200.0..870.0).contains(&left) && (200.0..870.0).contains(&right), "{bar:?}");
            assert!((right - dot - spread * point).abs() < 2.0, "{bar:?} {dot} {spread}");
            assert!((dot - left - spread * point).abs() < 2.0, "{bar:?} {dot} {spread}");
        }
    }
}
