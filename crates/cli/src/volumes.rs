//! The volumes that `homing serve` is asked for: opened if they exist, otherwise made.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::{fs, io};

use anyhow::{Context, anyhow, bail};
use clap::Args;
use homing_volume::luks::{self, Access, Container, FormatOptions, Kdf, LuksError};
use homing_volume::{Block, SectorSize};
use rustix::fs::{Access as FolderAccess, AtFlags, CWD};
use rustix::io::Errno;

use crate::cache::Cache;
use crate::images::export_name;
use crate::passphrase::{self, Passphrase};
use crate::serve::{ServeArgs, TRY_SIZE};

/// What is asked of volumes that are made.
#[derive(Args)]
#[command(next_help_heading = "New volumes")]
pub(crate) struct NewVolumeArgs {
    /// Sector size of a new volume: 4096, or 512 for clients that need it [default: 4096]
    #[arg(long, value_name = "BYTES", value_parser = sector_size)]
    sector_size: Option<SectorSize>,

    /// How long it takes to try a passphrase, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 2000, value_parser = clap::value_parser!(u32).range(1..))]
    iter_time: u32,

    /// Most memory that trying a passphrase takes, in KiB [default: 1 GiB, or half of what the
    /// machine has and the cgroup allows]
    #[arg(long, value_name = "KIB", value_parser = clap::value_parser!(u32).range(32..=4 << 20))]
    pbkdf_memory: Option<u32>,

    /// Passes of the key derivation, instead of measuring how many fit --iter-time; only for random
    /// keys
    #[arg(long, value_name = "COUNT", requires = "pbkdf_memory", value_parser = clap::value_parser!(u32).range(4..))]
    pbkdf_force_iterations: Option<u32>,

    /// Pass discards on to the file: this frees space, but shows which parts of the volume are in
    /// use
    #[arg(long)]
    allow_discards: bool,
}

impl NewVolumeArgs {
    pub(crate) fn sector_size_or_default(&self) -> SectorSize {
        self.sector_size.unwrap_or(SectorSize::B4096)
    }
}

fn sector_size(text: &str) -> Result<SectorSize, String> {
    let size = text.parse().ok().and_then(SectorSize::from_bytes);
    size.ok_or_else(|| format!("{text:?} is not a sector size: use 512 or 4096"))
}

/// Refuses what cannot be opened or made, as far as that can be told without a passphrase.
pub(crate) fn check(args: &ServeArgs, image: &Path) -> anyhow::Result<()> {
    if !exists(image)? {
        new_volume(args, image)?.check()?;
        return check_place(image);
    }
    if args.ephemeral || args.try_it {
        bail!("{} exists: a throw-away volume needs a name that is free", image.display());
    }
    check_is_as_wanted(args, image, &luks::look_at(image)?)
}

fn exists(image: &Path) -> anyhow::Result<bool> {
    match image.symlink_metadata() {
        Ok(found) => {
            if found.is_symlink() && image.metadata().is_err_and(|error| is_missing(&error)) {
                let to = image.read_link().unwrap_or_default();
                bail!("{} is a link to {}, which does not exist", image.display(), to.display());
            }
            Ok(true)
        }
        Err(error) if is_missing(&error) => Ok(false),
        Err(error) => Err(error).with_context(|| format!("cannot look at {}", image.display())),
    }
}

fn is_missing(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
}

fn new_volume(args: &ServeArgs, image: &Path) -> anyhow::Result<FormatOptions> {
    let Some(size) = args.size.or(args.try_it.then_some(TRY_SIZE)) else {
        bail!("{} does not exist: give --size to make a new volume", image.display());
    };
    Ok(FormatOptions {
        size: size.0,
        sector_size: args.new.sector_size_or_default(),
        kdf: kdf(args, args.ephemeral || args.try_it),
        allow_discards: args.new.allow_discards,
    })
}

/// Opens or makes a volume that has been [checked](check). `key`: what the key file holds, if there
/// is one.
pub(crate) fn open_or_make(
    args: &ServeArgs,
    image: &Path,
    key: Option<&Passphrase>,
    cache: Option<&Cache>,
) -> anyhow::Result<Arc<dyn Block>> {
    let throw_away = args.ephemeral || args.try_it;
    if exists(image)? {
        // The image may not have been there when it was checked.
        check_is_as_wanted(args, image, &luks::look_at(image)?)?;
        if luks::has_damaged_header(image)? {
            tracing::warn!(
                "one of the two copies of the header of {image} is damaged, and the other one is used: stop the \
                 server and repair it with `cryptsetup repair {image}`",
                image = image.display()
            );
        }
        return match key {
            Some(key) => open(args, image, key, cache).map_err(|error| with_newline(error, key)),
            None => open(args, image, &passphrase::ask(image)?, cache),
        };
    }

    let options = new_volume(args, image)?;
    let passphrase: Passphrase = match key {
        Some(key) => key.clone(),
        None if throw_away => passphrase::random()?,
        None => passphrase::ask_twice(image)?,
    };
    if !throw_away && args.new.pbkdf_force_iterations.is_none() {
        tracing::info!("making {}: measuring the key derivation takes a while", image.display());
    }
    luks::format(image, &options, &passphrase)?;
    let opened = open(args, image, &passphrase, cache);
    if throw_away {
        // The file lives on without a name, and goes when this program ends, however it ends.
        fs::remove_file(image).with_context(|| format!("cannot remove {}", image.display()))?;
    }
    opened
}

/// The error, with what is usual if a key file was written by an editor or by `echo`.
fn with_newline(error: anyhow::Error, key: &Passphrase) -> anyhow::Error {
    let is_wrong = matches!(error.downcast_ref(), Some(LuksError::WrongPassphrase { .. }));
    if is_wrong && key.ends_with(b"\n") {
        return anyhow!(
            "{error}: the key file ends with a newline, which counts; without it: printf %s \"$(cat KEY)\" > KEY2"
        );
    }
    error
}

/// Refuses options for a new volume that are not true of one that is there.
fn check_is_as_wanted(args: &ServeArgs, image: &Path, found: &Container) -> anyhow::Result<()> {
    let image = image.display();
    if let Some(wanted) = args.size.filter(|wanted| wanted.0 != found.size) {
        let size = found.size;
        bail!(
            "{image} holds {size} bytes, not {}: leave --size away to serve it as it is",
            wanted.0
        );
    }
    if let Some(wanted) = args.new.sector_size.filter(|wanted| *wanted != found.sector_size) {
        bail!(
            "{image} has sectors of {} bytes, not {}: leave --sector-size away to serve it as it is",
            found.sector_size.bytes(),
            wanted.bytes()
        );
    }
    if args.new.allow_discards && !found.allows_discards {
        bail!(
            "{image} was made to let no discards through: leave --allow-discards away to serve it as it is"
        );
    }
    Ok(())
}

fn open(
    args: &ServeArgs,
    image: &Path,
    passphrase: &Passphrase,
    cache: Option<&Cache>,
) -> anyhow::Result<Arc<dyn Block>> {
    let Some(cache) = cache else {
        return Ok(luks::open_boxed(image, passphrase, access(args))?);
    };
    let group = args.cache.group(cache, &export_name(image))?;
    let pages = (&cache.pages, &group);
    Ok(luks::open_cached(image, passphrase, access(args), pages, cache.policy)?)
}

fn access(args: &ServeArgs) -> Access {
    if args.read_only { Access::ReadOnly } else { Access::ReadWrite }
}

fn kdf(args: &ServeArgs, random_key: bool) -> Kdf {
    match (args.new.pbkdf_memory, args.new.pbkdf_force_iterations) {
        (Some(memory_kib), Some(iterations)) => Kdf::Fixed { memory_kib, iterations },
        // 256 random bits need no stretching: the least that the format allows.
        _ if random_key => Kdf::Fixed { memory_kib: 32, iterations: 4 },
        (memory_kib, _) => Kdf::Measured { time_ms: args.new.iter_time, memory_kib },
    }
}

/// Whether a file can have this name, before anybody is asked for a passphrase and a key is
/// derived.
fn check_place(image: &Path) -> anyhow::Result<()> {
    if image.as_os_str().as_bytes().ends_with(b"/") {
        bail!("{} is a folder's name: give one of a file", image.display());
    }
    let folder = image.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    let takes_files = fs::metadata(folder).and_then(|found| {
        if found.is_dir() {
            may_make_files_in(folder)?;
        }
        Ok(found.is_dir())
    });
    match takes_files {
        Ok(true) => Ok(()),
        Ok(false) => {
            bail!("{} cannot be made: {} is not a folder", image.display(), folder.display())
        }
        Err(error) => Err(error)
            .with_context(|| format!("{} cannot be made in {}", image.display(), folder.display())),
    }
}

/// Asks the kernel, for the effective user and capabilities of this process.
fn may_make_files_in(folder: &Path) -> io::Result<()> {
    let to_make_files = FolderAccess::WRITE_OK | FolderAccess::EXEC_OK;
    match rustix::fs::accessat(CWD, folder, to_make_files, AtFlags::EACCESS) {
        // Before Linux 5.8 this cannot be told.
        Err(Errno::NOSYS | Errno::INVAL) => Ok(()),
        may => Ok(may?),
    }
}
