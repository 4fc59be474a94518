//! Hostile and broken requests: each gets a clear answer, and costs little.

use std::io::Write as _;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::support::api::{Answer, Api, settings};
use crate::support::platform::on_both_databases;

fn zstd(bytes: &[u8], level: i32) -> Vec<u8> {
    zstd::bulk::compress(bytes, level).expect("it can be packed")
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    encoder.write_all(bytes).expect("memory");
    encoder.finish().expect("memory")
}

/// A tenant's making with this body.
async fn make(api: &Api, encoding: &str, body: impl Into<Vec<u8>>) -> Answer {
    let ask = api.ask("POST", "/api/v1/tenants").token(&api.operator);
    let ask = if encoding.is_empty() { ask } else { ask.header("Content-Encoding", encoding) };
    ask.body("application/json", body.into()).send().await
}

fn detail(answer: &Answer) -> String {
    answer.json()["detail"].as_str().expect("a detail").to_owned()
}

/// Writes bytes and reads what comes until the other side closes.
async fn raw(api: &Api, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(api.running.address).await.expect("it listens");
    stream.write_all(bytes).await.expect("it takes bytes");
    let mut heard = Vec::new();
    let read = tokio::time::timeout(Duration::from_secs(20), stream.read_to_end(&mut heard)).await;
    // What was sent and is not read any more resets the connection after the answer.
    let _closed = read.expect("it closes");
    String::from_utf8_lossy(&heard).into_owned()
}

on_both_databases! {
    async fn bodies_are_taken_plain_and_packed(platform: &TestPlatform) {
        let api = Api::of(platform);
        let body = |name: &str| json!({ "name": name }).to_string();
        make(&api, "", body("a")).await.is(201);
        make(&api, "identity", body("b")).await.is(201);
        make(&api, "gzip", gzip(body("c").as_bytes())).await.is(201);
        make(&api, "zstd", zstd(body("d").as_bytes(), 3)).await.is(201);
        // Larger than one step of the decoder, and packed to nothing.
        let long = format!("{{\"name\": \"e\"{}}}", " ".repeat(1_000_000));
        make(&api, "gzip", gzip(long.as_bytes())).await.is(201);
        let long = long.replace("\"e\"", "\"f\"");
        make(&api, "zstd", zstd(long.as_bytes(), 19)).await.is(201);
    }

    async fn bombs_are_too_large_whatever_packs_them(platform: &TestPlatform) {
        let api = Api::of(platform);
        let huge = vec![b' '; 256 << 20];
        let bomb = zstd(&huge, 19);
        assert!(bomb.len() < 32 << 10, "{} bytes", bomb.len());
        assert_eq!(detail(&make(&api, "zstd", bomb.clone()).await.is(413)), "the body has more than 4194304 bytes unpacked");
        make(&api, "gzip", gzip(&huge)).await.is(413);
        make(&api, "", vec![b' '; (1 << 20) + 1]).await.is(413);
        // An import's files go to disk, up to their limit.
        let ask = api.ask("POST", "/api/v1/imports").token(&api.operator).header("Content-Encoding", "zstd");
        let mut upload = b"--b\r\nContent-Disposition: form-data; name=\"inventory\"\r\n\r\n".to_vec();
        upload.extend_from_slice(&huge);
        ask.body("multipart/form-data; boundary=b", zstd(&upload, 3)).send().await.is(413);
        // A frame that asks for a window of gigabytes.
        let mut packed = Vec::new();
        let mut encoder = zstd::stream::write::Encoder::new(&mut packed, 1).expect("an encoder");
        encoder.set_parameter(zstd::stream::raw::CParameter::WindowLog(27)).expect("a window");
        encoder.write_all(br#"{"name": "wide"}"#).expect("memory");
        encoder.finish().expect("memory");
        make(&api, "zstd", packed).await.is(413);
        make(&api, "", json!({ "name": "still answering" }).to_string()).await.is(201);
    }

    async fn what_is_packed_wrongly_is_refused(platform: &TestPlatform) {
        let api = Api::of(platform);
        let body = json!({ "name": "a" }).to_string();
        let (zipped, framed) = (gzip(body.as_bytes()), zstd(body.as_bytes(), 3));
        // One in another, told and not told.
        make(&api, "gzip, gzip", gzip(&zipped)).await.is(415);
        assert!(detail(&make(&api, "gzip", gzip(&zipped)).await.is(400)).starts_with("the body is not JSON"));
        make(&api, "br", body.clone()).await.is(415);
        for (encoding, bytes) in [
            ("gzip", zipped[..zipped.len() - 3].to_vec()),
            ("gzip", [zipped.clone(), zipped.clone()].concat()),
            ("gzip", [zipped.clone(), b"more".to_vec()].concat()),
            ("gzip", body.clone().into_bytes()),
            ("zstd", framed[..framed.len() - 3].to_vec()),
            ("zstd", [framed.clone(), framed.clone()].concat()),
            ("zstd", [framed.clone(), b"more".to_vec()].concat()),
            ("zstd", zipped.clone()),
            ("zstd", vec![]),
        ] {
            let answer = make(&api, encoding, bytes).await.is(400);
            assert_eq!(detail(&answer), format!("the body is not one whole {encoding} stream"));
        }
        assert_eq!(platform.count("tenant").await, 1);
    }

    async fn what_is_no_json_is_refused_in_words(platform: &TestPlatform) {
        let api = Api::of(platform);
        for (body, said) in [
            ("[".repeat(1 << 20), "it nests more than 16 deep"),
            (format!("{{\"name\":{}1{}}}", "[".repeat(30), "]".repeat(30)), "it nests more than 16 deep"),
            (r#"{"name":"a","name":"b"}"#.to_owned(), "the key `name` stands twice"),
            ("\u{feff}{\"name\":\"a\"}".to_owned(), "it begins with a byte order mark"),
            ("{\"name\":NaN}".to_owned(), "expected value at line 1 column 9"),
            ("{\"name\":Infinity}".to_owned(), "expected value"),
            ("{\"name\":\"a\"} x".to_owned(), "trailing characters"),
            ("{\"name\":\"a".to_owned(), "EOF"),
            ("{'name':'a'}".to_owned(), "key must be a string"),
            ("{\"name\":\"\\ud800\"}".to_owned(), "line 1"),
            (String::new(), "EOF"),
        ] {
            let answer = make(&api, "", body).await.is(400);
            let told = detail(&answer);
            assert!(told.starts_with("the body is not JSON: ") && told.contains(said), "{told}");
        }
        make(&api, "", b"{\"name\":\"\xff\"}".to_vec()).await.is(400);
        for (body, fault) in [
            (json!([]), "# is a list, not an object"),
            (json!({ "name": 1 }), "#/name is a number, not a text"),
            (json!({ "name": null }), "#/name is missing"),
            (json!({ "name": "a\u{0}" }), "#/name holds a control character"),
            (json!({ "name": "x".repeat(257) }), "#/name is longer than 256 bytes"),
        ] {
            assert_eq!(make(&api, "", body.to_string()).await.is(422).faults(), [fault]);
        }
        let long: Value = serde_json::from_str(&format!("{{\"order\":{},\"tenant\":\"a\",\"project\":\"b\"}}", "9".repeat(40))).unwrap();
        let faults = api.post("/api/v1/mapping-rules", &long).await.is(422).faults();
        assert_eq!(faults, ["#/order is not a whole number of 64 bits"]);
        assert_eq!(platform.count("tenant").await, 1);
    }

    async fn broken_requests_are_closed_and_harm_nobody(platform: &TestPlatform) {
        let api = Api::of(platform);
        for (bytes, status) in [
            ("GET / HTTP/9.9\r\n\r\n", "HTTP/1.1 400"),
            ("\x00\x01\x02\x03\r\n\r\n", "HTTP/1.1 400"),
            ("GET /healthz HTTP/1.1\r\nConnection: close\r\n\r\n", "HTTP/1.1"),
            ("POST /api/v1/tenants HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n", "HTTP/1.1 400"),
            ("POST /api/v1/tenants HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\nabc", "HTTP/1.1 400"),
        ] {
            let heard = raw(&api, bytes.as_bytes()).await;
            assert!(heard.starts_with(status), "{bytes:?}: {heard}");
        }
        let long = format!("GET /{} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", "a".repeat(200_000));
        let heard = raw(&api, long.as_bytes()).await;
        assert!(heard.starts_with("HTTP/1.1 4"), "{}", &heard[..heard.len().min(100)]);
        for path in ["/api/v1/tenants/%ff", "/api/v1/tenants/%00", "/api/v1/tenants/..%2f..", "/api/v2/", "/%2e%2e/none", "/api/v1/tenants/a/"] {
            let answer = api.get(&api.operator, path).await.is(404);
            assert_eq!(answer.json()["type"], "urn:fatia:problem:not-found", "{path}");
        }
        let wrong = api.ask("PATCH", "/api/v1/tenants").token(&api.operator).send().await.is(405);
        assert_eq!(wrong.header("allow"), Some("GET, POST, HEAD, OPTIONS"));
        api.ask("OPTIONS", "/api/v1/tenants").send().await.is(204);
        api.ask("BREW", "/api/v1/tenants").send().await.is(405);
        let body = api.ask("GET", "/api/v1/tenants").token(&api.operator).body("application/json", "{}").send().await;
        body.is(400);
        let answer = api.ask("POST", "/api/v1/tenants").token(&api.operator).body("text/plain", "{}").send().await.is(415);
        assert_eq!(detail(&answer), "Content-Type is none of application/json");
        api.get(&api.operator, "/healthz").await.is(200);
        api.get(&api.operator, "/readyz").await.is(200);
    }

    async fn whoever_drips_is_closed_and_the_others_are_answered(platform: &TestPlatform) {
        let mut tight = settings();
        (tight.head_seconds, tight.body_seconds) = (1, 1);
        let api = Api::with(platform, tight);
        let heads = ["POST /api/v1/tenants HTTP/1.1\r\nHost: x\r\nX-Drip: ".to_owned(), format!(
            "POST /api/v1/tenants HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {}\r\nContent-Type: application/json\r\n\
             Content-Length: 1000\r\n\r\n{{",
            api.operator
        )];
        let address = api.running.address;
        let drips = (0..500).map(|number| {
            let head = heads[number % 2].clone();
            tokio::spawn(async move {
                let mut stream = TcpStream::connect(address).await.expect("it listens");
                stream.write_all(head.as_bytes()).await.expect("it takes the head");
                let (mut reading, mut writing) = stream.into_split();
                let drip = tokio::spawn(async move {
                    while writing.write_all(b"a").await.is_ok() {
                        tokio::time::sleep(Duration::from_millis(100)).await;
                    }
                });
                let mut heard = Vec::new();
                // Closed, or reset because more came than was read.
                let _closed = reading.read_to_end(&mut heard).await;
                drip.abort();
                String::from_utf8_lossy(&heard).into_owned()
            })
        });
        let drips: Vec<_> = drips.collect();
        for _ in 0..50 {
            api.get(&api.operator, "/api/v1/tenants").await.is(200);
        }
        let all = async {
            let (mut timed_out, mut kinds) = (0, std::collections::BTreeMap::new());
            for drip in drips {
                let heard = drip.await.expect("no panic");
                timed_out += usize::from(heard.starts_with("HTTP/1.1 408"));
                *kinds.entry(heard.chars().take(30).collect::<String>()).or_insert(0) += 1;
            }
            (timed_out, kinds)
        };
        let (timed_out, kinds) = tokio::time::timeout(Duration::from_secs(20), all).await.expect("all are closed");
        assert!(timed_out > 400, "{timed_out} of 500 were told why: {kinds:?}");
    }

    async fn who_asks_too_often_is_told_when_to_ask_again(platform: &TestPlatform) {
        let mut few = settings();
        (few.token_rate, few.token_burst, few.address_rate, few.address_burst) = (1, 5, 1, 10);
        let api = Api::with(platform, few);
        let mut statuses = vec![];
        for _ in 0..8 {
            let answer = api.get(&api.operator, "/api/v1/self").await;
            if answer.status == 429 {
                let seconds: u64 = answer.header("retry-after").expect("when").parse().expect("seconds");
                assert!((1..=5).contains(&seconds), "{seconds}");
            }
            statuses.push(answer.status);
        }
        assert!(statuses[..5].iter().all(|status| *status == 200) && statuses[7] == 429, "{statuses:?}");
        // Others are not held up by it; who has no token is counted by where it comes from.
        let mut statuses = vec![];
        for _ in 0..14 {
            statuses.push(api.ask("GET", "/api/v1/self").send().await.status);
        }
        assert!(statuses[0] == 401 && statuses[13] == 429, "{statuses:?}");
    }

    async fn many_good_tokens_of_one_address_are_not_held_up(platform: &TestPlatform) {
        let mut few = settings();
        (few.address_rate, few.address_burst) = (1, 3);
        let api = Api::with(platform, few);
        let mut tokens = vec![];
        for _ in 0..12 {
            tokens.push(api.token("admin", None).await);
        }
        for token in &tokens {
            api.get(token, "/api/v1/self").await.is(200);
        }
        // Nor is whoever watches over the process.
        for _ in 0..12 {
            api.get("", "/healthz").await.is(200);
            api.get("", "/readyz").await.is(200);
        }
        let mut statuses = vec![];
        for _ in 0..6 {
            statuses.push(api.get(&crate::support::api::mint().text, "/api/v1/self").await.status);
        }
        assert!(statuses[0] == 401 && statuses[5] == 429, "bad ones are: {statuses:?}");
    }

    async fn a_table_of_nothing_costs_little(platform: &TestPlatform) {
        let api = Api::of(platform);
        let ask = |table: String| api.ask("POST", "/api/v1/states").token(&api.operator).body("text/csv", table).send();
        let empty = ask(format!("node,kind,from\n{}", "\n".repeat(3_000_000))).await.is(200).json();
        assert_eq!(empty["lines"], 0);
        ask(format!("node,kind,from\n{}", "\n".repeat(4_100_000))).await.is(422);
        let bad = ask(format!("node,kind,from\n{}", "x\n".repeat(200_000))).await.is(422).json();
        let said = bad["detail"].as_str().unwrap();
        assert!(said.starts_with("the body: more than 100000 lines cannot be taken; line 100002: has 1 field"), "{said}");
        let long = format!("node,kind,from\nn1,{},2026-06-01T00:00:00Z\n", "k\u{1}".repeat(200));
        let refused = ask(long).await.is(200).json();
        let reason = refused["refused"][0]["reason"].as_str().unwrap();
        assert!(reason.chars().count() <= 501 && !reason.contains('\u{1}'), "{reason}");
    }

    async fn answers_say_how_they_may_be_used(platform: &TestPlatform) {
        let api = Api::of(platform);
        for path in ["/healthz", "/docs", "/api/v1/tenants", "/api/v1/none", "/docs/rapidoc.js"] {
            let answer = api.get(&api.operator, path).await;
            assert_eq!(answer.header("x-content-type-options"), Some("nosniff"), "{path}");
            assert!(answer.header("content-security-policy").unwrap().contains("frame-ancestors 'none'"), "{path}");
            assert!(answer.header("x-request-id").is_some() && answer.header("cache-control").is_some(), "{path}");
        }
        let policy = api.get(&api.operator, "/docs").await;
        assert!(policy.header("content-security-policy").unwrap().contains("script-src 'self';"), "no script in the page");
        let script = api.ask("GET", "/docs/rapidoc.js").header("Accept-Encoding", "gzip").send().await.is(200);
        assert_eq!(script.header("content-encoding"), Some("gzip"));
        let plain = api.get("", "/docs/rapidoc.js").await.is(200);
        assert!(plain.header("content-encoding").is_none() && plain.text.contains("RapiDoc"));
        // A request's name is the client's only if it is one.
        let odd = api.ask("GET", "/healthz").header("X-Request-Id", "a b\"c").send().await;
        assert_ne!(odd.header("x-request-id"), Some("a b\"c"));
    }
}
