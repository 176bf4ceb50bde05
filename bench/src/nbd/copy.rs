//! `homing-bench nbd-copy`: whole exports copied in and out, plain and through TLS, which fio's
//! client cannot do.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Instant;

use anyhow::Context;
use clap::Args;
use comfy_table::{CellAlignment, Table, presets};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use serde::Serialize;

use super::fill::copy;
use super::measure::{GIB, MIB, Times};
use super::prepare::Preparation;
use super::server::{Kind, Server};
use super::table::show;
use super::{Exports, prepare, temporary_in};
use crate::interrupt::Interrupt;
use crate::machine::Machine;
use crate::page::Form;
use crate::progress::bar;
use crate::spread::Spread;

/// The options of nbdcopy. All zeroes are copied, too.
const HOW: [&str; 4] = ["--connections=4", "--requests=16", "--allocated", "--flush"];

/// What to measure.
#[derive(Args, Debug)]
pub(crate) struct CopyOptions {
    /// How often everything is measured.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,

    #[command(flatten)]
    exports: Exports,

    /// Print every measurement as JSON.
    #[arg(long)]
    json: bool,
}

/// The figures of one copy.
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

/// Measures, and reports on standard output.
pub(crate) fn run(options: &CopyOptions) -> anyhow::Result<()> {
    let exports = &options.exports;
    exports.check()?;
    let dir = exports.folder()?;
    let interrupt = Interrupt::install()?;
    let folder = temporary_in(&dir)?;
    let mut preparation = Preparation::new(folder.path(), exports.size.0)?;
    preparation.write_passphrase()?;
    let found = preparation.find(&exports.homing()?);
    // A cache that holds everything is another matter, and so are smaller sectors.
    let compared = |server: &Server| !matches!(server.kind, Kind::HomingCache | Kind::HomingLuks1);
    let found: Vec<Server> = found.into_iter().filter(compared).collect();
    eprintln!("{}", preparation.space(found.len() + 1, &dir)?);
    let servers = prepare(&mut preparation, found, &interrupt)?;
    let certificates = folder.path().join("pki");
    certify(&certificates)?;

    // The source has what the exports were filled with: noise.
    let source = folder.path().join("source").display().to_string();
    let filled = servers[0].start(&interrupt)?;
    copy(&preparation.nbdcopy, &servers[0], &[&servers[0].uri(), &source], &interrupt)?;
    filled.stop()?;
    let count = u64::from(options.rounds) * 4 * servers.len() as u64;
    let bar = bar(count, "{wide_bar} {pos}/{len} {msg}, {eta} left")?;
    let mut cells = Vec::new();
    for round in 1..=options.rounds {
        for tls in [false, true] {
            for turn in 0..servers.len() {
                // The one that comes first in one round comes last in the next.
                let server = &servers[(turn + round as usize - 1) % servers.len()];
                let tls_folder = tls.then(|| certificates.clone());
                let server = Server { tls: tls_folder, ..server.clone() };
                let (uri, name) = (server.uri(), server.kind.name());
                let started = [(&server, server.start(&interrupt)?)];
                bar.set_message(name);
                for (into, from, to) in [(true, &*source, &*uri), (false, &uri, "null:")] {
                    let before = Times::read(&started, 0)?;
                    let began = Instant::now();
                    copy(
                        &preparation.nbdcopy,
                        &server,
                        &[&HOW[..], &[from, to]].concat(),
                        &interrupt,
                    )
                    .with_context(|| format!("{name} last said: {}", started[0].1.last_words()))?;
                    let seconds = began.elapsed().as_secs_f64();
                    let took = Times::read(&started, 0)? - before;
                    let gib = exports.size.0 as f64 / GIB;
                    cells.push(Cell {
                        round,
                        server: server.kind,
                        tls,
                        into,
                        mib_per_s: exports.size.0 as f64 / MIB / seconds,
                        server_cpu_s_per_gib: took.server / gib,
                        client_cpu_s_per_gib: took.children / gib,
                        others_percent: took.others_percent(),
                    });
                    bar.inc(1);
                }
                let [(_, running)] = started;
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
            spread.map_or_else(|| "-".to_owned(), |spread| show(&spread, Form::Markdown))
        };
        let all = |figure: fn(&Cell) -> f64| show(Spread::of(of.iter().map(|cell| figure(cell))));
        let ours = rows.get(&(*tls, *out, 0)).into_iter().flatten();
        let rate = |cell: &&Cell| (cell.round, cell.mib_per_s);
        let copied =
            format!("{}{}", if *out { "out" } else { "in" }, if *tls { ", TLS" } else { "" });
        table.add_row([
            copied,
            Kind::ALL[*kind].name().to_owned(),
            all(|cell| cell.mib_per_s),
            all(|cell| cell.server_cpu_s_per_gib),
            all(|cell| cell.client_cpu_s_per_gib),
            all(|cell| cell.others_percent),
            show(Spread::of_ratios(ours.map(rate), of.iter().map(rate))),
        ]);
    }
    for column in table.column_iter_mut().skip(2) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}
