//! Any schedule against what the table of the limits says of it.

use crate::support::{Step::*, *};
use http_body_util::BodyExt;
use proptest::{collection::vec, option, prelude::*};
use std::time::Duration;
use tokio::time::{Instant, sleep};
use tower::ServiceExt;
use tower_overload::{Limit, LimitPassed, limits::TimeLimitLayer};

#[derive(Clone, Debug)]
struct Schedule {
    head: u64,
    is_stream: bool,
    steps: Vec<(u64, Step)>,
    /// How long the client takes before it asks for each frame.
    reader: Vec<u64>,
}

#[derive(Clone, Copy, Debug)]
struct Bounds {
    head: Option<u64>,
    first_frame: Option<u64>,
    frame: Option<u64>,
}

/// What the client sees, and when, since it asked.
type Log = Vec<(Seen, u64)>;

fn log_late(log: &mut Log, limit: Limit, after: u64, at: u64) {
    let text = LimitPassed::new(limit, ms(after)).to_string();
    log.push((Seen::Error(text), at));
}

/// A head is logged as `Seen::data("head")`. The clock stands still where it
/// would hang: there is an end to each schedule.
fn expected(schedule: &Schedule, bounds: Bounds) -> Log {
    let mut log = Log::new();
    if let Some(limit) = bounds.head.filter(|limit| *limit < schedule.head) {
        log_late(&mut log, Limit::Head, limit, limit);
        return log;
    }
    let mut now = schedule.head;
    let mut due = now;
    let mut steps = schedule.steps.iter().map(|(after, step)| {
        due += after;
        (due, *step)
    });
    let mut steps: Vec<_> = steps.by_ref().collect();
    steps.reverse();
    let mut held = false;
    if let Some(limit) = bounds.first_frame.filter(|_| schedule.is_stream) {
        let (due, step) = *steps.last().unwrap();
        if due > now + limit {
            log_late(&mut log, Limit::FirstFrame, limit, now + limit);
            return log;
        }
        now = due;
        held = true;
        if step == Break {
            log.push((Seen::Error(broken()), now));
            return log;
        }
    }
    log.push((Seen::data("head"), now));
    let mut has_begun = held;
    for pause in schedule.reader.iter().cycle() {
        now += pause;
        let (due, step) = steps.pop().unwrap();
        let (kind, limit) = match has_begun {
            true => (Limit::Frame, bounds.frame),
            false => (Limit::FirstFrame, bounds.first_frame),
        };
        if let Some(limit) = limit.filter(|limit| due > now + limit) {
            log_late(&mut log, kind, limit, now + limit);
            return log;
        }
        now = now.max(due);
        has_begun |= matches!(step, Data(_));
        match step {
            Data(data) => log.push((Seen::data(data), now)),
            Trailers => log.push((Seen::Trailers, now)),
            Break => {
                log.push((Seen::Error(broken()), now));
                return log;
            }
            End | Hang => {
                log.push((Seen::End, now));
                return log;
            }
        }
    }
    unreachable!("each schedule has an end")
}

fn broken() -> String {
    std::io::Error::from(std::io::ErrorKind::ConnectionReset).to_string()
}

async fn seen(schedule: &Schedule, bounds: Bounds) -> Log {
    let bound = |limit: Option<u64>| limit.map(Duration::from_millis);
    let limits = TimeLimitLayer::new()
        .head(bound(bounds.head))
        .first_frame(bound(bounds.first_frame))
        .frame(bound(bounds.frame));
    let steps: Vec<_> = schedule
        .steps
        .iter()
        .map(|(after, step)| (ms(*after), *step))
        .collect();
    let content_type = match schedule.is_stream {
        true => EVENTS,
        false => "application/json",
    };
    let script = Script {
        head: ms(schedule.head),
        ..answer(content_type, &steps)
    };
    let worker = Worker::new(script);
    let since = Instant::now();
    let at = || since.elapsed().as_millis() as u64;
    let mut log = Log::new();
    let mut body = match worker.within(limits).oneshot(said(true)).await {
        Ok(response) => Box::pin(response.into_body()),
        Err(error) => {
            assert_eq!(worker.alive(), 0);
            // One that broke off was lost, and the cause is below.
            let cause = error.source().map(ToString::to_string);
            let text = cause.unwrap_or_else(|| error.to_string());
            log.push((Seen::Error(text), at()));
            return log;
        }
    };
    log.push((Seen::data("head"), at()));
    for pause in schedule.reader.iter().cycle() {
        if *pause > 0 {
            sleep(ms(*pause)).await;
        }
        let frame = Seen::of(body.frame().await);
        let is_last = matches!(frame, Seen::Error(_) | Seen::End);
        log.push((frame, at()));
        if is_last {
            break;
        }
    }
    drop(body);
    assert_eq!(worker.alive(), 0);
    log
}

fn schedules() -> impl Strategy<Value = Schedule> {
    let step = prop_oneof![4 => Just(Data("x")), 1 => Just(Data("")), 1 => Just(Trailers)];
    let last = prop_oneof![3 => Just(End), 1 => Just(Break)];
    (
        0..12_u64,
        any::<bool>(),
        vec((0..12_u64, step), 0..8),
        (0..12_u64, last),
        vec(0..20_u64, 1..5),
    )
        .prop_map(|(head, is_stream, mut steps, last, reader)| {
            steps.push(last);
            Schedule {
                head,
                is_stream,
                steps,
                reader,
            }
        })
}

fn bounds() -> impl Strategy<Value = Bounds> {
    let bound = || option::weighted(0.9, 0..15_u64);
    (bound(), bound(), bound()).prop_map(|(head, first_frame, frame)| Bounds {
        head,
        first_frame,
        frame,
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn the_client_sees_what_the_limits_say(schedule in schedules(), bounds in bounds()) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        let seen = runtime.block_on(seen(&schedule, bounds));
        prop_assert_eq!(seen, expected(&schedule, bounds));
    }
}
