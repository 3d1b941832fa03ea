//! What an option or a variable that cannot be used is answered with.

use clap::Parser;
use overload_examples::cli::{
    UsageError, base_url, flag_or_env, one_line_first, positive, rate, try_parse, whole,
};
use std::ffi::OsString;

#[derive(Debug, Parser)]
struct Args {
    #[arg(long, value_parser = whole(1..=100_u32))]
    limit: Option<u32>,
    #[arg(long)]
    needed: String,
    #[arg(long)]
    switch: bool,
}

fn error(args: &[&str]) -> String {
    let args = ["program"].iter().chain(args).map(OsString::from);
    one_line_first(&try_parse::<Args>(args).unwrap_err().to_string())
}

#[test]
fn the_first_line_names_the_option_its_value_and_what_is_allowed() {
    for bad in ["0", "101", "-1", "1.5", "abc", ""] {
        let error = error(&["--needed", "x", "--limit", bad]);
        let first = error.lines().next().unwrap();
        assert_eq!(
            first,
            format!(
                "error: invalid value '{bad}' for '--limit <LIMIT>': \
                 expected a whole number from 1 to 100"
            )
        );
    }
}

#[test]
fn an_option_without_a_value_stands_beside_those_with_one() {
    let args = ["program", "--switch", "--limit", "1", "--needed", "x"];
    let args = try_parse::<Args>(args.map(OsString::from)).unwrap();
    assert!(args.switch && args.limit == Some(1) && args.needed == "x");
}

#[test]
fn the_first_line_names_an_option_that_is_missing() {
    let error = error(&[]);
    assert!(
        error.lines().next().unwrap().contains("--needed"),
        "{error}"
    );
}

fn resolve(flag: Option<u32>, variable: &str) -> Result<Option<u32>, UsageError> {
    let environment = |name: &str| (name == "DYN_LIMIT").then(|| variable.into());
    flag_or_env(flag, "DYN_LIMIT", &environment, whole(1..=100))
}

#[test]
fn a_flag_beats_the_environment_and_an_empty_variable_is_unset() {
    assert_eq!(resolve(Some(1), "2"), Ok(Some(1)));
    assert_eq!(resolve(Some(1), "abc"), Ok(Some(1)));
    assert_eq!(resolve(None, "2"), Ok(Some(2)));
    assert_eq!(resolve(None, ""), Ok(None));
    assert_eq!(resolve(None, " 2 "), Ok(Some(2)));
}

#[test]
fn a_bad_variable_is_named_with_its_value_and_what_is_allowed() {
    assert_eq!(
        resolve(None, "abc").unwrap_err().to_string(),
        "invalid value 'abc' for DYN_LIMIT: expected a whole number from 1 to 100"
    );
}

#[test]
fn rates_and_urls_are_checked() {
    assert_eq!(rate("0"), Ok(0.0));
    for bad in ["-1", "NaN", "inf", "", "fast"] {
        assert!(rate(bad).is_err(), "{bad}");
        assert!(positive(bad).is_err(), "{bad}");
    }
    assert!(positive("0").is_err());
    for good in [
        "http://127.0.0.1:9000",
        "http://[::1]",
        "http://[::1]:80",
        "http://a",
    ] {
        assert!(base_url(good).is_ok(), "{good}");
    }
    for bad in [
        "127.0.0.1:9000",
        "https://a",
        "http://",
        "/x",
        "",
        "http://a?b",
        "http://a:99999",
        "http://[::1]:99999",
    ] {
        assert!(base_url(bad).is_err(), "{bad}");
    }
}
