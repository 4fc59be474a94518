//! TLS: the door speaks nothing else where a certificate is set, and this machine's commands have an entrance beside it.

use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::support::api::{Api, settings};
use crate::support::platform::on_both_databases;

on_both_databases! {
    async fn the_door_speaks_tls_and_nothing_else_where_a_certificate_is_set(platform: &TestPlatform) {
        let folder = tempfile::tempdir().expect("a folder to test in");
        let made = rcgen::generate_simple_self_signed(vec!["fatia.test".to_owned()]).expect("a certificate");
        let (certificate, key) = (folder.path().join("cert.pem"), folder.path().join("key.pem"));
        std::fs::write(&certificate, made.cert.pem()).expect("it can be written");
        std::fs::write(&key, made.signing_key.serialize_pem()).expect("it can be written");
        let mut secured = settings();
        secured.tls = Some((certificate, key));
        let api = Api::with(platform, secured);
        assert!(api.running.is_tls && api.running.local != api.running.address);

        let mut roots = RootCertStore::empty();
        roots.add(made.cert.der().clone()).expect("a certificate");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let client = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_root_certificates(roots)
            .with_no_client_auth();
        let connector = tokio_rustls::TlsConnector::from(Arc::new(client));
        let plain = TcpStream::connect(api.running.address).await.expect("it listens");
        let name = ServerName::try_from("fatia.test").expect("a name");
        let mut stream = connector.connect(name, plain).await.expect("it speaks TLS");
        let request = format!(
            "GET /api/v1/self HTTP/1.1\r\nHost: fatia.test\r\nConnection: close\r\nAuthorization: Bearer {}\r\n\r\n",
            api.operator
        );
        stream.write_all(request.as_bytes()).await.expect("it takes a request");
        let mut heard = Vec::new();
        let _closed = stream.read_to_end(&mut heard).await;
        assert!(heard.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&heard));

        let mut plain = TcpStream::connect(api.running.address).await.expect("it listens");
        plain.write_all(request.as_bytes()).await.expect("bytes are bytes");
        let mut heard = Vec::new();
        let _closed = plain.read_to_end(&mut heard).await;
        assert!(!heard.starts_with(b"HTTP/1.1 200"), "what is not TLS is not answered");

        let mut beside = TcpStream::connect(api.running.local).await.expect("it listens");
        assert!(api.running.local.ip().is_loopback());
        beside.write_all(request.as_bytes()).await.expect("it takes a request");
        let mut heard = Vec::new();
        let _closed = beside.read_to_end(&mut heard).await;
        assert!(heard.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&heard));
    }
}
