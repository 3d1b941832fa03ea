//! Keeps a fleet in step with a list of workers that the application has: here
//! a file with a name and a URL per line, which is read again every second.
//!
//! A worker of the list is registered with an [`Origin::source`] of its own, and
//! leaves with the same, so that this discovery takes away only what it brought.
//! A list that cannot be read says nothing, and the workers stay. (For a name in
//! the DNS there is `Fleet::resolve`.)
//!
//! ```console
//! $ cargo run --example own_discovery
//! ```
//!
//! The clock is paused, so that the seconds between two readings pass at once.

use http::{Request, Response};
use http_body_util::Full;
use std::{convert::Infallible, fs, io, path::PathBuf, time::Duration};
use tower::{ServiceExt, service_fn};
use tower_overload::{
    BoxError, WorkerPool,
    fleet::{Compose, Connect, Fleet, FleetBuilder, Origin, Registration},
};

const EVERY: Duration = Duration::from_secs(1);

/// Reads the list over and over. Spawn it.
async fn follow<S, M>(fleet: Fleet<S, M>, path: PathBuf)
where
    S: Clone + Send + 'static,
    M: Send + Sync + 'static,
{
    let mut rounds = tokio::time::interval(EVERY);
    loop {
        rounds.tick().await;
        match tokio::fs::read_to_string(&path).await {
            Ok(list) => {
                let workers = list.lines().filter_map(|line| line.split_once(' '));
                let workers = workers.map(|(id, url)| (id, Registration::at(url)));
                // The same URL changes nothing, another one is another worker.
                for (id, refused) in fleet.sync("file", workers) {
                    eprintln!("{id}: {refused}");
                }
            }
            Err(error) => eprintln!("{}: {error}: its workers stay", path.display()),
        }
    }
}

#[tokio::main(flavor = "current_thread", start_paused = true)]
async fn main() -> Result<(), BoxError> {
    // In real life, `connect` makes an `HttpWorker` of the URL.
    let connect = |worker: &Connect<'_>| {
        let url = worker.url.to_string();
        Ok(service_fn(move |_: Request<()>| {
            let tokens = Full::<bytes::Bytes>::from(url.clone());
            async { Ok::<_, Infallible>(Response::new(tokens)) }
        }))
    };
    let compose = |model: Compose<'_, _>| {
        let pool = WorkerPool::<_, Request<()>>::new(model.changes, model.set);
        tokio::spawn(pool.driver());
        let members = pool.members();
        Ok((pool, members))
    };
    let fleet = FleetBuilder::new()
        .default_model("tiny")
        .build(connect, compose)?;
    let ids = || -> Vec<String> {
        let workers = fleet.workers().into_iter();
        workers.map(|worker| worker.id.to_string()).collect()
    };

    let path = std::env::temp_dir().join(format!("own_discovery-{}", std::process::id()));
    let write = |list: &str| -> io::Result<()> {
        // A reader sees the old list or the new one, and no half of it.
        let new = path.with_extension("new");
        fs::write(&new, list)?;
        fs::rename(&new, &path)
    };
    write("a http://10.0.0.1:8000\nb http://10.0.0.2:8000\n")?;
    fleet.register(
        "operators",
        Registration::at("http://10.0.0.9:8000"),
        Origin::Static,
    )?;
    tokio::spawn(follow(fleet.clone(), path.clone()));

    tokio::time::sleep(EVERY / 2).await;
    println!("at first: {:?}", ids());
    assert_eq!(ids(), ["a", "b", "operators"]);

    write("b http://10.0.0.3:8000\nc ftp://10.0.0.4\n")?;
    tokio::time::sleep(EVERY).await;
    println!(
        "one has left, one has moved, one cannot be used: {:?}",
        ids()
    );
    assert_eq!(ids(), ["b", "operators"]);
    let moved = fleet.worker("b").ok_or("it is listed")?;
    assert_eq!(moved.url, "http://10.0.0.3:8000/");

    fs::remove_file(&path)?;
    tokio::time::sleep(EVERY).await;
    println!("without a list: {:?}", ids());
    assert_eq!(ids(), ["b", "operators"]);

    let model = fleet.model("tiny").ok_or("it is the default")?;
    let response = model.service().clone().oneshot(Request::new(())).await?;
    assert_eq!(response.status(), 200);
    Ok(())
}
