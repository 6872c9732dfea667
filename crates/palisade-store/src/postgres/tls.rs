//! TLS to Postgres by rustls, bound to the password exchange where the server offers it: an
//! attacker in between, with a certificate of their own, cannot pass the exchange on (RFC 5929).
//!
//! Written here because the crate for it needs a full certificate parser to find one name, and
//! that takes long to compile.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::future::BoxFuture;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use sha2::{Digest, Sha256, Sha384, Sha512};
use spki::der::asn1::{AnyRef, BitStringRef};
use spki::der::{Reader, SliceReader};
use spki::{AlgorithmIdentifierRef, ObjectIdentifier};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::Socket;
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::config::{PostgresConfig, StartError};

/// Encryption of connections; those without it never ask for it.
#[derive(Clone)]
pub(super) struct Tls(Option<TlsConnector>);

impl Tls {
    /// TLS as the configuration wants it.
    pub(super) fn of(config: &PostgresConfig) -> Result<Self, StartError> {
        let client = config.wants_tls().then(|| client(config)).transpose()?;
        Ok(Self(client.map(|client| Arc::new(client).into())))
    }

    pub(super) const fn is_wanted(&self) -> bool {
        self.0.is_some()
    }
}

impl MakeTlsConnect<Socket> for Tls {
    type Stream = Encrypted;
    type TlsConnect = Handshake;
    type Error = io::Error;

    fn make_tls_connect(&mut self, host: &str) -> io::Result<Handshake> {
        Ok(Handshake {
            tls: self.0.clone(),
            host: host.to_owned(),
        })
    }
}

/// A connection that is about to be encrypted.
pub(super) struct Handshake {
    tls: Option<TlsConnector>,
    host: String,
}

impl TlsConnect<Socket> for Handshake {
    type Stream = Encrypted;
    type Error = io::Error;
    type Future = BoxFuture<'static, io::Result<Encrypted>>;

    fn connect(self, socket: Socket) -> Self::Future {
        Box::pin(async move {
            let tls = self
                .tls
                .ok_or_else(|| io::Error::other("TLS is not wanted"))?;
            let host = ServerName::try_from(self.host).map_err(io::Error::other)?;
            let stream = tls.connect(host, socket).await?;
            Ok(Encrypted(Box::new(stream)))
        })
    }
}

/// An encrypted connection.
pub(super) struct Encrypted(Box<TlsStream<Socket>>);

impl tokio_postgres::tls::TlsStream for Encrypted {
    fn channel_binding(&self) -> ChannelBinding {
        let certificates = self.0.get_ref().1.peer_certificates();
        let own = certificates.and_then(<[_]>::first);
        let end_point = own.and_then(|certificate| end_point(certificate));
        end_point.map_or_else(ChannelBinding::none, ChannelBinding::tls_server_end_point)
    }
}

impl AsyncRead for Encrypted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0).poll_read(cx, into)
    }
}

impl AsyncWrite for Encrypted {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0).poll_shutdown(cx)
    }
}

/// `tls-server-end-point`: the certificate's digest, by the hash function of its signature. `None`
/// where the signature has no separate one (Ed25519): the exchange then goes without a binding, or
/// fails if the address says `channel_binding=require`.
fn end_point(certificate: &[u8]) -> Option<Vec<u8>> {
    const SHA_1_RSA: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.113549.1.1.5");
    const SHA_256_RSA: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.113549.1.1.11");
    const SHA_384_RSA: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.113549.1.1.12");
    const SHA_512_RSA: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.113549.1.1.13");
    const SHA_256_ECDSA: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.10045.4.3.2");
    const SHA_384_ECDSA: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.10045.4.3.3");
    const SHA_512_ECDSA: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.10045.4.3.4");
    match signed_by(certificate).ok()? {
        // SHA-1 is too weak: RFC 5929 puts SHA-256 in its place.
        SHA_1_RSA | SHA_256_RSA | SHA_256_ECDSA => Some(Sha256::digest(certificate).to_vec()),
        SHA_384_RSA | SHA_384_ECDSA => Some(Sha384::digest(certificate).to_vec()),
        SHA_512_RSA | SHA_512_ECDSA => Some(Sha512::digest(certificate).to_vec()),
        _ => None,
    }
}

/// The algorithm of a certificate's signature: the second of its three parts.
fn signed_by(certificate: &[u8]) -> spki::der::Result<ObjectIdentifier> {
    SliceReader::new(certificate)?.sequence(|parts| {
        parts.decode::<AnyRef<'_>>()?;
        let algorithm = parts.decode::<AlgorithmIdentifierRef<'_>>()?;
        parts.decode::<BitStringRef<'_>>()?;
        Ok(algorithm.oid)
    })
}

fn client(config: &PostgresConfig) -> Result<ClientConfig, StartError> {
    let refused = |why: String| StartError::Tls(why);
    let provider = CryptoProvider::get_default()
        .cloned()
        .unwrap_or_else(|| Arc::new(rustls::crypto::ring::default_provider()));
    let mut roots = RootCertStore::empty();
    match &config.ca_file {
        Some(path) => {
            let certificates = CertificateDer::pem_file_iter(path)
                .map_err(|_| refused("`ca_file` cannot be read".to_owned()))?;
            for certificate in certificates {
                let certificate =
                    certificate.map_err(|_| refused("`ca_file` is not PEM".to_owned()))?;
                roots
                    .add(certificate)
                    .map_err(|_| refused("`ca_file` holds no certificate".to_owned()))?;
            }
        }
        None => {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
    }
    if roots.is_empty() {
        return Err(refused("there is no certificate to trust".to_owned()));
    }
    let client = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|_| refused("the provider supports no protocol version".to_owned()))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(client)
}
