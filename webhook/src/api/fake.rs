//! An API server for tests: it gives recorded answers and keeps the requests.

use std::convert::Infallible;
use std::future::ready;
use std::sync::{Arc, Mutex};

use hyper::header::{ACCEPT, WARNING};
use hyper::{Request, Response};
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};

/// What the server answers to requests that begin with a method and a path, and have a parameter.
pub(crate) struct Answer {
    request: String,
    parameter: &'static str,
    code: u16,
    body: String,
    warning: Option<&'static str>,
}

impl Answer {
    #[expect(clippy::needless_pass_by_value, reason = "callers build it in place")]
    pub(crate) fn ok(request: &str, body: Value) -> Self {
        Self { request: request.to_owned(), parameter: "", code: 200, body: body.to_string(), warning: None }
    }

    /// A list of objects.
    pub(crate) fn list(request: &str, items: &[Value]) -> Self {
        Self::ok(request, json!({"metadata": {}, "items": items}))
    }

    pub(crate) fn failure(request: &str, code: u16, message: &str) -> Self {
        let reason = if code == 404 { "NotFound" } else { "" };
        let body = json!({"kind": "Status", "status": "Failure", "code": code, "message": message, "reason": reason});
        Self { code, ..Self::ok(request, body) }
    }

    /// What the API server answers where it does not have the kind: plain text, not a Status.
    pub(crate) fn not_served(request: &str) -> Self {
        let body = "404 page not found\n".to_owned();
        Self { code: 404, body, ..Self::ok(request, Value::Null) }
    }

    pub(crate) fn forbidden(request: &str, message: &str) -> Self {
        Self::failure(request, 403, message)
    }

    /// The same answer, only to requests with this parameter.
    pub(crate) fn to(self, parameter: &'static str) -> Self {
        Self { parameter, ..self }
    }

    /// The same answer with another body.
    #[expect(clippy::needless_pass_by_value, reason = "callers build it in place")]
    pub(crate) fn with_body(self, body: Value) -> Self {
        Self { body: body.to_string(), ..self }
    }

    pub(crate) fn warning(self, warning: &'static str) -> Self {
        Self { warning: Some(warning), ..self }
    }
}

/// The requests that the server has got.
#[derive(Clone, Default)]
pub(crate) struct Requests(Arc<Mutex<Vec<(String, String)>>>);

impl Requests {
    /// Method and path of each.
    pub(crate) fn all(&self) -> Vec<String> {
        self.0.lock().unwrap().iter().map(|(line, _)| line.clone()).collect()
    }

    /// Method and path of each that writes, without its parameters.
    pub(crate) fn writes(&self) -> Vec<String> {
        let path = |line: String| line.split('?').next().unwrap_or_default().to_owned();
        self.all().into_iter().filter(|line| !line.starts_with("GET")).map(path).collect()
    }

    /// What each accepts.
    pub(crate) fn accepted(&self) -> Vec<String> {
        self.0.lock().unwrap().iter().map(|(_, accept)| accept.clone()).collect()
    }
}

/// A client of a server with these answers. The first that fits is given; without one, the object is not found.
pub(crate) fn client(answers: impl IntoIterator<Item = Answer>) -> (Client, Requests) {
    let answers: Vec<Answer> = answers.into_iter().collect();
    let requests = Requests::default();
    let seen = requests.clone();
    let service = tower::service_fn(move |request: Request<Body>| {
        let path = request.uri().path_and_query().map_or("", |path| path.as_str());
        let line = format!("{} {path}", request.method());
        let accept = request.headers().get(ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
        seen.0.lock().unwrap().push((line.clone(), accept.to_owned()));
        let answer = answers.iter().find(|answer| line.starts_with(&answer.request) && line.contains(answer.parameter));
        ready(Ok::<_, Infallible>(answer.map_or_else(not_found, respond)))
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

fn not_found() -> Response<Body> {
    respond(&Answer::failure("", 404, "not found"))
}
