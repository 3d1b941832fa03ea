//! The busy filter over tower's own balancer and buffer.

mod discovery;
mod filter;
mod hostile;
mod marks;
mod mock;
mod retry;
mod support;
