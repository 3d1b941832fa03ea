//! Load events over NATS.

pub mod dynamo;
mod undecodable;

pub use undecodable::{Defect, Undecodable};
