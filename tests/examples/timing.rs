//! How fast the mock engine is.

use overload_examples::engine::Timing;
use std::time::Duration;

const YEAR: Duration = Duration::from_secs(365 * 24 * 60 * 60);

#[test]
fn the_prefill_comes_first_and_tokens_follow_at_the_decode_rate() {
    let timing = Timing {
        prefill_tokens_per_second: 8000.0,
        decode_tokens_per_second: 50.0,
    };
    assert_eq!(timing.token_after(4000, 0), Duration::from_millis(500));
    assert_eq!(timing.token_after(4000, 3), Duration::from_millis(560));
    assert_eq!(timing.token_after(0, 0), Duration::ZERO);
}

#[test]
fn zero_is_infinitely_fast_and_a_tiny_rate_does_not_overflow() {
    assert_eq!(
        Timing::INSTANT.token_after(u64::MAX, u64::MAX),
        Duration::ZERO
    );
    let glacial = Timing {
        prefill_tokens_per_second: f64::MIN_POSITIVE,
        decode_tokens_per_second: f64::MIN_POSITIVE,
    };
    assert_eq!(glacial.token_after(1, 1), YEAR);
}
