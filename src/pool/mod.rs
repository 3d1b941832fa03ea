//! One service for many workers: it sees each request, chooses a worker that
//! can take it, and bounds the time that it waits for one.
//!
//! A stock balancer is asked for readiness before it sees a request, so a wait
//! belongs to the head of a queue and not to a caller, and something stands
//! between the callers and the workers: a buffer's task, a lock, turns. A
//! [`WorkerPool`] is always ready. Its `call` looks at the request and at the
//! workers that are open, and dispatches at once:
//!
//! | the workers | a request gets |
//! |---|---|
//! | some are open | one of them, by the [choice](pick) |
//! | none is open, and one is being probed | to wait, for at most `max_wait` |
//! | none is open, and some are busy, leased or full | [`ServiceOverloaded`](crate::ServiceOverloaded) |
//! | none is usable: there are none, or all are unreachable, failing or draining | [`Unavailable`](crate::Unavailable) |
//!
//! A worker is open if it has no [mark](crate::busy::Mark) and, where that is
//! limited, fewer requests in flight than it may have. One on probation takes
//! a single request, which finds out whether it is back.
//!
//! ```
//! use http::{Request, Response};
//! use std::convert::Infallible;
//! use tower::{Service, service_fn};
//! use tower_overload::{
//!     BoxError, ServiceOverloaded, Unavailable,
//!     busy::{BusySet, roster},
//!     pool::WorkerPool,
//! };
//!
//! # type Body = http_body_util::Empty<bytes::Bytes>;
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), BoxError> {
//! let set = BusySet::new();
//! let (roster, changes) = roster();
//! let mut workers = WorkerPool::new(changes, set.clone());
//! tokio::spawn(workers.driver());
//!
//! // Nobody is there.
//! let request = || Request::new(());
//! let error = workers.call(request()).await.unwrap_err();
//! assert!(Unavailable::find_in(&*error).is_some());
//!
//! // One worker: any service that can be cloned, an HTTP client in real life.
//! let worker = service_fn(|_: Request<()>| async {
//!     Ok::<_, Infallible>(Response::new(Body::new()))
//! });
//! roster.insert("worker-0", worker);
//! assert!(workers.call(request()).await.is_ok());
//!
//! // It is busy, says whoever watches its load.
//! let mut mark = set.busy_mark("worker-0");
//! mark.set(None);
//! let error = workers.call(request()).await.unwrap_err();
//! assert!(ServiceOverloaded::find_in(&*error).is_some());
//!
//! mark.clear();
//! assert!(workers.call(request()).await.is_ok());
//! # Ok(())
//! # }
//! ```
//!
//! # When a mark counts
//!
//! What was marked, and who came or left, before `call` began to choose is
//! honoured. What comes with the choice counts as after it: the request is on
//! its way then, and is not cut. So no request is refused as *busy at
//! dispatch*.
//!
//! # A worker's own readiness
//!
//! The service of the chosen worker is cloned, and the clone is asked whether
//! it is ready: in `call`, and if it is not, in the response future. Until it
//! is, the request is not dispatched. It counts as in flight there; its
//! `max_wait` runs on; a mark or the removal of the worker sends it back to the
//! choice. An error of `poll_ready` takes the worker out of the pool until the
//! discovery inserts it again, is logged, and counts in
//! [`WORKER_SERVICE_ERRORS`](crate::metrics::WORKER_SERVICE_ERRORS).
//!
//! # No hangs
//!
//! A request parks in two places:
//!
//! | it waits for | what wakes it | what ends it |
//! |---|---|---|
//! | an open worker | any mark that is set or falls, who joins and leaves, the outcome of a probe, a request that ends at a full worker; a timer at the earliest end of a mark, of a probe's turn or of the startup grace | the deadline, or the verdict of that moment |
//! | the own readiness of a worker | that service; a mark or the removal of that worker | the deadline |
//!
//! The deadline is `max_wait` after the request came, whatever happens
//! meanwhile. A request that is [sent again](crate::busy::RetryRefused) keeps
//! the deadline of its first attempt. At most `max_waiting` requests wait at
//! once; the next one is refused at once.
//!
//! Changes of the discovery wake whoever waits, and the [`Driver`]; the next
//! one who chooses applies them first. While one is applying them, the others
//! wait for it, so nobody chooses by an older membership.
//!
//! # Cancel safety
//!
//! A response future can be dropped at any time. Its place among those that
//! wait, its place with a worker and its turn as a probe are guards, and end
//! with it. A panic of a choice, a discovery or a worker's service reaches the
//! caller and leaves nothing behind; a discovery that panicked has ended, and
//! its workers stay.
//!
//! # Cost
//!
//! A routed request costs a few atomic operations and two short locks that
//! belong to its worker alone, whatever the number of workers and however many
//! of them are marked. A verdict is two atomic loads. A mark that is set or
//! falls moves one worker within the open ones, under a lock of the pool.
//! `benches/` has the figures.
//!
//! A worker's service is cloned under the lock of its own row, so a `Clone`
//! that calls the pool would wait for itself.
//!
//! # In async blocks
//!
//! Where the ids of workers have a lifetime in their type, as `&'static str`
//! does, rustc may say of an async block that is sent between threads that an
//! implementation *is not general enough*. An id that owns its text has no such
//! trouble, nor has a pool that is erased once by
//! `tower::util::BoxCloneSyncService`.
//!
//! # Panics
//!
//! Timers are tokio's, so what waits has to be polled within a tokio runtime
//! with time enabled.

mod builder;
mod core;
mod driver;
mod future;
mod grow;
#[cfg(all(test, tower_overload_loom))]
mod loom;
mod member;
mod membership;
pub mod pick;
mod rows;
mod service;
mod waiting;
mod watch;

pub use self::{
    builder::WorkerPoolBuilder, driver::Driver, future::ResponseFuture, service::WorkerPool,
};
