#![no_main]

use libfuzzer_sys::fuzz_target;
use tower_overload::nats::{Subjects, check_any};

fuzz_target!(|input: &[u8]| {
    let subjects = Subjects::default();
    for subject in [
        "tower_overload.v1.load.tiny.a",
        "tower_overload.v1.worker.tiny.a",
    ] {
        check_any(&subjects, subject, input);
    }
    // With a line before it that is the subject.
    let end = input.iter().position(|byte| *byte == b'\n');
    let Some((subject, payload)) = end.map(|end| input.split_at(end)) else {
        return;
    };
    if let Ok(subject) = str::from_utf8(subject) {
        check_any(&subjects, subject, &payload[1..]);
    }
});
