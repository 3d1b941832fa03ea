//! Whom to trust, and what is spoken over TLS.

use super::{InvalidSetting, Protocol};
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, ServerName, pem::PemObject},
};
use std::sync::Arc;
use tokio_rustls::TlsConnector;

/// How a worker is spoken to over TLS.
#[derive(Clone)]
pub(super) struct Tls {
    pub(super) connector: TlsConnector,
    pub(super) name: ServerName<'static>,
}

impl Tls {
    /// `ca` are the only certificates that are trusted, or else the system's.
    pub(super) fn new(
        host: &str,
        protocol: Protocol,
        ca: Option<&[u8]>,
    ) -> Result<Self, InvalidSetting> {
        let name = ServerName::try_from(host.to_owned()).map_err(|_| {
            InvalidSetting::new("host of a worker", host, "a DNS name or an IP address")
        })?;
        let roots = match ca {
            Some(pem) => given(pem)?,
            None => of_the_system()?,
        };
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| InvalidSetting::new("TLS", error.to_string(), "TLS 1.2 or 1.3"))?
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![protocol.alpn().to_vec()];
        Ok(Self {
            connector: TlsConnector::from(Arc::new(config)),
            name,
        })
    }
}

fn given(pem: &[u8]) -> Result<RootCertStore, InvalidSetting> {
    const ALLOWED: &str = "certificates in PEM, one at least";
    let invalid = |what: String| InvalidSetting::new("CA of a worker", what, ALLOWED);
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem) {
        let certificate = certificate.map_err(|error| invalid(error.to_string()))?;
        let added = roots.add(certificate);
        added.map_err(|error| invalid(error.to_string()))?;
    }
    if roots.is_empty() {
        return Err(invalid("no certificate".into()));
    }
    Ok(roots)
}

fn of_the_system() -> Result<RootCertStore, InvalidSetting> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    // One that cannot be read trusts nobody; the others are as good as before.
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        let errors: Vec<_> = found.errors.iter().map(ToString::to_string).collect();
        return Err(InvalidSetting::new(
            "trusted certificates of the system",
            errors.join(", "),
            "one at least, or a CA of the worker's own",
        ));
    }
    Ok(roots)
}
