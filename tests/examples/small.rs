//! The small examples: each runs to its end by itself, is as small as it is
//! said to be, and is found from the README.

use std::{
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

const SMALL: [&str; 10] = [
    "axum_gateway",
    "grpc",
    "own_discovery",
    "own_pick",
    "paused_clock",
    "priorities",
    "retry",
    "shutdown",
    "tenants",
    "time_limits",
];

/// They take a second at most. This is for what hangs, on a machine that is busy.
const HANGS_AFTER: Duration = Duration::from_secs(120);

const MAX_LINES: usize = 150;

/// An example's executable, which `cargo test` has built beside this test's.
fn executable(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let target = test.parent().and_then(Path::parent).unwrap();
    let path = target.join("examples").join(name);
    let path = path.with_extension(std::env::consts::EXE_EXTENSION);
    assert!(
        path.exists(),
        "{} is missing: run `cargo build --examples` with the options of `cargo test`",
        path.display()
    );
    path
}

fn start(name: &str) -> Child {
    let mut command = Command::new(executable(name));
    for (variable, _) in std::env::vars_os() {
        if variable.to_string_lossy().starts_with("DYN_") {
            command.env_remove(variable);
        }
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    command.stderr(Stdio::piped()).spawn().unwrap()
}

/// What has to be said of it, if anything.
fn complaint(mut child: Child, hangs_at: Instant) -> Option<String> {
    let hangs = loop {
        if child.try_wait().unwrap().is_some() {
            break false;
        }
        if Instant::now() >= hangs_at {
            child.kill().unwrap();
            break true;
        }
        sleep(Duration::from_millis(5));
    };
    let output = child.wait_with_output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    match output.status.code() {
        _ if hangs => Some(format!("hangs: {said}")),
        Some(0) => None,
        _ => Some(format!("{}: {said}", output.status)),
    }
}

#[test]
fn each_runs_to_its_end_and_finds_what_it_shows() {
    let started = SMALL.map(|name| (name, start(name)));
    let hangs_at = Instant::now() + HANGS_AFTER;
    let complaints = started.map(|(name, child)| Some((name, complaint(child, hangs_at)?)));
    let complaints: Vec<_> = complaints.into_iter().flatten().collect();
    assert!(complaints.is_empty(), "{complaints:#?}");
}

#[test]
fn each_is_small_and_in_the_readme() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let readme = std::fs::read_to_string(root.join("README.md")).unwrap();
    for name in SMALL {
        let path = format!("examples/{name}/main.rs");
        let source = std::fs::read_to_string(root.join(&path)).unwrap();
        let lines = source.lines().count();
        assert!(lines <= MAX_LINES, "{path} has {lines} lines");
        assert!(source.starts_with("//! "), "{path} says nothing of itself");
        assert!(readme.contains(&path), "{path} is not in the README");
    }
}
