//! What a monitor logs. A binary of its own: its subscriber is global, because
//! one of a single thread misses call sites that other threads come to first.

use std::{
    io,
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::time::advance;
use tower_overload::{
    busy::BusySet,
    load::{LoadEvent, ThresholdUpdate, WorkerConfig, WorkerMonitor},
};
use tracing_subscriber::fmt::MakeWriter;

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Lines {
    fn take(&self) -> Vec<String> {
        let bytes = std::mem::take(&mut *self.0.lock().unwrap());
        let text = String::from_utf8(bytes).unwrap();
        text.lines().map(str::to_owned).collect()
    }

    fn take_one(&self) -> String {
        let lines = self.take();
        assert_eq!(lines.len(), 1, "{lines:?}");
        lines.into_iter().next().unwrap()
    }
}

impl io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Lines {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

fn says(line: &str, parts: &[&str]) {
    for part in parts {
        assert!(line.contains(part), "{part:?} is missing in {line}");
    }
}

#[tokio::test(start_paused = true)]
async fn each_transition_is_one_line_with_the_numbers_that_caused_it() {
    let lines = Lines::default();
    tracing_subscriber::fmt()
        .with_env_filter("tower_overload::load=info")
        .with_writer(lines.clone())
        .with_ansi(false)
        .init();

    let (monitor, thresholds) = WorkerMonitor::for_model("tiny", BusySet::new());
    let above_half = ThresholdUpdate::new().active_decode_blocks(0.5);
    thresholds.update(above_half).unwrap();
    let config = WorkerConfig::new([0, 1]).unwrap().kv_total_blocks(100);
    monitor.configure_for_all("w7", config);
    let load = |rank, blocks| {
        let event = LoadEvent::new("w7", rank).active_decode_blocks(blocks);
        monitor.observe(event.active_prefill_tokens(9)).unwrap();
    };

    load(1, 63);
    assert_eq!(lines.take(), [""; 0], "one of two ranks");
    advance(Duration::from_secs(1)).await;
    load(0, 61);
    says(
        &lines.take_one(),
        &[
            "worker is busy",
            "worker=w7",
            "model=\"tiny\"",
            "ranks=2",
            "dp_rank=0",
            "active_decode_blocks=61",
            "active_prefill_tokens=9",
            "kv_total_blocks=100",
            "active_decode_blocks_threshold=0.5",
        ],
    );

    load(0, 62);
    load(1, 64);
    assert_eq!(lines.take(), [""; 0], "it stays busy");

    load(1, 12);
    says(
        &lines.take_one(),
        &["worker is free", "dp_rank=1", "active_decode_blocks=12"],
    );

    load(1, 64);
    lines.take_one();
    advance(Duration::from_secs(30)).await;
    load(1, 64);
    says(&lines.take_one(), &["went stale", "dp_rank=0"]);
}
