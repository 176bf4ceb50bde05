//! What a comparison of policies tells, in the report: how far homing is ahead at each place.

use std::fmt::Write as _;

use plotters::prelude::*;

use super::report::escaped;
use super::{COMPARED, Comparison, Measure, NOISE_PCT, STANDARD, Stat, figures, standings};
use crate::plot::COLOURS;

/// How many places are named.
const WORST: usize = 20;

const LOADS: [(&str, RGBColor); 3] =
    [("HIGH", COLOURS[0]), ("MED", COLOURS[1]), ("LOW", COLOURS[2])];

/// Adds a section, if anything was compared.
pub(super) fn section(page: &mut String, measures: &[Measure]) {
    let of = |measure: &&Measure| measure.key.experiment == COMPARED;
    let measures: Vec<Measure> = measures.iter().filter(of).cloned().collect();
    if measures.is_empty() {
        return;
    }
    let _ = write!(
        page,
        "<h2>{COMPARED}</h2><p>Policies side by side on many machines. For those \
         called random, costs and loads were drawn: homing lab compare --random N --list shows them. \
         The tables of costs and loads below are those of the others.</p>"
    );
    standing(page, &measures);
    for (title, of) in Comparison::all(&measures) {
        comparison(page, &title, &of);
    }
}

fn standing(page: &mut String, measures: &[Measure]) {
    let _ = write!(
        page,
        "<h3>Each policy against {STANDARD}</h3><table><tr><th>policy</th><th>load</th>\
         <th>places</th><th>worst, %</th><th>median, %</th><th>mean, %</th><th>best, %</th>\
         <th>first in</th></tr>"
    );
    for of in standings(&figures(measures)) {
        let Stat { mean, median, min, max, count, .. } = of.ahead_pct;
        let _ = write!(
            page,
            "<tr><td>{}</td><td>{}</td><td>{count}</td><td>{min:+.2}</td><td>{median:+.2}</td>\
             <td>{mean:+.2}</td><td>{max:+.2}</td><td>{}</td></tr>",
            escaped(&of.policy),
            escaped(&of.scenario),
            of.first
        );
    }
    page.push_str("</table>");
}

fn comparison(page: &mut String, title: &str, of: &Comparison) {
    let _ = write!(
        page,
        "<h3>{}</h3><table><tr><th>load</th><th>places</th><th>behind by more than noise</th>\
         <th>worst, %</th><th>median, %</th><th>best, %</th></tr>",
        escaped(title)
    );
    for (load, _) in LOADS {
        let Some((worst, median, best)) = of.spread(load) else { continue };
        let (places, behind) = of.behind(load, NOISE_PCT);
        let _ = write!(
            page,
            "<tr><td>{load}</td><td>{places}</td><td>{behind}</td><td>{worst:+.2}</td>\
             <td>{median:+.2}</td><td>{best:+.2}</td></tr>"
        );
    }
    page.push_str("</table>");
    if let Some(plot) = plot(of) {
        let _ =
            write!(page, "<div class=\"plot\">{plot}</div><p><small>all places, the worst first");
        for (load, RGBColor(red, green, blue)) in LOADS {
            let _ =
                write!(page, "; <span style=\"color:rgb({red},{green},{blue})\">●</span> {load}");
        }
        page.push_str("</small></p>");
    }
    page.push_str(
        "<table><tr><th>the worst places</th><th>load</th><th>host</th><th>best of the others</th>\
         <th>ahead, %</th><th>noise, %</th></tr>",
    );
    for place in of.places.iter().take(WORST) {
        let _ = write!(
            page,
            "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{:+.2}</td><td>{:.2}</td></tr>",
            escaped(&place.machine),
            escaped(&place.scenario),
            escaped(&place.host),
            escaped(&place.best),
            place.ahead_pct,
            place.noise_pct
        );
    }
    page.push_str("</table>");
}

/// Plots for each load a line through all places, from the worst to the best.
fn plot(of: &Comparison) -> Option<String> {
    let (first, last) = (of.places.first()?, of.places.last()?);
    let (low, high) = (first.ahead_pct.min(0.0), last.ahead_pct.max(0.0));
    let margin = (high - low).max(0.5) * 0.05;
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, (900, 320)).into_drawing_area();
        let mut chart = ChartBuilder::on(&root)
            .margin(8)
            .margin_right(24)
            .x_label_area_size(36)
            .y_label_area_size(60)
            .build_cartesian_2d(0.0..100.0_f64, low - margin..high + margin)
            .ok()?;
        let mut mesh = chart.configure_mesh();
        mesh.x_desc("places, % of all").y_desc("ahead, %").draw().ok()?;
        for (load, color) in LOADS {
            let of_load = of.places.iter().filter(|place| place.scenario == load);
            let ahead: Vec<f64> = of_load.map(|place| place.ahead_pct).collect();
            let share = |at: usize| at as f64 * 100.0 / (ahead.len().max(2) - 1) as f64;
            let line: Vec<_> =
                ahead.iter().enumerate().map(|(at, value)| (share(at), *value)).collect();
            chart.draw_series([PathElement::new(line, color.stroke_width(2))]).ok()?;
        }
        root.present().ok()?;
    }
    Some(svg)
}
