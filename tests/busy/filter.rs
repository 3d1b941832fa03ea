//! Verdicts: nobody hangs, nobody is refused who could be served.

use crate::support::{ALL_BUSY, Fleet, Got, OK, Script, Worker, buffered, got, send};
use http::Request;
use std::time::Duration;
use tokio::time::Instant;
use tokio_test::{assert_pending, assert_ready_ok, task};
use tower::{Layer, Service, ServiceExt};
use tower_overload::{OverloadReason, UnavailableReason, busy::BusyFilterLayer};

const NO_WORKERS: Got = Got::Unavailable(UnavailableReason::NoWorkers);
const WAITED: Got = Got::Unavailable(UnavailableReason::WaitedTooLong);

#[tokio::test(start_paused = true)]
async fn an_empty_set_answers_at_once() {
    let (_fleet, mut stack) = Fleet::of(&[]);
    assert_eq!(send(&mut stack).await, NO_WORKERS);
    let mut buffered = buffered(stack);
    assert_eq!(send(&mut buffered).await, NO_WORKERS);
    assert_eq!(send(&mut buffered).await, NO_WORKERS);
}

#[tokio::test(start_paused = true)]
async fn a_connect_that_never_finishes_is_waited_for_no_longer_than_max_wait() {
    let (_fleet, mut stack) = Fleet::new([Worker::connecting("a")]);
    let start = Instant::now();
    assert_eq!(send(&mut stack).await, WAITED);
    assert_eq!(start.elapsed().as_secs(), 3);
}

#[tokio::test(start_paused = true)]
async fn those_who_queued_behind_a_vain_wait_are_answered_with_it_and_later_ones_wait() {
    let (fleet, stack) = Fleet::new([Worker::connecting("a")]);
    let buffered = buffered(stack);
    let start = Instant::now();
    let send_one =
        |mut buffered: crate::support::Buffered| async move { send(&mut buffered).await };
    let queue: Vec<_> = (0..10)
        .map(|_| tokio::spawn(send_one(buffered.clone())))
        .collect();
    for request in queue {
        assert_eq!(request.await.unwrap(), WAITED);
    }
    assert!(
        start.elapsed() < Duration::from_secs(4),
        "answered together"
    );

    tokio::time::sleep(Duration::from_secs(60)).await;
    let late = tokio::spawn(send_one(buffered.clone()));
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!late.is_finished(), "a later request has its own wait");
    fleet.worker("a").connect();
    assert_eq!(late.await.unwrap(), OK);
}

#[tokio::test(start_paused = true)]
async fn a_probe_that_is_dispatched_does_not_start_the_wait_of_the_others_anew() {
    // One worker refuses a connection once, and then never answers; the other
    // one is busy.
    let (fleet, stack) = Fleet::unasked(&["hangs", "busy"]);
    let mut busy = fleet.set.busy_mark("busy");
    busy.set(None);
    let hangs = fleet.worker("hangs");
    hangs.script(Script::FailAfter(Duration::ZERO));
    let mut service = buffered(stack);
    assert_eq!(send(&mut service).await, Got::Unreachable);
    hangs.script(Script::Never);
    let mut requests = Vec::new();
    for _ in 0..600 {
        tokio::time::sleep(Duration::from_millis(50)).await;
        let mut service = service.clone();
        let start = Instant::now();
        requests.push(tokio::spawn(async move {
            (send(&mut service).await, start.elapsed())
        }));
    }
    tokio::time::sleep(Duration::from_secs(60)).await;
    let mut unanswered = 0;
    for request in requests {
        if !request.is_finished() {
            unanswered += 1;
            continue;
        }
        let (got, took) = request.await.unwrap();
        assert!([WAITED, ALL_BUSY].contains(&got), "{got:?}");
        // A buffer promises no bound per caller; but nobody waits twice.
        assert!(took < Duration::from_secs(6), "{took:?}");
    }
    assert_eq!(unanswered, hangs.calls() - 1, "only those that it took");
    assert!(unanswered < 40, "{unanswered}: one probe a second");
}

#[tokio::test(start_paused = true)]
async fn three_of_four_busy_leave_the_fourth_and_four_of_four_are_overloaded() {
    let (fleet, mut stack) = Fleet::of(&["a", "b", "c", "d"]);
    let mut marks: Vec<_> = ["a", "b", "c"].map(|id| fleet.set.busy_mark(id)).into();
    marks.iter_mut().for_each(|mark| mark.set(None));
    for _ in 0..20 {
        assert_eq!(send(&mut stack).await, OK);
    }
    assert_eq!(fleet.worker("d").calls(), 20);
    let mut last = fleet.set.busy_mark("d");
    last.set(None);
    assert_eq!(send(&mut stack).await, ALL_BUSY);
    last.clear();
    assert_eq!(send(&mut stack).await, OK);
}

#[tokio::test(start_paused = true)]
async fn after_all_were_busy_behind_a_buffer_a_free_worker_serves_the_next_request() {
    let (fleet, stack) = Fleet::of(&["a", "b"]);
    let mut buffered = buffered(stack);
    let mut marks = ["a", "b"].map(|id| fleet.set.busy_mark(id));
    marks.iter_mut().for_each(|mark| mark.set(None));
    assert_eq!(send(&mut buffered).await, ALL_BUSY);
    marks[0].clear();
    assert_eq!(send(&mut buffered).await, OK);
    marks[0].set(None);
    assert_eq!(send(&mut buffered).await, ALL_BUSY);
}

#[tokio::test(start_paused = true)]
async fn a_waiting_caller_is_answered_when_the_verdict_changes() {
    let (fleet, mut stack) = Fleet::new([Worker::new("busy"), Worker::connecting("connecting")]);
    let mut busy = fleet.set.busy_mark("busy");
    busy.set(None);
    let mut connecting = fleet.set.busy_mark("connecting");

    let mut waiting = task::spawn(async { send(&mut stack).await });
    assert_pending!(waiting.poll());
    connecting.set(None);
    assert!(waiting.is_woken());
    match waiting.poll() {
        std::task::Poll::Ready(got) => assert_eq!(got, ALL_BUSY),
        std::task::Poll::Pending => panic!("the verdict is due"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_waiting_caller_is_answered_when_the_last_worker_leaves() {
    let (mut fleet, mut stack) = Fleet::new([Worker::connecting("a")]);
    let mut waiting = task::spawn(async { send(&mut stack).await });
    assert_pending!(waiting.poll());
    fleet.remove("a");
    assert!(waiting.is_woken());
    assert!(matches!(waiting.poll(), std::task::Poll::Ready(got) if got == NO_WORKERS));
}

#[tokio::test(start_paused = true)]
async fn a_waiting_caller_gets_the_worker_that_becomes_free() {
    let (fleet, mut stack) = Fleet::new([Worker::new("a"), Worker::connecting("b")]);
    let mut mark = fleet.set.busy_mark("a");
    mark.set(Some(Instant::now() + Duration::from_millis(100)));
    let start = Instant::now();
    assert_eq!(send(&mut stack).await, OK);
    assert_eq!(fleet.worker("a").calls(), 1);
    let waited = start.elapsed().as_millis();
    assert!((100..=101).contains(&waited), "{waited} ms");
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_became_busy_after_readiness_gets_nothing_while_another_is_ready() {
    for _ in 0..50 {
        let (fleet, mut stack) = Fleet::of(&["a", "b"]);
        let mut ready = task::spawn(());
        let _: () = assert_ready_ok!(ready.enter(|cx, _| stack.poll_ready(cx)));
        let mut mark = fleet.set.busy_mark("a");
        mark.set(None);
        assert_eq!(got(&stack.call(Request::new(())).await), OK);
        assert_eq!(fleet.worker("a").calls(), 0);
        assert_eq!(fleet.worker("b").calls(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn when_everything_became_busy_after_readiness_the_verdict_is_given_at_dispatch() {
    let (fleet, mut stack) = Fleet::new([Worker::new("a"), Worker::connecting("b")]);
    let mut ready = task::spawn(());
    let _: () = assert_ready_ok!(ready.enter(|cx, _| stack.poll_ready(cx)));
    let mut marks = ["a", "b"].map(|id| fleet.set.busy_mark(id));
    marks[0].set(None);
    let at_dispatch = Got::Overloaded(OverloadReason::BusyAtDispatch);
    let result = stack.call(Request::new(())).await;
    assert_eq!(got(&result), at_dispatch, "b may still connect");

    fleet.worker("b").connect();
    let _: () = assert_ready_ok!(ready.enter(|cx, _| stack.poll_ready(cx)));
    marks[1].set(None);
    assert_eq!(got(&stack.call(Request::new(())).await), ALL_BUSY);
    assert_eq!(fleet.worker("a").calls() + fleet.worker("b").calls(), 0);
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_went_stale_before_the_call_is_not_given() {
    let (fleet, mut stack) = Fleet::of(&["a"]);
    let mut mark = fleet.set.busy_mark("a");
    mark.set(Some(Instant::now() + Duration::from_secs(5)));
    let mut ready = task::spawn(());
    let _: () = assert_ready_ok!(ready.enter(|cx, _| stack.poll_ready(cx)));
    tokio::time::sleep(Duration::from_secs(6)).await;
    assert_eq!(got(&stack.call(Request::new(())).await), OK);
}

#[tokio::test(start_paused = true)]
async fn a_pending_of_an_exhausted_budget_is_no_verdict() {
    let (fleet, mut stack) = Fleet::of(&["a"]);
    assert_eq!(send(&mut stack).await, OK);
    // A mark that has just ended, whose timer would be polled without budget.
    let mut mark = fleet.set.busy_mark("a");
    mark.set(Some(Instant::now() + Duration::from_millis(5)));
    assert_eq!(send(&mut stack).await, ALL_BUSY);
    tokio::time::sleep(Duration::from_millis(6)).await;
    std::future::poll_fn(|cx| {
        while tokio::task::coop::has_budget_remaining() {
            let permit = tokio::task::coop::poll_proceed(cx);
            if let std::task::Poll::Ready(permit) = permit {
                permit.made_progress();
            }
        }
        assert!(stack.poll_ready(cx).is_ready());
        std::task::Poll::Ready(())
    })
    .await;
    assert_eq!(got(&stack.call(Request::new(())).await), OK);
}

#[tokio::test(start_paused = true)]
async fn the_grace_lets_requests_wait_for_the_first_word_of_the_discovery() {
    let grace = Duration::from_secs(2);
    let (mut fleet, stack) = Fleet::with([], |balance| balance.startup_grace(grace));
    let mut stack = buffered(stack);
    let mut first = stack.clone();
    let first = tokio::spawn(async move { send(&mut first).await });
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!first.is_finished());
    fleet.add(Worker::new("a"));
    assert_eq!(first.await.unwrap(), OK);
    fleet.remove("a");
    assert_eq!(
        send(&mut stack).await,
        NO_WORKERS,
        "the discovery has answered"
    );

    let (_fleet, mut stack) = Fleet::with([], |balance| balance.startup_grace(grace));
    let start = Instant::now();
    assert_eq!(send(&mut stack).await, NO_WORKERS);
    assert_eq!(start.elapsed().as_secs(), 2, "the grace is over");
}

#[tokio::test(start_paused = true)]
async fn a_clone_starts_unready_and_waits_for_itself() {
    let (fleet, stack) = Fleet::new([Worker::connecting("a")]);
    // Over a cloneable service: each clone of the filter has its own waiter.
    let filter = BusyFilterLayer::new(fleet.members.clone()).layer(buffered(stack));
    let mut clones = [filter.clone(), filter];
    let mut waiting: Vec<_> = clones
        .iter_mut()
        .map(|clone| task::spawn(async { send(clone).await }))
        .collect();
    for clone in &mut waiting {
        assert_pending!(clone.poll());
    }
    fleet.worker("a").connect();
    for clone in waiting {
        assert_eq!(clone.await, OK);
    }
}

#[tokio::test(start_paused = true)]
async fn an_endpoint_that_fails_is_gone_and_the_next_request_knows() {
    let (mut fleet, stack) = Fleet::of(&["a"]);
    let mut stack = buffered(stack);
    assert_eq!(send(&mut stack).await, OK);
    fleet.worker("a").break_service();
    assert_eq!(send(&mut stack).await, NO_WORKERS);
    assert_eq!(fleet.members.alive(), 0);
    fleet.add(Worker::new("a"));
    assert_eq!(send(&mut stack).await, OK);
}

#[tokio::test(start_paused = true)]
async fn a_request_on_its_way_is_not_cut_when_its_worker_is_removed() {
    let (mut fleet, mut stack) = Fleet::of(&["a"]);
    let slow = fleet.worker("a").clone();
    slow.script(Script::ServeAfter(Duration::from_secs(1)));
    stack.ready().await.unwrap();
    let waiting = tokio::spawn(stack.call(Request::new(())));
    fleet.remove("a");
    assert_eq!(send(&mut stack).await, NO_WORKERS);
    assert_eq!(got(&waiting.await.unwrap()), OK);
}
