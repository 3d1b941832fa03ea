//! What operators and workers say to a gateway, over HTTP.
//!
//! [`FleetApi`] is the admin API of a [`Fleet`](crate::fleet::Fleet), and
//! [`BusyThreshold`] the part of it that needs none: the thresholds of a
//! [`WorkerMonitor`](crate::load::WorkerMonitor). Both are Tower `Service`s for
//! HTTP requests that mount in axum or hyper. They can change what the gateway
//! accepts, so they belong on a listener that clients do not reach.
//! [`Reporter`] is the worker's side.
//!
//! ```
//! use axum::Router;
//! use tower_overload::{admin::BusyThreshold, busy::BusySet, load::WorkerMonitor};
//!
//! let (monitor, _thresholds) = WorkerMonitor::<String>::for_model("tiny", BusySet::new());
//! let admin: Router = Router::new()
//!     .route_service("/busy_threshold", BusyThreshold::new(monitor.thresholds()));
//! ```
//!
//! # Workers
//!
//! | request | does | answers with |
//! |---|---|---|
//! | `GET /workers` | | `{"workers": [worker, …]}`, by id |
//! | `GET /workers/{id}` | | the worker |
//! | `PUT /workers/{id}` | registers a worker, or changes what the body names | the worker |
//! | `PATCH /workers/{id}` | changes what the body names of a worker that is there | the worker |
//! | `DELETE /workers/{id}` | [removes](crate::fleet::Fleet::remove) a worker, as an operator wants it | 204; for one of the configuration 200 and what brings it back |
//! | `DELETE /workers/{id}?leaving=true` | the worker says [goodbye](crate::fleet::Fleet::leave) | 204; the worker if it is kept for another reason |
//! | `POST /worker_load` | load events, one or an array | `{"accepted": 1, "dropped": 0}` |
//! | `GET /models` | | `{"models": [{"model", "alive", "usable", "eligible"}, …]}` |
//! | `/busy_threshold` | as below | |
//!
//! An id is one segment of the path, percent-encoded. The body of a `PUT` or
//! `PATCH` is a JSON object:
//!
//! | member | is |
//! |---|---|
//! | `url` | where the worker is reached; a new worker has to have it |
//! | `dp_ranks` | its data-parallel ranks (default: rank 0) |
//! | `kv_total_blocks`, `max_num_batched_tokens` | the capacity of each rank (default: not known) |
//! | `models` | what it serves (default: the fleet's default model) |
//! | `loras` | an object of the names of its LoRA adapters, each with the model that it adapts |
//! | `draining` | whether it gets no new requests |
//! | `ttl_ms` | only from the worker itself: it is removed when it was silent for so long |
//!
//! A member that is absent stays as it is, and `null` is the default again; for
//! `url`, `draining` and `ttl_ms`, `null` is as absent.
//! With `ttl_ms` the worker itself speaks, without it an operator does: their
//! drains are [apart](crate::fleet::WorkerUpdate::draining).
//!
//! A load event is `{"worker", "dp_rank", "active_decode_blocks",
//! "kv_used_blocks", "active_prefill_tokens"}`; a count that is absent is as it
//! was.
//!
//! # Thresholds
//!
//! `GET` lists every model, with `null` for a threshold that is not set:
//!
//! ```json
//! {"thresholds": [{"model": "tiny",
//!                  "active_decode_blocks_threshold": 0.85,
//!                  "active_prefill_tokens_threshold": null,
//!                  "active_prefill_tokens_threshold_frac": null}]}
//! ```
//!
//! `POST` takes one such object and answers with the model's new one. A
//! threshold that is absent stays, `null` clears it, and an object with
//! nothing but `model` only reads. The change is stored when the answer is
//! sent, and takes effect with the next load or configuration event.
//!
//! # Errors
//!
//! Anything else is answered with `{"error": …}`, and nothing has changed:
//!
//! | status | because |
//! |---|---|
//! | 400 | not JSON, a threshold out of its range, an id that is no text, or the request broke off |
//! | 404 | no such path or worker, or a threshold is given for an unknown model (to read one is a 200 with nulls) |
//! | 405 | another method |
//! | 409 | an operator has removed the worker, and something else wants it back |
//! | 413 | more than [`MAX_BODY_BYTES`], or [`MAX_FLEET_BODY_BYTES`] where a worker or load is sent |
//! | 415 | the content type is not JSON |
//! | 422 | JSON of another shape: a wrong type, a member that is missing, unknown or repeated, a negative or fractional count; or something of a worker that cannot be used |
//!
//! How long a client may take to send its request is for the server, or a
//! timeout above, to say.

mod body;
mod fleet;
mod future;
mod json;
mod reporter;
mod thresholds;

pub use body::AdminBody;
pub use fleet::{FleetApi, MAX_FLEET_BODY_BYTES};
pub use future::ResponseFuture;
pub use reporter::Reporter;
pub use thresholds::{BusyThreshold, MAX_BODY_BYTES};
