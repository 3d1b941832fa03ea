//! What a monitor promises beyond the shared cases.

use crate::support;
use std::{sync::Arc, thread, time::Duration};
use tokio::time::{Instant, advance};
use tower_overload::{
    busy::{BusySet, Mark},
    load::{
        Change, DropReason, LoadEvent, Observed, ThresholdUpdate, ThresholdsHandle, WorkerConfig,
        WorkerMonitor, WorkerSnapshot,
    },
};

type Id = &'static str;

fn decode_above(threshold: f64) -> ThresholdUpdate {
    ThresholdUpdate::new().active_decode_blocks(threshold)
}

fn of_100_blocks(ranks: impl IntoIterator<Item = u32>) -> WorkerConfig {
    WorkerConfig::new(ranks).unwrap().kv_total_blocks(100)
}

fn blocks(worker: Id, blocks: u64) -> LoadEvent<Id> {
    LoadEvent::new(worker, 0).active_decode_blocks(blocks)
}

/// A monitor for one model that marks above half of the blocks.
fn above_half() -> (WorkerMonitor<Id>, ThresholdsHandle, BusySet<Id>) {
    let busy = BusySet::new();
    let (monitor, thresholds) = WorkerMonitor::for_model("tiny", busy.clone());
    thresholds.update(decode_above(0.5)).unwrap();
    (monitor, thresholds, busy)
}

fn is_marked(set: &BusySet<Id>, worker: &Id) -> bool {
    set.marks(worker).has(Mark::Busy)
}

fn worker(monitor: &WorkerMonitor<Id>, id: Id) -> WorkerSnapshot<Id> {
    monitor.worker(&id).expect("it is registered")
}

#[test]
fn handles_can_be_shared_between_threads() {
    fn shared<T: Send + Sync + Clone + 'static>(_: &T) {}
    let (monitor, thresholds, busy) = above_half();
    shared(&monitor);
    shared(&monitor.thresholds());
    shared(&thresholds);
    shared(&busy);
}

mod models {
    use super::*;

    fn two() -> (WorkerMonitor<Id>, [(ThresholdsHandle, BusySet<Id>); 2]) {
        let monitor = WorkerMonitor::new();
        let models = ["large", "small"].map(|model| {
            let busy = BusySet::new();
            (monitor.add_model(model, busy.clone()).unwrap(), busy)
        });
        (monitor, models)
    }

    #[tokio::test(start_paused = true)]
    async fn each_judges_the_load_of_a_shared_worker_by_its_own_thresholds() {
        let (monitor, [(large, large_busy), (small, small_busy)]) = two();
        large.update(decode_above(0.9)).unwrap();
        small.update(decode_above(0.5)).unwrap();
        let both = ["large", "small"];
        monitor.configure("a", of_100_blocks([0]), both).unwrap();
        monitor
            .configure("b", of_100_blocks([0]), ["large"])
            .unwrap();

        monitor.observe(blocks("a", 60)).unwrap();
        monitor.observe(blocks("b", 60)).unwrap();
        assert!(is_marked(&small_busy, &"a") && !is_marked(&large_busy, &"a"));
        assert!(!is_marked(&small_busy, &"b"), "b does not serve it");
        let a = worker(&monitor, "a");
        assert!(a.is_busy());
        assert_eq!(a.is_busy_for("small"), Some(true));
        assert_eq!(a.is_busy_for("large"), Some(false));
        assert_eq!(worker(&monitor, "b").is_busy_for("small"), None);

        monitor.observe(blocks("a", 95)).unwrap();
        assert!(is_marked(&small_busy, &"a") && is_marked(&large_busy, &"a"));
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_a_worker_serves_no_more_marks_it_no_more() {
        let (monitor, [(large, large_busy), (small, small_busy)]) = two();
        large.update(decode_above(0.5)).unwrap();
        small.update(decode_above(0.5)).unwrap();
        let both = ["large", "small"];
        monitor.configure("a", of_100_blocks([0]), both).unwrap();
        monitor.observe(blocks("a", 60)).unwrap();
        assert!(is_marked(&small_busy, &"a") && is_marked(&large_busy, &"a"));

        monitor
            .configure("a", of_100_blocks([0]), ["large"])
            .unwrap();
        assert!(!is_marked(&small_busy, &"a") && is_marked(&large_busy, &"a"));

        // Its load is still known when it serves the model again.
        monitor.configure("a", of_100_blocks([0]), both).unwrap();
        assert!(is_marked(&small_busy, &"a"));
    }

    #[tokio::test(start_paused = true)]
    async fn an_unknown_one_refuses_a_configuration_and_changes_nothing() {
        let (monitor, [(large, large_busy), _]) = two();
        large.update(decode_above(0.5)).unwrap();
        monitor
            .configure("a", of_100_blocks([0]), ["large"])
            .unwrap();
        monitor.observe(blocks("a", 60)).unwrap();
        let before = monitor.snapshot();

        let error = monitor
            .configure("a", of_100_blocks([1]), ["small", "nope"])
            .unwrap_err();
        assert_eq!(error.model(), "nope");
        monitor
            .configure("b", of_100_blocks([0]), ["nope"])
            .unwrap_err();
        assert_eq!(monitor.snapshot(), before);
        assert!(is_marked(&large_busy, &"a"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_name_is_taken_once_until_it_is_removed() {
        let (monitor, [(small, busy), _]) = two();
        small.update(decode_above(0.5)).unwrap();
        monitor.configure_for_all("a", of_100_blocks([0]));
        monitor.observe(blocks("a", 60)).unwrap();
        assert!(is_marked(&busy, &"a"));
        monitor.add_model("large", BusySet::new()).unwrap_err();

        assert!(monitor.remove_model("large"));
        assert!(!monitor.remove_model("large"));
        assert!(!is_marked(&busy, &"a"), "its marks fall with it");
        assert_eq!(worker(&monitor, "a").is_busy_for("large"), None);
        assert!(monitor.thresholds().get("large").is_none());

        let again = monitor.add_model("large", busy.clone()).unwrap();
        assert_eq!(
            again.get(),
            Default::default(),
            "it starts without thresholds"
        );
        again.update(decode_above(0.5)).unwrap();
        monitor.observe(blocks("a", 60)).unwrap();
        assert!(
            !is_marked(&busy, &"a"),
            "nobody said that the worker serves it"
        );
        monitor.configure_for_all("a", of_100_blocks([0]));
        assert!(is_marked(&busy, &"a"));
    }
}

mod evidence {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn lasts_as_long_as_configured() {
        for (stale_after, lasts) in [
            (Some(Duration::from_secs(5)), false),
            (Some(Duration::MAX), true),
            (None, true),
        ] {
            let builder = WorkerMonitor::builder().stale_after(stale_after);
            let monitor = builder.build();
            let busy = BusySet::new();
            let thresholds = monitor.add_model("tiny", busy.clone()).unwrap();
            thresholds.update(decode_above(0.5)).unwrap();
            monitor.configure_for_all("a", of_100_blocks([0]));
            monitor.observe(blocks("a", 60)).unwrap();
            advance(Duration::from_millis(4_999)).await;
            assert!(is_marked(&busy, &"a"));
            advance(Duration::from_millis(1)).await;
            assert_eq!(is_marked(&busy, &"a"), lasts);
            assert_eq!(worker(&monitor, "a").is_busy(), lasts);
            let shown = worker(&monitor, "a").ranks[0].active_decode_blocks;
            assert_eq!(shown, lasts.then_some(60), "a stale count is not shown");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn is_not_renewed_by_configuration_or_by_an_event_without_the_count() {
        let (monitor, thresholds, busy) = above_half();
        monitor.configure_for_all("a", of_100_blocks([0]));
        monitor.observe(blocks("a", 60)).unwrap();
        advance(Duration::from_secs(29)).await;
        monitor.configure_for_all("a", of_100_blocks([0]));
        monitor.observe(LoadEvent::new("a", 0)).unwrap();
        monitor
            .observe(LoadEvent::new("a", 0).active_prefill_tokens(1))
            .unwrap();
        thresholds.update(decode_above(0.4)).unwrap();
        monitor.observe(LoadEvent::new("a", 0)).unwrap();
        assert!(is_marked(&busy, &"a"));
        advance(Duration::from_secs(1)).await;
        assert!(!is_marked(&busy, &"a"));
    }

    #[tokio::test(start_paused = true)]
    async fn of_a_removed_worker_is_gone_and_a_late_event_revives_nothing() {
        let (monitor, _, busy) = above_half();
        monitor.configure_for_all("a", of_100_blocks([0]));
        monitor.observe(blocks("a", 60)).unwrap();
        assert!(monitor.remove(&"a"));
        assert!(!monitor.remove(&"a"));
        assert!(!is_marked(&busy, &"a"));
        assert_eq!(monitor.worker(&"a"), None);

        let late = monitor.observe(blocks("a", 60));
        assert_eq!(late, Err(DropReason::UnregisteredWorker));
        assert!(monitor.snapshot().is_empty());
        assert!(!is_marked(&busy, &"a"));
    }

    #[tokio::test(start_paused = true)]
    async fn of_ranks_that_stay_survives_a_configuration() {
        let (monitor, _, _) = above_half();
        monitor.configure_for_all("a", of_100_blocks([1, 3, 5, 7]));
        for rank in [1, 3, 5, 7] {
            let event = LoadEvent::new("a", rank).kv_used_blocks(u64::from(rank));
            monitor.observe(event).unwrap();
        }
        monitor.configure_for_all("a", of_100_blocks([0, 3, 4, 7, 9]));
        let used = |id| {
            let ranks = worker(&monitor, id).ranks;
            let used = ranks.iter().map(|rank| (rank.dp_rank, rank.kv_used_blocks));
            used.collect::<Vec<_>>()
        };
        let kept = [(0, None), (3, Some(3)), (4, None), (7, Some(7)), (9, None)];
        assert_eq!(used("a"), kept);
        // A rank that was away comes back without what it had.
        monitor.configure_for_all("a", of_100_blocks([1, 3]));
        assert_eq!(used("a"), [(1, None), (3, Some(3))]);
    }

    #[tokio::test(start_paused = true)]
    async fn of_one_event_each_is_enough_after_a_restart() {
        let (monitor, _, busy) = above_half();
        let ids = ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"];
        for id in ids {
            monitor.configure_for_all(id, of_100_blocks([0]));
        }
        for (i, id) in ids.into_iter().enumerate() {
            let load = if i % 2 == 0 { 90 } else { 10 };
            monitor.observe(blocks(id, load)).unwrap();
        }
        for (i, id) in ids.into_iter().enumerate() {
            assert_eq!(is_marked(&busy, &id), i % 2 == 0, "{id}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_dropped_event_changes_nothing_not_even_what_a_new_threshold_waits_for() {
    let (monitor, thresholds, busy) = above_half();
    monitor.configure_for_all("a", of_100_blocks([0]));
    monitor.observe(blocks("a", 40)).unwrap();
    thresholds.update(decode_above(0.3)).unwrap();
    let undeclared = LoadEvent::new("a", 7).active_decode_blocks(99);
    assert_eq!(monitor.observe(undeclared), Err(DropReason::UndeclaredRank));
    assert_eq!(
        monitor.observe(blocks("b", 99)),
        Err(DropReason::UnregisteredWorker)
    );
    assert!(!is_marked(&busy, &"a"));
    monitor.observe(LoadEvent::new("a", 0)).unwrap();
    assert!(is_marked(&busy, &"a"));
}

#[tokio::test(start_paused = true)]
async fn a_cleared_threshold_turns_its_check_off() {
    let (monitor, thresholds, busy) = above_half();
    monitor.configure_for_all("a", of_100_blocks([0]));
    monitor.observe(blocks("a", 60)).unwrap();
    assert!(is_marked(&busy, &"a"));
    let clear = ThresholdUpdate::new().active_decode_blocks(Change::Clear);
    thresholds.update(clear).unwrap();
    assert!(is_marked(&busy, &"a"), "it waits for the next event");
    monitor.observe(LoadEvent::new("a", 0)).unwrap();
    assert!(!is_marked(&busy, &"a"));
}

#[tokio::test(start_paused = true)]
async fn a_capacity_is_shown_as_it_was_given() {
    let (monitor, _, _) = above_half();
    for (blocks, tokens) in [(None, Some(0)), (Some(0), Some(7)), (Some(7), None)] {
        let config = WorkerConfig::new([0]).unwrap();
        let config = config
            .kv_total_blocks(blocks)
            .max_num_batched_tokens(tokens);
        monitor.configure_for_all("a", config);
        let shown = worker(&monitor, "a");
        let shown = (shown.kv_total_blocks, shown.max_num_batched_tokens);
        assert_eq!(shown, (blocks, tokens));
    }
}

#[tokio::test(start_paused = true)]
async fn events_in_a_batch_are_judged_in_order() {
    let (monitor, _, busy) = above_half();
    monitor.configure_for_all("a", of_100_blocks([0]));
    monitor.configure_for_all("b", of_100_blocks([0]));
    let observed = monitor.observe_all(&[
        blocks("a", 60),
        blocks("b", 40),
        blocks("c", 99),
        blocks("a", 40),
        blocks("b", 60),
    ]);
    assert_eq!((observed.accepted, observed.dropped), (4, 1));
    assert!(!is_marked(&busy, &"a") && is_marked(&busy, &"b"));
}

#[tokio::test(start_paused = true)]
async fn all_marks_fall_with_the_last_handle() {
    let (monitor, _, busy) = above_half();
    monitor.configure_for_all("a", of_100_blocks([0]));
    monitor.observe(blocks("a", 60)).unwrap();
    let other = monitor.clone();
    drop(monitor);
    assert!(is_marked(&busy, &"a"));
    drop(other);
    assert!(!is_marked(&busy, &"a"));
}

mod wakers {
    //! A mark that falls wakes whoever waits for the worker, and what a waker
    //! does is nobody's business.

    use super::{support::serves::Serves, *};
    use futures::{FutureExt, StreamExt};
    use std::{
        panic::{AssertUnwindSafe, catch_unwind},
        sync::Mutex,
        task::{Context, Wake, Waker},
    };
    use tower::{Service, discover::Change, load::CompleteOnResponse};
    use tower_overload::{
        busy::{BusyDiscover, ErrorsOnly, roster},
        load,
    };

    /// Does something once when it is woken.
    struct Does(Mutex<Option<Box<dyn FnOnce() + Send>>>);

    impl Wake for Does {
        fn wake(self: Arc<Self>) {
            let woken = self.0.lock().unwrap().take();
            if let Some(does) = woken {
                does();
            }
        }
    }

    /// Runs `test` while an endpoint of the busy worker `a` waits with a
    /// waker that does `does`.
    fn while_one_waits(
        does: impl FnOnce(WorkerMonitor<Id>) + Send + 'static,
        test: impl FnOnce(&WorkerMonitor<Id>, &BusySet<Id>),
    ) {
        let (monitor, _, busy) = above_half();
        monitor.configure_for_all("a", of_100_blocks([0]));
        monitor.observe(blocks("a", 60)).unwrap();

        let handle = monitor.clone();
        let _waits = waits_for("a", &busy, Box::new(move || does(handle)));
        test(&monitor, &busy);
    }

    /// An endpoint of the busy worker that waits with a waker that does `does`.
    fn waits_for(
        worker: Id,
        busy: &BusySet<Id>,
        does: Box<dyn FnOnce() + Send>,
    ) -> impl Sized + use<> {
        let (roster, changes) = roster();
        roster.insert(worker, Serves);
        let completion = CompleteOnResponse::default();
        let mut discover = BusyDiscover::with(changes, busy.clone(), ErrorsOnly, completion);
        let Some(Some(Ok(Change::Insert(_, mut endpoint)))) = discover.next().now_or_never() else {
            panic!("it is in the roster");
        };
        let waker = Waker::from(Arc::new(Does(Mutex::new(Some(does)))));
        let ready = endpoint.poll_ready(&mut Context::from_waker(&waker));
        assert!(ready.is_pending(), "the worker is busy");
        (roster, discover, endpoint)
    }

    /// A monitor of three busy workers, each of which one waits for with a
    /// waker that panics.
    fn while_panics_wait(test: impl FnOnce(WorkerMonitor<Id>, &ThresholdsHandle, &BusySet<Id>)) {
        let (monitor, thresholds, busy) = above_half();
        let waits = ["a", "b", "c"].map(|id| {
            monitor.configure_for_all(id, of_100_blocks([0]));
            monitor.observe(blocks(id, 60)).unwrap();
            waits_for(id, &busy, Box::new(|| panic!("a waker")))
        });
        test(monitor, &thresholds, &busy);
        drop(waits);
    }

    #[tokio::test(start_paused = true)]
    async fn that_panic_leave_no_mark_of_another_worker_behind() {
        while_panics_wait(|monitor, thresholds, busy| {
            let off = ThresholdUpdate::new().active_decode_blocks(load::Change::Clear);
            thresholds.update(off).unwrap();
            let frees_all = || monitor.observe(blocks("a", 60));
            catch_unwind(AssertUnwindSafe(frees_all)).unwrap_err();
            let snapshot = monitor.snapshot();
            assert!(!snapshot.iter().any(WorkerSnapshot::is_busy));
            assert!(!["a", "b", "c"].iter().any(|id| is_marked(busy, id)));
        });
    }

    #[tokio::test(start_paused = true)]
    async fn that_panic_keep_no_mark_when_the_last_handle_is_dropped() {
        while_panics_wait(|monitor, _, busy| {
            catch_unwind(AssertUnwindSafe(|| drop(monitor))).unwrap_err();
            assert!(!["a", "b", "c"].iter().any(|id| is_marked(busy, id)));
        });
    }

    #[tokio::test(start_paused = true)]
    async fn that_panic_keep_no_mark_of_a_removed_worker_in_any_model() {
        let monitor = WorkerMonitor::new();
        let models = ["one", "two"].map(|model| {
            let busy = BusySet::new();
            let thresholds = monitor.add_model(model, busy.clone()).unwrap();
            thresholds.update(decode_above(0.5)).unwrap();
            busy
        });
        monitor.configure_for_all("a", of_100_blocks([0]));
        monitor.observe(blocks("a", 60)).unwrap();
        let waits = models
            .each_ref()
            .map(|busy| waits_for("a", busy, Box::new(|| panic!("a waker"))));
        let removes = || monitor.remove(&"a");
        catch_unwind(AssertUnwindSafe(removes)).unwrap_err();
        assert!(!models.iter().any(|busy| is_marked(busy, &"a")));
        assert!(!monitor.remove(&"a"), "it is gone");
        drop(waits);
    }

    #[tokio::test(start_paused = true)]
    async fn may_report_load_of_the_same_worker() {
        let reports = |monitor: WorkerMonitor<Id>| {
            monitor.observe(blocks("a", 70)).unwrap();
        };
        while_one_waits(reports, |monitor, busy| {
            monitor.observe(blocks("a", 10)).unwrap();
            assert!(is_marked(busy, &"a"), "the last report counts");
            monitor.observe(blocks("a", 10)).unwrap();
            assert!(!is_marked(busy, &"a"));
        });
    }

    #[tokio::test(start_paused = true)]
    async fn may_replace_the_worker_while_it_is_removed() {
        let replaces = |monitor: WorkerMonitor<Id>| {
            monitor.configure_for_all("a", of_100_blocks([0]));
            monitor.observe(blocks("a", 70)).unwrap();
        };
        while_one_waits(replaces, |monitor, busy| {
            assert!(monitor.remove(&"a"));
            assert!(is_marked(busy, &"a"), "the successor is busy");
            assert!(monitor.remove(&"a"));
            assert!(!is_marked(busy, &"a"));
        });
    }

    #[tokio::test(start_paused = true)]
    async fn may_panic_and_the_monitor_goes_on() {
        while_one_waits(
            |_| panic!("a waker"),
            |monitor, busy| {
                let frees = || monitor.observe(blocks("a", 10));
                catch_unwind(AssertUnwindSafe(frees)).unwrap_err();
                monitor.observe(blocks("a", 60)).unwrap();
                assert!(is_marked(busy, &"a"));
                monitor.observe(blocks("a", 10)).unwrap();
                assert!(!is_marked(busy, &"a"));
                assert!(monitor.remove(&"a"));
                monitor.configure_for_all("a", of_100_blocks([0]));
                monitor.observe(blocks("a", 60)).unwrap();
                assert!(is_marked(busy, &"a"));
            },
        );
    }
}

#[test]
fn after_any_interleaving_the_marks_say_what_was_judged_last() {
    const IDS: [Id; 3] = ["a", "b", "c"];
    let (monitor, thresholds, busy) = above_half();
    let start = Arc::new(std::sync::Barrier::new(4));
    let threads: Vec<_> = (0..4_u64)
        .map(|thread| {
            let (monitor, thresholds) = (monitor.clone(), thresholds.clone());
            let start = start.clone();
            thread::spawn(move || {
                start.wait();
                let mut random = thread + 1;
                for _ in 0..20_000 {
                    random = random
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1_442_695_040_888_963_407);
                    let id = IDS[(random >> 60) as usize % IDS.len()];
                    match (random >> 40) % 64 {
                        0 => drop(monitor.remove(&id)),
                        1..8 => monitor.configure_for_all(id, of_100_blocks([0])),
                        8 => {
                            let threshold = ((random >> 50) % 100) as f64 / 100.0;
                            thresholds.update(decode_above(threshold)).unwrap();
                        }
                        _ => drop(monitor.observe(blocks(id, (random >> 33) % 100))),
                    }
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    for id in IDS {
        let judged = monitor.worker(&id).is_some_and(|worker| worker.is_busy());
        assert_eq!(is_marked(&busy, &id), judged, "{id}");
    }
    for id in IDS {
        monitor.remove(&id);
        assert!(!is_marked(&busy, &id), "{id}");
    }
}

mod metrics {
    use super::*;
    use crate::support::metrics::{Scrape, recorded};

    const NAMES: [&str; 3] = [
        "worker_active_decode_blocks",
        "worker_kv_used_blocks",
        "worker_active_prefill_tokens",
    ];

    fn gauges(scrape: &Scrape, id: Id, rank: &str, kind: &str) -> [Option<f64>; 3] {
        let labels = [("worker_id", id), ("dp_rank", rank), ("worker_type", kind)];
        NAMES.map(|name| scrape.value(name, &labels))
    }

    #[test]
    fn show_the_last_reported_counts_of_each_rank() {
        recorded(|scrape| {
            let (monitor, _, _) = above_half();
            monitor.configure_for_all("a", of_100_blocks([0, 1]));
            let event = LoadEvent::new("a", 1)
                .active_decode_blocks(1)
                .kv_used_blocks(2)
                .active_prefill_tokens(3);
            monitor.observe(event).unwrap();
            monitor
                .observe(LoadEvent::new("a", 1).kv_used_blocks(5))
                .unwrap();
            let (one, zero) = (
                gauges(scrape, "a", "1", "decode"),
                gauges(scrape, "a", "0", "decode"),
            );
            assert_eq!(one, [Some(1.0), Some(5.0), Some(3.0)]);
            assert_eq!(zero, [Some(0.0); 3]);
        });
    }

    #[test]
    fn fall_to_zero_with_the_worker_the_rank_or_the_label() {
        recorded(|scrape| {
            let (monitor, _, _) = above_half();
            monitor.configure_for_all("a", of_100_blocks([0, 1, 2]));
            for rank in 0..3 {
                let event = LoadEvent::new("a", rank)
                    .active_decode_blocks(1)
                    .kv_used_blocks(2)
                    .active_prefill_tokens(3);
                monitor.observe(event).unwrap();
            }
            let full = [Some(1.0), Some(2.0), Some(3.0)];
            let zero = [Some(0.0); 3];

            monitor.configure_for_all("a", of_100_blocks([0, 2]));
            assert_eq!(gauges(scrape, "a", "0", "decode"), full);
            assert_eq!(gauges(scrape, "a", "1", "decode"), zero);
            assert_eq!(gauges(scrape, "a", "2", "decode"), full);

            let prefill = of_100_blocks([0]).worker_type("prefill");
            monitor.configure_for_all("a", prefill);
            assert_eq!(gauges(scrape, "a", "0", "decode"), zero);
            assert_eq!(gauges(scrape, "a", "2", "decode"), zero);
            assert_eq!(gauges(scrape, "a", "0", "prefill"), full);

            monitor.remove(&"a");
            assert_eq!(gauges(scrape, "a", "0", "prefill"), zero);
        });
    }

    #[test]
    fn count_accepted_events_and_dropped_ones_by_reason() {
        recorded(|scrape| {
            let (monitor, _, _) = above_half();
            monitor.configure_for_all("a", of_100_blocks([0]));
            let undeclared = LoadEvent::new("a", 9);
            let events = [blocks("a", 1), blocks("b", 1), undeclared, blocks("b", 1)];
            for event in &events {
                let _ = monitor.observe(event);
            }
            monitor.observe_all(&events);
            let dropped = |reason| {
                let labels = [("reason", reason)];
                scrape.value("load_events_dropped_total", &labels)
            };
            assert_eq!(dropped("unregistered_worker"), Some(4.0));
            assert_eq!(dropped("undeclared_rank"), Some(2.0));
            assert_eq!(scrape.value("load_events_total", &[]), Some(2.0));
        });
    }

    #[test]
    fn count_the_workers_whose_reports_could_never_reach_a_threshold() {
        recorded(|scrape| {
            let busy = BusySet::new();
            let (monitor, thresholds) = WorkerMonitor::for_model("tiny", busy);
            let without = || {
                [
                    "active_decode_blocks_threshold",
                    "active_prefill_tokens_threshold",
                    "active_prefill_tokens_threshold_frac",
                ]
                .map(|threshold| {
                    let labels = [("model", "tiny"), ("threshold", threshold)];
                    scrape.value("workers_without_signal", &labels).unwrap()
                })
            };
            let zeros = |id| {
                LoadEvent::new(id, 0)
                    .active_decode_blocks(0)
                    .kv_used_blocks(0)
                    .active_prefill_tokens(0)
            };
            for id in ["a", "b", "c"] {
                monitor.configure_for_all(id, of_100_blocks([0]));
                monitor.observe(zeros(id)).unwrap();
            }
            assert_eq!(without(), [0.0, 0.0, 0.0], "no threshold needs a signal");

            let update = decode_above(0.5).active_prefill_tokens_frac(0.5);
            thresholds.update(update).unwrap();
            monitor.observe(zeros("a")).unwrap();
            assert!(monitor.snapshot().iter().all(|worker| !worker.is_busy()));
            assert_eq!(without(), [3.0, 0.0, 3.0]);

            monitor.observe(blocks("a", 1)).unwrap();
            monitor
                .observe(LoadEvent::new("b", 0).active_prefill_tokens(1))
                .unwrap();
            assert_eq!(without(), [2.0, 0.0, 3.0], "the batch size is not known");
            let config = of_100_blocks([0]).max_num_batched_tokens(10);
            monitor.configure_for_all("b", config);
            assert_eq!(without(), [2.0, 0.0, 2.0]);

            // Once is enough: an idle worker is not one without a signal.
            monitor.observe(zeros("a")).unwrap();
            assert_eq!(without(), [2.0, 0.0, 2.0]);
            monitor.remove(&"c");
            assert_eq!(without(), [1.0, 0.0, 1.0]);
            monitor.remove_model("tiny");
            assert_eq!(without(), [0.0, 0.0, 0.0]);
        });
    }
}

mod streams {
    use super::*;
    use crate::support::metrics::recorded;
    use futures::{StreamExt, stream};
    use std::{cell::Cell, future, io};
    use tokio::time::{Sleep, sleep};
    use tower::retry::backoff::{Backoff, MakeBackoff};

    #[tokio::test(start_paused = true)]
    async fn feed_the_monitor_until_they_end_and_then_say_so() {
        let (monitor, _, busy) = above_half();
        monitor.configure_for_all("a", of_100_blocks([0]));
        // More than one poll takes.
        let many = stream::iter((0..1_000).map(|_| blocks("a", 60)));
        let observed = monitor.drive(many.chain(stream::iter([blocks("b", 1)])));
        let Observed { accepted, dropped } = observed.await;
        assert_eq!((accepted, dropped), (1_000, 1));
        assert!(is_marked(&busy, &"a"));
        advance(Duration::from_secs(30)).await;
        assert!(
            !is_marked(&busy, &"a"),
            "its source is gone, and so its mark"
        );
    }

    #[tokio::test]
    async fn that_are_always_ready_let_others_run() {
        let (monitor, _, _) = above_half();
        monitor.configure_for_all("a", of_100_blocks([0]));
        let endless = stream::repeat_with(|| blocks("a", 60));
        tokio::select! {
            biased;
            _ = monitor.drive(endless) => unreachable!("it has no end"),
            () = future::ready(()) => {}
        }
    }

    /// Waits of 1 s, 2 s, 3 s and so on.
    struct Steps;

    struct Step(u64);

    impl MakeBackoff for Steps {
        type Backoff = Step;

        fn make_backoff(&mut self) -> Step {
            Step(0)
        }
    }

    impl Backoff for Step {
        type Future = Sleep;

        fn next_backoff(&mut self) -> Sleep {
            self.0 += 1;
            sleep(Duration::from_secs(self.0))
        }
    }

    #[tokio::test(start_paused = true)]
    async fn that_are_lost_are_connected_again_after_growing_waits() {
        let (monitor, _, busy) = above_half();
        monitor.configure_for_all("a", of_100_blocks([0]));
        let start = Instant::now();
        let attempts = Cell::new(0);
        let times = std::cell::RefCell::new(Vec::new());
        let connect = || {
            let attempt = attempts.replace(attempts.get() + 1);
            times.borrow_mut().push(start.elapsed().as_secs());
            future::ready(match attempt {
                // Refused twice, then lost before it brings an event.
                0 | 1 => Err(io::Error::other("refused")),
                2 => Ok(stream::iter(Vec::new()).boxed_local()),
                // Brings an event and breaks; the waits start anew.
                3 => {
                    let broken = Err(io::Error::other("broken"));
                    Ok(stream::iter([Ok(blocks("a", 60)), broken]).boxed_local())
                }
                // Stays.
                _ => Ok(stream::pending().boxed_local()),
            })
        };
        let follow = monitor.follow(connect, Steps);
        let never = tokio::time::timeout(Duration::from_secs(35), follow).await;
        assert!(never.is_err(), "it goes on");
        // 1 + 2 + 3, and 1 after the connection that worked.
        assert_eq!(*times.borrow(), [0, 1, 3, 6, 7]);
        assert!(is_marked(&busy, &"a"), "its last event came at 6 s");
        advance(Duration::from_secs(1)).await;
        assert!(!is_marked(&busy, &"a"));
    }

    #[test]
    fn that_are_connected_are_counted() {
        recorded(|scrape| {
            let connected = || scrape.value("load_sources_connected", &[]);
            let (monitor, _, _) = above_half();
            let connect = || {
                let events = stream::pending::<io::Result<LoadEvent<Id>>>();
                future::ready(Ok::<_, io::Error>(events))
            };
            let mut follow = tokio_test::task::spawn(monitor.follow(connect, Steps));
            assert_eq!(connected(), Some(0.0));
            tokio_test::assert_pending!(follow.poll());
            assert_eq!(connected(), Some(1.0));
            drop(follow);
            assert_eq!(connected(), Some(0.0));
        });
    }
}
