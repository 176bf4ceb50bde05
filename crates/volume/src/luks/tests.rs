use std::fs;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::block::Durability;

fn options(sector_size: SectorSize) -> FormatOptions {
    let kdf = Kdf::Fixed { memory_kib: 32, iterations: 4 };
    FormatOptions { sector_size, kdf, ..FormatOptions::new(1 << 20) }
}

fn container(sector_size: SectorSize) -> (tempfile::TempDir, std::path::PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk.img");
    format(&path, &options(sector_size), b"secret").unwrap();
    (folder, path)
}

fn error(path: &Path, passphrase: &[u8]) -> String {
    open(path, passphrase, Access::ReadWrite).map(|_| ()).unwrap_err().to_string()
}

#[test]
fn what_is_written_is_there_after_reopening_and_not_in_the_file() {
    for sector_size in [SectorSize::B512, SectorSize::B4096] {
        let (_folder, path) = container(sector_size);
        let text = b"plainly visible text, repeated: ".repeat(100);
        {
            let volume = open(&path, b"secret", Access::ReadWrite).unwrap();
            assert_eq!(volume.size(), 1 << 20);
            volume.write(777, &mut text.clone(), Durability::Flushed).unwrap();
        }
        let volume = open(&path, b"secret", Access::ReadOnly).unwrap();
        let mut back = vec![0; text.len()];
        volume.read(777, &mut back).unwrap();
        assert_eq!(back, text);
        let raw = fs::read(&path).unwrap();
        assert_eq!(raw.len(), (17 << 20));
        assert!(!raw.windows(13).any(|window| window == b"plainly visib"));
    }
}

#[test]
fn a_wrong_passphrase_is_said_to_be_wrong() {
    let (_folder, path) = container(SectorSize::B512);
    let said = error(&path, b"guess");
    assert!(said.contains("passphrase") && said.contains("disk.img"), "{said}");
}

#[test]
fn one_damaged_copy_of_the_header_is_survived_and_opening_writes_nothing() {
    let (_folder, path) = container(SectorSize::B4096);
    assert!(!has_damaged_header(&path).unwrap());
    let mut raw = fs::read(&path).unwrap();
    raw[16384..32768].rotate_left(1);
    fs::write(&path, &raw).unwrap();
    assert!(has_damaged_header(&path).unwrap());
    raw[16384..32768].rotate_right(1);
    raw[..16384].fill(0);
    fs::write(&path, &raw).unwrap();
    assert!(has_damaged_header(&path).unwrap());
    open(&path, b"secret", Access::ReadWrite).unwrap();
    assert!(fs::read(&path).unwrap() == raw, "opening changed the file");

    raw[16384..32768].fill(0);
    fs::write(&path, &raw).unwrap();
    let said = error(&path, b"secret");
    assert!(said.contains("not a LUKS container"), "{said}");
}

#[test]
fn what_is_no_container_or_cut_short_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    for (name, content) in
        [("empty", vec![]), ("text", b"hello\n".to_vec()), ("zeroes", vec![0; 1 << 20])]
    {
        let path = folder.path().join(name);
        fs::write(&path, content).unwrap();
        let said = error(&path, b"secret");
        assert!(said.contains(name) && said.contains("not a LUKS container"), "{said}");
    }
    assert!(error(folder.path(), b"").contains("directory"));
    assert!(error(&folder.path().join("absent"), b"").contains("absent"));

    let (_folder, path) = container(SectorSize::B4096);
    for length in [4096_u64, 20_000, 16 << 20, (16 << 20) + 100] {
        let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.set_len((16 << 20) + 4096).unwrap();
        file.set_len(length).unwrap();
        let said = error(&path, b"secret");
        assert!(said.contains("disk.img"), "{length}: {said}");
    }
}

#[test]
fn a_size_that_is_no_multiple_is_refused_and_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk.img");
    for size in [0, 1000, 4097, u64::MAX] {
        let wrong = FormatOptions { size, ..options(SectorSize::B4096) };
        let said = format(&path, &wrong, b"secret").unwrap_err().to_string();
        assert!(said.contains(&size.to_string()) && said.contains("4096"), "{said}");
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn an_existing_file_is_never_overwritten() {
    let (_folder, path) = container(SectorSize::B512);
    let before = fs::read(&path).unwrap();
    let said = format(&path, &options(SectorSize::B512), b"other").unwrap_err().to_string();
    assert!(said.contains("exists"), "{said}");
    assert!(fs::read(&path).unwrap() == before);
}

#[test]
fn flags_in_the_header_are_found_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk.img");
    let with = FormatOptions { allow_discards: true, ..options(SectorSize::B512) };
    format(&path, &with, b"secret").unwrap();
    let expected =
        Container { size: 1 << 20, sector_size: SectorSize::B512, allows_discards: true };
    assert_eq!(look_at(&path).unwrap(), expected);
}

/// The metadata of a container as `cryptsetup` makes them.
fn metadata() -> Value {
    json!({
        "keyslots": { "0": { "type": "luks2", "key_size": 64, "kdf": { "memory": 32 } } },
        "segments": { "0": {
            "type": "crypt", "offset": "16777216", "size": "dynamic", "iv_tweak": "0",
            "encryption": "aes-xts-plain64", "sector_size": 4096
        } },
        "config": {
            "json_size": "12288", "keyslots_size": "16744448", "flags": [],
            "requirements": { "mandatory": [] }
        }
    })
}

#[test]
fn no_key_is_derived_with_more_memory_than_there_is() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk.img");
    let kdf = Kdf::Fixed { memory_kib: u32::MAX, iterations: 4 };
    let options = FormatOptions { kdf, ..FormatOptions::new(1 << 20) };
    let said = options.check().unwrap_err().to_string();
    assert!(said.contains("4294967295 KiB"), "{said}");
    assert!(format(&path, &options, b"secret").is_err() && !path.exists());
}

/// Such a volume would read as noise, or be written over something that is needed.
#[test]
fn metadata_of_what_we_cannot_do_are_refused_by_name() {
    header::check_luks2(Path::new("disk.img"), metadata()).unwrap();
    for (place, value, expected) in [
        ("/config/requirements/mandatory", json!(["online-reencrypt-v2"]), "re-encryption"),
        ("/config/requirements/mandatory", json!("unknown"), "unknown"),
        ("/config/requirements/mandatory", json!({ "unknown": 1 }), "unknown"),
        ("/config/requirements", json!(["unknown"]), "unknown"),
        ("/segments/0/offset", json!((16_777_216 + 512).to_string()), "within a sector"),
        ("/segments/0/offset", json!((16_777_216 - 4096).to_string()), "detached header"),
        ("/segments/0/iv_tweak", json!("8"), "tweak 8"),
        ("/segments/0/type", json!("linear"), "type linear"),
        ("/segments/0/encryption", json!("aes-cbc-essiv:sha256"), "only aes-xts-plain64"),
        ("/segments/0/sector_size", json!(1024), "not 512 or 4096"),
        ("/segments/0/integrity", json!({ "type": "hmac(sha256)" }), "integrity tags"),
        ("/segments/1", metadata()["segments"]["0"].clone(), "2 segments"),
    ] {
        let mut metadata = metadata();
        let (parent, name) = place.rsplit_once('/').unwrap();
        metadata.pointer_mut(parent).unwrap()[name] = value;
        let said = header::check_luks2(Path::new("disk.img"), metadata).unwrap_err().to_string();
        assert!(said.contains(expected), "{place}: {said}");
    }
}

#[test]
fn keys_of_another_size_that_are_no_segments_do_not_matter() {
    let path = Path::new("disk.img");
    let mut with = metadata();
    with["keyslots"]["1"] = json!({ "type": "luks2", "key_size": 32, "kdf": { "memory": 32 } });
    let digest =
        |slot: &str, segments: &[&str]| json!({ "keyslots": [slot], "segments": segments });
    with["digests"] = json!({ "0": digest("0", &["0"]), "1": digest("1", &[]) });
    header::check_luks2(path, with.clone()).unwrap();
    with["digests"]["1"]["segments"] = json!(["0"]);
    let said = header::check_luks2(path, with).unwrap_err().to_string();
    assert!(said.contains("256 bits"), "{said}");
}

fn any_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(|number| Value::from(number.to_string())),
        (0_u64..1 << 26).prop_map(|number| Value::from((number * 512).to_string())),
        Just(Value::from(512)),
        any::<String>().prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 12, 3, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            prop::collection::btree_map("[a-z0-9]{0,6}", inner, 0..3)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

proptest! {
    /// Metadata with anything in place of one of its values is refused, or describes a data area
    /// that lies in the file, behind the header, in whole sectors.
    #[test]
    fn any_metadata_is_refused_or_safe(
        place in prop::sample::select(&[
            "", "/keyslots", "/keyslots/0", "/keyslots/0/key_size", "/keyslots/0/kdf/memory",
            "/segments", "/segments/0", "/segments/0/type", "/segments/0/offset",
            "/segments/0/size", "/segments/0/iv_tweak", "/segments/0/encryption",
            "/segments/0/sector_size", "/config", "/config/json_size", "/config/keyslots_size",
            "/config/flags", "/config/requirements", "/config/requirements/mandatory",
        ][..]),
        value in any_value(),
        length: u64,
    ) {
        let mut metadata = metadata();
        *metadata.pointer_mut(place).unwrap() = value;
        let path = Path::new("disk.img");
        let Ok(header) = header::check_luks2(path, metadata) else { return Ok(()) };
        for length in [length >> 1, length % (64 << 20)] {
            let Ok(size) = header.data_size(path, length) else { continue };
            prop_assert!(header.data_offset >= 32 << 10);
            prop_assert!(header.data_offset.checked_add(size).unwrap() <= length);
            let sector = u64::from(header.sector_size.bytes());
            prop_assert!((header.data_offset | size).is_multiple_of(sector));
        }
    }
}
