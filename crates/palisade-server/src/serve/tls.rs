//! TLS of listeners. Certificates are read again when their files change, and callers may be
//! required to present certificates of their own.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use sha2::{Digest, Sha256};
use tokio_rustls::TlsAcceptor;

use crate::failure::Failure;

/// Interval at which the files are checked, so that a renewed certificate is soon in use.
const LOOK: Duration = Duration::from_secs(5);

/// Protocols offered to clients, in order of preference.
const ALPN: [&[u8]; 2] = [b"h2", b"http/1.1"];

const CLIENT_CA: &str = "tls.client_ca";

/// The certificate files of a listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TlsFiles {
    /// The configuration keys of the chain and of its private key.
    pub(crate) keys: [&'static str; 2],
    /// The chain presented to clients.
    pub(crate) cert: PathBuf,
    /// The private key of the chain.
    pub(crate) key: PathBuf,
    /// The authority of clients' certificates. If it is set, clients must present one.
    pub(crate) client_ca: Option<PathBuf>,
}

/// The certificates in use, reloaded when their files change.
pub(crate) struct Tls {
    files: TlsFiles,
    config: ArcSwap<ServerConfig>,
    /// Digest of the files when they were last read, whether they were usable or not.
    seen: Mutex<[u8; 32]>,
}

impl Tls {
    /// Reads the files.
    ///
    /// # Errors
    /// A file is missing, is not of the expected kind, or does not fit the others.
    pub(crate) fn load(files: TlsFiles) -> Result<Arc<Self>, Failure> {
        let contents = Contents::read(&files)?;
        let config = contents.config()?;
        Ok(Arc::new(Self {
            config: ArcSwap::from_pointee(config),
            seen: Mutex::new(contents.digest()),
            files,
        }))
    }

    /// The acceptor for new connections.
    pub(super) fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(self.config.load_full())
    }

    /// Checks the files for as long as the future is polled. Files that cannot be used are reported
    /// once, and the previous certificates stay in use.
    pub(crate) async fn follow(self: Arc<Self>) {
        loop {
            tokio::time::sleep(LOOK).await;
            let tls = Arc::clone(&self);
            // Reading files may block.
            let _ = tokio::task::spawn_blocking(move || tls.look_again()).await;
        }
    }

    fn look_again(&self) {
        match self.reread() {
            Ok(false) => {}
            Ok(true) => tracing::info!("renewed certificates are in use"),
            Err(failure) => {
                tracing::error!(%failure, "the certificates in use stay");
            }
        }
    }

    /// Returns true if the files changed and are now in use. An error is returned only once for
    /// each change of the files.
    fn reread(&self) -> Result<bool, Failure> {
        let contents = match Contents::read(&self.files) {
            Ok(contents) => contents,
            Err(failure) => {
                // Zeros stand for unreadable files, so that these are reported once.
                return self
                    .first_time([0; 32])
                    .map_or(Ok(false), |()| Err(failure));
            }
        };
        // Noted before the files are used, so that unusable ones are reported once.
        if self.first_time(contents.digest()).is_none() {
            return Ok(false);
        }
        self.config.store(Arc::new(contents.config()?));
        Ok(true)
    }

    fn first_time(&self, digest: [u8; 32]) -> Option<()> {
        let mut seen = self.seen.lock();
        let is_new = *seen != digest;
        *seen = digest;
        is_new.then_some(())
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls")
            .field("files", &self.files)
            .finish_non_exhaustive()
    }
}

/// Contents of the files, read together so that a certificate is never paired with the key of
/// another reading.
struct Contents {
    keys: [&'static str; 2],
    cert: Vec<u8>,
    key: zeroize::Zeroizing<Vec<u8>>,
    client_ca: Option<Vec<u8>>,
}

impl Contents {
    fn read(files: &TlsFiles) -> Result<Self, Failure> {
        let [cert, key] = files.keys;
        Ok(Self {
            keys: files.keys,
            cert: read(cert, &files.cert)?,
            key: read(key, &files.key)?.into(),
            client_ca: match &files.client_ca {
                Some(path) => Some(read(CLIENT_CA, path)?),
                None => None,
            },
        })
    }

    fn digest(&self) -> [u8; 32] {
        let mut digest = Sha256::new();
        for part in [
            &self.cert[..],
            &self.key[..],
            self.client_ca.as_deref().unwrap_or_default(),
        ] {
            // The lengths keep the parts apart.
            digest.update(part.len().to_be_bytes());
            digest.update(part);
        }
        digest.finalize().into()
    }

    fn config(&self) -> Result<ServerConfig, Failure> {
        let [cert_name, key_name] = self.keys;
        let key = PrivateKeyDer::from_pem_slice(&self.key)
            .map_err(|_| refused(key_name, "holds no private key in PEM"))?;
        let builder = ServerConfig::builder();
        let builder = match &self.client_ca {
            None => builder.with_no_client_auth(),
            Some(pem) => builder.with_client_cert_verifier(verifier(pem)?),
        };
        let mut config = builder
            .with_single_cert(certificates(cert_name, &self.cert)?, key)
            .map_err(|_| {
                refused(
                    cert_name,
                    &format!("and `{key_name}` do not belong together"),
                )
            })?;
        config.alpn_protocols = ALPN.iter().map(|name| name.to_vec()).collect();
        Ok(config)
    }
}

fn verifier(pem: &[u8]) -> Result<Arc<dyn rustls::server::danger::ClientCertVerifier>, Failure> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(CLIENT_CA, pem)? {
        roots
            .add(certificate)
            .map_err(|_| refused(CLIENT_CA, "holds a certificate that is no authority"))?;
    }
    WebPkiClientVerifier::builder(Arc::new(roots))
        .build()
        .map_err(|_| refused(CLIENT_CA, "cannot be used to verify callers"))
}

fn certificates(key: &str, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, Failure> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match all {
        Ok(all) if !all.is_empty() => Ok(all),
        _ => Err(refused(key, "holds no certificate in PEM")),
    }
}

fn read(key: &str, path: &Path) -> Result<Vec<u8>, Failure> {
    fs::read(path).map_err(|error| {
        Failure::usage(
            format!("`{key}` cannot be read: {} ({error})", path.display()),
            "check the path and its permissions",
        )
    })
}

fn refused(key: &str, problem: &str) -> Failure {
    Failure::usage(
        format!("`{key}` {problem}"),
        "give the chain and its private key as PEM files; docs/tls.md makes a pair to try",
    )
}
