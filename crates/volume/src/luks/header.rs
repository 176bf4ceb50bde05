//! Reads a container's header and decides whether we can serve it.
//!
//! `libcryptsetup` checks that a header is whole; it does not refuse what it can read but we
//! cannot do (other ciphers, integrity tags, several segments, an interrupted re-encryption), so
//! every such case is refused here, before a key is used.

use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use homing_topology::Memory;
use libcryptsetup_rs::consts::vals::EncryptionFormat;
use libcryptsetup_rs::{CryptDevice, CryptInit, LibcryptErr};
use rustix::fs::MemfdFlags;
use rustix::io::Errno;
use serde::Deserialize;
use serde_json::json;
use zeroize::Zeroizing;

use super::error::LuksError;
use super::library::{self, DERIVING_MAX, Failed};
use crate::xts::SectorSize;

/// Bytes of a file that can belong to its header: LUKS2's default data offset. The area may be
/// larger; then the binary header says so, and more is copied.
const HEADER_COPY_LEN: u64 = 16 << 20;
/// The largest data offset that is believed: the format's limits are far below.
const HEADER_COPY_LEN_MAX: u64 = 256 << 20;
const SECTOR_512: u64 = 512;
/// The binary part of each of LUKS2's two header copies; the JSON area follows it.
const BINARY_HEADER_LEN: u64 = 4096;

/// What the data path needs to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) data_offset: u64,
    pub(super) sector_size: SectorSize,
    pub(super) allow_discards: bool,
    /// The size of the data area, if the header fixes it.
    fixed_size: Option<u64>,
}

/// The JSON area, as far as it matters. Its numbers are strings.
#[derive(Deserialize)]
struct Metadata {
    segments: serde_json::Map<String, serde_json::Value>,
    #[serde(default)]
    keyslots: serde_json::Map<String, serde_json::Value>,
    #[serde(default)]
    digests: serde_json::Map<String, serde_json::Value>,
    config: Config,
}

#[derive(Deserialize)]
struct Config {
    json_size: String,
    keyslots_size: String,
    #[serde(default)]
    flags: Vec<String>,
    #[serde(default)]
    requirements: serde_json::Value,
}

#[derive(Deserialize)]
struct Segment {
    #[serde(rename = "type")]
    kind: String,
    offset: String,
    size: String,
    iv_tweak: String,
    encryption: String,
    sector_size: u64,
    integrity: Option<serde_json::Value>,
}

/// Reads the header of `file`, which is `length` bytes long.
pub(super) fn read(path: &Path, file: &fs::File, length: u64) -> Result<Header, LuksError> {
    let copy = copy_header(path, file, length)?;
    let loaded = library::with(|| {
        let mut device = load(&copy)?;
        describe(&mut device)
    });
    check(path, length, loaded)
}

/// Whether one of the header's copies is damaged: the library has repaired it in memory then.
pub(super) fn is_repaired(path: &Path, file: &fs::File, length: u64) -> Result<bool, LuksError> {
    let copy = copy_header(path, file, length)?;
    let loaded = library::with(|| describe(&mut load(&copy)?));
    let has_copies = matches!(loaded, Ok(Described::Luks2(_)));
    check(path, length, loaded)?;
    if !has_copies {
        return Ok(false);
    }
    let read = |source| LuksError::io("read the header of", path, source);
    let mut pieces = [vec![0; 1 << 20], vec![0; 1 << 20]];
    let end = header_len(file).min(length);
    for at in (0..end).step_by(1 << 20) {
        for (source, piece) in [file, &copy.memory].into_iter().zip(&mut pieces) {
            piece.truncate((end - at).min(1 << 20) as usize);
            source.read_exact_at(piece, at).map_err(read)?;
        }
        if pieces[0] != pieces[1] {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Reads the header and fetches the volume key with a passphrase.
pub(super) fn unlock(
    path: &Path,
    file: &fs::File,
    length: u64,
    passphrase: &[u8],
) -> Result<(Header, Zeroizing<Vec<u8>>), LuksError> {
    let copy = copy_header(path, file, length)?;
    let described = library::with(|| describe(&mut load(&copy)?));
    let of_derivations = |what| match &described {
        Ok(Described::Luks2(metadata)) => of_derivations(metadata, what),
        _ => Vec::new(),
    };
    let (derivations, threads) = (of_derivations("memory"), of_derivations("cpus"));
    let header = check(path, length, described)?;
    let bound = |needed: Option<&u64>| needed.copied().unwrap_or(0);
    let (least, most) = (bound(derivations.iter().min()), bound(derivations.iter().max()));
    let needed = |needed_kib| LuksError::Memory { path: path.to_owned(), needed_kib };
    // The kernel does not refuse memory beyond a cgroup's limit: it kills the program.
    if let Some(available_kib) = available_kib().filter(|available| most > *available) {
        if least > available_kib && !has_swap() {
            return Err(needed(least));
        }
        tracing::warn!(
            container = %path.display(),
            needed_kib = most,
            available_kib,
            "trying a passphrase takes more memory than there is: the kernel may end this program"
        );
    }
    let count = threads.into_iter().max().unwrap_or(0).min(DERIVING_MAX);
    let no_threads = |source| LuksError::Threads { path: path.to_owned(), count, source };
    library::check_threads(count).map_err(no_threads)?;
    let key = library::with(|| {
        let mut device = load(&copy)?;
        let mut key = Zeroizing::new(vec![0; 64]);
        let (_, length) = device.volume_key_handle().get(None, &mut key, Some(passphrase))?;
        key.truncate(length);
        Ok(key)
    });
    match key {
        Ok(key) => Ok((header, key)),
        Err(Failed { errno: Some(Errno::PERM | Errno::NOENT), .. }) => {
            Err(LuksError::WrongPassphrase { path: path.to_owned() })
        }
        Err(Failed { errno: Some(Errno::NOMEM), .. }) => Err(needed(most)),
        Err(Failed { message, .. }) => {
            Err(LuksError::Library { action: "unlock", path: path.to_owned(), message })
        }
    }
}

impl Header {
    /// How much of a file of `length` bytes is data.
    pub(super) fn data_size(&self, path: &Path, length: u64) -> Result<u64, LuksError> {
        let sector = u64::from(self.sector_size.bytes());
        let needed = self.data_offset.saturating_add(self.fixed_size.unwrap_or(sector));
        if length < needed {
            return Err(LuksError::Truncated { path: path.to_owned(), length, needed });
        }
        let size = self.fixed_size.unwrap_or(length - self.data_offset);
        if !size.is_multiple_of(sector) {
            let lower = self.data_offset + size / sector * sector;
            return Err(LuksError::unsupported(
                path,
                format!(
                    "its data area has {size} bytes, which is not a multiple of its {sector}-byte \
                     sectors: make the file {lower} or {} bytes long (truncate -s)",
                    lower + sector
                ),
            ));
        }
        Ok(size)
    }
}

/// The header area in memory: a file of the same length, so that the library finds what it
/// expects, of which only the header is filled.
struct HeaderCopy {
    memory: fs::File,
}

impl HeaderCopy {
    fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.memory.as_raw_fd()))
    }
}

fn copy_header(path: &Path, file: &fs::File, length: u64) -> Result<HeaderCopy, LuksError> {
    let read = |source| LuksError::io("read the header of", path, source);
    let memory = rustix::fs::memfd_create("luks-header", MemfdFlags::CLOEXEC);
    let hold = |source| LuksError::io("hold in memory the header of", path, source);
    let memory = fs::File::from(memory.map_err(|errno| hold(errno.into()))?);
    memory.set_len(length).map_err(hold)?;
    let wanted = header_len(file).min(length);
    let mut piece = Zeroizing::new(vec![0; 1 << 20]);
    let mut at = 0;
    while at < wanted {
        let count = (wanted - at).min(piece.len() as u64) as usize;
        file.read_exact_at(&mut piece[..count], at).map_err(read)?;
        // Holes stay holes: the copy takes no more memory than the header has data.
        if piece[..count].iter().any(|byte| *byte != 0) {
            memory.write_all_at(&piece[..count], at).map_err(read)?;
        }
        at += count as u64;
    }
    Ok(HeaderCopy { memory })
}

/// Bytes that may belong to the header. The binary header tells the size of its metadata area. If
/// that is larger than the default's 16 KiB, the key slots may reach further than the default, too.
/// Anything odd is left to the library to refuse.
fn header_len(file: &fs::File) -> u64 {
    let mut metadata_len = [0; 8];
    match file.read_exact_at(&mut metadata_len, 8) {
        Ok(()) if u64::from_be_bytes(metadata_len) > 16 << 10 => HEADER_COPY_LEN_MAX,
        _ => HEADER_COPY_LEN,
    }
}

fn load(copy: &HeaderCopy) -> Result<CryptDevice, LibcryptErr> {
    let mut device = CryptInit::init(&copy.path())?;
    device.context_handle().load::<()>(None, None)?;
    Ok(device)
}

/// What the library says of a header, before we judge it.
enum Described {
    Luks1 { data_offset: u64, cipher: String, key_len: usize },
    Luks2(serde_json::Value),
}

fn describe(device: &mut CryptDevice) -> Result<Described, LibcryptErr> {
    if device.format_handle().get_type()? == EncryptionFormat::Luks1 {
        let mut status = device.status_handle();
        let cipher = format!("{}-{}", status.get_cipher()?, status.get_cipher_mode()?);
        let data_offset = status.get_data_offset() * SECTOR_512;
        let key_len = status.get_volume_key_size().try_into().unwrap_or(0);
        return Ok(Described::Luks1 { data_offset, cipher, key_len });
    }
    Ok(Described::Luks2(device.status_handle().dump_json()?))
}

fn check(path: &Path, length: u64, loaded: Result<Described, Failed>) -> Result<Header, LuksError> {
    let path_buf = || path.to_owned();
    match loaded {
        Ok(Described::Luks1 { data_offset, cipher, key_len }) => {
            check_cipher(path, &cipher)?;
            check_key_len(path, key_len)?;
            // LUKS1 has no other way to say that the data is elsewhere.
            check_attached(path, data_offset, SECTOR_512)?;
            let sector_size = SectorSize::B512;
            Ok(Header { data_offset, sector_size, allow_discards: false, fixed_size: None })
        }
        Ok(Described::Luks2(metadata)) => check_luks2(path, metadata),
        Err(Failed { errno: Some(Errno::INVAL), message }) if message.contains("too small") => {
            Err(LuksError::Truncated { path: path_buf(), length, needed: HEADER_COPY_LEN })
        }
        Err(Failed { errno: Some(Errno::INVAL | Errno::IO), .. }) => match files_can_be_opened() {
            Ok(()) => Err(LuksError::NotLuks { path: path_buf() }),
            Err(error) => Err(LuksError::io("read the header of", path, error)),
        },
        Err(Failed { message, .. }) => {
            Err(LuksError::Library { action: "read the header of", path: path_buf(), message })
        }
    }
}

/// The library says the same of a header that it cannot read for want of file descriptors as of one
/// that is damaged: it opens several.
fn files_can_be_opened() -> io::Result<()> {
    let opened = [(); 8].map(|()| fs::File::open("/dev/null"));
    let no_room = [Errno::MFILE, Errno::NFILE].map(Errno::raw_os_error);
    let mut errors = opened.into_iter().filter_map(Result::err);
    let error = errors.find(|it| it.raw_os_error().is_some_and(|errno| no_room.contains(&errno)));
    error.map_or(Ok(()), Err)
}

pub(super) fn check_luks2(path: &Path, metadata: serde_json::Value) -> Result<Header, LuksError> {
    let refuse = |problem: String| Err(LuksError::unsupported(path, problem));
    let parsed = serde_json::from_value::<Metadata>(metadata);
    let metadata = match parsed {
        Ok(metadata) => metadata,
        Err(error) => return refuse(format!("its metadata is unusual: {error}")),
    };
    // An object with a list "mandatory", or absent. Whatever it is, if we do not know it, we must
    // not touch the data.
    let requirements = match &metadata.config.requirements {
        serde_json::Value::Null => None,
        serde_json::Value::Object(map) => map.get("mandatory"),
        other => Some(other),
    };
    if let Some(required) = requirements.filter(|required| **required != json!([])) {
        let list = required.as_array().map_or(std::slice::from_ref(required), Vec::as_slice);
        let names: Vec<_> = list.iter().map(ToString::to_string).collect();
        return refuse(format!(
            "it requires {} (an interrupted re-encryption? cryptsetup reencrypt finishes it)",
            names.join(", ")
        ));
    }
    if metadata.segments.len() != 1 {
        return refuse(format!("it has {} segments, not one", metadata.segments.len()));
    }
    let segment = metadata.segments.into_iter().next().map(|(_, value)| value);
    let segment = match serde_json::from_value::<Segment>(segment.unwrap_or_default()) {
        Ok(segment) => segment,
        Err(error) => return refuse(format!("its segment is unusual: {error}")),
    };
    if segment.kind != "crypt" || segment.iv_tweak != "0" {
        let Segment { kind, iv_tweak, .. } = segment;
        return refuse(format!("its segment is of type {kind} with tweak {iv_tweak}"));
    }
    if let Some(integrity) = segment.integrity {
        return refuse(format!("it has integrity tags ({integrity}), which need dm-integrity"));
    }
    check_cipher(path, &segment.encryption)?;
    for slot in metadata.keyslots.iter().filter(|(name, _)| !is_unbound(&metadata.digests, name)) {
        if let Some(key_len) = slot.1.get("key_size").and_then(serde_json::Value::as_u64) {
            check_key_len(path, key_len as usize)?;
        }
    }
    let Some(sector_size) = SectorSize::from_bytes(segment.sector_size) else {
        return refuse(format!("its sectors have {} bytes, not 512 or 4096", segment.sector_size));
    };
    let Ok(data_offset) = segment.offset.parse::<u64>() else {
        return refuse(format!("its data begins at {:?}", segment.offset));
    };
    if !data_offset.is_multiple_of(segment.sector_size) {
        return refuse(format!("its data begins at {data_offset}, within a sector"));
    }
    let Some(header_len) = header_area_len(&metadata.config) else {
        let Config { json_size, keyslots_size, .. } = metadata.config;
        return refuse(format!("its header areas have {json_size:?} and {keyslots_size:?} bytes"));
    };
    check_attached(path, data_offset, header_len)?;
    let fixed_size = match segment.size.as_str() {
        "dynamic" => None,
        fixed => match fixed.parse() {
            Ok(size) => Some(size),
            Err(_) => return refuse(format!("its segment has {fixed:?} bytes")),
        },
    };
    let allow_discards = metadata.config.flags.iter().any(|flag| flag == "allow-discards");
    Ok(Header { data_offset, sector_size, allow_discards, fixed_size })
}

/// Whether a key slot holds a key of no segment (`cryptsetup luksAddKey --unbound`). Such a key may
/// have any size, and does not concern us: the library does not open the data with it.
fn is_unbound(digests: &serde_json::Map<String, serde_json::Value>, slot: &str) -> bool {
    let list =
        |digest: &serde_json::Value, of| digest.get(of).and_then(|all| all.as_array().cloned());
    let mut of_slot = digests.values().filter(|digest| {
        list(digest, "keyslots").is_some_and(|slots| slots.iter().any(|one| one == slot))
    });
    of_slot.next().is_some_and(|digest| list(digest, "segments").is_some_and(|all| all.is_empty()))
}

/// The length of both copies of the header and of the key slots.
fn header_area_len(config: &Config) -> Option<u64> {
    let copy = BINARY_HEADER_LEN.checked_add(config.json_size.parse().ok()?)?;
    copy.checked_mul(2)?.checked_add(config.keyslots_size.parse().ok()?)
}

/// Refuses a detached header, whose data is on another device: data written here would overwrite
/// the header.
fn check_attached(path: &Path, data_offset: u64, header_len: u64) -> Result<(), LuksError> {
    if data_offset >= header_len {
        return Ok(());
    }
    let problem = format!(
        "it is a detached header: its data would begin at {data_offset}, within its own \
         {header_len} bytes"
    );
    Err(LuksError::unsupported(path, problem))
}

fn check_cipher(path: &Path, cipher: &str) -> Result<(), LuksError> {
    if cipher == "aes-xts-plain64" {
        return Ok(());
    }
    let problem = format!("its cipher is {cipher}; only aes-xts-plain64 is supported");
    Err(LuksError::unsupported(path, problem))
}

fn check_key_len(path: &Path, key_len: usize) -> Result<(), LuksError> {
    if key_len == 64 {
        return Ok(());
    }
    let bits = key_len as u128 * 8;
    let problem = format!("its key has {bits} bits; only AES-256 (512 bits in XTS) is supported");
    Err(LuksError::unsupported(path, problem))
}

/// How much memory, in KiB, trying each of the key slots takes; 0 where none says so.
fn of_derivations(metadata: &serde_json::Value, what: &str) -> Vec<u64> {
    let slots = metadata.get("keyslots").and_then(serde_json::Value::as_object);
    let of = |slot: &serde_json::Value| slot.get("kdf")?.get(what)?.as_u64();
    let slots = slots.into_iter().flat_map(|slots| slots.values());
    slots.map(|slot| of(slot).unwrap_or(0)).collect()
}

pub(super) fn has_swap() -> bool {
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total = meminfo.lines().find_map(|line| line.strip_prefix("SwapTotal:"));
    total.is_some_and(|total| total.trim() != "0 kB")
}

/// The most memory that this process can have, if that is known.
pub(super) fn available_kib() -> Option<u64> {
    Memory::read(Path::new("/")).ok()?.available().map(|bytes| bytes / 1024)
}
