//! The options of the worker, and its variables.

use overload_examples::{
    cli::{no_environment, try_parse},
    worker::WorkerConfig,
};
use std::{ffi::OsString, net::Ipv4Addr};
use tower_overload::admission::{ENGINE_REQUEST_LIMIT, Limits, REQUEST_QUEUE_LIMIT};

fn args(args: &[&str]) -> WorkerConfig {
    let args = ["worker"].iter().chain(args).map(OsString::from);
    try_parse(args).unwrap()
}

fn limits(flags: &[&str], slots: &str, queue: &str) -> Result<Option<Limits>, String> {
    let environment = |name: &str| match name {
        ENGINE_REQUEST_LIMIT => Some(slots.into()),
        REQUEST_QUEUE_LIMIT => Some(queue.into()),
        _ => None,
    };
    match args(flags).with_environment(&environment) {
        Ok(config) => Ok(config.limits),
        Err(error) => Err(error.to_string()),
    }
}

fn some(slots: usize, queue: usize) -> Result<Option<Limits>, String> {
    Ok(Some(Limits::new(slots, queue).unwrap()))
}

#[test]
fn the_defaults_are_those_of_the_configuration() {
    let config = args(&[]).with_environment(&no_environment).unwrap();
    assert_eq!(config, WorkerConfig::default());
}

#[test]
fn a_flag_beats_its_variable_and_an_empty_variable_is_unset() {
    let slots = ["--engine-request-limit", "3"];
    let both = [slots[0], slots[1], "--request-queue-limit", "5"];
    assert_eq!(limits(&[], "", ""), Ok(None));
    assert_eq!(limits(&[], "2", ""), some(2, 16));
    assert_eq!(limits(&[], "2", "4"), some(2, 4));
    assert_eq!(limits(&slots, "2", "4"), some(3, 4));
    assert_eq!(limits(&slots, "bad", ""), some(3, 16));
    assert_eq!(limits(&both, "bad", "bad"), some(3, 5));
    assert_eq!(limits(&both[2..], "2", "bad"), some(2, 5));
}

#[test]
fn a_worker_on_all_addresses_is_told_of_by_one_that_the_gateway_reaches() {
    let config = |more: &[&str]| {
        let all = [&["--listen", "0.0.0.0:0"], more].concat();
        args(&all).with_environment(&no_environment)
    };
    assert_eq!(config(&[]).unwrap().reached_at, None, "nobody is told");
    let register = ["--register", "http://127.0.0.1:9000"];
    let here = Some(Ipv4Addr::LOCALHOST.into());
    assert_eq!(config(&register).unwrap().reached_at, here);
    let advertise = [&register[..], &["--advertise", "http://worker:1"]].concat();
    assert_eq!(config(&advertise).unwrap().reached_at, None);
    let cases: [&[&str]; 2] = [
        &["--register", "http://gateway.invalid:9000"],
        &["--nats", "nats://127.0.0.1:4222"],
    ];
    for options in cases {
        let error = config(options).unwrap_err().to_string();
        assert!(error.contains("--advertise"), "{error}");
    }
}

#[test]
fn without_a_cap_the_queue_limit_is_ignored() {
    assert_eq!(limits(&["--request-queue-limit", "5"], "", "bad"), Ok(None));
    assert_eq!(limits(&[], "", "1"), Ok(None));
}

#[test]
fn a_bad_variable_is_named_with_its_value_and_what_is_allowed() {
    let error = limits(&["--engine-request-limit", "3"], "", "1").unwrap_err();
    for part in [REQUEST_QUEUE_LIMIT, "\"1\"", "from 2 to"] {
        assert!(error.contains(part), "{error}");
    }
}
