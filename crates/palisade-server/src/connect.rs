//! TLS towards others: the application behind the proxy, and the admin address that the command
//! line connects to.

use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

use crate::failure::Failure;

/// A file of certificates or keys, with the name that the user knows it by.
#[derive(Clone, Copy)]
pub struct NamedFile<'a> {
    /// The flag or configuration key that names the file.
    pub name: &'a str,
    /// The path of the file.
    pub path: &'a Path,
}

/// Builds a client that trusts the given authority, or else the system's, and presents the given
/// certificate, if there is one.
pub fn client(
    authority: Option<NamedFile<'_>>,
    pair: Option<(NamedFile<'_>, NamedFile<'_>)>,
) -> Result<ClientConfig, Failure> {
    let roots = match authority {
        Some(file) => roots_of(file)?,
        None => system_roots(),
    };
    let builder = ClientConfig::builder().with_root_certificates(Arc::new(roots));
    let Some((cert, key)) = pair else {
        return Ok(builder.with_no_client_auth());
    };
    let private = PrivateKeyDer::from_pem_file(key.path)
        .map_err(|_| refused(key, "cannot be read, or holds no private key in PEM"))?;
    builder
        .with_client_auth_cert(certificates(cert)?, private)
        .map_err(|_| refused(cert, "and its key do not belong together"))
}

fn roots_of(file: NamedFile<'_>) -> Result<RootCertStore, Failure> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(file)? {
        roots
            .add(certificate)
            .map_err(|_| refused(file, "holds a certificate that is no authority"))?;
    }
    Ok(roots)
}

/// Returns the system's root certificates. Single ones that cannot be used are left out.
fn system_roots() -> RootCertStore {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    roots
}

fn certificates(file: NamedFile<'_>) -> Result<Vec<CertificateDer<'static>>, Failure> {
    let read = CertificateDer::pem_file_iter(file.path).and_then(Iterator::collect);
    match read {
        Ok(all) if !Vec::is_empty(&all) => Ok(all),
        _ => Err(refused(
            file,
            "cannot be read, or holds no certificate in PEM",
        )),
    }
}

fn refused(file: NamedFile<'_>, problem: &str) -> Failure {
    Failure::usage(
        format!("`{}` {problem}", file.name),
        "give PEM files; docs/tls.md makes some to try",
    )
}
