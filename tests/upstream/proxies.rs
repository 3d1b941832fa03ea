//! nginx and haproxy in front of a worker, to be compared with.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Stdio,
};
use tokio::{
    net::TcpStream,
    process::{Child, Command},
};

/// Where both programs are: nginx and haproxy.
pub struct Programs {
    nginx: PathBuf,
    haproxy: PathBuf,
}

impl Programs {
    /// `None`, and a word about it, if one is not there and none is required.
    pub fn find() -> Option<Self> {
        let find = |name: &str| {
            let path = std::env::var_os("PATH").unwrap_or_default();
            let folders = std::env::split_paths(&path).chain(["/usr/sbin".into()]);
            folders
                .map(|folder| folder.join(name))
                .find(|program| program.is_file())
        };
        match (find("nginx"), find("haproxy")) {
            (Some(nginx), Some(haproxy)) => Some(Self { nginx, haproxy }),
            _ => {
                let required = std::env::var_os("TOWER_OVERLOAD_REQUIRE_PROXIES").is_some();
                assert!(!required, "nginx and haproxy are not both on the PATH");
                eprintln!("skipped: nginx and haproxy are not both on the PATH");
                None
            }
        }
    }
}

/// A proxy that runs until it is dropped.
pub struct Proxy {
    pub address: SocketAddr,
    process: Child,
    folder: PathBuf,
}

impl Proxy {
    pub async fn nginx(programs: &Programs, worker: SocketAddr) -> Self {
        let server = format!(
            "underscores_in_headers on;\n\
             location / {{\n\
               proxy_pass http://{worker}; proxy_http_version 1.1;\n\
               proxy_set_header Connection \"\"; proxy_request_buffering off;\n\
               proxy_buffering off;\n\
               proxy_pass_header Server; proxy_pass_header Date;\n\
             }}"
        );
        Self::nginx_with(programs, &server).await
    }

    async fn nginx_with(programs: &Programs, server: &str) -> Self {
        let (folder, address) = place("nginx");
        let at = folder.display();
        let config = format!(
            "daemon off; master_process off; pid {at}/pid; error_log {at}/log crit;\n\
             events {{}}\n\
             http {{\n\
               access_log off; client_body_temp_path {at}/b; proxy_temp_path {at}/p;\n\
               fastcgi_temp_path {at}/f; uwsgi_temp_path {at}/u; scgi_temp_path {at}/s;\n\
               server {{ listen {address};\n{server}\n}}\n\
             }}\n"
        );
        let file = folder.join("nginx.conf");
        std::fs::write(&file, config).unwrap();
        let mut command = Command::new(&programs.nginx);
        command.arg("-c").arg(&file).arg("-p").arg(&folder);
        Self::run(command, folder, address).await
    }

    /// A server, which closes connections that have been idle for a second.
    pub async fn nginx_that_closes(programs: &Programs) -> Self {
        let server = "keepalive_timeout 1s; location / { return 200 ok; }";
        Self::nginx_with(programs, server).await
    }

    pub async fn haproxy(programs: &Programs, worker: SocketAddr) -> Self {
        let (folder, address) = place("haproxy");
        let config = format!(
            "defaults\n  mode http\n  timeout connect 5s\n  timeout client 10s\n\
             \x20 timeout server 10s\n  http-reuse never\n  retries 0\n\
             frontend f\n  bind {address}\n  default_backend b\n\
             backend b\n  server w {worker}\n"
        );
        let file = folder.join("haproxy.cfg");
        std::fs::write(&file, config).unwrap();
        let mut command = Command::new(&programs.haproxy);
        command.arg("-f").arg(&file);
        Self::run(command, folder, address).await
    }

    async fn run(mut command: Command, folder: PathBuf, address: SocketAddr) -> Self {
        let log = std::fs::File::create(folder.join("output")).unwrap();
        let process = command
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut proxy = Self {
            address,
            process,
            folder,
        };
        while TcpStream::connect(address).await.is_err() {
            if let Some(status) = proxy.process.try_wait().unwrap() {
                panic!("it ended: {status}: {}", said(&proxy.folder));
            }
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
        proxy
    }
}

fn said(folder: &Path) -> String {
    std::fs::read_to_string(folder.join("output")).unwrap_or_default()
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.process.start_kill();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// A folder, and a port that was free a moment ago.
fn place(name: &str) -> (PathBuf, SocketAddr) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let folder = format!(
        "tower-overload-{name}-{}-{}",
        std::process::id(),
        address.port()
    );
    let folder = std::env::temp_dir().join(folder);
    std::fs::create_dir_all(&folder).unwrap();
    (folder, address)
}
