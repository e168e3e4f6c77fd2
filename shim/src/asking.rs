//! Asks the proxy to quit, again and again until it has ended, and first of all what else is to quit.

use std::time::Duration;

use contract::args::Watch;
use contract::endpoint::Endpoint;

use crate::clock::now;
use crate::log;
use crate::quit::{self, Answer};

/// Pause before a proxy that did not answer is asked again, doubled each time up to [`ASK_AGAIN_AT_MOST`].
const ASK_AGAIN_AFTER: Duration = Duration::from_secs(1);
const ASK_AGAIN_AT_MOST: Duration = Duration::from_secs(30);
/// Pause before a proxy is asked again that has said yes: it may drain.
const ENDS_WITHIN: Duration = Duration::from_mins(1);

/// Times are since the machine's boot.
pub(crate) struct Asking {
    status_port: u16,
    /// What else is to quit before the proxy, and was not told yet.
    quit: Vec<Endpoint>,
    asked: Option<Asked>,
}

struct Asked {
    first: Duration,
    next: Duration,
    pause: Duration,
}

impl Asking {
    pub(crate) fn new(arguments: &Watch) -> Self {
        Self { status_port: arguments.status_port, quit: arguments.quit.clone(), asked: None }
    }

    /// Whether the proxy was asked, and has not ended since.
    pub(crate) fn has_begun(&self) -> bool {
        self.asked.is_some()
    }

    /// When the proxy is to be asked next.
    pub(crate) fn next(&self) -> Duration {
        self.asked.as_ref().map_or(Duration::ZERO, |asked| asked.next)
    }

    /// Asks the proxy to quit. Returns whether somebody was reached.
    pub(crate) fn ask(&mut self) -> bool {
        let began = now();
        for endpoint in std::mem::take(&mut self.quit) {
            match quit::post(&endpoint) {
                Ok(answer) => log::info("asked to quit", &[("endpoint", &endpoint), ("answer", &answer)]),
                Err(error) => log::warn("did not answer", &[("endpoint", &endpoint), ("error", &error)]),
            }
        }
        let answer = quit::proxy(self.status_port);
        let asked = self.asked.get_or_insert(Asked { first: began, next: began, pause: ASK_AGAIN_AFTER });
        asked.next = now() + if matches!(answer, Ok(Answer::Accepted(_))) { ENDS_WITHIN } else { asked.pause };
        asked.pause = (asked.pause * 2).min(ASK_AGAIN_AT_MOST);
        let done = "awaited containers finished";
        match &answer {
            Ok(answer @ (Answer::Accepted(_) | Answer::Closed)) => {
                log::info(&format!("{done}, asked istio-proxy to quit"), &[("answer", answer)]);
            }
            Ok(answer) => log::warn(&format!("{done}, istio-proxy does not accept to quit"), &[("answer", answer)]),
            Err(error) => log::warn(&format!("{done}, istio-proxy did not answer"), &[("error", error)]),
        }
        answer.is_ok()
    }

    /// The proxy has ended. Returns how long ago it was asked first, where it was; one that comes back is asked anew.
    pub(crate) fn finish(&mut self) -> Option<Duration> {
        self.asked.take().map(|asked| now().saturating_sub(asked.first))
    }
}
