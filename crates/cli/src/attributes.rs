//! `homing ls`, `homing get` and `homing set`: the live attributes of a running program, over its
//! control socket.

use std::fmt::Write as _;
use std::path::PathBuf;

use anyhow::{anyhow, bail};
use clap::Args;
use homing_control::{AttributeError, Client, ClientError, printable_name};
use serde_json::{Value, json};

use crate::output;

/// Which program.
#[derive(Args, Clone)]
pub(crate) struct ControlArgs {
    /// The program's control socket: what it was given as --control
    #[arg(long, value_name = "SOCKET", env = "HOMING_SOCKET")]
    pub(crate) socket: PathBuf,
}

impl ControlArgs {
    pub(crate) fn connect(&self) -> Result<Client, ClientError> {
        Client::connect(&self.socket)
    }
}

#[derive(Args)]
#[command(after_help = LS_EXAMPLES)]
pub(crate) struct LsArgs {
    /// Only attributes at or below this path
    #[arg(default_value = "", hide_default_value = true)]
    prefix: String,

    #[command(flatten)]
    control: ControlArgs,

    /// Print JSON, for programs
    #[arg(long)]
    json: bool,
}

const LS_EXAMPLES: &str = "\
Examples:
  homing ls --socket disk.control               all attributes
  export HOMING_SOCKET=disk.control             then --socket is not needed
  homing ls workqueue/crypt                     those of one workqueue

Each line has ro (can be read) or rw (can be set, too), and the path.";

#[derive(Args)]
#[command(after_help = GET_EXAMPLES)]
pub(crate) struct GetArgs {
    /// The attribute, as `homing ls` shows it
    path: String,

    #[command(flatten)]
    control: ControlArgs,

    /// Print JSON, for programs
    #[arg(long)]
    json: bool,
}

const GET_EXAMPLES: &str = "\
Examples:
  homing get workqueue/crypt/affinity_scope --socket disk.control
  homing get module/cpumask                     with HOMING_SOCKET set
  homing get workqueue/crypt/counters           one \"key value\" on each line";

#[derive(Args)]
#[command(after_help = SET_EXAMPLES)]
pub(crate) struct SetArgs {
    /// The attribute, as `homing ls` shows it
    path: String,

    /// Its new value; if it is not accepted nothing changes, and the error says which values are
    // Commands of lru_gen begin with a minus.
    #[arg(allow_hyphen_values = true)]
    value: String,

    #[command(flatten)]
    control: ControlArgs,

    /// Print JSON, for programs
    #[arg(long)]
    json: bool,
}

const SET_EXAMPLES: &str = "\
Examples:
  homing set workqueue/crypt/affinity_scope numa --socket disk.control
  homing set workqueue/crypt/max_active 4       with HOMING_SOCKET set
  homing set workqueue/crypt/nice -5

The value takes effect at once and lasts until the program ends; nothing is saved.";

pub(crate) fn list(args: &LsArgs) -> anyhow::Result<()> {
    let attributes = args.control.connect()?.list(&args.prefix)?;
    if attributes.is_empty() && !args.prefix.is_empty() {
        bail!("no attribute is at or below {:?}: `homing ls` lists all", args.prefix);
    }
    if args.json {
        let all = attributes.iter().map(|a| json!({ "path": a.path, "writable": a.writable }));
        return output::print_json(&all.collect::<Value>());
    }
    let text = attributes.iter().fold(String::new(), |mut text, attribute| {
        let access = if attribute.writable { "rw" } else { "ro" };
        let _ = writeln!(text, "{access} {}", printable_name(&attribute.path));
        text
    });
    output::print(text.as_bytes())
}

pub(crate) fn get(args: &GetArgs) -> anyhow::Result<()> {
    let mut client = args.control.connect()?;
    let value = as_listed(&mut client, &args.path, Client::get)?;
    if args.json {
        return output::print_json(&json!({ "path": args.path, "value": value }));
    }
    output::print_text(&format!("{}\n", value.strip_suffix('\n').unwrap_or(&value)))
}

pub(crate) fn set(args: &SetArgs) -> anyhow::Result<()> {
    let mut client = args.control.connect()?;
    as_listed(&mut client, &args.path, |client, path| client.set(path, &args.value))?;
    if args.json {
        return output::print_json(&json!({ "path": args.path, "value": args.value }));
    }
    Ok(())
}

/// Does something to an attribute, whose path may be as `homing ls` prints it: with what cannot be
/// printed escaped.
fn as_listed<T>(
    client: &mut Client,
    path: &str,
    act: impl Fn(&mut Client, &str) -> Result<T, ClientError>,
) -> anyhow::Result<T> {
    let error = match act(client, path) {
        Err(error @ ClientError::Attribute(AttributeError::NotFound { .. })) => error,
        done => return Ok(done?),
    };
    let meant = client.list("").ok().and_then(|all| {
        all.into_iter().map(|it| it.path).find(|it| it != path && printable_name(it) == path)
    });
    match meant {
        Some(meant) => Ok(act(client, &meant)?),
        None => Err(with_advice(error, client)),
    }
}

/// The error, or one that names what may have been meant.
fn with_advice(error: ClientError, client: &mut Client) -> anyhow::Error {
    let ClientError::Attribute(AttributeError::NotFound { path }) = &error else {
        return error.into();
    };
    let path = path.trim_end_matches('/');
    let below = client.list(path).unwrap_or_default();
    if let Some(first) = below.first() {
        let first = printable_name(&first.path);
        return anyhow!(
            "{path:?} is no attribute, but holds some, such as {first}: `homing ls {}` lists them",
            printable_name(path)
        );
    }
    if let Ok(Some(closest)) = client.closest(path) {
        let closest = printable_name(&closest);
        return anyhow!("there is no attribute {path:?}: did you mean {closest}?");
    }
    error.into()
}
