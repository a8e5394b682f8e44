//! Object storage and web servers, by range.
//!
//! Requests are retried by `object_store`, and whoever waits is told ([`super::telling`]); a body that breaks off or stalls is asked for again from the byte where it
//! stopped. Every answer is held against the size and the version of the first one (its ETag, or else the time of its
//! last change): bytes of two versions are never mixed.
//!
//! One thread of this process drives the network ([`Driver`]); whoever reads waits in their own thread.

use super::location::{scheme, scrubbed, shown};
use super::telling::{Answers, Telling};
use super::{ReadAt, Source};
use crate::DataError;
use futures_util::StreamExt;
use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::http::HttpBuilder;
use object_store::path::Path;
use object_store::{
    BackoffConfig, ClientOptions, Error, GetOptions, GetRange, GetResult, ObjectMeta, ObjectStore,
    ObjectStoreExt, RetryConfig,
};
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::runtime::Handle;

/// How often one read is taken up again without a single byte coming between.
const ATTEMPTS: u32 = 8;
/// The first wait before that; each is twice the one before.
const FIRST_WAIT: Duration = Duration::from_millis(100);
/// How long a body may stand still at the first attempt; twice as long at each further one, so that a slow server is not given up.
const FIRST_PATIENCE: Duration = Duration::from_secs(5);
const LONGEST_PATIENCE: Duration = Duration::from_secs(60);
/// A server without ranges is read whole if that is no more than this.
const WHOLE: u64 = 64 << 20;

/// How requests are tried again: soon at first, then every second, for as long as a short outage lasts.
fn retries() -> RetryConfig {
    let backoff = BackoffConfig { init_backoff: FIRST_WAIT, max_backoff: Duration::from_secs(1), base: 2.0 };
    RetryConfig { backoff, max_retries: 120, retry_timeout: Duration::from_secs(120) }
}

struct Object {
    location: String,
    store: Arc<dyn ObjectStore>,
    path: Path,
    answers: Arc<Answers>,
    /// As the first answer said.
    meta: ObjectMeta,
    handle: Handle,
    process: u32,
}

pub(super) fn open(location: &str) -> Result<Source, DataError> {
    open_with(location, retries())
}

fn open_with(location: &str, retries: RetryConfig) -> Result<Source, DataError> {
    let shown = shown(location);
    let answers = Answers::new(&shown, where_credentials_go(location));
    // First: it settles the cryptography that a store asks for.
    let handle = driver()?;
    let (store, path) = store(location, &answers, retries)?;
    let first = if location.starts_with("http") {
        handle.block_on(first_answer(&*store, &path, &answers))
    } else {
        handle.block_on(store.head(&path)).map(First::Meta)
    };
    let meta = match first.map_err(|error| refused(&shown, &answers, &error))? {
        First::Meta(meta) => meta,
        First::Whole(bytes) => return Ok(super::memory(&shown, bytes)),
        First::NoRanges(size) => {
            return Err(DataError::unreadable(
                &shown,
                format!(
                    "the server gives no ranges of its {size} bytes, so they cannot be read in parts; download it first"
                ),
            ));
        }
    };
    Ok(Arc::new(Object { location: shown, store, path, answers, meta, handle, process: std::process::id() }))
}

/// The objects that a pattern or prefix names, in order of their bytes.
pub(super) fn matching(location: &str) -> Result<Vec<String>, DataError> {
    let shown = shown(location);
    let (name, rest) = scheme(location).unwrap_or_default();
    let (bucket, key) = rest.split_once('/').unwrap_or((rest, ""));
    let pattern = super::pattern::Pattern::new(key);
    let handle = driver()?;
    let answers = Answers::new(&shown, where_credentials_go(location));
    let (store, _) = store(&format!("{name}://{bucket}/"), &answers, retries())?;
    let prefix = Path::parse(pattern.prefix.trim_end_matches('/'))
        .map_err(|error| DataError::unreadable(&shown, error.to_string()))?;
    let listed: Result<Vec<ObjectMeta>, Error> = handle.block_on(async {
        let mut list = store.list(Some(&prefix));
        let mut found = Vec::new();
        while let Some(meta) = list.next().await {
            found.push(meta?);
        }
        Ok(found)
    });
    let mut found: Vec<String> = listed
        .map_err(|error| refused(&shown, &answers, &error))?
        .into_iter()
        .filter(|meta| pattern.matches(meta.location.as_ref()))
        .map(|meta| format!("{name}://{bucket}/{}", meta.location))
        .collect();
    found.sort_unstable();
    Ok(found)
}

/// The store that an address is in, as the environment configures it, and the path inside.
fn store(
    location: &str,
    answers: &Arc<Answers>,
    retries: RetryConfig,
) -> Result<(Arc<dyn ObjectStore>, Path), DataError> {
    let shown = shown(location);
    let telling = Telling(Arc::clone(answers));
    let wrong = |error: &dyn std::fmt::Display| DataError::unreadable(&shown, scrubbed(&error.to_string()));
    let (name, rest) = scheme(location).unwrap_or_default();
    let (authority, key) = rest.split_once('/').unwrap_or((rest, ""));
    if name == "http" || name == "https" {
        // The query (a signature, often) stays with every request.
        let (key, query) = key.split_at(key.find(['?', '#']).unwrap_or(key.len()));
        let options = ClientOptions::new().with_allow_http(true);
        let builder = HttpBuilder::new()
            .with_url(format!("{name}://{authority}/{query}"))
            .with_client_options(options)
            .with_http_connector(telling)
            .with_retry(retries);
        let path = Path::from_url_path(key).map_err(|error| wrong(&error))?;
        return Ok((Arc::new(builder.build().map_err(|error| wrong(&error))?), path));
    }
    // A key is taken as it is written, as the clouds' own tools take it.
    let path = Path::parse(key).map_err(|error| wrong(&error))?;
    let base = format!("{name}://{authority}");
    let store: Result<Arc<dyn ObjectStore>, Error> = match name {
        "s3" | "s3a" => AmazonS3Builder::from_env()
            .with_http_connector(telling)
            .with_retry(retries)
            .with_url(base)
            .build()
            .map(|store| Arc::new(store) as _),
        "gs" => GoogleCloudStorageBuilder::from_env()
            .with_http_connector(telling)
            .with_retry(retries)
            .with_url(base)
            .build()
            .map(|store| Arc::new(store) as _),
        _ => MicrosoftAzureBuilder::from_env()
            .with_http_connector(telling)
            .with_retry(retries)
            .with_url(base)
            .build()
            .map(|store| Arc::new(store) as _),
    };
    Ok((store.map_err(|error| wrong(&error))?, path))
}

enum First {
    Meta(ObjectMeta),
    /// A small file of a server without ranges.
    Whole(Vec<u8>),
    /// A large one, of so many bytes.
    NoRanges(u64),
}

/// How large it is, asked with a range: addresses that are signed for GET answer no HEAD, and it shows whether ranges are given at all.
async fn first_answer(store: &dyn ObjectStore, path: &Path, answers: &Answers) -> Result<First, Error> {
    let one_byte = GetOptions { range: Some(GetRange::Bounded(0..1)), ..GetOptions::default() };
    match store.get_opts(path, one_byte).await {
        Ok(answer) => Ok(First::Meta(answer.meta)),
        Err(
            error @ (Error::NotFound { .. } | Error::PermissionDenied { .. } | Error::Unauthenticated { .. }),
        ) => Err(error),
        // Asked again without a range, a server that is down would be waited for twice.
        Err(error) if answers.in_words().is_some() => Err(error),
        Err(_) => {
            let answer = store.get(path).await?;
            match answer.meta.size {
                size if size <= WHOLE => Ok(First::Whole(answer.bytes().await?.to_vec())),
                size => Ok(First::NoRanges(size)),
            }
        }
    }
}

impl ReadAt for Object {
    fn location(&self) -> &str {
        &self.location
    }

    fn size(&self) -> u64 {
        self.meta.size
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<(), DataError> {
        if offset.checked_add(into.len() as u64).is_none_or(|end| end > self.meta.size) {
            return Err(super::ends_early(self, offset, into.len() as u64));
        }
        // The thread that drives the network is not in a forked child.
        if std::process::id() != self.process {
            return Err(DataError::unreadable(
                &self.location,
                "was opened in another process; open it after the fork",
            ));
        }
        if into.is_empty() {
            return Ok(());
        }
        self.handle.block_on(self.fill(offset, into))
    }

    fn version(&self) -> String {
        self.meta.e_tag.clone().unwrap_or_else(|| self.meta.last_modified.to_string())
    }

    fn remote(&self) -> bool {
        true
    }
}

impl Object {
    /// Reads on where the last answer stopped until `into` is full.
    async fn fill(&self, offset: u64, into: &mut [u8]) -> Result<(), DataError> {
        let mut filled = 0;
        let mut attempt = 0;
        loop {
            let before = filled;
            let range = offset + filled as u64..offset + into.len() as u64;
            let patience = (FIRST_PATIENCE * 2u32.pow(attempt.min(8))).min(LONGEST_PATIENCE);
            let broken = match self.get(range).await {
                Ok(answer) => match receive(answer, into, &mut filled, patience).await {
                    Ok(()) => return Ok(()),
                    Err(broken) => broken,
                },
                Err(Get::Changed) => {
                    return Err(DataError::unreadable(
                        &self.location,
                        "has changed while it was read; read it again from the start",
                    ));
                }
                // object_store has tried it again already.
                Err(Get::Refused(error)) => return Err(refused(&self.location, &self.answers, &error)),
            };
            attempt = if filled > before { 0 } else { attempt + 1 };
            if attempt == ATTEMPTS {
                let error = io::Error::new(
                    io::ErrorKind::ConnectionAborted,
                    format!(
                        "the answer broke off {ATTEMPTS} times in a row at byte {}: {broken}",
                        offset + filled as u64
                    ),
                );
                return Err(DataError::io(&self.location, error));
            }
            self.answers.failed(&format!("breaks its answer off ({broken})"));
            tokio::time::sleep(FIRST_WAIT * 2u32.pow(attempt)).await;
        }
    }

    async fn get(&self, range: Range<u64>) -> Result<GetResult, Get> {
        // A weak ETag never matches (RFC 9110); it is compared below.
        let if_match = self.meta.e_tag.clone().filter(|etag| !etag.starts_with("W/"));
        let options = GetOptions { range: Some(GetRange::Bounded(range)), if_match, ..GetOptions::default() };
        let answer = match self.store.get_opts(&self.path, options).await {
            Ok(answer) => answer,
            Err(Error::Precondition { .. }) => return Err(Get::Changed),
            Err(error) => return Err(Get::Refused(error)),
        };
        if same_version(&answer.meta, &self.meta) { Ok(answer) } else { Err(Get::Changed) }
    }
}

/// A server that says neither ETag nor time gives the same time always: then only the size shows a change.
fn same_version(one: &ObjectMeta, other: &ObjectMeta) -> bool {
    let same = match (&one.e_tag, &other.e_tag) {
        (Some(one), Some(other)) => one == other,
        _ => one.last_modified == other.last_modified,
    };
    same && one.size == other.size
}

enum Get {
    Changed,
    Refused(Error),
}

/// Copies the body as it arrives; `filled` counts on, also when it breaks off.
async fn receive(
    answer: GetResult,
    into: &mut [u8],
    filled: &mut usize,
    patience: Duration,
) -> Result<(), String> {
    let mut body = answer.into_stream();
    while *filled < into.len() {
        let chunk = match tokio::time::timeout(patience, body.next()).await {
            Ok(Some(Ok(chunk))) => chunk,
            Ok(Some(Err(error))) => return Err(scrubbed(&error.to_string())),
            Ok(None) => return Err("it ended early".to_owned()),
            Err(_) => return Err(format!("nothing came for {} seconds", patience.as_secs())),
        };
        let count = chunk.len().min(into.len() - *filled);
        into[*filled..*filled + count].copy_from_slice(&chunk[..count]);
        *filled += count;
    }
    Ok(())
}

/// What to set where nobody gives credentials for a store.
fn where_credentials_go(location: &str) -> &'static str {
    match scheme(location).unwrap_or_default().0 {
        "http" | "https" => "",
        "s3" | "s3a" => {
            "; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_SKIP_SIGNATURE=true for a public bucket"
        }
        "gs" => "; set GOOGLE_APPLICATION_CREDENTIALS, or GOOGLE_SKIP_SIGNATURE=true for a public bucket",
        _ => "; set AZURE_STORAGE_ACCOUNT_KEY, or AZURE_SKIP_SIGNATURE=true for a public container",
    }
}

/// A refusal, in words that say what to look at.
fn refused(location: &str, answers: &Answers, error: &Error) -> DataError {
    let (kind, what) = match error {
        Error::NotFound { .. } => (io::ErrorKind::NotFound, "there is no such object".to_owned()),
        Error::PermissionDenied { .. } | Error::Unauthenticated { .. } => (
            io::ErrorKind::PermissionDenied,
            "the store refuses: look at the credentials in the environment (AWS_ACCESS_KEY_ID, GOOGLE_APPLICATION_CREDENTIALS, AZURE_STORAGE_ACCOUNT_KEY; AWS_SKIP_SIGNATURE=true for public buckets)".to_owned(),
        ),
        error => (io::ErrorKind::Other, answers.in_words().unwrap_or_else(|| scrubbed(&error.to_string()))),
    };
    DataError::io(location, io::Error::new(kind, what))
}

/// The thread that drives the network, and the process that it is in.
struct Driver {
    process: u32,
    handle: Handle,
}

/// The handle of this process's driver; started when first needed, and again in a forked child, which has no threads.
fn driver() -> Result<Handle, DataError> {
    static DRIVER: Mutex<Option<Driver>> = Mutex::new(None);
    let mut driver = DRIVER.lock().unwrap_or_else(PoisonError::into_inner);
    let process = std::process::id();
    if let Some(driver) = &*driver
        && driver.process == process
    {
        return Ok(driver.handle.clone());
    }
    let failed = |error| DataError::io("the thread that reads from the network", error);
    // An error means that the program has chosen a provider already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    let handle = runtime.handle().clone();
    std::thread::Builder::new()
        .name("oomph-network".to_owned())
        .spawn(move || runtime.block_on(std::future::pending::<()>()))
        .map_err(failed)?;
    *driver = Some(Driver { process, handle: handle.clone() });
    Ok(handle)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};

    /// A server that answers 503 to everything, on a port of this machine; it ends with the test.
    fn unavailable() -> u16 {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let _ = stream.read(&mut [0; 4096]);
                let _ = stream.write_all(
                    b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
                );
            }
        });
        port
    }

    #[test]
    fn a_server_that_is_down_is_named_with_how_often_it_was_asked() {
        static TOLD: Mutex<Vec<String>> = Mutex::new(Vec::new());
        super::super::on_waiting(|words| TOLD.lock().unwrap().push(words.to_owned()));
        let location = format!("http://127.0.0.1:{}/a.csv?signature=secret", unavailable());
        let retries = RetryConfig { max_retries: 3, ..retries() };
        let error = open_with(&location, retries).err().unwrap().to_string();
        let place = shown(&location);
        // Once by itself, three times again, and not as often once more without a range.
        assert!(
            error.starts_with(&format!(
                "{place}: the server answers 503 Service Unavailable: tried 4 times in "
            )),
            "{error}"
        );
        let said = format!("{place}: the server answers 503 Service Unavailable; trying again");
        let told = TOLD.lock().unwrap();
        assert_eq!(told.iter().filter(|words| words.starts_with(&place)).collect::<Vec<_>>(), [&said]);
    }

    /// What is said of a store that cannot be asked, whose builder is set up by `more`.
    fn said_of(more: impl FnOnce(AmazonS3Builder) -> AmazonS3Builder) -> String {
        let location = "s3://bucket/x.csv";
        let answers = Answers::new(location, where_credentials_go(location));
        let handle = driver().unwrap();
        let store = more(AmazonS3Builder::new().with_bucket_name("bucket"))
            .with_http_connector(Telling(Arc::clone(&answers)))
            .with_retry(RetryConfig { max_retries: 1, ..retries() })
            .build()
            .unwrap();
        let error = handle.block_on(store.head(&Path::from("x.csv"))).unwrap_err();
        refused(location, &answers, &error).to_string()
    }

    #[test]
    fn a_server_for_credentials_is_not_taken_for_the_store() {
        let server = format!("http://127.0.0.1:{}", unavailable());
        assert_eq!(
            said_of(|store| store.with_metadata_endpoint(server)),
            "s3://bucket/x.csv: no credentials were found, and 127.0.0.1, which is asked for them then, answers 503 Service Unavailable: \
             tried 2 times in 0 s; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_SKIP_SIGNATURE=true for a public bucket"
        );
    }

    #[test]
    fn a_store_is_named_by_its_host() {
        let server = format!("http://127.0.0.1:{}", unavailable());
        let said = said_of(|store| {
            store
                .with_endpoint(server)
                .with_allow_http(true)
                .with_access_key_id("key")
                .with_secret_access_key("secret")
        });
        assert_eq!(
            said,
            "s3://bucket/x.csv: the server 127.0.0.1 answers 503 Service Unavailable: tried 2 times in 0 s"
        );
    }
}
