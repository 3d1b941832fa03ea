use http::{
    HeaderMap, HeaderName, HeaderValue,
    header::{self, RETRY_AFTER},
};
use std::time::Duration;

const RETRY_AFTER_MS: HeaderName = HeaderName::from_static("retry-after-ms");
const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const GRPC_RETRY_PUSHBACK_MS: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");

/// Whether `name` has a meaning of its own in a response, so that a reason in
/// it would break the response or be lost.
pub(super) fn is_reserved(name: &HeaderName) -> bool {
    const RESERVED: [HeaderName; 11] = [
        RETRY_AFTER,
        RETRY_AFTER_MS,
        GRPC_STATUS,
        GRPC_MESSAGE,
        GRPC_RETRY_PUSHBACK_MS,
        header::CONNECTION,
        header::CONTENT_LENGTH,
        header::CONTENT_TYPE,
        header::TRAILER,
        header::TRANSFER_ENCODING,
        header::UPGRADE,
    ];
    RESERVED.contains(name)
}

/// `after` in the words of HTTP's and of gRPC's clients.
#[derive(Clone, Debug)]
pub(super) struct RetryAfter {
    after: Duration,
    http: HttpRetryAfter,
    pushback: HeaderValue,
}

#[derive(Clone, Debug)]
struct HttpRetryAfter {
    seconds: HeaderValue,
    millis: HeaderValue,
}

impl HttpRetryAfter {
    fn new(after: Duration) -> Self {
        Self {
            seconds: seconds(after).into(),
            millis: millis(after).into(),
        }
    }

    fn insert_into(self, headers: &mut HeaderMap) {
        headers.insert(RETRY_AFTER, self.seconds);
        headers.insert(RETRY_AFTER_MS, self.millis);
    }
}

impl RetryAfter {
    /// Makes the header values of a default beforehand.
    pub(super) fn prepare(after: Duration) -> Self {
        Self {
            after,
            http: HttpRetryAfter::new(after),
            pushback: pushback_ms(after).into(),
        }
    }

    pub(super) const fn after(&self) -> Duration {
        self.after
    }
}

/// Says when to retry: as the error knows, or else the default, or nothing.
pub(super) fn insert_retry_after(
    headers: &mut HeaderMap,
    known: Option<Duration>,
    default: Option<&RetryAfter>,
) {
    if let Some(after) = known {
        HttpRetryAfter::new(after).insert_into(headers);
    } else if let Some(default) = default {
        default.http.clone().insert_into(headers);
    }
}

/// Whole seconds, rounded up and at least 1: clients do not take 0 for a delay.
fn seconds(after: Duration) -> u64 {
    let part = u64::from(after.subsec_nanos() > 0);
    after.as_secs().saturating_add(part).max(1)
}

/// Whole milliseconds, rounded up and at least 1, as with the seconds.
fn millis(after: Duration) -> u64 {
    let millis = after.as_nanos().div_ceil(1_000_000);
    u64::try_from(millis).unwrap_or(u64::MAX).max(1)
}

/// gRPC has a signed 32-bit number here, and takes one that does not fit for
/// "do not retry".
fn pushback_ms(after: Duration) -> u64 {
    millis(after).min(i32::MAX as u64)
}

/// The status part of a trailers-only answer.
#[derive(Clone, Debug)]
pub(super) struct GrpcStatus {
    code: HeaderValue,
    message: HeaderValue,
}

impl GrpcStatus {
    pub(super) fn prepare(code: u16, message: &str) -> Self {
        Self {
            code: code.into(),
            message: percent_encoded(message),
        }
    }

    pub(super) fn insert_into(
        &self,
        headers: &mut HeaderMap,
        known: Option<Duration>,
        default: Option<&RetryAfter>,
    ) {
        headers.insert(GRPC_STATUS, self.code.clone());
        headers.insert(GRPC_MESSAGE, self.message.clone());
        let pushback = known
            .map(|after| pushback_ms(after).into())
            .or_else(|| default.map(|default| default.pushback.clone()));
        if let Some(pushback) = pushback {
            headers.insert(GRPC_RETRY_PUSHBACK_MS, pushback);
        }
    }
}

/// As gRPC wants its messages: printable ASCII stays, but for the percent sign.
fn percent_encoded(message: &str) -> HeaderValue {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    let mut encoded = Vec::with_capacity(message.len());
    for byte in message.bytes() {
        match byte {
            b'%' | ..b' ' | b'\x7f'.. => {
                encoded.push(b'%');
                encoded.push(HEX[usize::from(byte >> 4)]);
                encoded.push(HEX[usize::from(byte & 0xf)]);
            }
            _ => encoded.push(byte),
        }
    }
    HeaderValue::from_bytes(&encoded).expect("printable ASCII is a header value")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn seconds_are_whole_rounded_up_and_at_least_one() {
        for (after, expected) in [
            (Duration::ZERO, 1),
            (Duration::from_nanos(1), 1),
            (Duration::from_secs(1), 1),
            (Duration::new(1, 1), 2),
            (Duration::from_millis(1500), 2),
            (Duration::from_secs(1_000_000_000), 1_000_000_000),
            (Duration::MAX, u64::MAX),
        ] {
            assert_eq!(seconds(after), expected, "{after:?}");
        }
    }

    #[test]
    fn milliseconds_are_rounded_up_and_at_least_one() {
        for (after, expected) in [
            (Duration::ZERO, 1),
            (Duration::from_micros(1), 1),
            (Duration::from_micros(250_001), 251),
            (Duration::from_millis(1500), 1500),
            (Duration::MAX, u64::MAX),
        ] {
            assert_eq!(millis(after), expected, "{after:?}");
        }
    }

    #[test]
    fn a_pushback_fits_what_grpc_clients_parse() {
        assert_eq!(pushback_ms(Duration::from_millis(250)), 250);
        assert_eq!(pushback_ms(Duration::MAX), 2_147_483_647);
    }

    #[test]
    fn a_message_is_percent_encoded() {
        assert_eq!(percent_encoded("all is well"), "all is well");
        assert_eq!(percent_encoded("100%\r\nx"), "100%25%0D%0Ax");
        assert_eq!(percent_encoded("é"), "%C3%A9");
        assert_eq!(percent_encoded("\x7f"), "%7F");
    }

    proptest! {
        #[test]
        fn every_duration_makes_valid_values(secs in any::<u64>(), nanos in 0..1_000_000_000u32) {
            let after = Duration::new(secs, nanos);
            let mut headers = HeaderMap::new();
            insert_retry_after(&mut headers, Some(after), None);
            GrpcStatus::prepare(8, "m").insert_into(&mut headers, Some(after), None);
            let number = |name: &str| headers[name].to_str().unwrap().parse::<u64>().unwrap();
            let seconds = number("retry-after");
            prop_assert!(seconds >= 1 && seconds >= secs);
            prop_assert!(number("retry-after-ms") >= 1);
            prop_assert!(number("grpc-retry-pushback-ms") <= 2_147_483_647);
        }

        #[test]
        fn every_message_is_a_header_value_that_decodes_to_itself(message in any::<String>()) {
            let encoded = percent_encoded(&message);
            let mut bytes = encoded.as_bytes().iter().copied();
            let mut decoded = Vec::new();
            while let Some(byte) = bytes.next() {
                decoded.push(if byte == b'%' {
                    let hex = [bytes.next().unwrap(), bytes.next().unwrap()];
                    u8::from_str_radix(std::str::from_utf8(&hex).unwrap(), 16).unwrap()
                } else {
                    byte
                });
            }
            prop_assert_eq!(decoded, message.into_bytes());
        }
    }
}
