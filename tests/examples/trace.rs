//! The forms in which traces are published.

use overload_examples::replay::parse_trace;

const AZURE: &str = "TIMESTAMP,ContextTokens,GeneratedTokens";

fn arrivals(trace: &str) -> Vec<(u128, u32, u32)> {
    let trace = parse_trace(trace).unwrap();
    assert_eq!(trace.left_out, None);
    let arrivals = trace.arrivals.iter();
    arrivals
        .map(|it| (it.at.as_micros(), it.prompt_tokens, it.generated_tokens))
        .collect()
}

fn error(trace: &str) -> String {
    parse_trace(trace).unwrap_err().to_string()
}

#[test]
fn azures_trace_counts_from_its_first_request() {
    let trace = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n\
                 2023-11-16 18:17:03.9799600,4808,10\r\n\
                 2023-11-16 18:17:04.0319600,3180,8\r\n";
    assert_eq!(arrivals(trace), [(0, 4808, 10), (52_000, 3180, 8)]);
}

#[test]
fn azures_trace_of_2024_has_offsets() {
    let first = "2024-05-10 00:00:00.009930+00:00";
    for (second, micros) in [
        ("2024-05-10 00:00:00.100000+00:00", 90_070),
        ("2024-05-10 00:00:01+00:00", 990_070),
        ("2024-05-10T00:00:01Z", 990_070),
        ("2024-05-10T02:00:01.5+02:00", 1_490_070),
        ("2024-05-09 20:00:00.123456789-04:00", 113_526),
        ("2024-05-10 00:00:00.009930", 0),
    ] {
        let trace = format!("{AZURE}\n{first},2162,5\n{second},2399,6\n");
        let expected = [(0, 2162, 5), (micros, 2399, 6)];
        assert_eq!(arrivals(&trace), expected, "{second}");
    }
}

#[test]
fn time_goes_on_over_midnight_leap_days_and_new_year() {
    for (from, to) in [
        ("2024-02-28 23:59:59.5", "2024-02-29 00:00:00.5"),
        ("2024-02-29 23:59:59.5", "2024-03-01 00:00:00.5"),
        ("2023-02-28 23:59:59.5", "2023-03-01 00:00:00.5"),
        ("2023-12-31 23:59:59.5", "2024-01-01 00:00:00.5"),
    ] {
        let trace = format!("{AZURE}\n{from},1,1\n{to},1,1");
        assert_eq!(arrivals(&trace), [(0, 1, 1), (1_000_000, 1, 1)], "{from}");
    }
}

#[test]
fn mooncakes_traces_are_in_milliseconds_and_put_in_order() {
    let csv = "timestamp_ms,input_length,output_length\n3000,1,2\n1000,3,4\n";
    let json = "{\"timestamp\": 3000, \"input_length\": 1, \"output_length\": 2, \"hash_ids\": [0, 1]}\n\
                {\"timestamp\": 1000, \"input_length\": 3, \"output_length\": 4, \"hash_ids\": []}\n";
    for trace in [csv, json] {
        assert_eq!(arrivals(trace), [(0, 3, 4), (2_000_000, 1, 2)]);
    }
}

#[test]
fn burstgpts_and_bailians_traces_are_in_seconds() {
    let first = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n\
                 5,ChatGPT,472,18,490,Conversation log\n\
                 45,GPT-4,300,0,300,API log\n";
    assert_eq!(arrivals(first), [(0, 472, 18), (40_000_000, 300, 0)]);
    let third = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n\
                 5.0,,1.5,ChatGPT,472,18,490,Conversation log\n\
                 5.25,7,,ChatGPT,1,2,3,API log\n";
    assert_eq!(arrivals(third), [(0, 472, 18), (250_000, 1, 2)]);
    let bailian = "{\"chat_id\": 159, \"parent_chat_id\": -1, \"timestamp\": 61.114, \"input_length\": 521, \"output_length\": 132}\n\
                   {\"chat_id\": 160, \"parent_chat_id\": 159, \"timestamp\": 62.5, \"input_length\": 400, \"output_length\": 80}\n";
    assert_eq!(arrivals(bailian), [(0, 521, 132), (1_386_000, 400, 80)]);
}

#[test]
fn lines_that_are_no_requests_are_left_out_and_counted() {
    let good = "2023-11-16 18:17:03.9,1,2";
    for bad in [
        "2023-11-16 18:17:03.9,1",
        "2023-13-16 18:17:03.9,1,2",
        "2023-11-16 18:17:03.x,1,2",
        "2023-11-16 18:17:03.9,-1,2",
        "2023-11-16 18:17:03.9,1,99999999999",
        "NaN,1,2",
        ",,",
    ] {
        let trace = parse_trace(&format!("{AZURE}\n{good}\n\n{bad}\n{good}\n")).unwrap();
        assert_eq!(trace.arrivals.len(), 2, "{bad}");
        let left_out = trace.left_out.unwrap();
        assert_eq!((left_out.lines, left_out.of), (1, 3), "{bad}");
        let message = left_out.to_string();
        assert!(message.contains("1 of 3 lines") && message.contains("line 4: "));
        assert!(message.contains(bad), "{message}");
    }
    let cut = "{\"timestamp\": 1, \"input_length\": 1, \"output_length\": 1}\n{\"timesta";
    assert_eq!(parse_trace(cut).unwrap().left_out.unwrap().lines, 1);
}

#[test]
fn times_that_no_clock_has_are_no_panic() {
    for (form, times) in [
        (
            "timestamp_ms,input_length,output_length",
            ["-1e300", "1e300"],
        ),
        (AZURE, ["-009999-01-03T00:00:00Z", "9999-12-30T00:00:00Z"]),
    ] {
        let [from, to] = times;
        let trace = format!("{form}\n{from},1,1\n{to},1,1\n");
        assert_eq!(arrivals(&trace).len(), 2, "{form}");
    }
}

#[test]
fn what_is_no_trace_is_an_error_that_names_the_line_and_what_is_expected() {
    assert!(error("a,b,c\n").starts_with("line 1: \"a,b,c\": expected the header"));
    assert!(error("").contains("expected the header"));
    assert!(error(&format!("{AZURE}\n")).contains("expected a request"));
    let bad = "nothing of this is a request";
    let most = error(&format!(
        "{AZURE}\n{bad}\n2023-11-16 18:17:03.9,1,2\n{bad}\n"
    ));
    assert!(most.starts_with(&format!("line 2: {bad:?}")), "{most}");
    let long = error(&"x".repeat(10_000_000));
    assert!(long.len() < 1000, "{} bytes", long.len());
}
