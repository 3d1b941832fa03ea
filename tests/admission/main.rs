//! The engine admission as a service sees it.

mod shed;
mod support;
