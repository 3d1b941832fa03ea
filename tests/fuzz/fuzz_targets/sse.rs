#![no_main]

use libfuzzer_sys::fuzz_target;
use tower_overload::sse::StreamProgress;

fuzz_target!(|input: &[u8]| {
    // The first byte says where the rest is cut.
    let Some((at, stream)) = input.split_first() else {
        return;
    };
    let mut whole = StreamProgress::default();
    whole.feed(stream);
    let mut cut = StreamProgress::default();
    let (one, two) = stream.split_at(usize::from(*at).min(stream.len()));
    cut.feed(one);
    two.iter().for_each(|byte| cut.feed(&[*byte]));
    for progress in [&mut whole, &mut cut] {
        progress.finish();
    }
    let seen = |it: &StreamProgress| {
        (
            it.has_begun(),
            it.tokens(),
            it.prompt_tokens(),
            it.output_tokens(),
        )
    };
    assert_eq!(seen(&whole), seen(&cut));
});
