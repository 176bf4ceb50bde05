//! What `homing lab trace` prints for programs. Its help explains the keys.

use homing_lab::compare::{Cell, Comparison};
use homing_lab::policies;
use serde::Serialize;
use serde_json::{Value, json};

/// One replay.
#[derive(Serialize)]
struct Replay<'a> {
    trace: &'a str,
    policy: &'a str,
    size: String,
    capacity: usize,
    pages: usize,
    requests: u64,
    hits: u64,
    hit_ratio: f64,
    evictions: u64,
    writebacks: u64,
    io: u64,
    seconds: f64,
    accesses_per_second: f64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tenants: Vec<Tenant<'a>>,
}

/// One tenant of a replay.
#[derive(Serialize)]
struct Tenant<'a> {
    tenant: usize,
    /// The file that it came from, in a mix.
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<&'a str>,
    requests: u64,
    hits: u64,
    hit_ratio: f64,
}

impl<'a> Replay<'a> {
    fn new(cell: &'a Cell, files: &'a [String]) -> Self {
        let tenants = cell.outcome.asking_tenants().map(|(index, own)| Tenant {
            tenant: index,
            file: files.get(index).map(String::as_str),
            requests: own.requests,
            hits: own.hits,
            hit_ratio: own.hit_ratio(),
        });
        Self {
            trace: &cell.trace,
            policy: &cell.policy,
            size: cell.size.to_string(),
            capacity: cell.capacity,
            pages: cell.pages,
            requests: cell.outcome.requests,
            hits: cell.outcome.hits,
            hit_ratio: cell.outcome.hit_ratio(),
            evictions: cell.outcome.evictions,
            writebacks: cell.outcome.writebacks,
            io: cell.outcome.io(),
            seconds: cell.elapsed.as_secs_f64(),
            accesses_per_second: cell.speed(),
            tenants: tenants.collect(),
        }
    }
}

/// An object for one replay, an array for several.
pub(super) fn cells(cells: &[Cell], files: &[String]) -> anyhow::Result<String> {
    let replays: Vec<Replay> = cells.iter().map(|cell| Replay::new(cell, files)).collect();
    Ok(match &replays[..] {
        [one] => serde_json::to_string(one)?,
        several => serde_json::to_string(several)?,
    })
}

/// The cells of a comparison, and the summary of each policy.
pub(super) fn comparison(comparison: &Comparison) -> anyhow::Result<String> {
    let cells: Vec<Replay> = comparison.cells().iter().map(|cell| Replay::new(cell, &[])).collect();
    let summaries = comparison.policies().iter().filter_map(|name| {
        let summary = comparison.summary(name)?;
        let worst = summary.worst.map(|worst| {
            json!({ "trace": worst.trace, "size": worst.size.to_string(), "points": worst.points })
        });
        Some(json!({
            "policy": name,
            "share": summary.share,
            "counted": summary.counted,
            "worst_against_lru": worst,
        }))
    });
    let summaries: Vec<Value> = summaries.collect();
    Ok(serde_json::to_string(&json!({ "cells": cells, "policies": summaries }))?)
}

/// The policies and what they do.
pub(super) fn policies() -> anyhow::Result<String> {
    let entry = |entry: &policies::Entry| json!({ "policy": entry.name, "about": entry.about });
    Ok(serde_json::to_string(&policies::ALL.iter().map(entry).collect::<Vec<_>>())?)
}
