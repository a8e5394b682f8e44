//! A web server for one page: small requests, small answers, a connection each.
//!
//! Anybody on the machine can connect, so everything is bounded: connections at a time, bytes of a request, seconds that a slow
//! client may take. A page in a browser that reaches for this server under a name of its own (DNS rebinding) is refused: the
//! host that is asked for must be a loopback name or the address that is listened at.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Enough for every header that a client of Prometheus sends.
const LONGEST_REQUEST: usize = 8 << 10;
/// For reading a request, and again for writing the answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Prometheus takes one connection.
const MOST_CONNECTIONS: usize = 16;

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
pub(crate) fn serve(listener: &TcpListener, page: &Arc<impl Fn(&str) -> Answer + Send + Sync + 'static>) {
    let open = Arc::new(AtomicUsize::new(0));
    let here = listener.local_addr().ok();
    loop {
        let Ok((stream, _)) = listener.accept() else {
            // Too many files are open, or the client is gone already: it passes.
            std::thread::sleep(Duration::from_millis(50));
            continue;
        };
        let ticket = Ticket::take(&open);
        let page = Arc::clone(page);
        // Where no thread can be had, the connection is closed.
        let _ = std::thread::Builder::new().name("oomph-scrape".to_owned()).stack_size(256 << 10).spawn(
            move || {
                if let Some(_ticket) = ticket {
                    let _ = answer(stream, here, &*page);
                }
            },
        );
    }
}

/// Counts an open connection as long as it lives.
struct Ticket(Arc<AtomicUsize>);

impl Ticket {
    fn take(open: &Arc<AtomicUsize>) -> Option<Self> {
        let ticket = Self(Arc::clone(open));
        (open.fetch_add(1, Ordering::Relaxed) < MOST_CONNECTIONS).then_some(ticket)
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

fn answer(
    mut stream: TcpStream,
    here: Option<SocketAddr>,
    page: &impl Fn(&str) -> Answer,
) -> std::io::Result<()> {
    stream.set_write_timeout(Some(PATIENCE))?;
    let answer = match read(&mut stream)? {
        None => return Ok(()),
        Some(Err(refused)) => refused,
        Some(Ok(head)) => respond(&head, here, page),
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

fn respond(head: &str, here: Option<SocketAddr>, page: &impl Fn(&str) -> Answer) -> Answer {
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
    if hosts.len() > 1 || hosts.first().is_some_and(|host| !is_ours(host, here)) {
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
