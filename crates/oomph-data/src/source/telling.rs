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
    use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
    use std::time::{Duration, Instant};

    /// What is told about one location again comes no sooner.
    const QUIET: Duration = Duration::from_secs(10);

    /// How a server answers for one location.
    #[derive(Debug)]
    pub(in super::super) struct Answers {
        /// As messages may show it.
        location: String,
        failures: Mutex<Failures>,
    }

    /// Those since the last answer that was one.
    #[derive(Debug, Default)]
    struct Failures {
        count: u32,
        began: Option<Instant>,
        /// "answers 503 Service Unavailable"
        last: String,
        told: Option<Instant>,
    }

    impl Answers {
        pub(in super::super) fn new(location: &str) -> Arc<Self> {
            Arc::new(Self { location: location.to_owned(), failures: Mutex::default() })
        }

        fn failures(&self) -> MutexGuard<'_, Failures> {
            self.failures.lock().unwrap_or_else(PoisonError::into_inner)
        }

        fn came(&self) {
            self.failures().count = 0;
        }

        /// The server does `what` instead of answering, and will be asked again.
        pub(in super::super) fn failed(&self, what: String) {
            let now = Instant::now();
            let mut failures = self.failures();
            failures.count += 1;
            if failures.count == 1 {
                failures.began = Some(now);
            }
            failures.last = what;
            let is_news = failures.told.is_none_or(|told| now.duration_since(told) >= QUIET);
            let words = is_news.then(|| {
                failures.told = Some(now);
                let so_far = match failures.count {
                    1 => String::new(),
                    count => format!(" (tried {count} times)"),
                };
                format!("{}: the server {}; trying again{so_far}", self.location, failures.last)
            });
            // Whoever is told may take their time.
            drop(failures);
            if let (Some(words), Some(tell)) = (words, super::TELL.get()) {
                tell(&words);
            }
        }

        /// What the server did instead of answering, how often and for how long; none if it answered last.
        pub(in super::super) fn in_words(&self) -> Option<String> {
            let failures = self.failures();
            let began = failures.began.filter(|_| failures.count > 0)?;
            Some(format!(
                "the server {}: tried {} in {} s",
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
            Ok(HttpClient::new(Watched { client, answers: Arc::clone(&self.0) }))
        }
    }

    #[derive(Debug)]
    struct Watched {
        client: HttpClient,
        answers: Arc<Answers>,
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
                let answer = self.client.execute(request).await;
                // What object_store tries again.
                match &answer {
                    Ok(response) if response.status().is_server_error() => {
                        self.answers.failed(format!("answers {}", response.status()));
                    }
                    Ok(response) if matches!(response.status().as_u16(), 408 | 429) => {
                        self.answers.failed(format!("answers {}", response.status()));
                    }
                    Ok(_) => self.answers.came(),
                    Err(error) if matches!(error.kind(), Connect | Request | Timeout | Interrupted) => {
                        self.answers.failed(format!("does not answer ({})", scrubbed(&error.to_string())));
                    }
                    Err(_) => {}
                }
                answer
            })
        }
    }
}
