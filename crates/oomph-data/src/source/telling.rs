//! What is said to whoever waits for a server that does not answer as it should.
//!
//! Boundary: nothing is printed here. The command and the extension module say where words go ([`on_waiting`]); without that
//! they go nowhere.

use std::sync::OnceLock;

type Tell = dyn Fn(&str) + Send + Sync;

static TELL: OnceLock<Box<Tell>> = OnceLock::new();

/// Sets what is called, from any thread, with a sentence about what is waited for; once.
pub fn on_waiting(tell: impl Fn(&str) + Send + Sync + 'static) {
    // Whoever was first stays.
    let _ = TELL.set(Box::new(tell));
}

#[cfg(feature = "cloud")]
pub(super) use of_servers::{Answers, Telling};

#[cfg(feature = "cloud")]
mod of_servers {
    use super::super::location::scrubbed;
    use object_store::ClientOptions;
    use object_store::client::{
        HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpService,
        ReqwestConnector,
    };
    use std::future::Future;
    use std::pin::Pin;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
    use std::time::{Duration, Instant};

    /// What is told about one location again comes no sooner.
    const QUIET: Duration = Duration::from_secs(10);

    /// How a server answers for one location.
    #[derive(Debug)]
    pub(in super::super) struct Answers {
        /// As messages may show it.
        location: String,
        /// What gives credentials, where a server that is asked for them has none; empty where none are asked for.
        credentials: &'static str,
        /// How many clients were made: the store makes its own last, after those that get its credentials.
        clients: AtomicUsize,
        failures: Mutex<Failures>,
    }

    /// Those since the last answer that was one.
    #[derive(Debug, Default)]
    struct Failures {
        count: u32,
        began: Option<Instant>,
        /// "the server answers 503 Service Unavailable"
        last: String,
        /// Whether that was a server for credentials.
        for_credentials: bool,
        told: Option<Instant>,
    }

    impl Answers {
        pub(in super::super) fn new(location: &str, credentials: &'static str) -> Arc<Self> {
            Arc::new(Self {
                location: location.to_owned(),
                credentials,
                clients: AtomicUsize::new(0),
                failures: Mutex::default(),
            })
        }

        fn failures(&self) -> MutexGuard<'_, Failures> {
            self.failures.lock().unwrap_or_else(PoisonError::into_inner)
        }

        fn came(&self) {
            self.failures().count = 0;
        }

        /// The server does `what` instead of answering, and will be asked again.
        pub(in super::super) fn failed(&self, what: &str) {
            self.failed_at(format!("the server {what}"), false);
        }

        fn failed_at(&self, what: String, for_credentials: bool) {
            let now = Instant::now();
            let mut failures = self.failures();
            failures.count += 1;
            if failures.count == 1 {
                failures.began = Some(now);
            }
            (failures.last, failures.for_credentials) = (what, for_credentials);
            let is_news = failures.told.is_none_or(|told| now.duration_since(told) >= QUIET);
            let words = is_news.then(|| {
                failures.told = Some(now);
                let so_far = match failures.count {
                    1 => String::new(),
                    count => format!(" (tried {count} times)"),
                };
                let advice = self.advice(for_credentials);
                format!("{}: {}; trying again{so_far}{advice}", self.location, failures.last)
            });
            // Whoever is told may take their time.
            drop(failures);
            if let (Some(words), Some(tell)) = (words, super::TELL.get()) {
                tell(&words);
            }
        }

        fn advice(&self, for_credentials: bool) -> &'static str {
            if for_credentials { self.credentials } else { "" }
        }

        /// What the server did instead of answering, how often and for how long; none if it answered last.
        pub(in super::super) fn in_words(&self) -> Option<String> {
            let failures = self.failures();
            let began = failures.began.filter(|_| failures.count > 0)?;
            let advice = self.advice(failures.for_credentials);
            Some(format!(
                "{}: tried {} in {} s{advice}",
                failures.last,
                if failures.count == 1 { "once".to_owned() } else { format!("{} times", failures.count) },
                began.elapsed().as_secs()
            ))
        }
    }

    /// Makes clients whose every answer is looked at on its way.
    #[derive(Debug, Clone)]
    pub(in super::super) struct Telling(pub(in super::super) Arc<Answers>);

    impl HttpConnector for Telling {
        fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
            let client = ReqwestConnector::default().connect(options)?;
            let number = self.0.clients.fetch_add(1, Ordering::Relaxed) + 1;
            Ok(HttpClient::new(Watched { client, number, answers: Arc::clone(&self.0) }))
        }
    }

    #[derive(Debug)]
    struct Watched {
        client: HttpClient,
        /// Of all that were made, from 1.
        number: usize,
        answers: Arc<Answers>,
    }

    impl Watched {
        /// The server of this address does `what` instead of answering.
        fn failed(&self, host: &str, what: &str) {
            let for_credentials = self.number < self.answers.clients.load(Ordering::Relaxed);
            let words = if for_credentials {
                format!("no credentials were found, and {host}, which is asked for them then, {what}")
            } else if self.answers.location.contains(host) {
                format!("the server {what}")
            } else {
                format!("the server {host} {what}")
            };
            self.answers.failed_at(words, for_credentials);
        }
    }

    type Answer<'a> = Pin<Box<dyn Future<Output = Result<HttpResponse, HttpError>> + Send + 'a>>;

    impl HttpService for Watched {
        fn call<'a, 'b>(&'a self, request: HttpRequest) -> Answer<'b>
        where
            'a: 'b,
            Self: 'b,
        {
            Box::pin(async move {
                use HttpErrorKind::{Connect, Interrupted, Request, Timeout};
                let host = request.uri().host().unwrap_or_default().to_owned();
                let answer = self.client.execute(request).await;
                // What object_store tries again.
                match &answer {
                    Ok(response) if response.status().is_server_error() => {
                        self.failed(&host, &format!("answers {}", response.status()));
                    }
                    Ok(response) if matches!(response.status().as_u16(), 408 | 429) => {
                        self.failed(&host, &format!("answers {}", response.status()));
                    }
                    Ok(_) => self.answers.came(),
                    Err(error) if matches!(error.kind(), Connect | Request | Timeout | Interrupted) => {
                        self.failed(&host, &format!("does not answer ({})", scrubbed(&error.to_string())));
                    }
                    Err(_) => {}
                }
                answer
            })
        }
    }
}
