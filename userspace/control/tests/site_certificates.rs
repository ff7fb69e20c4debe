//! The site's own certificates in place of the pinned one: `--tls-cert`, `--tls-client-ca`, and workers'
//! `tls_ca`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test ends by panicking")]

#[allow(dead_code, reason = "each test file uses a part")]
mod plane;
#[allow(dead_code, reason = "each test file uses a part")]
mod server;

use std::{
    future::pending,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use plane::FakePlane;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use server::{HANGS, SECRET, StateDir, options, request};
use sumac_control::{
    Endpoint, Identity, JoinError, Secret, Trust, join,
    server::{Listener, Listening, ServerOptions},
    state_dir::write_private,
};
use tokio::time::timeout;

/// An authority of the site, and the file of its certificate.
struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    file: PathBuf,
}

impl Authority {
    fn new(directory: &Path, name: &str) -> Authority {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let file = directory.join(name);
        std::fs::write(&file, issuer.pem()).unwrap();
        Authority { issuer, file }
    }

    /// Signs a certificate for `subject`; returns the files of the certificate and its key.
    fn sign(&self, subject: &str) -> [PathBuf; 2] {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new([subject.to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let files = ["cert", "key"].map(|kind| self.file.with_extension(format!("{subject}.{kind}")));
        std::fs::write(&files[0], certificate.pem()).unwrap();
        write_private(&files[1], key.serialize_pem().as_bytes()).unwrap();
        files
    }

    fn identity(&self, subject: &str, client_authorities: Option<&Authority>) -> Identity {
        let [certificate, key] = self.sign(subject);
        let authorities = client_authorities.map(|authority| authority.file.as_path());
        Identity::from_files(&certificate, &key, authorities).unwrap()
    }
}

/// Joins a server with that identity.
async fn join_with(identity: Identity, trust: Trust) -> Result<(), JoinError> {
    let state_dir = StateDir::new();
    let options = ServerOptions { identity, ..options(&state_dir, Duration::ZERO) };
    let plane = Arc::new(FakePlane::new(1024));
    let listener = Listener::bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let listening = Listening::on(listener, plane, options);
    let (address, others) = (listening.address(), Vec::new());
    let endpoint = Endpoint { address, others, trust, secret: Secret::new(SECRET).unwrap() };
    let serving = tokio::spawn(listening.serve(pending()));
    let joined = timeout(HANGS, join(&endpoint, request(0, 1))).await.expect("an answer");
    serving.abort();
    joined.map(drop)
}

#[tokio::test]
async fn certificates_of_the_sites_authority_are_trusted_and_others_not() {
    let directory = StateDir::new();
    std::fs::create_dir_all(&directory.0).unwrap();
    let [site, other] = ["site", "other"].map(|name| Authority::new(&directory.0, name));
    let trust = |authority: &Authority, own| Trust::from_file(&authority.file, own).unwrap();
    let (ip, worker) = ("127.0.0.1", "worker-0");

    join_with(site.identity(ip, None), trust(&site, None)).await.unwrap();
    let own = site.identity(worker, None);
    join_with(site.identity(ip, Some(&site)), trust(&site, Some(own))).await.unwrap();

    let refused = [
        (
            "an authority that the worker does not know",
            site.identity(ip, None),
            trust(&other, None),
            "tls_ca",
        ),
        ("another host's certificate", site.identity("10.0.0.9", None), trust(&site, None), "tls_ca"),
        ("no certificate of the worker's", site.identity(ip, Some(&site)), trust(&site, None), "tls_cert"),
        (
            "a worker's of another authority",
            site.identity(ip, Some(&site)),
            trust(&site, Some(other.identity(worker, None))),
            "tls_cert",
        ),
    ];
    for (case, identity, trust, remedy) in refused {
        match join_with(identity, trust).await {
            Err(JoinError::NotTrusted { why, .. }) => assert!(why.contains(remedy), "{case}: {why}"),
            other => panic!("{case}: {other:?}"),
        }
    }
}
