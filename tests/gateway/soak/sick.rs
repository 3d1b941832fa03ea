//! A worker that is sick in one way after another, and one that is stopped.

use crate::process::{Process, example};
use axum::{Router, body::Body, extract::Request, response::Response, routing::get};
use bytes::Bytes;
use futures::{StreamExt, stream};
use http::Uri;
use overload_examples::serve::Server;
use proptest::{prelude::RngCore, test_runner::TestRng};
use std::{
    convert::Infallible,
    future::pending,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::SeqCst},
    },
    time::Duration,
};
use tokio::{sync::Semaphore, time::sleep};

/// How long the worker takes when it is well.
const TAKES: Duration = Duration::from_millis(800);

/// What the worker does with requests, as a number.
const WELL: u32 = 0;
const HANGS: u32 = 1;
const HEADS_ONLY: u32 = 2;
const STALLS: u32 = 3;
const FAILS: u32 = 4;
const REFUSES: u32 = 5;
const KINDS: u32 = 6;

/// A worker that is sick as it is told.
pub struct Sick {
    kind: Arc<AtomicU32>,
    server: Server,
}

impl Sick {
    pub async fn start() -> Self {
        let kind = Arc::new(AtomicU32::new(WELL));
        let told = kind.clone();
        let room = Arc::new(Semaphore::new(4));
        let app = Router::new()
            .route("/health", get(|| async {}))
            .fallback(move |_: Request| answer(told.load(SeqCst), room.clone()));
        let server = Server::start("127.0.0.1:0".parse().unwrap(), app);
        let server = server.await.unwrap();
        Self { kind, server }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.server.address())
    }

    pub fn change(&self, random: &mut TestRng) {
        self.kind.store(random.next_u32() % KINDS, SeqCst);
    }

    pub fn recover(&self) {
        self.kind.store(WELL, SeqCst);
    }
}

async fn answer(kind: u32, room: Arc<Semaphore>) -> Response {
    const EVENT: &str = "data: {\"choices\":[]}\n\n";
    let chunk = |data: &'static str| Ok::<_, Infallible>(Bytes::from_static(data.as_bytes()));
    let silence = stream::pending::<Result<Bytes, Infallible>>();
    let response = Response::builder().header("content-type", "text/event-stream");
    let (status, body) = match kind {
        HANGS => return pending().await,
        HEADS_ONLY => (200, Body::from_stream(silence)),
        STALLS => {
            let event = stream::iter([chunk(EVENT)]);
            (200, Body::from_stream(event.chain(silence)))
        }
        FAILS => (500, Body::from("{}")),
        REFUSES => (529, Body::from("{}")),
        _ => {
            let Ok(_place) = room.try_acquire() else {
                return response.status(529).body(Body::empty()).unwrap();
            };
            sleep(TAKES).await;
            let events = [chunk(EVENT), chunk("data: [DONE]\n\n")];
            (200, Body::from_stream(stream::iter(events)))
        }
    };
    response.status(status).body(body).unwrap()
}

/// A worker in a process of its own, which can be stopped.
pub struct Stoppable(Process);

impl Stoppable {
    /// It registers itself.
    pub async fn start(gateway: &Uri) -> Self {
        let mut process = Process::start(example("worker").args([
            "--listen=127.0.0.1:0",
            "--id=stoppable",
            "--engine-request-limit=4",
            "--request-queue-limit=4",
            &format!("--register={gateway}"),
        ]));
        process.line().await;
        Self(process)
    }

    pub fn stop(&self) {
        self.0.signal("STOP");
    }

    pub fn go_on(&self) {
        self.0.signal("CONT");
    }
}
