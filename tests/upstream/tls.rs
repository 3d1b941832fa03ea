//! Workers over https.

use crate::support::{get, text};
use http::Request;
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
};
use rustls::{
    ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};
use std::{net::SocketAddr, sync::Arc};
use tokio::{net::TcpListener, task::AbortHandle};
use tokio_rustls::TlsAcceptor;
use tower::ServiceExt;
use tower_overload::upstream::{FaultKind, HttpWorkerBuilder, Protocol};

const CA: &[u8] = include_bytes!("data/ca.pem");
const OTHER_CA: &[u8] = include_bytes!("data/other-ca.pem");

struct Server {
    address: SocketAddr,
    task: AbortHandle,
}

impl Server {
    /// Says in which version it was asked.
    async fn start(alpn: &[&[u8]]) -> Self {
        let chain = CertificateDer::pem_slice_iter(include_bytes!("data/server.pem"))
            .collect::<Result<_, _>>()
            .unwrap();
        let key = PrivateKeyDer::from_pem_slice(include_bytes!("data/server.key")).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .unwrap();
        config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let task = tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let acceptor = acceptor.clone();
                tokio::spawn(async move {
                    let Ok(stream) = acceptor.accept(stream).await else {
                        return;
                    };
                    let service = hyper::service::service_fn(
                        |request: Request<hyper::body::Incoming>| async move {
                            let seen = format!("{:?} {}", request.version(), request.uri().path());
                            Ok::<_, hyper::Error>(http::Response::new(seen))
                        },
                    );
                    let server = auto::Builder::new(TokioExecutor::new());
                    let _ = server.serve_connection(TokioIo::new(stream), service).await;
                });
            }
        });
        Self {
            address,
            task: task.abort_handle(),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[tokio::test]
async fn a_worker_is_spoken_to_in_the_version_that_was_agreed_on() {
    for (protocol, alpn, seen) in [
        (
            Protocol::Http1,
            &[&b"h2"[..], b"http/1.1"][..],
            "HTTP/1.1 /a/x",
        ),
        (Protocol::Http1, &[], "HTTP/1.1 /a/x"),
        (Protocol::Http2, &[b"h2", b"http/1.1"], "HTTP/2.0 /a/x"),
    ] {
        let server = Server::start(alpn).await;
        for host in ["localhost", "127.0.0.1"] {
            let url = format!("https://{host}:{}/a", server.address.port());
            let worker = HttpWorkerBuilder::new()
                .protocol(protocol)
                .ca(CA)
                .build(&url)
                .unwrap();
            for _ in 0..3 {
                let response = worker.clone().oneshot(get("/x")).await.unwrap();
                assert_eq!(text(response).await, seen);
            }
        }
    }
}

#[tokio::test]
async fn who_is_not_trusted_is_not_connected() {
    let server = Server::start(&[b"http/1.1"]).await;
    let port = server.address.port();
    let localhost = format!("https://localhost:{port}");
    for builder in [
        // Another CA, and the system's.
        HttpWorkerBuilder::new().ca(OTHER_CA),
        HttpWorkerBuilder::new(),
        // The server has no HTTP/2.
        HttpWorkerBuilder::new().ca(CA).protocol(Protocol::Http2),
    ] {
        let Ok(worker) = builder.build(&localhost) else {
            // The system of the test trusts nobody.
            continue;
        };
        let fault = worker.oneshot(get("/")).await.unwrap_err();
        assert_eq!(fault.kind(), FaultKind::NotConnected);
    }
    // Whoever speaks no TLS at all.
    let stub = crate::support::Stub::start().await;
    let url = format!("https://{}", stub.address);
    let worker = HttpWorkerBuilder::new().ca(CA).build(&url).unwrap();
    let call = tokio::spawn(worker.oneshot(get("/")));
    let mut connection = stub.accept().await;
    connection.write("HTTP/1.1 400 Bad Request\r\n\r\n").await;
    let fault = call.await.unwrap().unwrap_err();
    assert_eq!(fault.kind(), FaultKind::NotConnected);
}

#[test]
fn what_is_no_certificate_is_refused_by_name() {
    let build = |ca: &[u8]| HttpWorkerBuilder::new().ca(ca).build("https://localhost");
    for pem in [
        &b""[..],
        b"no pem",
        include_bytes!("data/server.key"),
        b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
        b"-----BEGIN CERTIFICATE-----\n!!!!\n-----END CERTIFICATE-----\n",
    ] {
        let error = build(pem).unwrap_err().to_string();
        assert!(error.contains("CA of a worker"), "{error}");
        assert!(error.contains("PEM"), "{error}");
    }
    let error = HttpWorkerBuilder::new()
        .ca(CA)
        .build("http://localhost")
        .unwrap_err();
    assert!(error.to_string().contains("https://"), "{error}");
}
