//! `homing serve`: opens or makes volumes and serves them until told to stop.

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use homing::control::{AttributeTree, ControlSocket, Trees};
use homing::{Runtime, Scope};
use homing_control::ByteSize;
use homing_server::{
    Certificates, CryptOn, Endpoint, ServedExport, Server, ServerHandle, ServerOptions, VerifyPeer,
};
use homing_volume::WritePolicy;
use sd_notify::NotifyState;
use signal_hook::iterator::Signals;

use crate::announce::{Offer, announcement};
use crate::cache::{Cache, CacheArgs};
use crate::count::count;
use crate::images::{self, export_name};
use crate::log::log_to_stderr;
use crate::memory;
use crate::metrics::{self, Metrics};
use crate::opening::Opening;
use crate::output;
use crate::passphrase::{self, Passphrase};
use crate::process::{allow_files, forbid_core_dumps, outlive_file_limits};
use crate::prompt;
use crate::stop::{self, ending_signals, stop_then_end};
use crate::systemd::tell_systemd;
use crate::try_load;
use crate::volumes::{self, NewVolumeArgs};

/// The volume of `--try`, unless `--size` says otherwise.
pub(crate) const TRY_SIZE: ByteSize = ByteSize(256 << 20);

// Each is a switch of its own on the command line.
#[allow(clippy::struct_excessive_bools)]
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ServeArgs {
    /// LUKS containers to serve; a missing one is made if --size is given
    #[arg(required_unless_present = "try_it")]
    images: Vec<PathBuf>,

    /// Capacity of a new volume: in bytes, or with K, M, G, T, P
    #[arg(long, value_name = "SIZE")]
    pub(crate) size: Option<ByteSize>,

    /// Use the whole content of this file as the passphrase, as cryptsetup does; - is standard
    /// input
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,

    /// Make a throw-away volume with a random key that is never stored
    #[arg(long, conflicts_with = "key_file")]
    pub(crate) ephemeral: bool,

    /// Listen on this Unix socket [default: IMAGE.sock]
    #[arg(long, value_name = "PATH", conflicts_with = "listen")]
    socket: Option<PathBuf>,

    /// Listen on this TCP address. Whoever can connect can read and write everything, unless
    /// there is --tls-verify-peer; without --tls-certificates the connection is not encrypted
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = socket_address)]
    listen: Option<SocketAddr>,

    /// Require TLS of all clients, with server-cert.pem and server-key.pem of this folder. Replaced
    /// files take effect for clients that connect later
    #[arg(long, value_name = "DIR", conflicts_with = "try_it")]
    tls_certificates: Option<PathBuf>,

    /// Serve only clients whose certificate is signed by ca-cert.pem of that folder and not revoked
    /// by its ca-crl.pem (if there is one). Each of them may use all exports
    #[arg(long, requires = "tls_certificates")]
    tls_verify_peer: bool,

    /// Offer the live attributes on this Unix socket, for `homing top`, `ls`, `get`, `set` and `wq`
    #[arg(long, value_name = "PATH")]
    control: Option<PathBuf>,

    /// Offer the counters to Prometheus, as http://ADDRESS:PORT/metrics. Whoever can connect can
    /// read them: names of exports and figures, never what is in the files
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = socket_address, conflicts_with = "try_it")]
    metrics: Option<SocketAddr>,

    /// Refuse writes; the file may be read-only too
    #[arg(long)]
    pub(crate) read_only: bool,

    /// Make a throw-away volume, run a short client load on it, and print a table
    #[arg(long = "try", conflicts_with_all = ["read_only", "key_file", "ephemeral"])]
    pub(crate) try_it: bool,

    /// Print JSON, for programs
    #[arg(long)]
    json: bool,

    /// Clients at one time; more are turned away. An idle client costs about 25 KiB of memory, 80
    /// KiB with TLS
    #[arg(long, value_name = "COUNT", default_value = "10000", value_parser = count)]
    connections_max: NonZeroUsize,

    /// Memory for the requests of all clients together, beyond 640 KiB for each busy client. A
    /// fourth of it is for data that is received ahead of its turn. A client that stops within a
    /// request occupies the memory of the whole request, and is cut off if it keeps others waiting
    /// and does not go on. Of several exports each gets no more than it leaves free, except for a
    /// single client, so that some disks that hang do not stop the others [default: 1G, or a fourth
    /// of the memory that the machine or the cgroup has beside the cache]
    #[arg(long, value_name = "SIZE")]
    request_memory: Option<ByteSize>,

    /// How far encryption may spread from the CPU of its connection
    #[arg(long, value_name = "SCOPE", default_value = "cache", help_heading = "Scheduling",
        value_parser = PossibleValuesParser::new(Scope::ALL.map(Scope::name)).try_map(|name| name.parse::<Scope>()))]
    affinity_scope: Scope,

    /// Never let encryption leave that scope, even if CPUs outside it are idle
    #[arg(long, help_heading = "Scheduling")]
    affinity_strict: bool,

    /// Which thread encrypts and decrypts
    #[arg(long, value_enum, default_value_t = CryptOnArg::Auto, help_heading = "Scheduling")]
    crypt_on: CryptOnArg,

    /// How many microseconds to poll for a client's next request before sleeping, if its last one
    /// came as soon; 0 never polls
    #[arg(long, value_name = "MICROSECONDS", default_value_t = 50, help_heading = "Scheduling",
        value_parser = clap::value_parser!(u64).range(..=1_000_000))]
    busy_poll: u64,

    #[command(flatten)]
    pub(crate) cache: CacheArgs,

    #[command(flatten)]
    pub(crate) new: NewVolumeArgs,
}

const EXAMPLES: &str = "\
Examples:
  homing serve disk.img --size 10G               asks for a passphrase, twice
  homing serve disk.img --key-file key           opens an existing volume
  homing serve a.img b.img --listen 127.0.0.1:10809
  homing serve disk.img --listen 0.0.0.0:10809 \\
      --tls-certificates pki --tls-verify-peer
  homing serve a.img b.img --cache 4G --cache-min a=1G
                                                 b cannot evict all of a
  homing serve disk.img --control disk.control   with a socket for homing top
  homing serve disk.img --metrics 127.0.0.1:9820 for Prometheus
  homing serve --try                             five seconds of load, a table

Each image is an export named after its file: disk.img is served as \"disk\". The first image also \
answers to the empty name. Containers are LUKS2 and open with cryptsetup; containers made by \
cryptsetup open here if they use AES-256 in XTS mode without integrity tags.

Ctrl-C, SIGTERM or SIGHUP stops the server after making everything durable. HOMING_LOG=debug logs more \
on standard error.";

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum CryptOnArg {
    /// Whichever is cheaper for the request at the moment
    Auto,
    /// The connection's own thread
    Connection,
    /// A worker of the crypt workqueue
    Workqueue,
}

fn socket_address(text: &str) -> Result<SocketAddr, String> {
    let bad = "write an IP address and a port, as in 127.0.0.1:10809 or [::1]:10809";
    text.parse().map_err(|_| format!("{text:?} is no address: {bad}"))
}

pub(crate) fn run(args: &ServeArgs) -> anyhow::Result<()> {
    log_to_stderr();
    forbid_core_dumps();
    outlive_file_limits()?;
    let handled = || Signals::new(ending_signals()).context("cannot handle signals");
    // Before there are files that must not be left behind: a signal from here on is seen once the
    // server runs.
    let seen_later = if args.try_it || args.ephemeral { Some(handled()?) } else { None };
    if seen_later.is_none() && prompt::is_first_process() {
        prompt::watch_signals().context("cannot handle signals")?;
    }
    let folder = if args.try_it {
        Some(
            tempfile::tempdir()
                .context("cannot make a folder for --try: set TMPDIR to another place")?,
        )
    } else {
        None
    };
    let mut images = args.images.clone();
    if let (Some(folder), true) = (&folder, images.is_empty()) {
        images.push(folder.path().join("try.img"));
    }
    images::check_names(&images)?;
    let endpoint = endpoint(args, &images)?;
    // Before a passphrase is asked for, and before an image is made that nobody can use.
    check_endpoint(&endpoint, args.control.as_deref(), &images)?;
    check_metrics(args.listen, args.metrics)?;
    let tls = certificates(args)?;
    if args.try_it {
        try_load::check_size(args.size.unwrap_or(TRY_SIZE))?;
    }
    let runtime = Runtime::builder().on_stall(|stall| tracing::warn!("{stall}")).build();
    let runtime = Arc::new(runtime.context("cannot start the workers")?);
    let names: Vec<_> = images.iter().map(|image| export_name(image)).collect();
    let cache = args.cache.build(&runtime, &names)?;
    let request_memory = memory::of_requests(args.request_memory, args.cache.size());
    let others = args.metrics.map_or(0, |_| metrics::CONNECTIONS_MAX);
    allow_files(args.connections_max.get().saturating_add(others), images.len());
    let key = args.key_file.as_deref().map(passphrase::from_file).transpose()?;
    let (exports, served) = open_all(args, &images, key.as_ref(), cache.as_ref())?;
    drop(key);
    // Until here a signal ends the program at once, unless the volumes are throw-away: no container
    // is half made, and none has been written to.
    let signals = seen_later.map_or_else(handled, Ok)?;
    prompt::leave_signals_to_others();
    let has_tls = tls.is_some();
    let writes_back = |cache: &Cache| cache.policy == WritePolicy::Back;
    let holds_writes = !args.read_only && cache.as_ref().is_some_and(writes_back);
    let options = ServerOptions {
        tls,
        connections_max: args.connections_max.get(),
        // More than can be addressed is no limit.
        request_memory_max: usize::try_from(request_memory.0).unwrap_or(usize::MAX),
        affinity_scope: args.affinity_scope,
        affinity_strict: args.affinity_strict,
        busy_poll: Duration::from_micros(args.busy_poll),
        crypt_on: match args.crypt_on {
            CryptOnArg::Auto => CryptOn::Auto,
            CryptOnArg::Connection => CryptOn::Connection,
            CryptOnArg::Workqueue => CryptOn::Workqueue,
        },
        // What was answered is only with a write-back cache not in the file. Nobody will read a
        // volume that is thrown away.
        waits_for_space: holds_writes && !args.try_it && !args.ephemeral,
        ..ServerOptions::default()
    };
    let server = Server::bind(&runtime, &endpoint, exports, &options)?;
    // Whatever this one is like: who is killed for want of memory comes back without a cache.
    if server.follows_one_that_did_not_end() {
        let what = "the server before this one did not end in order: if it had a write-back cache, what \
            it had answered and not flushed may be lost, and clients that connect again are not told \
            (reset virtual machines)";
        tracing::warn!("{what}");
    }
    // `control` lives until the end of the program, and then removes its file.
    let mut trees: Vec<Arc<dyn AttributeTree>> = vec![
        Arc::new(runtime.attributes()),
        Arc::new(server.durable().attributes()),
        Arc::new(server.attributes()),
    ];
    if let Some(cache) = &cache {
        trees.push(Arc::new(cache.pages.attributes()));
    }
    let control = args.control.as_ref().map(|path| control_socket(path, trees)).transpose()?;
    let sources = metrics::Sources {
        runtime: Arc::clone(&runtime),
        durable: server.durable().clone(),
        server: server.attributes(),
        cache: cache.as_ref().map(|cache| cache.pages.clone()),
    };
    // As is `metrics`, which ends before what it tells of.
    let metrics = args.metrics.map(|address| Metrics::serve(address, sources)).transpose()?;
    let endpoint = server.endpoint().context("cannot tell where the server listens")?;
    let handle = server.handle();
    let on_signal = handle.clone();
    let stopped = Arc::new(AtomicBool::new(false));
    let noted = Arc::clone(&stopped);
    let watch = move || stop_on_signal(signals, &on_signal, &noted);
    stop::beside(watch).context("cannot create a thread that waits for signals")?;

    if args.try_it {
        let (name, at) = (export_name(&images[0]), endpoint.clone());
        let load = move || {
            let rows = try_load::run(&at, &name);
            handle.stop();
            rows
        };
        let load = thread::Builder::new().spawn(load).context("cannot create a thread")?;
        report_flush(server.run())?;
        let rows = load.join().expect("the load does not panic");
        if stopped.load(Ordering::SeqCst) {
            // The load would report a server that went away.
            bail!("stopped before the load had ended: the volume is gone");
        }
        let (image, sector_size) = (images[0].as_path(), args.new.sector_size_or_default());
        let setting = try_load::Setting { image, sector_size, endpoint: &endpoint };
        return try_load::print(&rows?, &setting, args.json);
    }
    let offer = Offer {
        endpoint: &endpoint,
        tls: has_tls,
        images: &images,
        control: control.as_ref().map(ControlSocket::path),
        metrics: metrics.as_ref().map(Metrics::url),
    };
    tell_systemd(&NotifyState::Ready);
    let announced = announce(announcement(args.json, &offer)?, handle);
    let flushed = report_flush(server.run());
    served.warn_of_missing();
    // If it is still being told, nobody reads it.
    flushed.and(announced.try_recv().unwrap_or(Ok(())))
}

/// Says on standard output what there is, beside serving: who does not read that keeps no client
/// waiting. If it cannot be said, stops the server, which nobody was told of.
fn announce(text: String, handle: ServerHandle) -> Receiver<anyhow::Result<()>> {
    let (told, outcome) = mpsc::channel();
    let tell = Arc::new(move || {
        let printed = output::print(text.as_bytes());
        let failed = printed.is_err();
        let _ = told.send(printed);
        if failed {
            handle.stop();
        }
    });
    let here = Arc::clone(&tell);
    if thread::Builder::new().name("announce".to_owned()).spawn(move || tell()).is_err() {
        here();
    }
    outcome
}

/// Opens or makes all images; exports stand in their order.
fn open_all(
    args: &ServeArgs,
    images: &[PathBuf],
    key: Option<&Passphrase>,
    cache: Option<&Cache>,
) -> anyhow::Result<(Vec<ServedExport>, images::Served)> {
    let mut exports = Vec::new();
    let mut served = images::Served::default();
    // Check all images before the first one is made, or a passphrase is asked for.
    let mut there = images::Served::default();
    for image in images {
        there.check(image)?;
        volumes::check(args, image)?;
        there.add(image);
    }
    // Images that exist come first: they may be in use, or have another passphrase.
    let (old, new): (Vec<_>, Vec<_>) =
        images.iter().partition(|image| image.symlink_metadata().is_ok());
    // Of each volume that is made, the log says so.
    let opening = Opening::of(images.len(), key.is_some() && new.is_empty());
    for image in old.into_iter().chain(new) {
        served.check(image)?;
        opening.next(image);
        let device = volumes::open_or_make(args, image, key, cache)?;
        opening.done();
        served.add(image);
        // Anybody who can connect may ask for it, so it says nothing of the server's folders.
        let file = image.file_name().unwrap_or(image.as_os_str()).display();
        let description = format!("{} on {file}", ByteSize(device.size()));
        let (name, read_only) = (export_name(image), args.read_only);
        exports.push(ServedExport { name, description, read_only, device });
    }
    // In the order that was asked for: clients that name no export get the first one.
    exports.sort_by_key(|export| images.iter().position(|image| export_name(image) == export.name));
    Ok((exports, served))
}

fn certificates(args: &ServeArgs) -> anyhow::Result<Option<Certificates>> {
    let Some(folder) = &args.tls_certificates else { return Ok(None) };
    let verify_peer = if args.tls_verify_peer { VerifyPeer::Yes } else { VerifyPeer::No };
    let certificates = Certificates::load(folder, verify_peer);
    Ok(Some(certificates.context("--tls-certificates")?))
}

fn control_socket(
    path: &Path,
    trees: Vec<Arc<dyn AttributeTree>>,
) -> anyhow::Result<ControlSocket> {
    // An absolute path: it is shown to users who may be in another folder.
    std::path::absolute(path)
        .and_then(|path| ControlSocket::listen(path, Arc::new(Trees::new(trees))))
        .with_context(|| format!("cannot offer the attributes on {}", path.display()))
}

fn endpoint(args: &ServeArgs, images: &[PathBuf]) -> anyhow::Result<Endpoint> {
    if let Some(address) = args.listen {
        return Ok(Endpoint::Tcp(address));
    }
    let path = args.socket.clone().unwrap_or_else(|| {
        let mut path = images[0].clone().into_os_string();
        path.push(".sock");
        path.into()
    });
    let path = std::path::absolute(&path)
        .with_context(|| format!("cannot make {} absolute", path.display()))?;
    Ok(Endpoint::Unix(path))
}

/// Refuses a path that is given for several things, and an endpoint on which nobody can listen.
fn check_endpoint(
    endpoint: &Endpoint,
    control: Option<&Path>,
    images: &[PathBuf],
) -> anyhow::Result<()> {
    let socket = match endpoint {
        Endpoint::Unix(socket) => Some(socket.as_path()),
        Endpoint::Tcp(_) => None,
    };
    let is_image = |socket: &Path| images.iter().any(|image| images::is_same_path(image, socket));
    if let Some(socket) = socket.filter(|socket| is_image(socket)) {
        bail!("{} cannot be an image and the socket: use another --socket", socket.display());
    }
    if let Some(control) = control.filter(|control| is_image(control)) {
        bail!("{} cannot be an image and --control: use another --control", control.display());
    }
    if let (Some(socket), Some(control)) = (socket, control)
        && images::is_same_path(socket, control)
    {
        bail!("{} cannot be --socket and --control: use two paths", control.display());
    }
    if let Some(control) = control {
        let path = std::path::absolute(control);
        path.and_then(ControlSocket::check)
            .with_context(|| format!("cannot offer the attributes on {}", control.display()))?;
    }
    Ok(endpoint.check()?)
}

/// Refuses an address for metrics on which nobody can listen, also because the server will.
fn check_metrics(listen: Option<SocketAddr>, metrics: Option<SocketAddr>) -> anyhow::Result<()> {
    let Some(metrics) = metrics else { return Ok(()) };
    if let Some(listen) = listen
        && listen.port() == metrics.port()
        && listen.port() > 0
        && (listen.ip() == metrics.ip()
            || [listen, metrics].iter().any(|it| it.ip().is_unspecified()))
    {
        bail!("--listen {listen} and --metrics {metrics} cannot be both: use two ports");
    }
    Metrics::check(metrics)
}

fn report_flush(
    result: Result<(), Vec<(String, homing_volume::BlockError)>>,
) -> anyhow::Result<()> {
    let Err(failed) = result else { return Ok(()) };
    let lines: Vec<_> = failed.iter().map(|(name, error)| format!("{name}: {error}")).collect();
    bail!("the last flush failed; what was not flushed before may be lost: {}", lines.join("; "))
}

fn stop_on_signal(signals: Signals, server: &homing_server::ServerHandle, stopped: &AtomicBool) {
    let stop = || {
        stopped.store(true, Ordering::SeqCst);
        tell_systemd(&NotifyState::Stopping);
        tracing::info!("stopping: finishing requests and flushing; once more to stop at once");
        server.stop();
    };
    stop_then_end(signals, stop, || {
        tracing::warn!("stopped at once on a second signal: unflushed writes may be lost");
    });
}
