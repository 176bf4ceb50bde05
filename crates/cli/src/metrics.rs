//! The counters of a server in Prometheus' text format, over HTTP.

use std::convert::Infallible;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::Context;
use homing::pages::PageCache;
use homing::{Durable, Runtime};
use homing_server::ServerAttributes;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle, PrometheusRecorder};
use tokio::sync::{Notify, Semaphore};

/// Where they are.
const PATH: &str = "/metrics";
/// What the format is called.
const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Connections at one time; others wait.
pub(crate) const CONNECTIONS_MAX: usize = 256;
/// How long one may last, for one request and its answer.
const CONNECTION_LASTS: Duration = Duration::from_secs(10);
/// How long accepting pauses when the process is out of files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Whose counters they are.
pub(crate) struct Sources {
    pub(crate) runtime: Arc<Runtime>,
    pub(crate) durable: Durable,
    pub(crate) server: ServerAttributes,
    pub(crate) cache: Option<PageCache>,
}

impl Sources {
    fn record(&self) {
        self.runtime.record_metrics();
        self.durable.record_metrics("server");
        self.server.record_metrics();
        if let Some(cache) = &self.cache {
            cache.record_metrics("server");
        }
    }
}

/// Answers those who ask, until it is dropped.
pub(crate) struct Metrics {
    url: String,
    stop: Arc<Notify>,
    thread: Option<JoinHandle<()>>,
}

impl Metrics {
    /// Whether [`Metrics::serve`] could listen there.
    pub(crate) fn check(address: SocketAddr) -> anyhow::Result<()> {
        listen(address).map(drop)
    }

    pub(crate) fn serve(address: SocketAddr, sources: Sources) -> anyhow::Result<Self> {
        let listener = listen(address)?;
        let address = listener.local_addr().context("cannot tell where the metrics are")?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.context("cannot serve metrics")?;
        let recorder = PrometheusBuilder::new().build_recorder();
        let text = recorder.handle();
        let exporter = Arc::new(Exporter { sources, recorder, text });
        let stop = Arc::new(Notify::new());
        let stopped = Arc::clone(&stop);
        let serve = move || {
            let accepting = accept(listener, exporter);
            runtime.block_on(futures_lite::future::or(stopped.notified(), accepting));
        };
        let named = thread::Builder::new().name("metrics".to_owned());
        let thread = named.spawn(serve).context("cannot start a thread for metrics")?;
        Ok(Self { url: format!("http://{address}{PATH}"), stop, thread: Some(thread) })
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }
}

impl Drop for Metrics {
    fn drop(&mut self) {
        self.stop.notify_one();
        // It holds what has to end in its turn: the runtime and the cache.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn listen(address: SocketAddr) -> anyhow::Result<TcpListener> {
    let listener = || {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        Ok::<_, io::Error>(listener)
    };
    listener().with_context(|| format!("cannot offer metrics on {address}"))
}

struct Exporter {
    sources: Sources,
    recorder: PrometheusRecorder,
    text: PrometheusHandle,
}

impl Exporter {
    fn answer(&self, request: &Request<Incoming>) -> Response<Full<Bytes>> {
        let told = |status, text: String| {
            let mut response = Response::new(Full::from(text));
            *response.status_mut() = status;
            response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(TEXT));
            response
        };
        if request.uri().path() != PATH {
            return told(StatusCode::NOT_FOUND, format!("the metrics are at {PATH}\n"));
        }
        if request.method() != Method::GET && request.method() != Method::HEAD {
            let mut response =
                told(StatusCode::METHOD_NOT_ALLOWED, "the metrics can only be read\n".to_owned());
            response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
            return response;
        }
        metrics::with_local_recorder(&self.recorder, || self.sources.record());
        told(StatusCode::OK, self.text.render())
    }
}

async fn accept(listener: TcpListener, exporter: Arc<Exporter>) {
    let listener = match tokio::net::TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => return tracing::error!(%error, "there are no metrics"),
    };
    let tasks = tokio::task::LocalSet::new();
    let free = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let accepting = async {
        let mut failed = false;
        loop {
            let permit = Arc::clone(&free).acquire_owned().await;
            match listener.accept().await {
                Ok((stream, _)) => {
                    failed = false;
                    let exporter = Arc::clone(&exporter);
                    tasks.spawn_local(async move {
                        let answered = answer_all(stream, &exporter);
                        // Whoever stops within a request, or does not read, is hung up on.
                        let _ = tokio::time::timeout(CONNECTION_LASTS, answered).await;
                        drop(permit);
                    });
                }
                Err(error) => {
                    // Out of descriptors, perhaps for long.
                    if !std::mem::replace(&mut failed, true) {
                        tracing::warn!(%error, "nobody can ask for metrics");
                    }
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    };
    tasks.run_until(accepting).await;
}

async fn answer_all(stream: tokio::net::TcpStream, exporter: &Exporter) {
    let answer = |request| {
        let response = exporter.answer(&request);
        async { Ok::<_, Infallible>(response) }
    };
    let served = hyper::server::conn::http1::Builder::new()
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service_fn(answer));
    if let Err(error) = served.await {
        tracing::debug!(%error, "a request for metrics ended");
    }
}
