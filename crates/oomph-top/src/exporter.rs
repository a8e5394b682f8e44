//! The exporter: samples for Prometheus, over HTTP, when they are asked for.

use crate::metrics::{CONTENT_TYPE, text};
use crate::rows::Choice;
use crate::server::{Answer, Hosts, serve};
use crate::taking::Taker;
use oomph_words::harmless;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Asked more often, it answers what it answered.
const AT_MOST_EVERY: Duration = Duration::from_secs(1);

/// Where to listen: `127.0.0.1:9400`, `[::1]:9400`, `:9400` or `9400`; the last two at loopback.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address(SocketAddr);

impl Address {
    /// Whether only this machine can reach it.
    pub fn is_loopback(self) -> bool {
        self.0.ip().is_loopback()
    }
}

impl fmt::Display for Address {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

impl FromStr for Address {
    type Err = String;

    fn from_str(typed: &str) -> Result<Self, String> {
        let wrong = || format!("{typed:?} is no address; write 127.0.0.1:9400 or 9400");
        let typed = typed.trim();
        if let Ok(address) = typed.parse() {
            return Ok(Self(address));
        }
        let (host, port) = typed.rsplit_once(':').unwrap_or(("", typed));
        if !matches!(host, "" | "localhost") {
            return Err(wrong());
        }
        let port: u16 = port.parse().map_err(|_| wrong())?;
        Ok(Self(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port)))
    }
}

/// An exporter that listens, and does not answer yet.
pub struct Exporter {
    listener: TcpListener,
    signals: Signals,
    choice: Choice,
    hosts: Hosts,
}

impl Exporter {
    /// Begins to listen. If a user is named, only their processes are exported. `anywhere`: other machines may ask, and call
    /// this one as they like.
    pub fn bind(address: Address, user: Option<String>, anywhere: bool) -> io::Result<Self> {
        let ignored = ignored();
        let heard = [SIGHUP, SIGINT, SIGTERM].into_iter().filter(|signal| ignored & (1 << (signal - 1)) == 0);
        Ok(Self {
            signals: Signals::new(heard)?,
            listener: TcpListener::bind(address.0)?,
            choice: Choice { user, ..Choice::default() },
            hosts: if anywhere { Hosts::Any } else { Hosts::Ours },
        })
    }

    /// Where others find the metrics: if port 0 was asked for, with the one that was given; where it listens at every address,
    /// by the name of the machine.
    pub fn url(&self) -> io::Result<String> {
        let here = self.listener.local_addr()?;
        let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        Ok(url(here, name.trim()))
    }

    /// Answers until a signal asks to end; says which.
    pub fn run(mut self) -> Option<i32> {
        // Whoever scrapes does not wait for long.
        let scrape = Scrape::new(Taker::hurried(), self.choice);
        let page = Arc::new(move |path: &str| scrape.page(path));
        let (listener, hosts) = (self.listener, self.hosts);
        std::thread::spawn(move || serve(&listener, hosts, &page));
        self.signals.forever().next()
    }
}

fn url(here: SocketAddr, machine: &str) -> String {
    if here.ip().is_unspecified() && !machine.is_empty() {
        format!("http://{}:{}/metrics", harmless(machine), here.port())
    } else {
        format!("http://{here}/metrics")
    }
}

/// The signals that this process ignores: with nohup it is to live on when the terminal is closed.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

/// Takes a sample when one is asked for, and keeps it for a second.
struct Scrape(Mutex<Kept>);

struct Kept {
    taker: Taker,
    choice: Choice,
    text: String,
    taken: Option<Instant>,
}

impl Scrape {
    fn new(taker: Taker, choice: Choice) -> Self {
        Self(Mutex::new(Kept { taker, choice, text: String::new(), taken: None }))
    }

    fn page(&self, path: &str) -> Answer {
        match path {
            "/metrics" => Answer { status: "200 OK", content_type: CONTENT_TYPE, body: self.text() },
            "/" => Answer::text("200 OK", "oomph top: metrics of GPUs and RAM are at /metrics\n"),
            _ => Answer::text("404 Not Found", "metrics are at /metrics\n"),
        }
    }

    fn text(&self) -> String {
        // A thread that panicked has left a sampler that can be used, and at worst an old text.
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.taken.is_none_or(|taken| taken.elapsed() >= AT_MOST_EVERY) {
            let taken = kept.taker.take();
            kept.text = text(taken, &kept.choice);
            kept.taken = Some(Instant::now());
        }
        kept.text.clone()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpStream;

    #[test]
    fn a_port_alone_is_loopbacks() {
        for (typed, address) in [
            ("9400", "127.0.0.1:9400"),
            (":9400", "127.0.0.1:9400"),
            ("localhost:0", "127.0.0.1:0"),
            ("0.0.0.0:9400", "0.0.0.0:9400"),
            ("[::1]:9400", "[::1]:9400"),
        ] {
            assert_eq!(typed.parse::<Address>().unwrap().to_string(), address);
        }
        for typed in ["", "x", "99999", "example.com:80", "127.0.0.1", "::1:9400:"] {
            assert!(typed.parse::<Address>().is_err(), "{typed}");
        }
        assert!("9400".parse::<Address>().unwrap().is_loopback());
        assert!(!"0.0.0.0:1".parse::<Address>().unwrap().is_loopback());
    }

    fn started(hosts: Hosts) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let scrape = Scrape::new(Taker::new(), Choice::default());
        let page = Arc::new(move |path: &str| scrape.page(path));
        std::thread::spawn(move || serve(&listener, hosts, &page));
        address
    }

    fn asked(address: SocketAddr, request: &str) -> String {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    #[test]
    fn requests_are_answered_and_others_refused() {
        let address = started(Hosts::Ours);
        let of =
            |path: &str, host: &str| asked(address, &format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n"));
        assert!(
            of("/metrics", "localhost:9400")
                .starts_with("HTTP/1.1 200 OK\r\nContent-Type: application/openmetrics-text")
        );
        assert!(of("/metrics?x=1", "127.0.0.1").contains("oomph_sample_time_seconds"));
        assert!(of("/", "[::1]:80").ends_with("at /metrics\n"));
        assert!(of("/other", "localhost").starts_with("HTTP/1.1 404 "));
        for host in ["evil.example:9400", "127.0.0.1.evil.example", "192.168.1.7", ""] {
            assert!(of("/metrics", host).starts_with("HTTP/1.1 403 "), "{host}");
        }
        let two = "GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n";
        assert!(asked(address, two).starts_with("HTTP/1.1 403 "));
        assert!(
            asked(address, "POST /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").starts_with("HTTP/1.1 405 ")
        );
        assert!(asked(address, "\u{1}\u{2}\r\n\r\n").starts_with("HTTP/1.1 400 "));
    }

    #[test]
    fn where_anybody_may_ask_any_name_will_do() {
        let address = started(Hosts::Any);
        for host in ["gpu-box.example:9400", "192.168.1.7", "localhost"] {
            let request = format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n");
            assert!(asked(address, &request).starts_with("HTTP/1.1 200 "), "{host}");
        }
        let url = |here: &str, name| url(here.parse().unwrap(), name);
        assert_eq!(url("0.0.0.0:9400", "box"), "http://box:9400/metrics");
        assert_eq!(url("[::]:9400", "box"), "http://box:9400/metrics");
        assert_eq!(url("0.0.0.0:9400", ""), "http://0.0.0.0:9400/metrics");
        assert_eq!(url("192.168.1.7:80", "box"), "http://192.168.1.7:80/metrics");
    }

    #[test]
    fn slow_and_greedy_clients_leave_others_alone() {
        let address = started(Hosts::Ours);
        // They say nothing or half of it, and stay: more of them than are served at a time.
        let idle: Vec<TcpStream> = (0..40).map(|_| TcpStream::connect(address).unwrap()).collect();
        for mut half in idle.iter().step_by(2) {
            // Those that were dropped for others get an error.
            let _ = half.write_all(b"GET / HTTP/1.1\r\nX: ");
        }
        assert!(asked(address, "GET / HTTP/1.0\r\n\r\n").starts_with("HTTP/1.1 200 "));
        // It never ends its request: it gets an error, or is cut off.
        let mut greedy = TcpStream::connect(address).unwrap();
        let header = format!("X: {}\r\n", "x".repeat(1000));
        let _ = greedy.write_all(b"GET / HTTP/1.1\r\n");
        for _ in 0..100 {
            if greedy.write_all(header.as_bytes()).is_err() {
                break;
            }
        }
        let mut answer = Vec::new();
        let _ = greedy.read_to_end(&mut answer);
        assert!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 431 "));
        assert!(asked(address, "GET / HTTP/1.0\r\n\r\n").starts_with("HTTP/1.1 200 "));
        drop(idle);
    }

    #[test]
    fn a_sample_is_taken_once_a_second_at_most() {
        let scrape = Scrape::new(Taker::new(), Choice::default());
        let first = scrape.text();
        let began = Instant::now();
        while began.elapsed() < Duration::from_millis(100) {
            assert_eq!(scrape.text(), first);
        }
    }
}
