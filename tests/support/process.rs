//! The examples as processes.

use std::{
    path::PathBuf,
    process::{Output, Stdio},
};
use tokio::{
    io::{AsyncBufReadExt, BufReader, Lines},
    process::{Child, ChildStdout, Command},
};

/// An example's executable, which `cargo test` has built beside this test's.
/// The variables of the environment that it would read are not set.
pub fn example(name: &str) -> Command {
    let test = std::env::current_exe().unwrap();
    let target = test.parent().and_then(|deps| deps.parent()).unwrap();
    let path: PathBuf = [target.as_os_str(), "examples".as_ref(), name.as_ref()]
        .iter()
        .collect::<PathBuf>()
        .with_extension(std::env::consts::EXE_EXTENSION);
    assert!(
        path.exists(),
        "{} is missing: run `cargo build --examples` with the options of `cargo test`",
        path.display()
    );
    let mut command = Command::new(path);
    for (variable, _) in std::env::vars_os() {
        if variable.to_string_lossy().starts_with("DYN_") || variable == "RUST_LOG" {
            command.env_remove(variable);
        }
    }
    command.stdin(Stdio::null()).kill_on_drop(true);
    command
}

/// What an example says of options that it cannot use.
pub async fn refusal(command: &mut Command) -> String {
    let Output { status, stderr, .. } = command.output().await.unwrap();
    let stderr = String::from_utf8(stderr).unwrap();
    assert_eq!(status.code(), Some(2), "{stderr}");
    stderr.lines().next().unwrap_or_default().to_owned()
}

/// An example that runs until it is told to stop, or dropped.
pub struct Process {
    child: Child,
    stdout: Lines<BufReader<ChildStdout>>,
}

impl Process {
    pub fn start(command: &mut Command) -> Self {
        let command = command.stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, stdout }
    }

    /// Its next line on stdout.
    pub async fn line(&mut self) -> String {
        let line = self.stdout.next_line().await.unwrap();
        line.expect("it has ended")
    }

    /// Sends SIGTERM.
    #[cfg(unix)]
    pub fn terminate(&self) {
        self.signal("TERM");
    }

    /// Sends a signal, by its name without SIG.
    #[cfg(unix)]
    pub fn signal(&self, name: &str) {
        let pid = self.child.id().unwrap().to_string();
        let kill = std::process::Command::new("kill")
            .args(["-s", name, &pid])
            .status();
        assert!(kill.unwrap().success());
    }

    /// The exit code, once it has ended.
    #[cfg(unix)]
    pub async fn code(mut self) -> Option<i32> {
        self.child.wait().await.unwrap().code()
    }
}
