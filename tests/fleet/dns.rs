//! Workers behind a name.

use crate::support::*;
use std::{
    io,
    net::SocketAddr,
    sync::{Arc, Mutex},
};
use tower_overload::fleet::{Origin, Registration};

type Found = Arc<Mutex<io::Result<Vec<SocketAddr>>>>;

fn at(ports: &[u16]) -> io::Result<Vec<SocketAddr>> {
    let address = |port: &u16| SocketAddr::from(([10, 0, 0, 1], *port));
    Ok(ports.iter().map(address).collect())
}

fn resolving(fleet: &TestFleet, found: &Found) -> tokio::task::JoinHandle<()> {
    let found = found.clone();
    let resolve = move || {
        let found = match &*found.lock().unwrap() {
            Ok(found) => Ok(found.clone()),
            Err(error) => Err(io::Error::from(error.kind())),
        };
        async { Ok::<_, io::Error>(found?.into_iter()) }
    };
    let worker = |address| Registration::at(format!("http://{address}"));
    tokio::spawn(fleet.resolve("pods", secs(5), resolve, worker))
}

async fn next() {
    tokio::time::sleep(secs(5)).await;
    settled().await;
}

#[tokio::test(start_paused = true)]
async fn workers_come_and_go_with_the_addresses_of_a_name() {
    let fleet = fleet();
    let found: Found = Arc::new(Mutex::new(at(&[1, 2])));
    let resolving = resolving(&fleet, &found);
    settled().await;
    assert_eq!(ids(&fleet), ["pods/10.0.0.1:1", "pods/10.0.0.1:2"]);

    *found.lock().unwrap() = at(&[2, 3]);
    next().await;
    assert_eq!(ids(&fleet), ["pods/10.0.0.1:2", "pods/10.0.0.1:3"]);

    // One who knows nothing takes nobody away.
    for nothing in [at(&[]), Err(io::ErrorKind::TimedOut.into())] {
        *found.lock().unwrap() = nothing;
        next().await;
        assert_eq!(ids(&fleet).len(), 2);
    }

    // Whoever the configuration names stays.
    let static_now = Registration::at("http://10.0.0.1:2");
    fleet
        .register("pods/10.0.0.1:2", static_now, Origin::Static)
        .unwrap();
    *found.lock().unwrap() = at(&[4]);
    next().await;
    assert_eq!(ids(&fleet), ["pods/10.0.0.1:2", "pods/10.0.0.1:4"]);

    drop(fleet);
    resolving.await.unwrap();
}
