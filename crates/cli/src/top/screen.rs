//! The rates, drawn.

use homing_control::ByteSize;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Cell, Paragraph, Row, Table, Wrap};

use super::exports::{Export, Operation};
use super::rates::{Cpu, Durability, Group, ObjectCache, Rates, Workqueue};
use crate::source::UNKNOWN;
use crate::spans::span;

/// Up to this many CPUs have a line each; if there are more, each has a character.
const CPU_LINES_MAX: usize = 8;
const METER_WIDTH: usize = 16;
const LEVELS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// What workqueues are sorted by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Order {
    #[default]
    Cpu,
    Items,
    Name,
}

impl Order {
    pub(super) fn next(self) -> Self {
        match self {
            Self::Cpu => Self::Items,
            Self::Items => Self::Name,
            Self::Name => Self::Cpu,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Cpu => "CPU time",
            Self::Items => "items",
            Self::Name => "name",
        }
    }
}

/// What is on the screen.
#[derive(Default)]
pub(super) struct View {
    /// Which program.
    pub(super) program: String,
    pub(super) rates: Rates,
    /// Why there is nothing new.
    pub(super) trouble: Option<String>,
    pub(super) paused: bool,
    pub(super) order: Order,
    /// Whether to draw in colours.
    pub(super) colors: bool,
}

pub(super) fn draw(frame: &mut Frame<'_>, view: &View) {
    let rates = &view.rates;
    // Laid out first, so that they are there however low the terminal is.
    let head = Constraint::Length(if view.trouble.is_some() { 2 } else { 1 });
    let [head, area, foot] =
        Layout::vertical([head, Constraint::Fill(1), Constraint::Length(1)]).areas(frame.area());
    // At most so many of each; a heading and a header come on top.
    let most = usize::from(area.height / 4).max(6);
    let lines = |rows: usize| rows.clamp(1, most) + 2;
    let groups = rates.cache.as_ref().map_or(0, |cache| lines(cache.groups.len()));
    let lines_if_any = |rows: usize| if rows > 0 { lines(rows) } else { 0 };
    let caches = lines_if_any(rates.object_caches.len());
    let exports = lines_if_any(rates.exports.len());
    let cpus = cpu_lines(&rates.cpus, area.width).len() + 1;
    let [cpus, exports, workqueues, durability, cache, object_caches] = Layout::vertical([
        Constraint::Length(cpus as u16),
        Constraint::Length(exports as u16),
        Constraint::Min(4),
        Constraint::Length(if rates.durability.is_some() { 3 } else { 0 }),
        Constraint::Length(groups as u16),
        Constraint::Length(caches as u16),
    ])
    .areas(area);
    frame.render_widget(Paragraph::new(view.head()).wrap(Wrap { trim: true }), head);
    let lines: Vec<_> = cpu_lines(&rates.cpus, area.width).into_iter().map(Line::from).collect();
    let block = view.block(&cpu_title(rates));
    frame.render_widget(Paragraph::new(lines).block(block), cpus);
    view.draw_exports(frame, exports);
    frame.render_widget(view.workqueues(area.width), workqueues);
    if let Some(of) = &rates.durability {
        let lines: Vec<_> = durability_lines(of).into_iter().map(Line::from).collect();
        let title = format!("Durability: {} callers a sync", rate(of.callers_per_sync));
        frame.render_widget(Paragraph::new(lines).block(view.block(&title)), durability);
    }
    view.draw_cache(frame, cache);
    view.draw_object_caches(frame, object_caches);
    frame.render_widget(Paragraph::new(view.foot()), foot);
    if view.trouble.is_some() {
        // None of it is of now.
        frame.buffer_mut().set_style(area, Style::new().add_modifier(Modifier::DIM));
    }
}

impl View {
    fn style(&self, color: Color) -> Style {
        if self.colors { Style::new().fg(color) } else { Style::new() }
    }

    fn block(&self, title: &str) -> Block<'static> {
        let title = Span::styled(
            format!(" {title} "),
            self.style(Color::Cyan).add_modifier(Modifier::BOLD),
        );
        Block::new().borders(Borders::TOP).title(title)
    }

    fn head(&self) -> Line<'_> {
        if let Some(trouble) = &self.trouble {
            let warning = self.style(Color::Red).add_modifier(Modifier::BOLD);
            return Line::styled(format!("trying again: {trouble}; the figures are old"), warning);
        }
        let over = match self.rates.seconds {
            Some(seconds) => format!("  within {seconds:.1} s"),
            None => "  waiting for the second look".to_owned(),
        };
        let mut spans = vec![
            Span::styled("homing top  ", Style::new().add_modifier(Modifier::BOLD)),
            Span::raw(self.program.as_str()),
            Span::raw(over),
        ];
        if let Some(stalls) = self.rates.stalls.filter(|stalls| *stalls > 0) {
            spans.push(Span::styled(format!("  {stalls} stalls"), self.style(Color::Red)));
        }
        if self.paused {
            spans.push(Span::styled("  standing still", self.style(Color::Yellow)));
        }
        Line::from(spans)
    }

    fn foot(&self) -> Line<'_> {
        let style = Style::new().add_modifier(Modifier::DIM);
        let pause = if self.paused { "go on" } else { "stand still" };
        Line::styled(format!("q end   space {pause}   s sort (by {})", self.order.name()), style)
    }

    fn workqueues(&self, width: u16) -> Table<'_> {
        let mut all: Vec<_> = self.rates.workqueues.iter().collect();
        let most = |rate: fn(&Workqueue) -> Option<f64>| {
            move |one: &&Workqueue, other: &&Workqueue| {
                let rate = |of: &Workqueue| rate(of).unwrap_or(-1.0);
                rate(other).total_cmp(&rate(one)).then_with(|| one.name.cmp(&other.name))
            }
        };
        match self.order {
            Order::Cpu => all.sort_by(most(|of| of.cpus)),
            Order::Items => all.sort_by(most(|of| of.items_per_s)),
            Order::Name => all.sort_by(|one, other| one.name.cmp(&other.name)),
        }
        let rows = all.into_iter().map(|of| {
            let text = vec![
                rate(of.items_per_s),
                of.cpus.map_or_else(unknown, |cpus| format!("{cpus:.2}")),
                of.in_flight.map_or_else(unknown, |items| items.to_string()),
                rate(of.woken_per_s),
                rate(of.pulled_per_s[0]),
                rate(of.pulled_per_s[1]),
                rate(of.pulled_per_s[2]),
                rate(of.pulled_per_s[3]),
                of.queue_age_p99_ns.map_or_else(unknown, span),
            ];
            let names = [Cell::from(of.name.clone()), Cell::from(scope(of))];
            Row::new(names.into_iter().chain(text.into_iter().map(right)))
        });
        let header =
            ["items/s", "CPUs", "infl", "woken", "home", "llc", "node", "remote", "age_p99"];
        let header =
            ["", "scope"].map(Cell::from).into_iter().chain(header.map(str::to_owned).map(right));
        let names = self.rates.workqueues.iter().map(|of| of.name.as_str());
        Table::new(rows, columns(names, 7, &[11, 7, 5, 4, 5, 5, 5, 5, 6, 7], width))
            .header(Row::new(header).style(Style::new().add_modifier(Modifier::DIM)))
            .block(self.block("Workqueues"))
    }

    fn draw_exports(&self, frame: &mut Frame<'_>, area: Rect) {
        let p99 = |of: &Operation| of.latency_p99_ns.map_or_else(unknown, span);
        let exports = busiest_first(&self.rates.exports);
        let rows = exports.iter().map(|of| {
            let text = [
                count(of.in_flight),
                count(of.errors),
                rate(of.read.requests_per_s),
                rate(of.read.bytes_per_s),
                p99(&of.read),
                rate(of.write.requests_per_s),
                rate(of.write.bytes_per_s),
                p99(&of.write),
                rate(of.flush.requests_per_s),
                p99(&of.flush),
            ];
            let failed = of.errors.is_some_and(|errors| errors > 0);
            let style = if failed { self.style(Color::Red) } else { Style::new() };
            let name = Cell::from(of.name.clone());
            Row::new([name].into_iter().chain(text.map(right))).style(style)
        });
        let header =
            ["infl", "errors", "reads", "B/s", "p99", "writes", "B/s", "p99", "flush", "p99"];
        let header = [Cell::from("")].into_iter().chain(header.map(str::to_owned).map(right));
        let sum =
            |of: fn(&Export) -> Option<u64>| exports.iter().filter_map(|it| of(it)).sum::<u64>();
        let title = format!(
            "Exports: {}, {} clients, {} errors",
            counted(exports.len(), area),
            sum(|of| of.clients),
            sum(|of| of.errors)
        );
        let names = exports.iter().map(|of| of.name.as_str());
        let columns = columns(names, 8, &[5, 6, 6, 5, 7, 6, 5, 7, 5, 7], area.width);
        let table = Table::new(rows, columns)
            .header(Row::new(header).style(Style::new().add_modifier(Modifier::DIM)))
            .block(self.block(&title));
        frame.render_widget(table, area);
    }

    fn draw_cache(&self, frame: &mut Frame<'_>, area: Rect) {
        let Some(cache) = &self.rates.cache else { return };
        let bytes =
            |bytes: Option<u64>| bytes.map_or_else(unknown, |bytes| ByteSize(bytes).to_string());
        let groups = failing_and_busiest_first(&cache.groups);
        let mut title = format!("Cache: {} of {} used", bytes(cache.used), bytes(cache.size));
        if groups.len() + 2 > usize::from(area.height) {
            title = format!("{title}, {} groups", counted(groups.len(), area));
        }
        let rows = groups.iter().map(|of| {
            let text = [
                bytes(of.usage),
                bytes(of.dirty),
                percent(of.hit_ratio),
                rate(of.asked_per_s),
                rate(of.refaults_per_s),
                rate(of.evictions_per_s),
                rate(of.write_backs_per_s),
            ];
            let failed = of.write_back_errors.is_some_and(|errors| errors > 0);
            let style = if failed { self.style(Color::Red) } else { Style::new() };
            let name = Cell::from(of.name.clone());
            Row::new([name].into_iter().chain(text.map(right))).style(style)
        });
        let header = ["usage", "dirty", "hits", "asked/s", "refaults", "evicted", "written"];
        let header = [Cell::from("group")].into_iter().chain(header.map(str::to_owned).map(right));
        let names = groups.iter().map(|of| of.name.as_str());
        let table = Table::new(rows, columns(names, 8, &[9, 9, 7, 7, 8, 7, 7], area.width))
            .header(Row::new(header).style(Style::new().add_modifier(Modifier::DIM)))
            .block(self.block(&title));
        frame.render_widget(table, area);
    }

    fn draw_object_caches(&self, frame: &mut Frame<'_>, area: Rect) {
        let caches = &self.rates.object_caches;
        let rows = caches.iter().map(|of: &ObjectCache| {
            let text = [
                count(of.entries),
                count(of.weight),
                count(of.capacity),
                percent(of.hit_ratio),
                rate(of.asked_per_s),
                rate(of.insertions_per_s),
                rate(of.evictions_per_s),
                rate(of.declined_per_s),
            ];
            Row::new([Cell::from(of.name.clone())].into_iter().chain(text.map(right)))
        });
        let header =
            ["entries", "weight", "capacity", "hits", "asked/s", "inserted", "evicted", "declined"];
        let header = [Cell::from("")].into_iter().chain(header.map(str::to_owned).map(right));
        let names = caches.iter().map(|of| of.name.as_str());
        let title = format!("Caches of objects, {}", counted(caches.len(), area));
        let table = Table::new(rows, columns(names, 8, &[7, 6, 8, 7, 7, 8, 7, 8], area.width))
            .header(Row::new(header).style(Style::new().add_modifier(Modifier::DIM)))
            .block(self.block(&title));
        frame.render_widget(table, area);
    }
}

/// How many there are, and how many of them have room, if not all.
fn counted(count: usize, area: Rect) -> String {
    let shown = usize::from(area.height.saturating_sub(2));
    if shown < count { format!("{count} ({shown} shown)") } else { count.to_string() }
}

fn failing_and_busiest_first(groups: &[Group]) -> Vec<&Group> {
    let mut all: Vec<_> = groups.iter().collect();
    let fails = |of: &Group| of.write_back_errors.is_some_and(|errors| errors > 0);
    let rate = |of: &Group| of.asked_per_s.unwrap_or(-1.0);
    all.sort_by(|one, other| {
        let failing = fails(other).cmp(&fails(one));
        failing
            .then_with(|| rate(other).total_cmp(&rate(one)))
            .then_with(|| one.name.cmp(&other.name))
    });
    all
}

/// Those that do not answer what they have been asked come first: not all may have room.
fn busiest_first(exports: &[Export]) -> Vec<&Export> {
    let mut all: Vec<_> = exports.iter().collect();
    let rate = |of: &Export| {
        let operations = [&of.read, &of.write, &of.write_zeroes, &of.trim, &of.flush, &of.other];
        operations.into_iter().filter_map(|operation| operation.requests_per_s).sum::<f64>()
    };
    let stands = |of: &Export| rate(of) <= 0.0 && of.in_flight.is_some_and(|count| count > 0);
    all.sort_by(|one, other| {
        let stuck = stands(other).cmp(&stands(one));
        stuck
            .then_with(|| rate(other).total_cmp(&rate(one)))
            .then_with(|| one.name.cmp(&other.name))
    });
    all
}

fn percent(ratio: Option<f64>) -> String {
    ratio.map_or_else(unknown, |ratio| format!("{:.1} %", ratio * 100.0))
}

/// The name of the scope in force: for `default (cache_shard)`, the name in brackets.
fn scope(of: &Workqueue) -> String {
    let scope = of.affinity_scope.as_deref().unwrap_or(UNKNOWN);
    let within = scope.split_once('(').map(|(_, rest)| rest.trim_end_matches(')'));
    within.unwrap_or(scope).to_owned()
}

/// Work that others than workers do, as connections may, is only in the process's CPU time.
fn cpu_title(rates: &Rates) -> String {
    let cpus = &rates.cpus;
    let sum = |of: fn(&Cpu) -> Option<f64>| cpus.iter().filter_map(of).reduce(|one, two| one + two);
    let busy = sum(|cpu| cpu.busy).map_or_else(unknown, |busy| format!("{busy:.1}"));
    format!(
        "Workers: {busy} of {} busy, {} items/s, {} sleeps/s; process: {} CPUs",
        cpus.len(),
        rate(sum(|cpu| cpu.items_per_s)),
        rate(sum(|cpu| cpu.sleeps_per_s)),
        rates.process_cpus.map_or_else(unknown, |cpus| format!("{cpus:.2}"))
    )
}

/// A line for each of a few CPUs, a character for each of many.
fn cpu_lines(cpus: &[Cpu], width: u16) -> Vec<String> {
    if cpus.len() > CPU_LINES_MAX {
        let level = |cpu: &Cpu| cpu.busy.map_or('?', |busy| LEVELS[steps(busy, 8, 0.0)]);
        let levels: Vec<char> = cpus.iter().map(level).collect();
        let lines = levels.chunks(usize::from(width.max(1)));
        return lines.map(|line| line.iter().collect()).collect();
    }
    let line = |cpu: &Cpu| {
        let full = steps(cpu.busy.unwrap_or_default(), METER_WIDTH, 0.5);
        let percent = cpu.busy.map_or_else(unknown, |busy| format!("{:.0} %", busy * 100.0));
        let runs = match (&cpu.workqueue, cpu.running_ns) {
            (Some(workqueue), Some(ns)) => format!("{workqueue} for {}", span(ns)),
            _ => String::new(),
        };
        format!(
            "{:>4} [{:<METER_WIDTH$}] {percent:>5} {:>7} items/s {:>7} sleeps/s  {runs}",
            cpu.cpu,
            "|".repeat(full),
            rate(cpu.items_per_s),
            rate(cpu.sleeps_per_s),
        )
    };
    cpus.iter().map(line).collect()
}

/// How many of `of` steps a share fills; a step that is begun counts once this part of it is
/// filled.
fn steps(share: f64, of: usize, from: f64) -> usize {
    (0..of).filter(|step| share * of as f64 > *step as f64 + from).count()
}

fn durability_lines(of: &Durability) -> [String; 2] {
    let latency = |ns: Option<u64>| ns.map_or_else(unknown, span);
    let word = |word: &Option<String>| word.clone().unwrap_or_else(unknown);
    let how = match &of.strategy {
        Some(strategy) => format!("strategy {strategy}, by {}", word(&of.backend)),
        None => format!("sharing {}", word(&of.sharing)),
    };
    [
        format!(
            "{} syncs/s, {} shared one, {} files/s, {} commits/s, {} flushes saved/s",
            rate(of.asked_per_s),
            rate(of.shared_per_s),
            rate(of.files_per_s),
            rate(of.commits_per_s),
            rate(of.flushes_saved_per_s)
        ),
        format!(
            "since the start: p50 {}, p99 {}, {} failed   {how}",
            latency(of.latency_p50_ns),
            latency(of.latency_p99_ns),
            of.failed.map_or_else(unknown, |failed| failed.to_string())
        ),
    ]
}

/// A column for names, of at least this width, and those of the others that fit next to it: a
/// number that lacks its first digits is another number.
fn columns<'a>(
    names: impl Iterator<Item = &'a str>,
    least: u16,
    others: &[u16],
    width: u16,
) -> Vec<Constraint> {
    let mut room = width.saturating_sub(least);
    let fitting: Vec<u16> = others
        .iter()
        .copied()
        .take_while(|column| {
            let left = room.checked_sub(1 + column);
            room = left.unwrap_or(room);
            left.is_some()
        })
        .collect();
    let longest = names.map(|name| Span::raw(name).width()).max().unwrap_or(0);
    let name = u16::try_from(longest).unwrap_or(u16::MAX).clamp(least, least + room);
    [name].into_iter().chain(fitting).map(Constraint::Length).collect()
}

fn right(text: String) -> Cell<'static> {
    Cell::from(Line::from(text).right_aligned())
}

fn unknown() -> String {
    UNKNOWN.to_owned()
}

/// As [`rate`], of what is counted.
fn count(count: Option<u64>) -> String {
    match count {
        Some(count) if count < 10_000 => count.to_string(),
        count => rate(count.map(|count| count as f64)),
    }
}

/// A number of at most five characters.
fn rate(rate: Option<f64>) -> String {
    match rate {
        None => unknown(),
        Some(0.0) => "0".to_owned(),
        Some(rate) if rate < 9.95 => format!("{rate:.1}"),
        Some(rate) if rate < 9_999.5 => format!("{rate:.0}"),
        Some(rate) if rate < 99_950.0 => format!("{:.1}k", rate / 1e3),
        Some(rate) if rate < 999_500.0 => format!("{:.0}k", rate / 1e3),
        Some(rate) if rate < 99_950_000.0 => format!("{:.1}M", rate / 1e6),
        Some(rate) if rate < 999_500_000.0 => format!("{:.0}M", rate / 1e6),
        Some(rate) if rate < 99_950_000_000.0 => format!("{:.1}G", rate / 1e9),
        Some(rate) => format!("{:.0}G", rate / 1e9),
    }
}

#[cfg(test)]
mod tests;
