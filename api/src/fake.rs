//! Serves recorded answers to tests, and keeps the requests.

#![expect(clippy::missing_panics_doc, reason = "it serves tests, which end by a panic")]

use std::convert::Infallible;
use std::future::pending;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use hyper::header::WARNING;
use hyper::{Request, Response};
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};

/// Answers requests that begin with a method and a path, and have a text.
pub struct Answer {
    request: String,
    text: &'static str,
    code: u16,
    body: String,
    warning: Option<&'static str>,
}

impl Answer {
    /// Answers with an object, with status 200.
    #[expect(clippy::needless_pass_by_value, reason = "callers build it in place")]
    #[must_use]
    pub fn ok(request: &str, body: Value) -> Self {
        Self { request: request.to_owned(), text: "", code: 200, body: body.to_string(), warning: None }
    }

    /// Answers with a list of objects.
    #[must_use]
    pub fn list(request: &str, items: &[Value]) -> Self {
        Self::ok(request, json!({"metadata": {}, "items": items}))
    }

    /// Answers with a failure of this status.
    #[must_use]
    pub fn failure(request: &str, code: u16, message: &str) -> Self {
        let reason = if code == 404 { "NotFound" } else { "" };
        let body = json!({"kind": "Status", "status": "Failure", "code": code, "message": message, "reason": reason});
        Self { code, ..Self::ok(request, body) }
    }

    /// Answers as the API server does where it does not have the kind: plain text, not a Status.
    #[must_use]
    pub fn not_served(request: &str) -> Self {
        let body = "404 page not found\n".to_owned();
        Self { code: 404, body, ..Self::ok(request, Value::Null) }
    }

    /// Answers that the caller has no right to do this.
    #[must_use]
    pub fn forbidden(request: &str, message: &str) -> Self {
        Self::failure(request, 403, message)
    }

    /// Limits the answer to requests with this text in their parameters or body.
    #[must_use]
    pub fn to(self, text: &'static str) -> Self {
        Self { text, ..self }
    }

    /// Replaces the body.
    #[must_use]
    #[expect(clippy::needless_pass_by_value, reason = "callers build it in place")]
    pub fn with_body(self, body: Value) -> Self {
        Self { body: body.to_string(), ..self }
    }

    /// Adds a header `Warning`.
    #[must_use]
    pub fn warning(self, warning: &'static str) -> Self {
        Self { warning: Some(warning), ..self }
    }
}

/// Records the requests that the server got.
#[derive(Clone, Default)]
pub struct Requests {
    lines: Arc<Mutex<Vec<String>>>,
    bodies: Arc<Mutex<Vec<String>>>,
    unanswered: Arc<AtomicUsize>,
}

impl Requests {
    /// Returns method and path of each.
    #[must_use]
    pub fn all(&self) -> Vec<String> {
        self.lines.lock().unwrap().clone()
    }

    /// Returns method and path of each that writes, without its parameters.
    #[must_use]
    pub fn writes(&self) -> Vec<String> {
        let path = |line: String| line.split('?').next().unwrap_or_default().to_owned();
        self.all().into_iter().filter(|line| !line.starts_with("GET")).map(path).collect()
    }

    /// Returns the body of each that was answered.
    #[must_use]
    pub fn bodies(&self) -> Vec<String> {
        self.bodies.lock().unwrap().clone()
    }

    /// Leaves the next `count` requests without an answer.
    pub fn never_answer(&self, count: usize) {
        self.unanswered.store(count, Ordering::Relaxed);
    }

    /// Returns method and path, and the body.
    async fn record(&self, request: Request<Body>) -> (String, String) {
        let path = request.uri().path_and_query().map_or("", |path| path.as_str());
        let line = format!("{} {path}", request.method());
        self.lines.lock().unwrap().push(line.clone());
        if self.unanswered.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |count| count.checked_sub(1)).is_ok() {
            pending::<()>().await;
        }
        let body = request.into_body().collect_bytes().await.unwrap();
        let body = String::from_utf8_lossy(&body).into_owned();
        self.bodies.lock().unwrap().push(body.clone());
        (line, body)
    }
}

/// Returns a client of a server with these answers, and its requests. The first answer that fits is given; without one, the
/// object is not found.
pub fn client(answers: impl IntoIterator<Item = Answer>) -> (Client, Requests) {
    let answers: Arc<[Answer]> = answers.into_iter().collect();
    let requests = Requests::default();
    let seen = requests.clone();
    let service = tower::service_fn(move |request: Request<Body>| {
        let (answers, seen) = (answers.clone(), seen.clone());
        async move {
            let (line, body) = seen.record(request).await;
            let has = |text| line.contains(text) || body.contains(text);
            let fits = |answer: &&Answer| line.starts_with(&answer.request) && has(answer.text);
            let missing = || respond(&Answer::failure("", 404, "not found"));
            Ok::<_, Infallible>(answers.iter().find(fits).map_or_else(missing, respond))
        }
    });
    (Client::new(service, "default"), requests)
}

fn respond(answer: &Answer) -> Response<Body> {
    let mut response = Response::builder().status(answer.code);
    if let Some(warning) = answer.warning {
        response = response.header(WARNING, warning);
    }
    response.body(Body::from(answer.body.clone().into_bytes())).unwrap()
}
