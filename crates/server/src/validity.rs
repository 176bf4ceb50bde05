//! Whether clients refuse the server's certificate because of the time, or soon will.

use std::time::Duration;

use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, Error, RootCertStore};

/// How long before a certificate expires the server warns that it will.
const SOON: Duration = Duration::from_secs(14 * 24 * 60 * 60);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Validity {
    NotYet,
    /// Also if it cannot be told: then clients say what is wrong.
    Valid,
    Expired,
}

/// What is wrong at this time with the chain that the server shows, its own certificate first: the
/// end of a sentence that begins with the name of its file.
pub(crate) fn problem(chain: &[CertificateDer<'_>], now: UnixTime) -> Option<&'static str> {
    let (own, others) = chain.split_first()?;
    let soon = UnixTime::since_unix_epoch(Duration::from_secs(now.as_secs()) + SOON);
    Some(match validity(own, now) {
        Validity::NotYet => {
            "is not valid yet: clients that check it refuse this server; is the clock right?"
        }
        Validity::Expired => "has expired: clients that check it refuse this server; replace it",
        Validity::Valid if others.iter().any(|other| validity(other, now) != Validity::Valid) => {
            "holds another certificate that has expired or is not valid yet: clients that need it \
             refuse this server"
        }
        Validity::Valid if chain.iter().any(|one| validity(one, soon) == Validity::Expired) => {
            "holds a certificate that expires within 14 days: replace it before that"
        }
        Validity::Valid => return None,
    })
}

fn validity(certificate: &CertificateDer<'_>, time: UnixTime) -> Validity {
    let Ok(parsed) = ParsedCertificate::try_from(certificate) else { return Validity::Valid };
    // Nobody is trusted here, so this never succeeds. The time is checked before anything else.
    let (nobody, provider) = (RootCertStore::empty(), aws_lc_rs::default_provider());
    let algorithms = provider.signature_verification_algorithms.all;
    match verify_server_cert_signed_by_trust_anchor(&parsed, &nobody, &[], time, algorithms) {
        Err(Error::InvalidCertificate(
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. },
        )) => Validity::NotYet,
        Err(Error::InvalidCertificate(
            CertificateError::Expired | CertificateError::ExpiredContext { .. },
        )) => Validity::Expired,
        _ => Validity::Valid,
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{
        BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, Issuer, KeyPair, date_time_ymd,
    };

    use super::*;

    fn params(years: [i32; 2]) -> CertificateParams {
        let mut params = CertificateParams::new(["volumes.example".to_owned()]).unwrap();
        params.not_before = date_time_ymd(years[0], 6, 1);
        params.not_after = date_time_ymd(years[1], 6, 1);
        params
    }

    /// A chain of a certificate that is valid in these years, and of its issuer's.
    fn chain(own: [i32; 2], issuers: [i32; 2]) -> [CertificateDer<'static>; 2] {
        let mut issuer = params(issuers);
        issuer.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(issuer, KeyPair::generate().unwrap()).unwrap();
        let by: &Issuer<'_, _> = &issuer;
        let own = params(own).signed_by(&KeyPair::generate().unwrap(), by).unwrap();
        [own.der().clone(), issuer.der().clone()]
    }

    fn said(chain: &[CertificateDer<'_>], year: i32, month: u8, day: u8) -> &'static str {
        let then = date_time_ymd(year, month, day).unix_timestamp();
        let then = UnixTime::since_unix_epoch(Duration::from_secs(then.try_into().unwrap()));
        problem(chain, then).unwrap_or_default()
    }

    #[test]
    fn a_certificate_says_when_clients_refuse_it_because_of_the_time() {
        let chain = chain([2025, 2026], [2020, 2040]);
        assert!(said(&chain, 2025, 5, 31).starts_with("is not valid yet"));
        assert_eq!((said(&chain, 2025, 6, 2), said(&chain, 2026, 5, 17)), ("", ""));
        assert!(said(&chain, 2026, 5, 19).contains("expires within 14 days"));
        assert!(said(&chain, 2026, 6, 2).starts_with("has expired"));
    }

    #[test]
    fn so_does_that_of_its_issuer() {
        let late = chain([2025, 2035], [2026, 2040]);
        assert!(said(&late, 2025, 6, 2).starts_with("holds another"));
        assert_eq!(said(&late, 2026, 6, 2), "");
        let early = chain([2025, 2035], [2020, 2026]);
        assert!(said(&early, 2026, 5, 19).contains("expires within 14 days"));
        assert!(said(&early, 2026, 6, 2).starts_with("holds another"));
        assert!(said(&early, 2035, 6, 2).starts_with("has expired"), "its own first");
    }
}
