#![no_main]

use libfuzzer_sys::fuzz_target;
use tower_overload::nats::dynamo::{Subject, decode};

fuzz_target!(|input: &[u8]| {
    match decode(input) {
        Ok(_) => {
            assert!(
                decode(&input[..input.len() - 1]).is_err(),
                "read without its end"
            );
            assert!(
                decode(&[input, b"\0"].concat()).is_err(),
                "read with something behind its end"
            );
        }
        Err(error) => assert!(error.to_string().chars().count() < 240, "{error}"),
    }
    if let Ok(subject) = str::from_utf8(input) {
        match Subject::parse(subject) {
            Ok(parsed) => assert_eq!(parsed.to_string(), subject),
            Err(error) => assert!(error.to_string().chars().count() < 240, "{error}"),
        }
    }
});
