//! Texts of engines, and a client that answers what the test says.

use bytes::Bytes;
use futures::{StreamExt, stream};
use http::{Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt, Empty, Full, StreamBody, combinators::UnsyncBoxBody};
use std::{
    sync::{Arc, Mutex},
    task::{Context, Poll},
    time::Duration,
};
use tokio::time::Instant;
use tower::Service;
use tower_overload::{
    BoxError,
    scrape::{EngineReport, Poller, PollerBuilder},
};

macro_rules! texts {
    ($($name:ident = $file:literal;)*) => {
        $(pub const $name: &str = include_str!(concat!("../data/scrape/", $file));)*
        pub const TEXTS: &[&str] = &[$($name),*];
    };
}

texts! {
    VLLM_0_6 = "vllm-0.6-v0.prom";
    VLLM_0_8 = "vllm-0.8-v1.prom";
    VLLM_0_10 = "vllm-0.10.prom";
    VLLM_0_12_DP = "vllm-0.12-dp.prom";
    VLLM_0_12_EXTERNAL = "vllm-0.12-dp-external.prom";
    SGLANG_0_4 = "sglang-0.4.prom";
    SGLANG_0_5_TP = "sglang-0.5-tp.prom";
    SGLANG_0_5_DP = "sglang-0.5-dp.prom";
    SGLANG_LOADS = "sglang-loads.prom";
}

pub fn read(text: &str) -> EngineReport {
    EngineReport::read(text.as_bytes()).unwrap()
}

pub type ResponseBody = UnsyncBoxBody<Bytes, BoxError>;
pub type Answer = Result<Response<ResponseBody>, BoxError>;

/// A text with the usage of one rank.
pub fn usage(share: f64) -> String {
    format!("vllm:kv_cache_usage_perc{{engine=\"0\"}} {share}\n")
}

pub fn answer(status: u16, body: impl Into<Bytes>) -> Answer {
    let body = Full::new(body.into()).map_err(|never| match never {});
    Ok(Response::builder()
        .status(StatusCode::from_u16(status).unwrap())
        .header("content-type", "text/plain")
        .body(body.boxed_unsync())
        .unwrap())
}

/// These frames, and then an end if it `ends`.
pub fn frames(
    frames: impl IntoIterator<Item = Result<&'static str, &'static str>, IntoIter: Send + 'static>,
    ends: bool,
) -> Answer {
    let frames = stream::iter(frames).map(|frame| match frame {
        Ok(text) => Ok(Frame::data(Bytes::from_static(text.as_bytes()))),
        Err(error) => Err(error.into()),
    });
    let body = if ends {
        StreamBody::new(frames).boxed_unsync()
    } else {
        StreamBody::new(frames.chain(stream::pending())).boxed_unsync()
    };
    Ok(Response::new(body))
}

type Script = Box<dyn FnMut(usize) -> (Duration, Answer) + Send>;

/// A client that answers the `n`th request, from 0, after a time.
#[derive(Clone)]
pub struct Worker {
    script: Arc<Mutex<Script>>,
    pub log: Arc<Mutex<Log>>,
}

#[derive(Default)]
pub struct Log {
    /// When each request arrived, and what it was.
    pub calls: Vec<(Instant, Request<()>)>,
    /// How many are being answered, and were at most.
    pub running: usize,
    pub most: usize,
}

impl Worker {
    pub fn new(script: impl FnMut(usize) -> (Duration, Answer) + Send + 'static) -> Self {
        Self {
            script: Arc::new(Mutex::new(Box::new(script))),
            log: Arc::default(),
        }
    }

    /// One that answers at once.
    pub fn at_once(mut script: impl FnMut(usize) -> Answer + Send + 'static) -> Self {
        Self::new(move |n| (Duration::ZERO, script(n)))
    }

    pub fn calls(&self) -> usize {
        self.log.lock().unwrap().calls.len()
    }

    pub fn running(&self) -> usize {
        self.log.lock().unwrap().running
    }

    /// When the requests came, in ms after the first of them.
    pub fn times(&self) -> Vec<u128> {
        let log = self.log.lock().unwrap();
        let first = log.calls[0].0;
        let calls = log.calls.iter();
        calls.map(|(at, _)| (*at - first).as_millis()).collect()
    }
}

/// Counts an answer that is on its way.
struct Running(Arc<Mutex<Log>>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.lock().unwrap().running -= 1;
    }
}

impl Service<Request<Empty<Bytes>>> for Worker {
    type Response = Response<ResponseBody>;
    type Error = BoxError;
    type Future = futures::future::BoxFuture<'static, Answer>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Empty<Bytes>>) -> Self::Future {
        let mut log = self.log.lock().unwrap();
        let n = log.calls.len();
        log.calls.push((Instant::now(), request.map(drop)));
        log.running += 1;
        log.most = log.most.max(log.running);
        let running = Running(Arc::clone(&self.log));
        drop(log);
        let (after, answer) = (self.script.lock().unwrap())(n);
        Box::pin(async move {
            let _running = running;
            if !after.is_zero() {
                tokio::time::sleep(after).await;
            }
            answer
        })
    }
}

pub type WorkerPoller = Poller<Worker, Empty<Bytes>, ResponseBody>;

/// A poller without jitter, of which the first scrape comes at once.
pub fn poller(worker: &Worker) -> std::pin::Pin<Box<WorkerPoller>> {
    poller_of(PollerBuilder::default().jitter(0.0), worker)
}

pub fn poller_of(builder: PollerBuilder, worker: &Worker) -> std::pin::Pin<Box<WorkerPoller>> {
    let uri = "http://10.0.0.1:8000/metrics".parse().unwrap();
    Box::pin(builder.build(worker.clone(), uri).unwrap())
}
