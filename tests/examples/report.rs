//! The table at the end of a replay.

use overload_examples::replay::{Objectives, Outcome, Pace, Report};
use std::time::Duration;

const OBJECTIVES: Objectives = Objectives {
    first_token: Duration::from_millis(100),
    per_token: Duration::from_millis(10),
};

fn succeeded(first_token: u64, per_token: u64) -> Outcome {
    Outcome::Succeeded(Pace {
        first_token: Duration::from_millis(first_token),
        per_token: Duration::from_millis(per_token),
    })
}

fn report(outcomes: impl IntoIterator<Item = Outcome>) -> Report {
    let mut report = Report::default();
    for outcome in outcomes {
        report.add(outcome, &OBJECTIVES);
    }
    report.finish(Duration::from_secs(2));
    report
}

#[test]
fn a_request_is_good_if_it_meets_both_objectives() {
    let report = report([
        succeeded(100, 10),
        succeeded(101, 10),
        succeeded(100, 11),
        Outcome::Refused,
        Outcome::Failed("503".into()),
    ]);
    assert_eq!((report.offered(), report.succeeded()), (5, 3));
    assert_eq!((report.refused(), report.failed()), (1, 1));
    assert_eq!(report.good(), 1);
}

#[test]
fn percentiles_are_times_that_were_measured() {
    let report = report((1..=200).rev().map(|ms| succeeded(ms, 0)));
    assert_eq!(report.first_token(50), Some(Duration::from_millis(100)));
    assert_eq!(report.first_token(99), Some(Duration::from_millis(198)));
    assert_eq!(report.first_token(100), Some(Duration::from_millis(200)));
    assert_eq!(report.first_token(0), Some(Duration::from_millis(1)));
}

#[test]
fn the_table_has_every_figure() {
    let failed = || Outcome::Failed("status 503".into());
    let report = report([succeeded(40, 1), Outcome::Refused, failed(), failed()]);
    assert_eq!(
        report.to_string().lines().collect::<Vec<_>>(),
        [
            "offered                4    100.0 %         2.0/s",
            "succeeded              1     25.0 %         0.5/s",
            "refused (529)          1     25.0 %         0.5/s",
            "failed                 2     50.0 %         1.0/s",
            "goodput                1     25.0 %         0.5/s",
            "  failed: 2 × status 503",
            "TTFT p50            40.0 ms",
            "TTFT p99            40.0 ms",
            "took                 2.0 s",
        ]
    );
}

#[test]
fn without_a_success_there_is_no_time() {
    let report = report([Outcome::Refused]);
    assert_eq!(report.first_token(50), None);
    assert!(report.to_string().contains("TTFT p50               –"));
}
