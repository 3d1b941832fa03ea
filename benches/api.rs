//! What it costs to read a request, beside parsing it into a tree.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use http::HeaderMap;
use serde_json::{Value, json};
use std::{
    hint::black_box,
    time::{Duration, Instant},
};
use tower_overload::api::{EstimateTokens, RequestReader, ScriptEstimator};

const ENGLISH: &str = include_str!("../tests/data/prompts/english.txt");
const CHINESE: &str = include_str!("../tests/data/prompts/chinese.txt");
const TOOLS: &str = include_str!("../tests/data/prompts/tools.json");

/// A chat of about so many bytes, with tools.
fn chat(text: &str, bytes: usize) -> String {
    let tools: Value = serde_json::from_str(TOOLS).expect("JSON");
    let messages: Vec<_> = (0..bytes.div_ceil(text.len()))
        .map(|n| json!({"role": if n % 2 == 0 { "user" } else { "assistant" }, "content": text}))
        .collect();
    json!({"model": "tiny", "messages": messages, "tools": tools, "stream": true}).to_string()
}

/// The least time of a call, which a machine with other things to do has too.
fn least<T>(mut call: impl FnMut() -> T) -> Duration {
    let one = || {
        let start = Instant::now();
        black_box(call());
        start.elapsed()
    };
    std::iter::repeat_with(one).take(500).min().expect("some")
}

fn read(criterion: &mut Criterion) {
    let headers = HeaderMap::new();
    let reader = RequestReader::new();
    let brief = RequestReader::new().prompts(false);
    let mut ratios = Vec::new();
    for (name, text) in [("english", ENGLISH), ("chinese", CHINESE)] {
        for bytes in [1_000, 100_000] {
            let body = chat(text, bytes);
            let body = body.as_bytes();
            let tree = || serde_json::from_slice::<Value>(body).expect("JSON");
            let whole = || reader.read(&headers, body).expect("a request");
            let brief = || brief.read(&headers, body).expect("a request");
            let mut group = criterion.benchmark_group(format!("{name}, {} bytes", body.len()));
            group.throughput(Throughput::Bytes(body.len() as u64));
            group.bench_function("tree", |bencher| bencher.iter(tree));
            group.bench_function("read", |bencher| bencher.iter(whole));
            group.bench_function("read without the prompt", |bencher| bencher.iter(brief));
            group.finish();
            let ratio = |time: Duration| time.as_secs_f64() / least(tree).as_secs_f64();
            ratios.push((
                format!("{name}, {} bytes", body.len()),
                ratio(least(whole)),
                ratio(least(brief)),
            ));
        }
    }
    println!("beside a tree of the same, with the prompt and without:");
    for (name, whole, brief) in ratios {
        println!("{name}: {whole:.2}, {brief:.2}");
    }
}

fn estimate(criterion: &mut Criterion) {
    let estimator = ScriptEstimator::new();
    for (name, text) in [("english", ENGLISH), ("chinese", CHINESE)] {
        let mut group = criterion.benchmark_group("estimate");
        group.throughput(Throughput::Bytes(text.len() as u64));
        group.bench_function(name, |bencher| {
            bencher.iter(|| estimator.tokens(black_box(text)));
        });
        group.finish();
    }
}

criterion_group!(benches, read, estimate);
criterion_main!(benches);
