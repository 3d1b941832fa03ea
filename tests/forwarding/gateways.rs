//! The gateways that the cases are about.

use crate::{
    process::{Process, example},
    readme,
    sockets::{Connection, Stub, header},
};
use std::net::SocketAddr;
use tokio::net::TcpListener;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The example `gateway`.
    Example,
    /// The example `proxy`.
    Proxy,
    /// What the README shows.
    Readme,
}

/// A gateway that runs until it is dropped, or the test ends.
pub struct Gateway {
    pub address: SocketAddr,
    _process: Option<Process>,
}

impl Kind {
    /// A gateway with one worker.
    pub async fn before(self, worker: &Stub) -> Gateway {
        self.below(worker, "").await
    }

    /// A gateway whose worker has a base path.
    pub async fn below(self, worker: &Stub, base: &str) -> Gateway {
        self.start(&[worker.url() + base], &[]).await
    }

    /// A gateway with these workers. The options are for the example `gateway`:
    /// the others have no such limits.
    pub async fn start(self, urls: &[String], options: &[&str]) -> Gateway {
        let mut command = match self {
            Self::Readme => {
                let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
                let address = listener.local_addr().unwrap();
                tokio::spawn(readme::serve(listener, urls.to_vec()));
                return Gateway {
                    address,
                    _process: None,
                };
            }
            Self::Proxy => example("proxy"),
            Self::Example => {
                let mut command = example("gateway");
                command
                    .args(["--admin-listen", "127.0.0.1:0"])
                    .args(options);
                command
            }
        };
        command.args(["--listen", "127.0.0.1:0"]);
        for (n, url) in urls.iter().enumerate() {
            let worker = match self {
                Self::Example => format!("{n}={url}"),
                _ => url.clone(),
            };
            command.args(["--worker", &worker]);
        }
        let mut process = Process::start(&mut command);
        let line = process.line().await;
        let address = line.strip_prefix("listening on http://").expect(&line);
        Gateway {
            address: address.parse().unwrap(),
            _process: Some(process),
        }
    }
}

impl Gateway {
    pub async fn connect(&self) -> Connection {
        Connection::to(self.address).await
    }

    /// A client that has sent this.
    pub async fn sent(&self, request: impl AsRef<[u8]>) -> Connection {
        let mut client = self.connect().await;
        client.write(request).await;
        client
    }
}

/// A request without a body. The connection is good for another one.
pub fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nhost: g\r\n\r\n")
}

/// A request whose body is nothing that a gateway reads.
pub fn post(path: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "POST {path} HTTP/1.1\r\nhost: g\r\ncontent-type: application/octet-stream\r\n\
         content-length: {length}\r\n\r\n{body}"
    )
}

pub const OK: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

pub fn status(message: &str) -> u16 {
    message.split(' ').nth(1).unwrap().parse().unwrap()
}

/// The bytes of a body that is as it was on the wire, and whether it has its
/// end.
pub fn body(message: &str) -> (String, bool) {
    let (head, rest) = message.split_once("\r\n\r\n").unwrap();
    match header(head, "content-length") {
        Some(length) => (
            rest.to_owned(),
            rest.len() == length.parse::<usize>().unwrap(),
        ),
        None => dechunked(rest),
    }
}

/// The same for a body in chunks.
pub fn dechunked(mut rest: &str) -> (String, bool) {
    let mut all = String::new();
    while let Some((length, after)) = rest.split_once("\r\n") {
        let length = usize::from_str_radix(length, 16).unwrap();
        if length == 0 {
            return (all, after == "\r\n");
        }
        all += &after[..length];
        rest = &after[length + 2..];
    }
    (all, false)
}
