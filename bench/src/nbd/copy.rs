//! `homing-bench nbd-copy`: whole exports copied in and out, plain and through TLS, which fio's client
//! cannot do.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use clap::Args;
use comfy_table::{CellAlignment, Table, presets};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use serde::Serialize;

use super::prepare::Preparation;
use super::server::{Kind, Server};
use super::{SIZE_MIN, SIZE_UNIT, homing, plain_folder, prepare};
use crate::child::Running;
use crate::interrupt::Interrupt;
use crate::machine::Machine;
use crate::procfs::{MachineTime, ProcessTime};
use crate::progress::bar;
use crate::size;
use crate::spread::{Spread, figure};

/// How long a copy may take before a server is taken to hang.
const LIMIT: Duration = Duration::from_secs(600);

const MIB: f64 = 1024.0 * 1024.0;

/// What to measure.
#[derive(Args, Debug)]
pub(crate) struct CopyOptions {
    /// How often everything is measured.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,

    /// The size of every export, as in 512M or 1G.
    #[arg(long, default_value = "1G", value_parser = size::parse)]
    size: u64,

    /// The folder for the containers. It needs a little more than the size for each server, and once more.
    #[arg(long, default_value = "/dev/shm")]
    dir: PathBuf,

    /// The homing to measure [default: the one beside this program].
    #[arg(long, value_name = "PATH")]
    homing: Option<PathBuf>,

    /// Print every measurement as JSON.
    #[arg(long)]
    json: bool,
}

/// A copy, as it went.
#[derive(Debug, Serialize)]
struct Cell {
    round: u32,
    server: Kind,
    tls: bool,
    into: bool,
    mib_per_s: f64,
    server_cpu_s_per_gib: f64,
    client_cpu_s_per_gib: f64,
    others_percent: f64,
}

/// Measures, and tells on standard output.
pub(crate) fn run(options: &CopyOptions) -> anyhow::Result<()> {
    ensure!(
        options.size >= SIZE_MIN && options.size.is_multiple_of(SIZE_UNIT),
        "--size {} cannot be used: it must be whole MiB, and at least {}",
        options.size,
        size::show(SIZE_MIN)
    );
    let dir = plain_folder(&options.dir)?;
    let interrupt = Interrupt::install()?;
    let folder = tempfile::Builder::new().prefix("homing-bench-").tempdir_in(&dir);
    let folder = folder.with_context(|| format!("cannot write in {}", dir.display()))?;
    let mut preparation = Preparation::new(folder.path(), options.size)?;
    preparation.write_passphrase()?;
    let found = preparation.find(&homing(options.homing.as_deref())?);
    // A cache that holds all of it is another matter, and so is a disk.
    let compared = |server: &Server| !matches!(server.kind, Kind::HomingCache | Kind::QemuNative);
    let found: Vec<Server> = found.into_iter().filter(compared).collect();
    eprintln!("{}", preparation.space(found.len() + 1, &dir)?);
    let servers = prepare(&mut preparation, found, &interrupt)?;
    let certificates = folder.path().join("pki");
    certify(&certificates)?;

    let source = folder.path().join("source");
    let count = u64::from(options.rounds) * 4 * servers.len() as u64;
    let bar = bar(count, "{wide_bar} {pos}/{len} {msg}, {eta} left")?;
    let mut cells = Vec::new();
    for round in 1..=options.rounds {
        for tls in [false, true] {
            for turn in 0..servers.len() {
                // Whoever comes first in one round comes last in the next.
                let server = &servers[(turn + round as usize - 1) % servers.len()];
                let tls_folder = tls.then(|| certificates.clone());
                let server = Server { tls: tls_folder, ..server.clone() };
                let running = server.start(&interrupt)?;
                let (uri, name) = (server.uri(), server.kind.name());
                bar.set_message(name);
                if !source.exists() {
                    // What it was filled with: noise.
                    copy(
                        &preparation.nbdcopy,
                        &uri,
                        &source.display().to_string(),
                        &server,
                        &interrupt,
                    )?;
                }
                let file = source.display().to_string();
                for (into, from, to) in [(true, &*file, &*uri), (false, &uri, "null:")] {
                    let before = Times::read(&running)?;
                    let began = Instant::now();
                    copy(&preparation.nbdcopy, from, to, &server, &interrupt)
                        .with_context(|| format!("{name} last said: {}", running.last_words()))?;
                    let seconds = began.elapsed().as_secs_f64();
                    let after = Times::read(&running)?;
                    let took = |of: fn(&Times) -> f64| of(&after) - of(&before);
                    let gib = options.size as f64 / MIB / 1024.0;
                    let (ours, theirs) = (took(|t| t.server), took(|t| t.client));
                    let others = (took(|t| t.busy) - ours - theirs).max(0.0);
                    cells.push(Cell {
                        round,
                        server: server.kind,
                        tls,
                        into,
                        mib_per_s: options.size as f64 / MIB / seconds,
                        server_cpu_s_per_gib: ours / gib,
                        client_cpu_s_per_gib: theirs / gib,
                        others_percent: 100.0 * others / took(|t| t.machine),
                    });
                    bar.inc(1);
                }
                running.stop()?;
            }
        }
    }
    bar.finish_and_clear();
    if options.json {
        println!("{}", serde_json::to_string_pretty(&cells)?);
        return Ok(());
    }
    println!("{}.", Machine::read()?);
    for version in &preparation.versions {
        println!("{} {}", version.program, version.version);
    }
    println!("\n{}", table(&cells));
    Ok(())
}

fn copy(
    nbdcopy: &Path,
    from: &str,
    to: &str,
    server: &Server,
    interrupt: &Interrupt,
) -> anyhow::Result<()> {
    let mut command = Command::new(nbdcopy);
    // All that is zero is written, too.
    command.args(["--connections=4", "--requests=16", "--allocated", "--flush"]).args([from, to]);
    let log = server.socket.with_extension("copy.log");
    Running::start("nbdcopy", &mut command, Stdio::null(), &log)?.finish(LIMIT, interrupt)
}

/// CPU seconds: of the server, of our children that have ended, and of the machine.
struct Times {
    server: f64,
    client: f64,
    busy: f64,
    machine: f64,
}

impl Times {
    fn read(server: &Running) -> anyhow::Result<Self> {
        let machine = MachineTime::now()?;
        Ok(Self {
            server: ProcessTime::of(server.id())?.own,
            client: ProcessTime::of(std::process::id())?.children,
            busy: machine.busy,
            machine: machine.total,
        })
    }
}

/// Makes a folder of certificates for a server and its clients. Their keys guard nothing.
fn certify(folder: &Path) -> anyhow::Result<()> {
    let mut authority = CertificateParams::default();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate()?;
    let root = authority.self_signed(&key)?.pem();
    let issuer = Issuer::new(authority, key);
    let key = KeyPair::generate()?;
    let server = CertificateParams::new(["localhost".to_owned()])?.signed_by(&key, &issuer)?;
    fs::create_dir(folder)?;
    fs::write(folder.join("ca-cert.pem"), root)?;
    fs::write(folder.join("server-cert.pem"), server.pem())?;
    fs::write(folder.join("server-key.pem"), key.serialize_pem())?;
    Ok(())
}

/// Medians with their ranges, and homing's ratio to each, round by round.
fn table(cells: &[Cell]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    table.set_header([
        "copied",
        "server",
        "MiB/s",
        "server CPU s/GiB",
        "client CPU s/GiB",
        "others %",
        "homing / it, MiB/s",
    ]);
    let mut rows: BTreeMap<(bool, bool, usize), Vec<&Cell>> = BTreeMap::new();
    for cell in cells {
        let kind = Kind::ALL.iter().position(|kind| *kind == cell.server).unwrap_or(0);
        rows.entry((cell.tls, !cell.into, kind)).or_default().push(cell);
    }
    for ((tls, out, kind), of) in &rows {
        let show = |spread: Option<Spread>| {
            let Some(Spread { median, min, max }) = spread else { return "-".to_owned() };
            let [median, min, max] = [median, min, max].map(figure);
            format!("{median} ({min}–{max})")
        };
        let all = |figure: fn(&Cell) -> f64| show(Spread::of(of.iter().map(|cell| figure(cell))));
        let ours = rows.get(&(*tls, *out, 0)).into_iter().flatten();
        let pairs = ours.zip(of).map(|(our, their)| (our.mib_per_s, their.mib_per_s));
        let copied =
            format!("{}{}", if *out { "out" } else { "in" }, if *tls { ", TLS" } else { "" });
        table.add_row([
            copied,
            Kind::ALL[*kind].name().to_owned(),
            all(|cell| cell.mib_per_s),
            all(|cell| cell.server_cpu_s_per_gib),
            all(|cell| cell.client_cpu_s_per_gib),
            all(|cell| cell.others_percent),
            show(Spread::of_ratios(pairs)),
        ]);
    }
    for column in table.column_iter_mut().skip(2) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}
