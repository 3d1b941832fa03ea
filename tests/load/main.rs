//! The promises of [`tower_overload::load`].

mod cases;
mod model;
mod monitor;
#[path = "../support"]
mod support {
    pub mod cases;
    pub mod metrics;
    pub mod serves;
}
