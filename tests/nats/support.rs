//! A NATS server of the test's own.

use crate::{
    eventually::eventually,
    metrics::{Scrape, recorded},
};
use async_nats::Client;
use futures::{Stream, StreamExt};
use serde_json::Value;
use std::{
    path::{Path, PathBuf},
    process::Stdio,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::process::{Child, Command};
use tower_overload::nats::{self, FleetEvent, FleetSource, Publisher, Registration, Subjects};

/// What is longer than any test.
pub const LONG: Duration = Duration::from_secs(3600);

/// A server on a port of its own.
pub struct Server {
    process: Child,
    program: PathBuf,
    directory: PathBuf,
    port: u16,
}

/// Where `nats-server` is.
fn program() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let directories = std::env::split_paths(&path).chain(["/usr/sbin".into()]);
    let mut programs = directories.map(|directory| directory.join("nats-server"));
    programs.find(|program| program.is_file())
}

/// Runs a test against a server of its own, with a recorder for metrics; if
/// there is no server to start, says that it was skipped.
pub fn with_server(test: impl AsyncFnOnce(Server, &Scrape)) {
    let Some(program) = program() else {
        let required = std::env::var_os("TOWER_OVERLOAD_REQUIRE_NATS_SERVER").is_some();
        assert!(!required, "nats-server is on no path of PATH");
        eprintln!("skipped: there is no nats-server on the PATH");
        return;
    };
    recorded(|scrape| {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let server = Server::start(program).await;
            test(server, scrape).await;
        });
    });
}

impl Server {
    async fn start(program: PathBuf) -> Self {
        static SERVERS: AtomicUsize = AtomicUsize::new(0);
        let n = SERVERS.fetch_add(1, Ordering::Relaxed);
        let name = format!("tower-overload-nats-{}-{n}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&directory).unwrap();
        let process = spawn(&program, &directory, "-1", &[]);
        let mut server = Self {
            process,
            program,
            directory,
            port: 0,
        };
        eventually("the server says its port", async || {
            server.port = server.written_port().unwrap_or(0);
            server.port != 0
        })
        .await;
        server
    }

    fn written_port(&self) -> Option<u16> {
        let mut files = std::fs::read_dir(&self.directory).unwrap();
        let file = files.find_map(|file| {
            let path = file.unwrap().path();
            (path.extension()? == "ports").then_some(path)
        })?;
        // It may be half written.
        let ports: Value = serde_json::from_slice(&std::fs::read(file).ok()?).ok()?;
        let url = ports["nats"][0].as_str()?;
        url.rsplit_once(':')?.1.parse().ok()
    }

    pub fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    pub fn servers(&self) -> nats::Servers {
        self.url().parse().unwrap()
    }

    pub async fn client(&self) -> Client {
        nats::connect(&self.servers()).await.unwrap()
    }

    /// A worker that publishes.
    pub async fn publisher(&self, id: &str, registration: Registration) -> Publisher {
        let client = self.client().await;
        Publisher::start(client, &Subjects::default(), id, registration).unwrap()
    }

    pub async fn fleet(&self) -> Fleet {
        Fleet(FleetSource::subscribe(&self.client().await))
    }

    /// Ends it like a lost power supply would.
    pub async fn kill(&mut self) {
        self.process.kill().await.unwrap();
    }

    /// On the port that it had.
    pub fn start_again(&mut self) {
        self.start_again_with(&[]);
    }

    /// As another server, on that port.
    pub fn start_again_with(&mut self, flags: &[&str]) {
        let port = self.port.to_string();
        self.process = spawn(&self.program, &self.directory, &port, flags);
    }

    /// The same, with this configuration.
    pub fn start_again_as(&mut self, configuration: &str) {
        let file = self.directory.join("server.conf");
        std::fs::write(&file, configuration).unwrap();
        self.start_again_with(&["-c", file.to_str().unwrap()]);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.start_kill();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

fn spawn(program: &Path, directory: &Path, port: &str, flags: &[&str]) -> Child {
    Command::new(program)
        .args(["-a", "127.0.0.1", "-p", port, "--ports_file_dir"])
        .arg(directory)
        .args(flags)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap()
}

/// The next item, within the time that a test has.
pub async fn next<S: Stream + Unpin>(stream: &mut S) -> S::Item {
    let item = tokio::time::timeout(Duration::from_secs(60), stream.next());
    let item = item.await.expect("nothing came");
    item.expect("the stream has ended")
}

/// A fleet as a gateway hears it.
pub struct Fleet(pub FleetSource<Arc<str>>);

impl Fleet {
    /// The next that is not load.
    pub async fn presence(&mut self) -> FleetEvent<Arc<str>> {
        loop {
            match next(&mut self.0).await {
                FleetEvent::Load(_) => {}
                event => return event,
            }
        }
    }

    /// The ids of the next `n` workers that join, in order of their names.
    pub async fn joined(&mut self, n: usize) -> Vec<String> {
        let mut ids = Vec::new();
        while ids.len() < n {
            match self.presence().await {
                FleetEvent::Joined { worker, .. } => ids.push(worker.to_string()),
                other => panic!("{other:?}"),
            }
        }
        ids.sort();
        ids
    }
}

/// A worker that nobody can reach.
pub fn registration() -> Registration {
    Registration::new("http://127.0.0.1:1", ["tiny"]).kv_total_blocks(100)
}

/// How many messages were dropped for `reason`.
pub fn dropped(scrape: &Scrape, reason: &str) -> f64 {
    let labels = [("reason", reason)];
    scrape
        .value("load_messages_dropped_total", &labels)
        .unwrap_or(0.0)
}
