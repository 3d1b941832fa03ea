//! Servers that ask for credentials, or take little.

use crate::{
    eventually::eventually,
    support::{Fleet, LONG, next, registration, with_server},
};
use std::{
    io,
    sync::{Arc, Mutex},
};
use tower_overload::{
    load::LoadEvent,
    nats::{self, FleetEvent, FleetSource, Publisher, Servers, Subjects},
};

#[test]
fn credentials_in_the_url_are_those_that_the_server_gets() {
    with_server(async |mut server, _| {
        let plain = server.url();
        let with = |credentials: &str| plain.replace("//", &format!("//{credentials}@"));
        for (flags, credentials) in [
            (
                &["--user", "me", "--pass", "p w/:@"][..],
                "me:p%20w%2F%3A%40",
            ),
            (&["--auth", "a/token"], "a%2Ftoken"),
        ] {
            server.kill().await;
            server.start_again_with(flags);
            let servers: Servers = with(credentials).parse().unwrap();
            let client = nats::connect(&servers).await.unwrap();
            let mut fleet = Fleet(FleetSource::<Arc<str>>::subscribe(&client));
            let client = nats::connect(&servers).await.unwrap();
            let registration = registration().ttl(LONG);
            let _worker = Publisher::start(client, &Subjects::default(), "a", registration);
            assert_eq!(fleet.joined(1).await, ["a"]);
        }
    });
}

#[test]
fn what_the_server_would_not_take_is_logged_once_a_connection_and_the_rest_is_said() {
    let lines = Lines::default();
    let writer = lines.clone();
    tracing_subscriber::fmt()
        .with_env_filter("tower_overload::nats::publisher=warn")
        .with_writer(move || writer.clone())
        .with_ansi(false)
        .init();
    with_server(async |mut server, _| {
        server.kill().await;
        server.start_again_as("max_payload: 100");
        let client = server.client().await;
        let mut hears = FleetSource::<Arc<str>>::subscribe(&client);
        let worker = server.publisher("wordy", registration().ttl(LONG)).await;
        for connection in 1..=2 {
            for blocks in 10 * connection..10 * connection + 5 {
                let load = LoadEvent::new((), 0).kv_used_blocks(blocks);
                worker.report(load).unwrap();
                loop {
                    let FleetEvent::Load(heard) = next(&mut hears).await else {
                        panic!("its registration is too long");
                    };
                    if heard.kv_used_blocks == Some(blocks) {
                        break;
                    }
                }
            }
            let log = lines.0.lock().unwrap().clone();
            let log = String::from_utf8(log).unwrap();
            let of_it = log.lines().filter(|line| line.contains("wordy"));
            assert_eq!(of_it.count() as u64, connection, "{log}");
            assert!(log.contains("Payload size limit of 100 exceeded"), "{log}");
            server.kill().await;
            eventually("the source tells", async || !hears.is_connected()).await;
            server.start_again_as("max_payload: 100");
        }
    });
}

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
