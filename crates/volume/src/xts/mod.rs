//! AES-256 in XTS mode over sectors, with dm-crypt's `plain64` tweak.
//!
//! IEEE 1619 XTS: the tweak of a sector is its number, as 16 bytes in little endian, encrypted
//! under the second half of the key. `plain64` counts in units of 512 bytes whatever the sector
//! size, so a 4096-byte sector's number is eight times its index.
//!
//! Two implementations must agree bit for bit: `aws_lc` (C and assembly, several times faster)
//! carries the data; `rust_crypto` (safe, pure Rust) is its test oracle, and takes over if `aws_lc`
//! does not start.

mod aws_lc;
mod rust_crypto;

use zeroize::Zeroizing;

/// Bytes of an AES-256-XTS key: two AES-256 keys.
const KEY_LEN: usize = 64;
/// What `plain64` counts in.
const TWEAK_UNIT: u64 = 512;

/// The unit of encryption.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SectorSize {
    /// 512 bytes: what every device can do. Costs two to three times the CPU time.
    B512,
    /// 4096 bytes.
    B4096,
}

impl SectorSize {
    /// The size in bytes.
    pub const fn bytes(self) -> u32 {
        match self {
            Self::B512 => 512,
            Self::B4096 => 4096,
        }
    }

    /// The sector size of this many bytes, if there is one.
    pub fn from_bytes(bytes: u64) -> Option<Self> {
        [Self::B512, Self::B4096].into_iter().find(|size| u64::from(size.bytes()) == bytes)
    }
}

/// A volume key. Wiped from memory when dropped.
#[derive(Clone)]
pub struct XtsKey(Zeroizing<[u8; KEY_LEN]>);

/// Why a key cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// The length is wrong.
    #[error("the volume key has {length} bytes; AES-256-XTS takes {KEY_LEN}")]
    Length {
        /// The length given.
        length: usize,
    },
    /// Both halves are the same, which makes XTS unsafe (FIPS 140-2 IG A.9).
    #[error("the two halves of the volume key are equal, which XTS forbids")]
    EqualHalves,
}

impl XtsKey {
    /// Takes the 64 bytes of a key.
    ///
    /// # Errors
    /// [`KeyError`] if there are more or fewer, or the halves are equal.
    pub fn new(bytes: &[u8]) -> Result<Self, KeyError> {
        let key: &[u8; KEY_LEN] =
            bytes.try_into().map_err(|_| KeyError::Length { length: bytes.len() })?;
        if key[..KEY_LEN / 2] == key[KEY_LEN / 2..] {
            return Err(KeyError::EqualHalves);
        }
        Ok(Self(Zeroizing::new(*key)))
    }
}

impl std::fmt::Debug for XtsKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("XtsKey(not shown)")
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Encrypt,
    Decrypt,
}

/// The cipher failed, which it has no reason to. The caller adds where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CipherFailed;

/// A key set up for use by many threads at once.
#[derive(Debug)]
pub struct Cipher {
    sector_size: SectorSize,
    implementation: Implementation,
}

#[derive(Debug)]
enum Implementation {
    AwsLc(aws_lc::Contexts),
    RustCrypto(Box<rust_crypto::Xts>),
}

impl Cipher {
    /// Sets the key up.
    pub fn new(key: &XtsKey, sector_size: SectorSize) -> Self {
        let implementation = match aws_lc::Contexts::new(&key.0) {
            Some(contexts) => Implementation::AwsLc(contexts),
            None => Implementation::RustCrypto(Box::new(rust_crypto::Xts::new(&key.0))),
        };
        Self { sector_size, implementation }
    }

    /// The safe implementation only.
    #[cfg(test)]
    fn oracle(key: &XtsKey, sector_size: SectorSize) -> Self {
        let xts = Box::new(rust_crypto::Xts::new(&key.0));
        Self { sector_size, implementation: Implementation::RustCrypto(xts) }
    }

    /// The unit that offsets and lengths are multiples of.
    pub fn sector_size(&self) -> SectorSize {
        self.sector_size
    }

    /// Encrypts whole sectors in place. `offset` is where they are in the volume, in bytes.
    pub(crate) fn encrypt(&self, offset: u64, data: &mut [u8]) -> Result<(), CipherFailed> {
        self.apply(Direction::Encrypt, offset, data)
    }

    /// Decrypts whole sectors in place.
    pub(crate) fn decrypt(&self, offset: u64, data: &mut [u8]) -> Result<(), CipherFailed> {
        self.apply(Direction::Decrypt, offset, data)
    }

    fn apply(
        &self,
        direction: Direction,
        offset: u64,
        data: &mut [u8],
    ) -> Result<(), CipherFailed> {
        let bytes = self.sector_size.bytes() as usize;
        assert!(data.len().is_multiple_of(bytes) && offset.is_multiple_of(bytes as u64));
        let sectors = (offset / TWEAK_UNIT..)
            .step_by(bytes / TWEAK_UNIT as usize)
            .zip(data.chunks_exact_mut(bytes));
        match &self.implementation {
            Implementation::AwsLc(contexts) => contexts.apply(direction, sectors),
            Implementation::RustCrypto(xts) => {
                xts.apply(direction, sectors);
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn key() -> XtsKey {
        XtsKey::new(&std::array::from_fn::<u8, 64, _>(|i| i as u8)).unwrap()
    }

    #[test]
    fn unusable_keys_are_refused() {
        assert_eq!(XtsKey::new(&[1; 63]).unwrap_err(), KeyError::Length { length: 63 });
        assert_eq!(XtsKey::new(&[1; 64]).unwrap_err(), KeyError::EqualHalves);
        assert!(!format!("{:?}", key()).contains('1'));
    }

    /// IEEE 1619-2007, annex B, vector 10: XTS-AES-256, data unit 0xff, 512 bytes.
    #[test]
    fn the_standards_vector_comes_out() {
        let half = |digits: &str| {
            (0..32).map(|i| u8::from_str_radix(&digits[2 * i..2 * i + 2], 16).unwrap()).collect()
        };
        let halves: [Vec<u8>; 2] = [
            half("2718281828459045235360287471352662497757247093699959574966967627"),
            half("3141592653589793238462643383279502884197169399375105820974944592"),
        ];
        let key = XtsKey::new(&halves.concat()).unwrap();
        for cipher in [Cipher::new(&key, SectorSize::B512), Cipher::oracle(&key, SectorSize::B512)]
        {
            let mut data: Vec<u8> = (0..512_usize).map(|i| i as u8).collect();
            cipher.encrypt(0xff * 512, &mut data).unwrap();
            let expected = 0x1c3b_3a10_2f77_0386_e483_6c99_e370_cf9b_u128;
            assert_eq!(data[..16], expected.to_be_bytes());
        }
    }

    #[test]
    fn the_fast_one_is_in_use_here() {
        let cipher = Cipher::new(&key(), SectorSize::B4096);
        assert!(matches!(cipher.implementation, Implementation::AwsLc(_)));
    }

    proptest! {
        #[test]
        fn both_implementations_agree_and_undo_themselves(
            big: bool, first in 0_u64..1 << 40, count in 1_usize..5, seed: u8,
        ) {
            let size = if big { SectorSize::B4096 } else { SectorSize::B512 };
            let length = count * size.bytes() as usize;
            let plain: Vec<u8> = (0..length).map(|i| (i as u8).wrapping_mul(seed | 1)).collect();
            let offset = first * u64::from(size.bytes());
            let (fast, safe) = (Cipher::new(&key(), size), Cipher::oracle(&key(), size));
            let mut a = plain.clone();
            let mut b = plain.clone();
            fast.encrypt(offset, &mut a).unwrap();
            safe.encrypt(offset, &mut b).unwrap();
            prop_assert_eq!(&a, &b);
            safe.decrypt(offset, &mut a).unwrap();
            fast.decrypt(offset, &mut b).unwrap();
            prop_assert_eq!(&a, &plain);
            prop_assert_eq!(&b, &plain);
        }
    }

    #[test]
    fn many_threads_share_a_cipher() {
        let cipher = Cipher::new(&key(), SectorSize::B4096);
        let oracle = Cipher::oracle(&key(), SectorSize::B4096);
        std::thread::scope(|scope| {
            for thread in 0..8_u64 {
                let (cipher, oracle) = (&cipher, &oracle);
                scope.spawn(move || {
                    for round in 0..50 {
                        let offset = (thread * 50 + round) * 4096;
                        let mut data = vec![thread as u8; 8192];
                        cipher.encrypt(offset, &mut data).unwrap();
                        oracle.decrypt(offset, &mut data).unwrap();
                        assert!(data.iter().all(|byte| *byte == thread as u8));
                    }
                });
            }
        });
    }
}
