//! Servers that ask for credentials.

use crate::support::{Fleet, LONG, registration, with_server};
use std::sync::Arc;
use tower_overload::nats::{self, FleetSource, Publisher, Servers, Subjects};

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
