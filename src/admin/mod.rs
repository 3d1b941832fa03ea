//! `/busy_threshold`: an operator reads and changes the thresholds by which
//! workers count as busy.
//!
//! [`BusyThreshold`] is a Tower `Service` for HTTP requests that mounts in
//! axum or hyper, under whatever path the application chooses. It can change
//! what the fleet accepts, so it belongs on a listener that clients do not
//! reach.
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
//! # Requests and answers
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
//! Anything else is answered with `{"error": …}`, and nothing has changed:
//!
//! | status | because |
//! |---|---|
//! | 400 | not JSON, a threshold out of its range, or the request broke off |
//! | 404 | a threshold is given for an unknown model (to read one is a 200 with nulls) |
//! | 405 | a method other than `GET`, `HEAD` and `POST` |
//! | 413 | more than [`MAX_BODY_BYTES`] |
//! | 415 | the content type is not JSON |
//! | 422 | JSON of another shape: a wrong type, no `model`, a negative or fractional number of tokens, an unknown or repeated field |

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
