//! A web server for one page: small requests, small answers, a connection each.
//!
//! Anybody on the machine can connect, so everything is bounded: connections at a time, bytes of a request, seconds that a slow
//! client may take. Where there are too many connections, the oldest that has not said what it wants gives way to the next. A
//! page in a browser that reaches for this server under a name of its own (DNS rebinding) is refused: the host that is asked for
//! must be a loopback name or the address that is listened at, unless every machine may ask anyway.
//!
//! By hand: `tiny_http` bounds neither the seconds that a request may take nor the connections that are open.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Enough for every header that a client of Prometheus sends.
const LONGEST_REQUEST: usize = 8 << 10;
/// For reading a request, and again for writing the answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Prometheus takes one connection.
const MOST_CONNECTIONS: usize = 16;

/// As whom this machine may be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hosts {
    /// Loopback, or the address that is listened at.
    Ours,
    Any,
}

/// What is answered.
pub(crate) struct Answer {
    pub(crate) status: &'static str,
    pub(crate) content_type: &'static str,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn text(status: &'static str, body: impl Into<String>) -> Self {
        Self { status, content_type: "text/plain; charset=utf-8", body: body.into() }
    }
}

/// Answers until the process ends. `page` makes the answer to a path.
pub(crate) fn serve(
    listener: &TcpListener,
    hosts: Hosts,
    page: &Arc<impl Fn(&str) -> Answer + Send + Sync + 'static>,
) {
    let open = Arc::new(Open::default());
    let here = listener.local_addr().ok();
    loop {
        let Ok((mut stream, _)) = listener.accept() else {
            // Too many files are open, or the client is gone already: it passes.
            std::thread::sleep(Duration::from_millis(50));
            continue;
        };
        let Some(place) = Place::take(&open, &stream) else {
            // As little as this goes out without waiting.
            let _ = stream.set_nonblocking(true);
            let _ = write(&mut stream, &Answer::text("503 Service Unavailable", "too many ask at a time\n"));
            continue;
        };
        let page = Arc::clone(page);
        // If no thread can be started, the connection is closed.
        let _ = std::thread::Builder::new().name("oomph-scrape".to_owned()).stack_size(256 << 10).spawn(
            move || {
                let is_ours = |host: &str| hosts == Hosts::Any || is_ours(host, here);
                answer(stream, &place, is_ours, &*page)
            },
        );
    }
}

/// The connections that are open, the oldest first.
#[derive(Default)]
struct Open(Mutex<Connections>);

#[derive(Default)]
struct Connections {
    came: u64,
    all: Vec<Connection>,
}

struct Connection {
    number: u64,
    stream: TcpStream,
    /// Whether it has said what it wants.
    has_asked: bool,
}

impl Open {
    fn lock(&self) -> MutexGuard<'_, Connections> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The place of a connection among those that are open, as long as it lives.
struct Place {
    open: Arc<Open>,
    number: u64,
}

impl Place {
    /// A place; none if all are taken by those that are being answered.
    fn take(open: &Arc<Open>, stream: &TcpStream) -> Option<Self> {
        let mut connections = open.lock();
        if connections.all.len() >= MOST_CONNECTIONS {
            let slowest = connections.all.iter().position(|one| !one.has_asked)?;
            // Whoever waits for its request hears that there is no more.
            let _ = connections.all.remove(slowest).stream.shutdown(Shutdown::Both);
        }
        let stream = stream.try_clone().ok()?;
        connections.came += 1;
        let number = connections.came;
        connections.all.push(Connection { number, stream, has_asked: false });
        Some(Self { open: Arc::clone(open), number })
    }

    fn has_asked(&self) {
        if let Some(one) = self.open.lock().all.iter_mut().find(|one| one.number == self.number) {
            one.has_asked = true;
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.open.lock().all.retain(|one| one.number != self.number);
    }
}

fn answer(
    mut stream: TcpStream,
    place: &Place,
    is_ours: impl Fn(&str) -> bool,
    page: &impl Fn(&str) -> Answer,
) -> std::io::Result<()> {
    stream.set_write_timeout(Some(PATIENCE))?;
    let asked = read(&mut stream)?;
    place.has_asked();
    let answer = match asked {
        None => return Ok(()),
        Some(Err(refused)) => refused,
        Some(Ok(head)) => respond(&head, is_ours, page),
    };
    write(&mut stream, &answer)
}

/// The request up to its empty line, or what is said to one that is not read; none if nothing came.
fn read(stream: &mut TcpStream) -> std::io::Result<Option<Result<String, Answer>>> {
    let deadline = Instant::now() + PATIENCE;
    let mut bytes = Vec::new();
    let mut piece = [0; 1024];
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(Some(Err(Answer::text("408 Request Timeout", "too slow\n"))));
        }
        stream.set_read_timeout(Some(left))?;
        let count = match stream.read(&mut piece) {
            Ok(0) => return Ok(None),
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => continue,
            Err(error) => return Err(error),
        };
        bytes.extend_from_slice(&piece[..count]);
        if bytes.windows(4).any(|four| four == b"\r\n\r\n") {
            return Ok(Some(Ok(String::from_utf8_lossy(&bytes).into_owned())));
        }
        if bytes.len() > LONGEST_REQUEST {
            return Ok(Some(Err(Answer::text("431 Request Header Fields Too Large", "too long\n"))));
        }
    }
}

fn respond(head: &str, is_ours: impl Fn(&str) -> bool, page: &impl Fn(&str) -> Answer) -> Answer {
    let mut lines = head.split("\r\n");
    let mut words = lines.next().unwrap_or_default().split(' ');
    let (method, target, version) = (words.next(), words.next(), words.next());
    let (Some(method), Some(target), Some("HTTP/1.1" | "HTTP/1.0")) = (method, target, version) else {
        return Answer::text("400 Bad Request", "not a request\n");
    };
    let headers = lines.take_while(|line| !line.is_empty());
    let hosts: Vec<&str> = headers
        .filter_map(|line| line.split_once(':'))
        .filter(|(name, _)| name.eq_ignore_ascii_case("host"))
        .map(|(_, value)| value.trim())
        .collect();
    if hosts.len() > 1 || hosts.first().is_some_and(|host| !is_ours(host)) {
        return Answer::text("403 Forbidden", "the host that was asked for is not this one\n");
    }
    if method != "GET" {
        return Answer::text("405 Method Not Allowed", "GET only\n");
    }
    page(target.split(['?', '#']).next().unwrap_or_default())
}

/// Whether a host is this machine, as far as a client may call it. Where all addresses are listened at, any address is, and no name.
fn is_ours(host: &str, here: Option<SocketAddr>) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split_once(']').map_or(rest, |(name, _)| name),
        None => host.split_once(':').map_or(host, |(name, _)| name),
    };
    if name.eq_ignore_ascii_case("localhost") {
        return true;
    }
    let Ok(address) = name.parse::<IpAddr>() else { return false };
    let is_anywhere = here.is_some_and(|here| here.ip().is_unspecified());
    address.is_loopback() || is_anywhere || here.is_some_and(|here| here.ip() == address)
}

fn write(stream: &mut TcpStream, answer: &Answer) -> std::io::Result<()> {
    let head = format!(
        "HTTP/1.1 {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nX-Content-Type-Options: nosniff\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n",
        answer.status,
        answer.content_type,
        answer.body.len()
    );
    // A write waits for at most PATIENCE; a client that reads a byte at a time gets that for each piece, and no more than this many.
    let deadline = Instant::now() + PATIENCE;
    stream.write_all(head.as_bytes())?;
    for piece in answer.body.as_bytes().chunks(16 << 10) {
        if Instant::now() > deadline {
            return Err(ErrorKind::TimedOut.into());
        }
        stream.write_all(piece)?;
    }
    stream.flush()
}
