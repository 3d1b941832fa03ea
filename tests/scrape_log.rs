//! What a poller logs. A binary of its own: its subscriber is global, because
//! one of a single thread misses call sites that other threads come to first.
#![cfg(feature = "scrape")]

use bytes::Bytes;
use futures::StreamExt;
use http::{Request, Response, StatusCode};
use http_body_util::{Empty, Full};
use std::{
    convert::Infallible,
    io,
    pin::pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};
use tower::service_fn;
use tower_overload::scrape::PollerBuilder;

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Lines {
    fn take(&self) -> String {
        String::from_utf8(std::mem::take(&mut *self.0.lock().unwrap())).unwrap()
    }
}

impl io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn only_a_change_is_logged_and_says_of_which_worker_and_why() {
    let lines = Lines::default();
    let writer = lines.clone();
    tracing_subscriber::fmt()
        .with_env_filter("tower_overload::scrape=debug")
        .with_writer(move || writer.clone())
        .with_ansi(false)
        .init();
    let calls = AtomicUsize::new(0);
    let client = service_fn(|_: Request<Empty<Bytes>>| {
        let works = [true, true, false, false, true][calls.fetch_add(1, Ordering::Relaxed)];
        let text = "sglang:token_usage 0.5\nsglang:num_pages 77\n";
        let mut response = Response::new(Full::new(Bytes::from(text)));
        if !works {
            *response.status_mut() = StatusCode::BAD_GATEWAY;
        }
        std::future::ready(Ok::<_, Infallible>(response))
    });
    let builder = PollerBuilder::default().worker("w7");
    let mut poller = pin!(builder.build(client, "/metrics".parse().unwrap()).unwrap());
    for expected in [
        &["INFO", "w7", "sglang", "ranks=1", "kv_blocks=77"][..],
        &[],
        &["WARN", "w7", "502 Bad Gateway"],
        &[],
        &["INFO", "w7", "sglang"],
    ] {
        let _ = poller.next().await.unwrap();
        let said = lines.take();
        assert_eq!(
            said.lines().count(),
            usize::from(!expected.is_empty()),
            "{said}"
        );
        for part in expected {
            assert!(said.contains(part), "{part:?} is missing in {said}");
        }
    }
}
