//! The service's door: how soon it opens, what it weighs, and what the hostile cost it and everybody else.
//!
//! It starts the built program on an embedded database, as its operator does, and speaks to it over sockets. Absolute
//! times are of the machine at hand; what is compared is one run with itself. Memory is the kernel's own count of the
//! process (`VmHWM`, set back before each bomb).
#![allow(clippy::print_stdout, clippy::float_arithmetic, reason = "a benchmark prints what it measured")]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

type Failure = Box<dyn std::error::Error + Send + Sync>;

const STARTS: usize = 11;
const BODIES: usize = 21;
const DRIPS: usize = 500;
const ROUNDS: usize = 3;
const ASKS: usize = 400;

/// The built program, answering; it ends with this.
struct Service {
    child: Child,
    address: String,
    token: String,
    took: Duration,
    folder: tempfile::TempDir,
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ended = self.child.kill();
        let _waited = self.child.wait();
    }
}

impl Service {
    fn start(folder: tempfile::TempDir) -> Result<Self, Failure> {
        let settings = "[http]\ntoken_rate = 0\naddress_rate = 0\nbody_seconds = 20\n";
        std::fs::write(folder.path().join("fatia.toml"), settings)?;
        let began = Instant::now();
        let mut child = Command::new(env!("CARGO_BIN_EXE_fatia"))
            .args(["serve", "--listen", "127.0.0.1:0", "--print-token", "--data"])
            .arg(folder.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().ok_or("no output")?).read_line(&mut line)?;
        let took = began.elapsed();
        let said = line.trim().trim_start_matches("ready http://").split_once(" token=");
        let (address, token) = said.ok_or_else(|| format!("it said: {line}"))?;
        let (address, token) = (address.to_owned(), token.to_owned());
        Ok(Self { child, address, token, took, folder })
    }

    /// Ends it and gives its folder back.
    fn stop(mut self) -> Result<tempfile::TempDir, Failure> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(std::mem::replace(&mut self.folder, tempfile::tempdir()?))
    }

    /// A line of the kernel's account of the process, in KiB.
    fn kib(&self, name: &str) -> Result<i64, Failure> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = status.lines().find(|line| line.starts_with(name)).ok_or("no such line")?;
        Ok(line.split_whitespace().nth(1).ok_or("no number")?.parse()?)
    }

    fn forget_peak(&self) -> Result<(), Failure> {
        Ok(std::fs::write(format!("/proc/{}/clear_refs", self.child.id()), "5")?)
    }

    fn connect(&self) -> Result<TcpStream, Failure> {
        let stream = TcpStream::connect(&self.address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_secs(60)))?;
        Ok(stream)
    }

    /// Sends a body; the status, and how long the answer took.
    fn post(&self, path: &str, media: &str, encoding: &str, body: &[u8]) -> Result<(u16, Duration), Failure> {
        let mut stream = self.connect()?;
        let encoding =
            if encoding.is_empty() { String::new() } else { format!("Content-Encoding: {encoding}\r\n") };
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer {}\r\nContent-Type: {media}\r\n\
             {encoding}Content-Length: {}\r\n\r\n",
            self.token,
            body.len()
        );
        let began = Instant::now();
        stream.write_all(head.as_bytes())?;
        // It may answer before it has read all, and close.
        let _all_taken = stream.write_all(body);
        let mut first = [0; 12];
        stream.read_exact(&mut first)?;
        let took = began.elapsed();
        let status = std::str::from_utf8(&first)?.rsplit(' ').next().unwrap_or_default().parse()?;
        Ok((status, took))
    }

    /// Times of requests of one client on one connection.
    fn ask(&self, count: usize) -> Result<Vec<Duration>, Failure> {
        let mut stream = self.connect()?;
        let request = format!(
            "GET /api/v1/tenants HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {}\r\n\r\n",
            self.token
        );
        let (mut times, mut heard) = (Vec::with_capacity(count), vec![0; 16_384]);
        for _ in 0..count {
            let began = Instant::now();
            stream.write_all(request.as_bytes())?;
            let length = stream.read(&mut heard)?;
            times.push(began.elapsed());
            if !heard.starts_with(b"HTTP/1.1 200") {
                return Err(String::from_utf8_lossy(heard.get(..length).unwrap_or_default()).into());
            }
        }
        Ok(times)
    }
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn at(mut times: Vec<Duration>, part: f64) -> f64 {
    times.sort_unstable();
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a place in a short list")]
    let place = ((times.len() as f64 - 1.0) * part).round() as usize;
    times.get(place).copied().map_or(0.0, millis)
}

fn gzip(bytes: &[u8]) -> Result<Vec<u8>, Failure> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    encoder.write_all(bytes)?;
    Ok(encoder.finish()?)
}

fn starts() -> Result<(), Failure> {
    let (mut fresh, mut known) = (vec![], vec![]);
    let mut weight = 0;
    for _ in 0..STARTS {
        let first = Service::start(tempfile::tempdir()?)?;
        fresh.push(first.took);
        let again = Service::start(first.stop()?)?;
        known.push(again.took);
        again.ask(50)?;
        std::thread::sleep(Duration::from_millis(700));
        weight = weight.max(again.kib("VmRSS")?);
    }
    println!(
        "start to serving    new database {:6.1} ms, known database {:6.1} ms (medians of {STARTS}; target 200)",
        at(fresh, 0.5),
        at(known, 0.5)
    );
    println!("resident when idle  {:6.1} MiB (largest of {STARTS}; target 40)\n", weight as f64 / 1024.0);
    Ok(())
}

fn hostile(service: &Service) -> Result<(), Failure> {
    const JSON: &str = "application/json";
    let huge = vec![b' '; 1 << 30];
    let bomb = zstd::bulk::compress(huge.get(..256 << 20).unwrap_or_default(), 19)?;
    let mut upload = b"--b\r\nContent-Disposition: form-data; name=\"inventory\"\r\n\r\n".to_vec();
    upload.extend_from_slice(&huge);
    let zipped = gzip(huge.get(..256 << 20).unwrap_or_default())?;
    let cases: Vec<(&str, &str, &str, &str, Vec<u8>)> = vec![
        ("zstd bomb, 256 MiB", "/api/v1/tenants", JSON, "zstd", bomb),
        (
            "zstd bomb, small window",
            "/api/v1/tenants",
            JSON,
            "zstd",
            zstd::bulk::compress(huge.get(..200 << 20).unwrap_or_default(), 1)?,
        ),
        ("gzip bomb, 256 MiB", "/api/v1/tenants", JSON, "gzip", zipped),
        ("gzip in gzip", "/api/v1/tenants", JSON, "gzip", gzip(&gzip(b"{\"name\":\"a\"}")?)?),
        ("1 MiB of [", "/api/v1/tenants", JSON, "", vec![b'['; 1 << 20]),
        ("duplicate keys", "/api/v1/tenants", JSON, "", br#"{"name":"a","name":"b"}"#.to_vec()),
        ("byte order mark", "/api/v1/tenants", JSON, "", b"\xef\xbb\xbf{\"name\":\"a\"}".to_vec()),
        ("NaN", "/api/v1/tenants", JSON, "", br#"{"name":NaN}"#.to_vec()),
        (
            "40 digits",
            "/api/v1/mapping-rules",
            JSON,
            "",
            format!("{{\"order\":{}}}", "9".repeat(40)).into_bytes(),
        ),
        ("1 MiB of keys", "/api/v1/tenants", JSON, "", keys()),
    ];
    println!("{:<22}{:>8}{:>12}{:>12}{:>16}", "body", "status", "median ms", "max ms", "peak + MiB");
    for (name, path, media, encoding, body) in cases {
        let (mut times, mut status) = (vec![], 0);
        // Whatever the allocator takes for the first request of its kind is not the body's doing.
        service.post("/api/v1/tenants", JSON, "", b"{}")?;
        service.forget_peak()?;
        let before = service.kib("VmHWM")?;
        for _ in 0..BODIES {
            let (answered, took) = service.post(path, media, encoding, &body)?;
            status = answered;
            times.push(took);
        }
        let grown = (service.kib("VmHWM")? - before) as f64 / 1024.0;
        let (median, max) = (at(times.clone(), 0.5), at(times, 1.0));
        println!("{name:<22}{status:>8}{median:>12.2}{max:>12.2}{grown:>16.1}");
    }
    // An upload goes to disk up to its limit, so it takes the time of writing that; its memory is what counts.
    service.forget_peak()?;
    let before = service.kib("VmHWM")?;
    let packed = zstd::bulk::compress(&upload, 3)?;
    let (status, took) =
        service.post("/api/v1/imports", "multipart/form-data; boundary=b", "zstd", &packed)?;
    let grown = (service.kib("VmHWM")? - before) as f64 / 1024.0;
    println!("{:<22}{status:>8}{:>12.2}{:>12}{grown:>16.1}\n", "upload bomb, 1 GiB", millis(took), "");
    Ok(())
}

fn keys() -> Vec<u8> {
    let mut text = "{".to_owned();
    while text.len() < (1 << 20) - 64 {
        text.push_str(&format!("\"k{}\":0,", text.len()));
    }
    text.push_str("\"z\":0}");
    text.into_bytes()
}

/// Sockets that send a byte now and then: half of them in the head, half in the body. Returns when all were closed.
fn drips(service: &Service, stop: &Arc<AtomicBool>) -> Vec<std::thread::JoinHandle<Option<Duration>>> {
    (0..DRIPS)
        .filter_map(|number| {
            let mut stream = service.connect().ok()?;
            let head = if number % 2 == 0 {
                "GET /api/v1/tenants HTTP/1.1\r\nHost: x\r\nX-Drip: ".to_owned()
            } else {
                format!(
                    "POST /api/v1/tenants HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {}\r\n\
                     Content-Type: application/json\r\nContent-Length: 100000\r\n\r\n{{",
                    service.token
                )
            };
            stream.write_all(head.as_bytes()).ok()?;
            let (stop, began) = (Arc::clone(stop), Instant::now());
            let drip = move || {
                while stream.write_all(b"a").is_ok() {
                    std::thread::sleep(Duration::from_millis(500));
                    if stop.load(Ordering::Relaxed) && began.elapsed() > Duration::from_secs(60) {
                        return None;
                    }
                }
                Some(began.elapsed())
            };
            std::thread::Builder::new().stack_size(64 << 10).spawn(drip).ok()
        })
        .collect()
}

fn slow_clients(service: &Service) -> Result<(), Failure> {
    let p99 = || -> Result<f64, Failure> {
        let times = std::thread::scope(|scope| {
            let clients: Vec<_> = (0..4).map(|_| scope.spawn(|| service.ask(ASKS))).collect();
            let mut all = vec![];
            for client in clients {
                all.extend(client.join().map_err(|_| "a client panicked")??);
            }
            Ok::<_, Failure>(all)
        })?;
        Ok(at(times, 0.99))
    };
    p99()?;
    let (mut alone, mut beside, mut closed) = (vec![], vec![], vec![]);
    for _ in 0..ROUNDS {
        alone.push(p99()?);
        let stop = Arc::new(AtomicBool::new(false));
        let dripping = drips(service, &stop);
        let opened = dripping.len();
        beside.push(p99()?);
        stop.store(true, Ordering::Relaxed);
        let ended: Vec<Duration> =
            dripping.into_iter().filter_map(|each| each.join().ok().flatten()).collect();
        println!(
            "{opened} dripping sockets: {} closed, the last after {:.1} s",
            ended.len(),
            ended.iter().max().map_or(0.0, |last| last.as_secs_f64())
        );
        closed.push(ended.len());
    }
    let middle = |mut all: Vec<f64>| {
        all.sort_by(f64::total_cmp);
        all.get(all.len() / 2).copied().unwrap_or_default()
    };
    let (alone, beside) = (middle(alone), middle(beside));
    println!(
        "others' p99         alone {alone:.2} ms, beside {DRIPS} drips {beside:.2} ms: {:.2} times (target 2)",
        beside / alone
    );
    Ok(())
}

fn main() -> Result<(), Failure> {
    starts()?;
    let service = Service::start(tempfile::tempdir()?)?;
    service.ask(500)?;
    hostile(&service)?;
    slow_clients(&service)
}
