//! Where a passphrase comes from: a file, standard input, the terminal, or chance.

use std::fs;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::path::Path;

use anyhow::{Context, Error, anyhow, bail};
use zeroize::Zeroizing;

use crate::prompt;

/// `cryptsetup`'s limit for key files.
const KEY_FILE_LEN_MAX: u64 = 8 << 20;

/// A passphrase: wiped from memory when dropped.
pub(crate) type Passphrase = Zeroizing<Vec<u8>>;

/// Reads the whole of a key file, as `cryptsetup --key-file` does; `-` is standard input.
pub(crate) fn from_file(path: &Path) -> anyhow::Result<Passphrase> {
    let limit = KEY_FILE_LEN_MAX + 1;
    // Room for as much as it may become: if it grew, it would leave copies behind.
    let mut passphrase = Zeroizing::new(Vec::new());
    let room = passphrase.try_reserve_exact(limit as usize);
    room.with_context(|| format!("no memory for a key file, which may have {limit} bytes"))?;
    let file = if path == Path::new("-") {
        // Not through the buffer of `io::stdin`, which is not wiped.
        io::stdin().as_fd().try_clone_to_owned().map(fs::File::from)
    } else {
        fs::File::open(path)
    };
    let read = file.and_then(|file| file.take(limit).read_to_end(&mut passphrase));
    read.with_context(|| format!("cannot read key file {}", path.display()))?;
    if passphrase.is_empty() {
        bail!("key file {} is empty", path.display());
    }
    if passphrase.len() as u64 > KEY_FILE_LEN_MAX {
        bail!("key file {} is longer than {KEY_FILE_LEN_MAX} bytes", path.display());
    }
    Ok(passphrase)
}

/// Asks once, to open an existing container.
pub(crate) fn ask(image: &Path) -> anyhow::Result<Passphrase> {
    prompt(&format!("Passphrase for {}: ", image.display()))
}

/// Asks twice, for a new container.
pub(crate) fn ask_twice(image: &Path) -> anyhow::Result<Passphrase> {
    let first = prompt(&format!("New passphrase for {}: ", image.display()))?;
    if first.is_empty() {
        bail!("an empty passphrase protects nothing: nothing was made");
    }
    if first != prompt("The same again: ")? {
        bail!("the two passphrases differ: nothing was made");
    }
    Ok(first)
}

fn prompt(question: &str) -> anyhow::Result<Passphrase> {
    prompt::hidden(question).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => anyhow!("no passphrase was given"),
        _ => Error::new(error)
            .context("cannot ask for a passphrase at a terminal: use --key-file FILE"),
    })
}

/// A random key, for containers that nobody opens again.
pub(crate) fn random() -> anyhow::Result<Passphrase> {
    let mut key = Zeroizing::new(vec![0; 32]);
    getrandom::fill(&mut key).context("the system has no random numbers")?;
    Ok(key)
}
