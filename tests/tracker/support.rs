//! A worker whose responses come when the test says so, and what is known of
//! its load.

use bytes::Bytes;
use futures::channel::mpsc::{UnboundedReceiver, UnboundedSender, unbounded};
use http::{Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::StreamBody;
use std::num::NonZeroU64;
use tokio::sync::oneshot;
use tower::{BoxError, Layer, Service, util::BoxService};
use tower_overload::{
    busy::BusySet,
    load::{
        RankSnapshot, ThresholdUpdate, WorkerConfig, WorkerMonitor,
        tracker::{Cost, LoadTracker, OutputTokens, TrackLoad, TrackLoadLayer},
    },
};

pub type ResBody = StreamBody<UnboundedReceiver<Result<Frame<Bytes>, BoxError>>>;
pub type OfRequest = fn(&Request<Cost>) -> Cost;
pub type Tracker = LoadTracker<&'static str, OfRequest>;

pub const WORKER: &str = "worker-0";
pub const SIXTEEN: NonZeroU64 = NonZeroU64::new(16).unwrap();

/// A monitor that knows `WORKER`, where a rank with any prefill is busy.
pub fn monitor(ranks: impl IntoIterator<Item = u32>) -> WorkerMonitor<&'static str> {
    let (monitor, thresholds) = WorkerMonitor::for_model("tiny", BusySet::new());
    let update = ThresholdUpdate::new().active_prefill_tokens(0);
    thresholds.update(update).unwrap();
    monitor.configure_for_all(WORKER, WorkerConfig::new(ranks).unwrap());
    monitor
}

/// Counts what each request carries as its body.
pub fn tracker(monitor: &WorkerMonitor<&'static str>) -> Tracker {
    LoadTracker::new(monitor.clone(), |request| *request.body())
}

/// The worker's side of one request.
pub struct Served {
    head: Option<oneshot::Sender<Result<StatusCode, BoxError>>>,
    frames: Option<UnboundedSender<Result<Frame<Bytes>, BoxError>>>,
}

impl Served {
    pub fn head(&mut self, status: u16) {
        let status = StatusCode::from_u16(status).unwrap();
        let _ = self.head.take().unwrap().send(Ok(status));
    }

    pub fn fail(&mut self) {
        let _ = self.head.take().unwrap().send(Err("lost".into()));
    }

    pub fn frame(&self, frame: Result<Frame<Bytes>, BoxError>) {
        let _ = self.frames.as_ref().unwrap().unbounded_send(frame);
    }

    pub fn data(&self) {
        self.frame(Ok(Frame::data(Bytes::from_static(b"token"))));
    }

    pub fn end(&mut self) {
        self.frames = None;
    }
}

/// The client's side.
pub type Client<C = OfRequest, T = tower_overload::load::tracker::StreamTokens> =
    TrackLoad<BoxService<Request<Cost>, Response<ResBody>, BoxError>, C, T>;

/// A worker behind the layer, and the requests that reach it.
pub fn client<C, T>(
    layer: &TrackLoadLayer<C, T>,
) -> (Client<C, T>, std::sync::mpsc::Receiver<Served>)
where
    C: Clone,
    T: Clone + OutputTokens<Bytes>,
{
    let (arrived, served) = std::sync::mpsc::channel();
    let worker = tower::service_fn(move |_: Request<Cost>| {
        let (head, status) = oneshot::channel();
        let (frames, body) = unbounded();
        let _ = arrived.send(Served {
            head: Some(head),
            frames: Some(frames),
        });
        async move {
            let mut response = Response::new(StreamBody::new(body));
            *response.status_mut() = status.await??;
            Ok(response)
        }
    });
    (layer.layer(BoxService::new(worker)), served)
}

pub fn send<C, T>(
    client: &mut Client<C, T>,
    cost: Cost,
) -> <Client<C, T> as Service<Request<Cost>>>::Future
where
    Client<C, T>: Service<Request<Cost>>,
{
    client.call(Request::new(cost))
}

/// What the monitor knows of a rank: prefill tokens and decode blocks.
pub fn known(monitor: &WorkerMonitor<&'static str>, rank: u32) -> (u64, u64) {
    let rank = rank_of(monitor, rank);
    (
        rank.active_prefill_tokens.unwrap_or(0),
        rank.active_decode_blocks.unwrap_or(0),
    )
}

pub fn rank_of(monitor: &WorkerMonitor<&'static str>, rank: u32) -> RankSnapshot {
    let worker = monitor.worker(&WORKER).expect("it is registered");
    let mut ranks = worker.ranks.into_iter();
    ranks.find(|known| known.dp_rank == rank).expect("declared")
}
