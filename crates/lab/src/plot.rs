//! Curves of hit ratios over sizes as an SVG picture: a panel for each trace, one legend.
//!
//! Sizes are shares of the trace's pages, on a logarithmic axis. Policies that see the future are
//! dashed and black: no other policy gets above them.

use std::fmt::Display;

use plotters::coord::{CoordTranslate, Shift};
use plotters::element::DashedPathElement;
use plotters::prelude::*;

use crate::compare::{CEILING, Cell, Comparison};

/// The size of a panel, and the width of the legend next to the panels, in pixels.
const PANEL: (u32, u32) = (620, 430);
const LEGEND_WIDTH: u32 = 210;
/// The widths of a panel's edges, where its labels are.
const MARGIN: u32 = 12;
const LEFT: u32 = 52;
const BOTTOM: u32 = 44;
const CAPTION: u32 = 30;
/// Distance between the entries of the legend, and from the top to the first.
const LINE: i32 = 24;
const FIRST_LINE: i32 = 52;

/// Dashes of the optima, and the gaps between dashes.
const DASHES: [u32; 2] = [8, 2];
const GAP: u32 = 4;

/// Labels that fit on the axis of sizes.
const TICKS_MAX: usize = 8;

/// Colours that people with any sight tell apart as well as that many can be: Okabe and Ito's eight
/// without yellow, which is too pale for a line, then darker ones.
pub(crate) const COLOURS: [RGBColor; 12] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(230, 159, 0),
    RGBColor(117, 112, 179),
    RGBColor(102, 102, 102),
    RGBColor(166, 118, 29),
    RGBColor(177, 20, 60),
    RGBColor(60, 100, 30),
    RGBColor(20, 60, 110),
];

/// A picture could not be drawn.
#[derive(Clone, Debug, thiserror::Error)]
#[error("cannot draw the plot: {reason}")]
pub struct PlotError {
    reason: String,
}

/// How the curve of a policy looks.
#[derive(Clone, Copy)]
enum Look {
    /// Dashes of this many pixels, for policies that see the future.
    Dashed(u32),
    /// A colour, and the mark of its points, for pictures without colours.
    Solid(RGBColor, usize),
}

impl Look {
    /// The look of each policy.
    fn of(names: &[&str]) -> Vec<Self> {
        let (mut online, mut optimal) = (0, 0);
        let looks = names.iter().map(|name| {
            let count = if sees_the_future(name) { &mut optimal } else { &mut online };
            let index = *count;
            *count += 1;
            if sees_the_future(name) {
                Self::Dashed(DASHES[index % DASHES.len()])
            } else {
                // The colours begin again with other marks.
                Self::Solid(COLOURS[index % COLOURS.len()], index + index / COLOURS.len())
            }
        });
        looks.collect()
    }
}

impl Comparison {
    /// Draws the hit ratios of the policies that were asked for, and of the optimum.
    pub fn plot(&self) -> Result<String, PlotError> {
        let mut names: Vec<&str> = self.policies().iter().map(String::as_str).collect();
        if !names.iter().any(|name| sees_the_future(name)) {
            names.push(CEILING);
        }
        let looks = Look::of(&names);
        let panels = self.traces().len().max(1) as u32;
        let columns = if panels == 1 { 1 } else { 2 };
        let rows = panels.div_ceil(columns);
        let size = (columns * PANEL.0 + LEGEND_WIDTH, rows * PANEL.1);
        let mut svg = String::new();
        {
            let root = SVGBackend::with_string(&mut svg, size).into_drawing_area();
            root.fill(&WHITE).map_err(failed)?;
            let (left, right) = root.split_horizontally(columns * PANEL.0);
            let areas = left.split_evenly((rows as usize, columns as usize));
            for (trace, area) in areas.iter().enumerate().take(self.traces().len()) {
                self.panel(area, trace, &names, &looks)?;
            }
            legend(&right, &names, &looks)?;
            root.present().map_err(failed)?;
        }
        Ok(svg)
    }

    fn panel(
        &self,
        area: &DrawingArea<SVGBackend<'_>, Shift>,
        trace: usize,
        names: &[&str],
        looks: &[Look],
    ) -> Result<(), PlotError> {
        let curves: Vec<Vec<(f64, f64)>> = names
            .iter()
            .map(|name| {
                let cells = (0..self.sizes().len()).filter_map(|s| self.cell(name, trace, s));
                let mut points: Vec<_> = cells.map(point).collect();
                points.sort_by(|a, b| a.0.total_cmp(&b.0));
                points
            })
            .collect();
        let points = || curves.iter().flatten();
        let low = points().map(|point| point.0).fold(f64::INFINITY, f64::min).clamp(1e-6, 100.0);
        let high = points().map(|point| point.0).fold(low, f64::max);
        let bottom = points().map(|point| point.1).fold(100.0, f64::min);
        let top = points().map(|point| point.1).fold(0.0, f64::max);
        let mut sizes = points().map(|point| point.0).collect();
        let across =
            (low / 1.08..high * 1.08).log_scale().with_key_points(ticks(&mut sizes, low, high));
        let up =
            round_down(bottom)..(round_down(top) + 5.0).min(100.0).max(round_down(bottom) + 5.0);
        let mut chart = ChartBuilder::on(area)
            .margin(MARGIN)
            // XML must not contain control characters.
            .caption(
                self.traces()[trace].replace(char::is_control, "\u{fffd}"),
                ("sans-serif", CAPTION * 2 / 3),
            )
            .x_label_area_size(BOTTOM)
            .y_label_area_size(LEFT)
            .build_cartesian_2d(across, up)
            .map_err(failed)?;
        chart
            .configure_mesh()
            .x_desc("size of the cache, % of the trace's pages")
            .y_desc("hit ratio, %")
            .x_label_formatter(&|share| plain(*share))
            .y_label_formatter(&|ratio| plain(*ratio))
            .light_line_style(WHITE.mix(0.0))
            .label_style(("sans-serif", 13))
            .draw()
            .map_err(failed)?;
        for (points, look) in curves.into_iter().zip(looks) {
            match *look {
                Look::Dashed(len) => {
                    let series = DashedLineSeries::new(points, len, GAP, BLACK.stroke_width(2));
                    chart.draw_series(series).map_err(failed)?;
                }
                Look::Solid(colour, shape) => {
                    let line = LineSeries::new(points.clone(), colour.stroke_width(2));
                    chart.draw_series(line).map_err(failed)?;
                    for at in points {
                        mark(chart.plotting_area(), colour, shape, at)?;
                    }
                }
            }
        }
        Ok(())
    }
}

/// Where a cell stands: its size and hit ratio, both in per cent.
fn point(cell: &Cell) -> (f64, f64) {
    let share = cell.size.per_cent(cell.pages);
    (share, cell.outcome.hit_ratio() * 100.0)
}

/// What looks like the marks in a line of text.
pub(crate) const MARKS: [char; 4] = ['●', '▲', '○', '✕'];

/// Draws a mark at a point, of one of four shapes.
pub(crate) fn mark<Coord: CoordTranslate>(
    area: &DrawingArea<SVGBackend<'_>, Coord>,
    colour: RGBColor,
    shape: usize,
    at: Coord::From,
) -> Result<(), PlotError>
where
    Coord::From: Clone + 'static,
{
    let (filled, hollow) = (colour.filled(), colour.stroke_width(1));
    let drawn = match shape % 4 {
        0 => area.draw(&Circle::new(at, 3, filled)),
        1 => area.draw(&TriangleMarker::new(at, 4, filled)),
        2 => area.draw(&Circle::new(at, 4, hollow)),
        _ => area.draw(&Cross::new(at, 4, hollow)),
    };
    drawn.map_err(failed)
}

/// Draws the names of the curves, as the curves are drawn.
fn legend(
    area: &DrawingArea<SVGBackend<'_>, Shift>,
    names: &[&str],
    looks: &[Look],
) -> Result<(), PlotError> {
    for (index, (name, look)) in (0..).zip(names.iter().zip(looks)) {
        let y = FIRST_LINE + LINE * index;
        let line = [(8, y), (40, y)];
        match *look {
            Look::Dashed(len) => {
                let dashes = DashedPathElement::new(line, len, GAP, BLACK.stroke_width(2));
                area.draw(&dashes).map_err(failed)?;
            }
            Look::Solid(colour, shape) => {
                area.draw(&PathElement::new(line, colour.stroke_width(2))).map_err(failed)?;
                mark(area, colour, shape, (24, y))?;
            }
        }
        let text = Text::new((*name).to_owned(), (48, y - 7), ("sans-serif", 14));
        area.draw(&text).map_err(failed)?;
    }
    Ok(())
}

/// The labels of the axis of sizes: the sizes, or if they are many, 1, 2, 5, ...
fn ticks(sizes: &mut Vec<f64>, low: f64, high: f64) -> Vec<f64> {
    sizes.sort_by(f64::total_cmp);
    sizes.dedup();
    if sizes.len() <= TICKS_MAX {
        return std::mem::take(sizes);
    }
    let decades = (-6..=2).map(|power| 10_f64.powi(power));
    let all = decades.flat_map(|decade| [1.0, 2.0, 5.0].map(|digit| digit * decade));
    all.filter(|tick| (low..=high).contains(tick)).collect()
}

/// Rounds down to a multiple of five per cent.
fn round_down(ratio: f64) -> f64 {
    (ratio / 5.0).floor() * 5.0
}

/// A figure without digits that say nothing.
fn plain(figure: f64) -> String {
    let text = format!("{figure:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn sees_the_future(name: &str) -> bool {
    name.starts_with("opt")
}

fn failed(reason: impl Display) -> PlotError {
    PlotError { reason: reason.to_string() }
}
