//! TLS 1.3 for the control channel: the server's identity, and the client's check of it.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use rustls::{
    AlertDescription, CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, ServerConfig,
    SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::{WebPkiSupportedAlgorithms, ring, verify_tls13_signature},
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem::PemObject as _},
    server::WebPkiClientVerifier,
    version::TLS13,
};
use sha2::{Digest as _, Sha256};
use thiserror::Error;

use crate::{
    frames::{ALPN, GRPC_ALPN},
    secret::{Fingerprint, SecretError, check_private},
};

#[derive(Debug, Error)]
pub enum TlsError {
    #[error("cannot read {path}: {source}")]
    Read { path: PathBuf, source: rustls::pki_types::pem::Error },
    #[error("cannot write {path}: {source}; give a directory of your own with --state-dir")]
    Write { path: PathBuf, source: io::Error },
    #[error("{0}")]
    Secret(#[from] SecretError),
    #[error("the system gives no random numbers: {0}")]
    Random(String),
    #[error("cannot make a key: {0}")]
    Generate(#[from] rcgen::Error),
    #[error("the TLS key or certificate cannot be used: {0}")]
    Rustls(#[from] rustls::Error),
    #[error("the authorities of clients cannot be used: {0}")]
    Authorities(#[from] rustls::server::VerifierBuilderError),
}

/// A certificate chain with its key, and on a server the authorities of clients.
#[derive(Clone, Debug)]
pub struct Identity {
    chain: Vec<CertificateDer<'static>>,
    key: Arc<PrivateKeyDer<'static>>,
    client_authorities: Option<Arc<RootCertStore>>,
}

impl Identity {
    /// Reads the site's own; with `client_authorities` clients need a certificate of theirs.
    pub fn from_files(
        certificate: &Path,
        key: &Path,
        client_authorities: Option<&Path>,
    ) -> Result<Identity, TlsError> {
        let read = |path: &Path| {
            let path = path.to_owned();
            move |source| TlsError::Read { path, source }
        };
        check_private(key)?;
        Ok(Identity {
            chain: certificates(certificate)?,
            key: Arc::new(PrivateKeyDer::from_pem_file(key).map_err(read(key))?),
            client_authorities: client_authorities.map(authorities).transpose()?.map(Arc::new),
        })
    }

    /// Returns the fingerprint that clients pin.
    pub fn fingerprint(&self) -> Fingerprint {
        self.chain.first().map_or(Fingerprint([0; 32]), |certificate| fingerprint(certificate))
    }

    pub(crate) fn server(&self) -> Result<Arc<ServerConfig>, TlsError> {
        let provider = Arc::new(ring::default_provider());
        let builder =
            ServerConfig::builder_with_provider(provider.clone()).with_protocol_versions(&[&TLS13])?;
        let builder = match &self.client_authorities {
            Some(authorities) => {
                let verifier = WebPkiClientVerifier::builder_with_provider(authorities.clone(), provider);
                builder.with_client_cert_verifier(verifier.build()?)
            }
            None => builder.with_no_client_auth(),
        };
        let mut config = builder.with_single_cert(self.chain.clone(), self.key.clone_key())?;
        config.alpn_protocols = vec![ALPN.to_vec(), GRPC_ALPN.to_vec()];
        Ok(Arc::new(config))
    }
}

/// The check of a server's certificate.
#[derive(Clone, Debug)]
pub enum Trust {
    Pinned(Fingerprint),
    /// The site's authorities have signed it for the server's address; with the client's own identity, if it
    /// has one.
    Authorities(Arc<RootCertStore>, Option<Box<Identity>>),
}

impl Trust {
    pub fn from_file(path: &Path, own: Option<Identity>) -> Result<Trust, TlsError> {
        Ok(Trust::Authorities(Arc::new(authorities(path)?), own.map(Box::new)))
    }

    pub(crate) fn client(&self) -> Result<Arc<ClientConfig>, TlsError> {
        let provider = Arc::new(ring::default_provider());
        let builder =
            ClientConfig::builder_with_provider(provider.clone()).with_protocol_versions(&[&TLS13])?;
        let mut config = match self {
            Trust::Pinned(fingerprint) => {
                let algorithms = provider.signature_verification_algorithms;
                let verifier = Arc::new(Pin { fingerprint: *fingerprint, algorithms });
                builder.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth()
            }
            Trust::Authorities(roots, own) => {
                let builder = builder.with_root_certificates(roots.clone());
                match own {
                    Some(own) => builder.with_client_auth_cert(own.chain.clone(), own.key.clone_key())?,
                    None => builder.with_no_client_auth(),
                }
            }
        };
        config.alpn_protocols = vec![ALPN.to_vec()];
        Ok(Arc::new(config))
    }
}

/// Accepts the one certificate that a join token names, whatever its names and dates are.
#[derive(Debug)]
struct Pin {
    fingerprint: Fingerprint,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for Pin {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        if fingerprint(end_entity) == self.fingerprint {
            return Ok(ServerCertVerified::assertion());
        }
        Err(CertificateError::ApplicationVerificationFailure.into())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(rustls::PeerIncompatible::Tls12NotOffered.into())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

/// Returns whether a handshake may have failed since bytes of it were damaged on the way.
///
/// TCP's checksum has 16 bits, and some offloads do not verify it. A certificate is encrypted: one that is
/// damaged does not come to its verification.
pub(crate) fn may_be_damage(error: &rustls::Error) -> bool {
    use AlertDescription::{BadRecordMac, DecodeError, IllegalParameter, UnexpectedMessage};
    match error {
        // Not `DecryptError`: the server's word for a certificate that another authority signed.
        rustls::Error::AlertReceived(alert) => {
            matches!(alert, BadRecordMac | DecodeError | IllegalParameter | UnexpectedMessage)
        }
        rustls::Error::InvalidCertificate(_)
        | rustls::Error::NoCertificatesPresented
        | rustls::Error::PeerIncompatible(_) => false,
        _ => true,
    }
}

/// Returns the reason that a handshake failed, with its remedy.
pub(crate) fn explain(error: &io::Error) -> String {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    match inner {
        Some(rustls::Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure)) => {
            "the token is of another aggregator: run `sumac-agg token` on this one and give the workers its \
            output"
                .into()
        }
        Some(rustls::Error::InvalidCertificate(why)) => {
            format!(
                "its certificate is not accepted ({why:?}): does tls_ca name the authority that signed it?"
            )
        }
        Some(rustls::Error::InvalidMessage(_)) => {
            "it does not answer in TLS: is it a control plane of this release?".into()
        }
        Some(rustls::Error::PeerIncompatible(why)) => format!("it does not speak TLS 1.3 ({why:?})"),
        Some(rustls::Error::DecryptError | rustls::Error::AlertReceived(AlertDescription::BadRecordMac)) => {
            "the connection's bytes were altered on their way: does a proxy lie between?".into()
        }
        Some(rustls::Error::AlertReceived(alert)) => {
            format!(
                "it refuses this client's certificate or TLS version ({alert:?}): are tls_cert and \
            tls_key given?"
            )
        }
        _ => error.to_string(),
    }
}

fn fingerprint(certificate: &CertificateDer<'_>) -> Fingerprint {
    Fingerprint(Sha256::digest(certificate).into())
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let failed = |source| TlsError::Read { path: path.to_owned(), source };
    CertificateDer::pem_file_iter(path).map_err(failed)?.collect::<Result<_, _>>().map_err(failed)
}

fn authorities(path: &Path) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path)? {
        roots.add(certificate)?;
    }
    Ok(roots)
}
