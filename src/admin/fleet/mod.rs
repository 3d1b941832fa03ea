//! The admin API of a fleet.

mod load;
mod route;
mod view;
mod worker;

use super::{
    AdminBody, BusyThreshold, ResponseFuture,
    json::{self, Object, error, is_json, json, not_json},
};
use crate::fleet::{Fleet, Origin, Refused, RefusedKind, Removed, WorkerView};
use http::{Method, Request, Response, StatusCode};
use http_body::Body;
use route::Route;
use serde::Serialize;
use std::{
    convert::Infallible,
    fmt,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};
use tower_service::Service;

/// The largest request body that a [`FleetApi`] reads: 4 MiB, which is the load
/// of tens of thousands of ranks.
pub const MAX_FLEET_BODY_BYTES: usize = 4 * 1024 * 1024;

/// The admin API of a [`Fleet`]: operators look at its workers and change them,
/// and workers register and report. See the [module documentation](super).
///
/// Always ready, and fails never: every error is an answer.
pub struct FleetApi<S, M> {
    fleet: Fleet<S, M>,
    thresholds: BusyThreshold,
}

impl<S: Clone, M> FleetApi<S, M> {
    /// For the workers and models of a fleet.
    pub fn new(fleet: Fleet<S, M>) -> Self {
        Self {
            thresholds: BusyThreshold::new(fleet.thresholds()),
            fleet,
        }
    }
}

impl<S, M, B> Service<Request<B>> for FleetApi<S, M>
where
    S: Clone + Send + 'static,
    M: Send + Sync + 'static,
    B: Body,
{
    type Response = Response<AdminBody>;
    type Error = Infallible;
    type Future = ResponseFuture<B>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let route = match Route::of(request.uri().path()) {
            Ok(route) => route,
            Err(wrong) => return ResponseFuture::answer(wrong.answer()),
        };
        match route {
            Route::Thresholds => self.thresholds.call(request),
            Route::Workers => self.read(&request, |fleet| view::workers(&fleet.workers())),
            Route::Models => self.read(&request, |fleet| view::models(&fleet.models())),
            Route::Load => match *request.method() {
                Method::POST => self.act(request, load::post),
                _ => ResponseFuture::answer(json::only("POST")),
            },
            Route::Worker(id) => self.worker(id, request),
        }
    }
}

impl<S, M> FleetApi<S, M>
where
    S: Clone + Send + 'static,
    M: Send + Sync + 'static,
{
    fn read<B>(
        &self,
        request: &Request<B>,
        view: impl FnOnce(&Fleet<S, M>) -> Response<AdminBody>,
    ) -> ResponseFuture<B> {
        ResponseFuture::answer(match *request.method() {
            Method::GET | Method::HEAD => view(&self.fleet),
            _ => json::only("GET, HEAD"),
        })
    }

    /// Has `act` take the body, if it is JSON.
    fn act<B>(
        &self,
        request: Request<B>,
        act: impl FnOnce(&Fleet<S, M>, &[u8]) -> Response<AdminBody> + Send + 'static,
    ) -> ResponseFuture<B> {
        if !is_json(request.headers()) {
            return ResponseFuture::answer(not_json());
        }
        let fleet = self.fleet.clone();
        let act = move |body: &[u8]| act(&fleet, body);
        ResponseFuture::read(request.into_body(), MAX_FLEET_BODY_BYTES, act)
    }

    fn worker<B>(&self, id: Arc<str>, request: Request<B>) -> ResponseFuture<B> {
        let fleet = &self.fleet;
        ResponseFuture::answer(match *request.method() {
            Method::GET | Method::HEAD => match fleet.worker(&id) {
                Some(worker) => view::worker(&worker),
                None => unknown(&id),
            },
            Method::PUT => return self.act(request, move |fleet, body| put(fleet, &id, body)),
            Method::PATCH => return self.act(request, move |fleet, body| patch(fleet, &id, body)),
            Method::DELETE => match request.uri().query() {
                None => remove(fleet, &id),
                Some("leaving=true") => leave(fleet, &id),
                Some(query) => {
                    let message = format!("the query is {query:?}, allowed: leaving=true");
                    error(StatusCode::BAD_REQUEST, &message)
                }
            },
            _ => json::only("GET, HEAD, PUT, PATCH, DELETE"),
        })
    }
}

fn put<S: Clone, M>(fleet: &Fleet<S, M>, id: &str, body: &[u8]) -> Response<AdminBody> {
    match json::parse::<Object<worker::Body>>(body) {
        Ok(Object(body)) => answer(fleet.put(id, body.into())),
        Err(wrong) => wrong.answer(),
    }
}

fn patch<S: Clone, M>(fleet: &Fleet<S, M>, id: &str, body: &[u8]) -> Response<AdminBody> {
    match json::parse::<Object<worker::Body>>(body) {
        Ok(Object(body)) => answer(fleet.patch(id, body.into())),
        Err(wrong) => wrong.answer(),
    }
}

fn answer(done: Result<WorkerView, Refused>) -> Response<AdminBody> {
    match done {
        Ok(worker) => view::worker(&worker),
        Err(refused) => {
            let status = match refused.kind() {
                RefusedKind::Unknown => StatusCode::NOT_FOUND,
                RefusedKind::Removed => StatusCode::CONFLICT,
                RefusedKind::Invalid | RefusedKind::Full => StatusCode::UNPROCESSABLE_ENTITY,
            };
            error(status, &refused.to_string())
        }
    }
}

fn unknown(id: &str) -> Response<AdminBody> {
    error(StatusCode::NOT_FOUND, &format!("there is no worker {id:?}"))
}

fn no_content() -> Response<AdminBody> {
    let mut response = Response::new(AdminBody::default());
    *response.status_mut() = StatusCode::NO_CONTENT;
    response
}

fn remove<S: Clone, M>(fleet: &Fleet<S, M>, id: &str) -> Response<AdminBody> {
    #[derive(Serialize)]
    struct Gone<'a> {
        removed: &'a str,
        message: &'static str,
    }
    match fleet.remove(id) {
        Some(Removed::UntilItIsBack) => no_content(),
        Some(Removed::ForGood) => {
            let message = "It is of the configuration, so neither it nor a discovery brings it \
                           back: only a PUT without ttl_ms does, or a restart of the gateway.";
            let gone = Gone {
                removed: id,
                message,
            };
            json(StatusCode::OK, &gone)
        }
        None => unknown(id),
    }
}

/// The worker itself says that it goes, which is nothing to those that are
/// there for another reason.
fn leave<S: Clone, M>(fleet: &Fleet<S, M>, id: &str) -> Response<AdminBody> {
    let itself = Origin::Reported(Duration::ZERO);
    match fleet.leave(id, &itself) {
        true => no_content(),
        false => match fleet.worker(id) {
            Some(stays) => view::worker(&stays),
            None => unknown(id),
        },
    }
}

impl<S, M> Clone for FleetApi<S, M> {
    fn clone(&self) -> Self {
        Self {
            fleet: self.fleet.clone(),
            thresholds: self.thresholds.clone(),
        }
    }
}

impl<S, M> fmt::Debug for FleetApi<S, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FleetApi")
            .field("fleet", &self.fleet)
            .finish_non_exhaustive()
    }
}
