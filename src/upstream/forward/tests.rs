use super::*;
use http::{HeaderMap, HeaderName, Request, Response};
use std::net::{IpAddr, Ipv4Addr};

fn parts(method: &str, target: &str, headers: &[(&str, &str)]) -> request::Parts {
    let mut request = Request::builder().method(method).uri(target);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(()).unwrap().into_parts().0
}

fn forwarded(rules: &Forwarding, headers: &[(&str, &str)]) -> HeaderMap {
    let mut parts = parts("POST", "/v1/completions", headers);
    rules.request(&mut parts).unwrap();
    parts.headers
}

fn all<'a>(headers: &'a HeaderMap, name: &'static str) -> Vec<&'a str> {
    let name = HeaderName::from_static(name);
    let values = headers.get_all(name).iter();
    values.map(|value| value.to_str().unwrap()).collect()
}

#[test]
fn tunnels_echoes_and_parents_are_not_forwarded() {
    let rules = Forwarding::new();
    for (method, target, status) in [
        ("CONNECT", "example.com:443", 405),
        ("TRACE", "/v1/models", 405),
        ("GET", "/v1/../x", 400),
        ("GET", "/v1/%2e%2e/x", 400),
        ("GET", "/v1/..%2fx", 400),
        ("GET", "http://other.example/v1/../x", 400),
    ] {
        let mut parts = parts(method, target, &[("connection", "close")]);
        let rejected = rules.request(&mut parts).unwrap_err();
        assert_eq!(rejected.status(), status, "{method} {target}");
        assert!(parts.headers.contains_key("connection"), "it is as it was");
    }
    let hosts = parts("GET", "/", &[("host", "a"), ("host", "a")]);
    assert_eq!(rules.check(&hosts).unwrap_err().status(), 400);
    for target in ["/v1/models?x=../y", "*", "/"] {
        assert_eq!(
            rules.check(&parts("OPTIONS", target, &[])),
            Ok(()),
            "{target}"
        );
    }
}

#[test]
fn a_request_that_was_here_before_is_a_loop() {
    let rules = Forwarding::new().via("gate-1").unwrap();
    for (via, status) in [
        (&["1.1 gate-1"][..], Some(508)),
        (&["1.1 other", "2.0 Gate-1 (comment)"], Some(508)),
        (&["1.1 other, HTTP/1.1   gate-1 , 1.1 x"], Some(508)),
        (&["1.1 gate-10", "gate-1 other", "1.1 other (gate-1)"], None),
        (&[""], None),
    ] {
        let headers: Vec<_> = via.iter().map(|via| ("via", *via)).collect();
        let found = rules.check(&parts("GET", "/", &headers));
        let found = found.err().map(|rejected| rejected.status().as_u16());
        assert_eq!(found, status, "{via:?}");
    }
    let looped = [("via", "1.1 gate-1")];
    let silent = Forwarding::new().without_via();
    assert_eq!(silent.check(&parts("GET", "/", &looped)), Ok(()));
    // All of a process have the same name, unless they are told another.
    let headers = forwarded(&Forwarding::new(), &[]);
    let back = parts("GET", "/", &[("via", all(&headers, "via")[0])]);
    assert_eq!(Forwarding::default().check(&back), Err(Rejected::LOOP));
}

#[test]
fn via_is_appended_to_what_is_there() {
    let rules = Forwarding::new().via("gate-1").unwrap();
    let headers = forwarded(&rules, &[("via", "2.0 edge")]);
    assert_eq!(all(&headers, "via"), ["2.0 edge", "1.1 gate-1"]);
    assert!(all(&forwarded(&rules.without_via(), &[]), "via").is_empty());
    for name in ["", "two words", "a,b", "a/b", "é", &"x".repeat(65)] {
        let error = Forwarding::new().via(name).unwrap_err().to_string();
        assert!(error.contains("name in Via"), "{error}");
    }
}

#[test]
fn what_the_client_is_is_told_as_configured() {
    let came = [
        ("host", "api.example"),
        ("x-forwarded-for", "203.0.113.7"),
        ("x-forwarded-proto", "https"),
        ("forwarded", "for=203.0.113.7"),
    ];
    let client = Client::new(IpAddr::V4(Ipv4Addr::LOCALHOST));
    let names = [
        "x-forwarded-for",
        "x-forwarded-proto",
        "x-forwarded-host",
        "forwarded",
    ];
    for (rule, expected) in [
        (
            XForwarded::Append,
            [
                "203.0.113.7 127.0.0.1",
                "https",
                "api.example",
                "for=203.0.113.7",
            ],
        ),
        (
            XForwarded::Replace,
            ["127.0.0.1", "http", "api.example", ""],
        ),
        (
            XForwarded::Pass,
            ["203.0.113.7", "https", "", "for=203.0.113.7"],
        ),
        (XForwarded::Remove, ["", "", "", ""]),
    ] {
        let mut parts = parts("GET", "/", &came);
        parts.extensions.insert(client);
        Forwarding::new()
            .x_forwarded(rule)
            .request(&mut parts)
            .unwrap();
        let found = names.map(|name| all(&parts.headers, name).join(" "));
        assert_eq!(found, expected, "{rule:?}");
    }
    let mut parts = parts("GET", "http://asked.example/", &came);
    parts.extensions.insert(client.https(true));
    let rules = Forwarding::new().x_forwarded(XForwarded::Replace);
    rules.request(&mut parts).unwrap();
    assert_eq!(all(&parts.headers, "x-forwarded-host"), ["asked.example"]);
    assert_eq!(all(&parts.headers, "x-forwarded-proto"), ["https"]);
}

#[test]
fn a_request_is_framed_anew() {
    let headers = forwarded(
        &Forwarding::new()
            .without_via()
            .x_forwarded(XForwarded::Pass),
        &[
            ("content-length", "5"),
            ("transfer-encoding", "chunked"),
            ("expect", "100-continue"),
            ("content-type", "text/plain"),
            ("te", "gzip, trailers"),
            ("connection", "te, upgrade"),
            ("upgrade", "h2c"),
        ],
    );
    assert_eq!(headers.len(), 2);
    assert_eq!(all(&headers, "te"), ["trailers"]);
    assert_eq!(all(&headers, "content-type"), ["text/plain"]);
}

#[test]
fn a_response_that_switches_protocols_is_malformed() {
    let head = |status: u16| {
        let response = Response::builder()
            .status(status)
            .version(Version::HTTP_10)
            .header("connection", "x-hop")
            .header("x-hop", "1")
            .header("content-length", "5")
            .header("transfer-encoding", "chunked");
        response.body(()).unwrap().into_parts().0
    };
    let rules = Forwarding::new();
    assert!(rules.response(&mut head(101)).is_err());
    let mut parts = head(200);
    rules.response(&mut parts).unwrap();
    assert_eq!((parts.headers.len(), parts.version), (0, Version::HTTP_11));
}
