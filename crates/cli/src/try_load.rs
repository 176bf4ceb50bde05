//! The load of `homing serve --try`, and its table.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};
use homing_control::ByteSize;
use homing_server::Endpoint;
use homing_server::load::{self, Pattern, Phase, PhaseResult, Written};
use homing_volume::SectorSize;
use serde::Serialize;

use crate::table::{align, grouped_digits, in_parts, table};
use crate::{output, progress};

const PHASE_TIME: Duration = Duration::from_millis(1200);

const fn phase(
    name: &'static str,
    pattern: Pattern,
    request_len: usize,
    clients: usize,
    depth: usize,
) -> Phase {
    Phase { name, pattern, request_len, clients, depth }
}

const PHASES: [Phase; 6] = [
    phase("fill, 256 KiB writes", Pattern::Fill, 256 << 10, 4, 4),
    phase("32 KiB mixed, 4 clients, 64 deep", Pattern::ReadWrite, 32 << 10, 4, 64),
    phase("32 KiB reads, 1 client, 16 deep", Pattern::Read, 32 << 10, 1, 16),
    phase("4 KiB reads, 1 client, 32 deep", Pattern::Read, 4 << 10, 1, 32),
    phase("4 KiB reads, 1 client, 1 deep", Pattern::Read, 4 << 10, 1, 1),
    phase("4 KiB writes and flushes, 1 deep", Pattern::WriteAndFlush, 4 << 10, 1, 1),
];

/// One line of the table.
#[derive(Serialize)]
pub(crate) struct Row {
    load: &'static str,
    mib_per_s: f64,
    requests_per_s: f64,
    p50_us: f64,
    p99_us: f64,
    server_cpu_s_per_gib: f64,
}

/// Refuses a volume on which a phase has no room, before it is made.
pub(crate) fn check_size(size: ByteSize) -> anyhow::Result<()> {
    let needed = PHASES.iter().map(Phase::size_min).max().unwrap_or(0);
    // Rounded up to a size that can be written as it is shown.
    let needed = ByteSize(needed.next_multiple_of(1 << 20));
    if size.0 < needed.0 {
        bail!("--try needs a volume of at least {needed}, not {size}: use a larger --size");
    }
    Ok(())
}

/// Runs all phases against the export.
pub(crate) fn run(endpoint: &Endpoint, export: &str) -> anyhow::Result<Vec<Row>> {
    let bar = progress::bar("{bar:24} {pos}/{len}  {msg}", PHASES.len());
    let mut written = Written::default();
    let mut rows = Vec::new();
    for phase in &PHASES {
        bar.set_message(phase.name);
        let result = load::run(endpoint, export, phase, PHASE_TIME, &mut written)
            .with_context(|| format!("the load \"{}\" failed", phase.name))?;
        rows.push(row(phase.name, &result));
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(rows)
}

fn row(load: &'static str, result: &PhaseResult) -> Row {
    let seconds = result.elapsed.as_secs_f64();
    let quantile = |q| result.latency_ns.value_at_quantile(q) as f64 / 1e3;
    Row {
        load,
        mib_per_s: result.bytes as f64 / f64::from(1 << 20) / seconds,
        requests_per_s: result.requests as f64 / seconds,
        p50_us: quantile(0.5),
        p99_us: quantile(0.99),
        server_cpu_s_per_gib: result.server_cpu.as_secs_f64()
            / (result.bytes as f64 / f64::from(1 << 30)),
    }
}

/// What was measured.
pub(crate) struct Setting<'a> {
    pub(crate) image: &'a Path,
    pub(crate) sector_size: SectorSize,
    pub(crate) endpoint: &'a Endpoint,
}

fn whole(figure: f64) -> String {
    grouped_digits(&format!("{figure:.0}"))
}

/// Prints the table, or JSON for programs.
pub(crate) fn print(rows: &[Row], setting: &Setting<'_>, json: bool) -> anyhow::Result<()> {
    if json {
        return output::print_line(&serde_json::to_string_pretty(rows)?);
    }
    let mut table = table(&["load", "MiB/s", "requests/s", "p50 us", "p99 us", "CPU-s/GiB"]);
    for row in rows {
        table.add_row([
            row.load.to_owned(),
            // With flushes it may be less than one MiB/s.
            if row.mib_per_s < 10.0 {
                format!("{:.1}", row.mib_per_s)
            } else {
                whole(row.mib_per_s)
            },
            whole(row.requests_per_s),
            whole(row.p50_us),
            whole(row.p99_us),
            format!("{:.2}", row.server_cpu_s_per_gib),
        ]);
    }
    align(&mut table, 1);
    let table = in_parts(&table, 1);
    let folder = setting.image.parent().filter(|folder| !folder.as_os_str().is_empty());
    let over = match setting.endpoint {
        Endpoint::Unix(_) => "a Unix socket",
        Endpoint::Tcp(_) => "TCP",
    };
    let text = format!(
        "A LUKS2 volume (AES-256-XTS, {sectors}-byte sectors) in {folder}, served over {over} to \
         clients in this process.\n\n{table}\n\nCPU-s/GiB: CPU seconds of the server for each GiB.\n\
         Every byte read back was checked against what was written. The volume is gone.\n\nNext: homing serve disk.img --size 10G",
        sectors = setting.sector_size.bytes(),
        folder = folder.unwrap_or(Path::new(".")).display(),
    );
    output::print_line(&text)
}
