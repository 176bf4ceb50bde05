//! Certificates for a test: an authority that signs them, and the folders that servers and clients
//! have. The program's tests use this file, too.
#![allow(dead_code)]

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DnType, IsCa, Issuer,
    KeyIdMethod, KeyPair, KeyUsagePurpose, RevokedCertParams, date_time_ymd,
};

static COUNT: AtomicU64 = AtomicU64::new(0);

pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: String,
    serials: AtomicU64,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::default();
        // Lists of revoked certificates tell authorities apart by these names.
        let name = format!("authority {}", COUNT.fetch_add(1, Ordering::Relaxed));
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap().pem();
        Self { issuer: Issuer::new(params, key), certificate, serials: AtomicU64::new(1) }
    }

    /// Puts a certificate with its key into a folder, for a server or a client, beside the
    /// authority's own certificate. Returns its serial number.
    pub(crate) fn certify(&self, who: &str, folder: &Path) -> u64 {
        let serial = self.serials.fetch_add(1, Ordering::Relaxed);
        let names = ["localhost", "127.0.0.1"].map(str::to_owned);
        let mut params = CertificateParams::new(names).unwrap();
        params.serial_number = Some(serial.into());
        params.distinguished_name.push(DnType::CommonName, who);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        fs::create_dir_all(folder).unwrap();
        fs::write(folder.join(format!("{who}-key.pem")), key.serialize_pem()).unwrap();
        fs::write(folder.join(format!("{who}-cert.pem")), certificate.pem()).unwrap();
        self.be_known_to(folder);
        serial
    }

    /// Puts the authority's own certificate into a folder.
    pub(crate) fn be_known_to(&self, folder: &Path) {
        fs::create_dir_all(folder).unwrap();
        fs::write(folder.join("ca-cert.pem"), &self.certificate).unwrap();
    }

    /// Puts the list of revoked certificates into a server's folder.
    pub(crate) fn revoke(&self, serial: u64, folder: &Path) {
        let revoked = RevokedCertParams {
            serial_number: serial.into(),
            revocation_time: date_time_ymd(2024, 1, 1),
            reason_code: None,
            invalidity_date: None,
        };
        let list = CertificateRevocationListParams {
            this_update: date_time_ymd(2024, 1, 1),
            next_update: date_time_ymd(4000, 1, 1),
            crl_number: 1.into(),
            issuing_distribution_point: None,
            revoked_certs: vec![revoked],
            key_identifier_method: KeyIdMethod::Sha256,
        };
        let list = list.signed_by(&self.issuer).unwrap().pem().unwrap();
        fs::write(folder.join("ca-crl.pem"), list).unwrap();
    }
}
