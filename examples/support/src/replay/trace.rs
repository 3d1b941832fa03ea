use std::{fmt, time::Duration};

/// One request of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// When it arrived, counted from the first one.
    pub at: Duration,
    /// The tokens of its prompt.
    pub prompt_tokens: u32,
    /// The tokens of its answer.
    pub generated_tokens: u32,
}

/// A trace that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceError {
    line: usize,
    message: String,
}

impl fmt::Display for TraceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.message)
    }
}

impl std::error::Error for TraceError {}

/// The header of Azure's LLM inference traces; the time is a date with a time.
const AZURE: &str = "TIMESTAMP,ContextTokens,GeneratedTokens";
/// The header of the timing of Mooncake's traces; the time is in milliseconds.
const MOONCAKE: &str = "timestamp_ms,input_length,output_length";

/// Reads a trace in the form of Azure or of Mooncake, told by its header, in
/// the order of the arrivals.
///
/// # Errors
///
/// If the header is another, a line is not of its form, or there is no request.
pub fn parse_trace(text: &str) -> Result<Vec<Arrival>, TraceError> {
    let error = |line, message| TraceError { line, message };
    let mut lines = text.lines().enumerate();
    let header = lines.next().map_or("", |(_, line)| line.trim());
    let time: fn(&str) -> Option<Duration> = match header.trim_start_matches('\u{feff}') {
        AZURE => date_time,
        MOONCAKE => |text| text.parse().ok().map(Duration::from_millis),
        other => {
            let message = format!("header '{other}': expected '{AZURE}' or '{MOONCAKE}'");
            return Err(error(1, message));
        }
    };
    let mut arrivals = Vec::new();
    for (index, line) in lines {
        let line = line.trim();
        if line.is_empty() {
            continue;
        }
        let arrival = arrival(line, time)
            .ok_or_else(|| error(index + 1, format!("'{line}': expected '{header}'")))?;
        arrivals.push(arrival);
    }
    arrivals.sort_by_key(|arrival| arrival.at);
    let start = arrivals
        .first()
        .ok_or_else(|| error(1, "there is no request".into()))?
        .at;
    for arrival in &mut arrivals {
        arrival.at -= start;
    }
    Ok(arrivals)
}

fn arrival(line: &str, time: fn(&str) -> Option<Duration>) -> Option<Arrival> {
    let mut columns = line.split(',');
    let arrival = Arrival {
        at: time(columns.next()?)?,
        prompt_tokens: columns.next()?.parse().ok()?,
        generated_tokens: columns.next()?.parse().ok()?,
    };
    columns.next().is_none().then_some(arrival)
}

/// `2023-11-16 18:17:03.9799600`, counted from some day before 1970.
fn date_time(text: &str) -> Option<Duration> {
    let (date, time) = text.split_once(' ')?;
    let [year, month, day] = parts(date, '-')?;
    let (clock, fraction) = time.split_once('.').unwrap_or((time, "0"));
    let [hour, minute, second] = parts(clock, ':')?;
    let valid = (1900..=9999).contains(&year)
        && (1..=12).contains(&month)
        && (1..=31).contains(&day)
        && hour < 24
        && minute < 60
        && second < 61;
    let digits = fraction.bytes().all(|byte| byte.is_ascii_digit());
    if !valid || !digits || !(1..=9).contains(&fraction.len()) {
        return None;
    }
    let nanos = format!("{fraction:0<9}").parse().ok()?;
    let seconds = ((days(year, month, day) * 24 + hour) * 60 + minute) * 60 + second;
    Some(Duration::new(seconds, nanos))
}

/// The days until this one. A year is taken to begin in March, so that the
/// day that some years have more is its last.
fn days(year: u64, month: u64, day: u64) -> u64 {
    let (year, month) = if month > 2 {
        (year, month - 3)
    } else {
        (year - 1, month + 9)
    };
    let leap_days = year / 4 - year / 100 + year / 400;
    // Months from March on have 31, 30, 31, 30, 31 days, and again.
    year * 365 + leap_days + (153 * month + 2) / 5 + day
}

fn parts(text: &str, separator: char) -> Option<[u64; 3]> {
    let mut parts = text.split(separator).map(|part| part.parse().ok());
    let three = [parts.next()??, parts.next()??, parts.next()??];
    parts.next().is_none().then_some(three)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(trace: &str) -> Vec<u128> {
        let arrivals = parse_trace(trace).unwrap();
        arrivals
            .iter()
            .map(|arrival| arrival.at.as_micros())
            .collect()
    }

    #[test]
    fn azures_trace_counts_from_its_first_request() {
        let trace = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n\
                     2023-11-16 18:17:03.9799600,4808,10\r\n\
                     2023-11-16 18:17:04.0319600,3180,8\r\n";
        let arrivals = parse_trace(trace).unwrap();
        assert_eq!(
            arrivals[1],
            Arrival {
                at: Duration::from_micros(52_000),
                prompt_tokens: 3180,
                generated_tokens: 8,
            }
        );
        assert_eq!(arrivals[0].at, Duration::ZERO);
    }

    #[test]
    fn time_goes_on_over_midnight_leap_days_and_new_year() {
        let header = "TIMESTAMP,ContextTokens,GeneratedTokens";
        for (from, to) in [
            ("2024-02-28 23:59:59.5", "2024-02-29 00:00:00.5"),
            ("2024-02-29 23:59:59.5", "2024-03-01 00:00:00.5"),
            ("2023-02-28 23:59:59.5", "2023-03-01 00:00:00.5"),
            ("2023-12-31 23:59:59.5", "2024-01-01 00:00:00.5"),
            ("2023-07-31 23:59:59.5", "2023-08-01 00:00:00.5"),
        ] {
            let trace = format!("{header}\n{from},1,1\n{to},1,1");
            assert_eq!(at(&trace), [0, 1_000_000], "{from}");
        }
    }

    #[test]
    fn mooncakes_trace_is_in_milliseconds_and_is_put_in_order() {
        let trace = "timestamp_ms,input_length,output_length\n3000,1,2\n1000,3,4\n";
        assert_eq!(at(trace), [0, 2_000_000]);
    }

    #[test]
    fn an_error_names_the_line_and_what_is_expected() {
        let error = |trace: &str| parse_trace(trace).unwrap_err().to_string();
        assert!(error("a,b,c\n").starts_with("line 1: header 'a,b,c': expected"));
        assert!(error("").starts_with("line 1: "));
        assert_eq!(error(&format!("{AZURE}\n")), "line 1: there is no request");
        for bad in [
            "2023-11-16 18:17:03.9,1",
            "2023-11-16 18:17:03.9,1,2,3",
            "2023-13-16 18:17:03.9,1,2",
            "2023-11-16 18:17:03.x,1,2",
            "2023-11-16,1,2",
            "2023-11-16 18:17:03.9,-1,2",
        ] {
            let error = error(&format!("{AZURE}\n{bad}\n"));
            assert!(error.starts_with("line 2: "), "{error}");
            assert!(error.contains(bad) && error.contains(AZURE), "{error}");
        }
    }
}
