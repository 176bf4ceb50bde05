//! What clients ask of a server, as attributes for `homing-control`'s socket.
//!
//! ```text
//! export/NAME/stat         ro  clients, requests under way, and for each operation: requests, bytes,
//!                              errors, and nanoseconds of all of them: a name and a number on each line
//! export/NAME/latency_ns   ro  an operation, a time, and how many of its requests took less than that
//!                              and no less than the time before: a line for each
//! server/clients           ro  who is connected: a line for each
//! ```
//!
//! A request's time is from when the server has received all of it until its reply is ready to be
//! sent; requests that came together are answered together. It is without the time on the way, that
//! in which a write's data comes, and most of that in which its client does not take replies.

use std::sync::Arc;

use homing::control::{Attribute, AttributeError, AttributeTree, flat_keyed};

use crate::clients::Clients;
use crate::counters::{ExportCounters, Operation};
use crate::peer::Peer;

const CLIENTS: &str = "server/clients";
/// Below each export.
const STAT: &str = "stat";
const LATENCY: &str = "latency_ns";

/// A server's live attributes, read as text by path: [`Server::attributes`]. Cheap to clone; keeps
/// no device open.
///
/// [`Server::attributes`]: crate::Server::attributes
#[derive(Clone, Debug)]
pub struct ServerAttributes(pub(crate) Arc<Clients>);

/// What an export's clients do at this moment.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Present {
    pub(crate) clients: u64,
    /// Requests that have come and are not answered.
    pub(crate) in_flight: u64,
}

impl ServerAttributes {
    /// Of each export.
    pub(crate) fn present(&self) -> Vec<Present> {
        let mut all = vec![Present::default(); self.0.exports().len()];
        self.0.look_at(|peer| {
            if peer.has_begun() {
                let of = &mut all[peer.export()];
                of.clients += 1;
                of.in_flight += peer.tally.read().in_flight;
            }
        });
        all
    }

    fn stat(&self, index: usize, export: &ExportCounters) -> String {
        let Present { clients, in_flight } = self.present()[index];
        let mut figures =
            vec![("clients".to_owned(), clients), ("in_flight".to_owned(), in_flight)];
        for operation in Operation::ALL {
            let (name, totals) = (operation.name(), export.read(operation));
            let of = [
                ("requests", totals.requests),
                ("bytes", totals.bytes),
                ("errors", totals.errors),
                ("ns", totals.time_ns),
            ];
            figures.extend(of.map(|(figure, total)| (format!("{name}_{figure}"), total)));
        }
        flat_keyed(figures.iter().map(|(name, figure)| (name.as_str(), *figure)))
    }

    fn clients(&self) -> String {
        let now_ms = self.0.now_ms();
        let line = |(id, peer): &(u64, Arc<Peer>)| {
            let (tally, seconds) = (peer.tally.read(), now_ms.saturating_sub(peer.since_ms) / 1000);
            let export = if peer.has_begun() { &*peer.export_counters().name } else { "" };
            // Quoted, so that nothing in a name looks like another line.
            format!(
                "{id} from={} export={export:?} tls={} seconds={seconds} requests={} bytes={} in_flight={}",
                peer.stream.peer(),
                if peer.stream.has_tls() { "yes" } else { "no" },
                tally.answered,
                tally.bytes,
                tally.in_flight
            )
        };
        self.0.connected().iter().map(line).collect::<Vec<_>>().join("\n")
    }
}

impl AttributeTree for ServerAttributes {
    fn list(&self) -> Vec<Attribute> {
        let below = |export: &ExportCounters| [LATENCY, STAT].map(|leaf| path_of(export, leaf));
        let mut paths: Vec<_> = self.0.exports().iter().flat_map(below).collect();
        paths.push(CLIENTS.to_owned());
        paths.sort();
        paths.into_iter().map(|path| Attribute { path, writable: false }).collect()
    }

    fn get(&self, path: &str) -> Result<String, AttributeError> {
        if path == CLIENTS {
            return Ok(self.clients());
        }
        let is_at = |export: &ExportCounters, leaf| path_of(export, leaf) == path;
        for (index, export) in self.0.exports().iter().enumerate() {
            if is_at(export, STAT) {
                return Ok(self.stat(index, export));
            }
            if is_at(export, LATENCY) {
                return Ok(latency_ns(export));
            }
        }
        Err(AttributeError::not_found(path))
    }

    fn set(&self, path: &str, _: &str) -> Result<(), AttributeError> {
        // An error if there is no such attribute.
        self.get(path)?;
        Err(AttributeError::read_only(path))
    }
}

fn path_of(export: &ExportCounters, leaf: &str) -> String {
    format!("export/{}/{leaf}", export.name)
}

fn latency_ns(export: &ExportCounters) -> String {
    let lines = Operation::ALL.into_iter().flat_map(|operation| {
        let totals = export.read(operation);
        let line = |(below, count)| format!("{} {below} {count}", operation.name());
        totals.times().map(line).collect::<Vec<_>>()
    });
    lines.collect::<Vec<_>>().join("\n")
}
