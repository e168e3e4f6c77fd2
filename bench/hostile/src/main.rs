//! Attacks a webhook on loopback, one attack after the other, beside an ordinary stream of reviews. The webhook runs with the
//! memory limit of the Deployment, and anew for each attack. Prints for each attack how many ordinary reviews were answered, how
//! late, the webhook's peak memory, and whether it had to be restarted.
//!
//! `hostile BINARY [SECONDS [ATTACK]]`: seconds for each attack, and a part of the name of the attacks to run.

#![forbid(unsafe_code)]

mod attacks;
mod client;
mod webhook;

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tempfile::TempDir;

use self::attacks::ATTACKS;
use self::client::{Client, review_of};
use self::webhook::Webhook;

/// Clients of the ordinary stream, each with a connection that it keeps, as an API server does.
const ORDINARY_CLIENTS: usize = 4;
/// Pause of an ordinary client between two reviews.
const ORDINARY_INTERVAL: Duration = Duration::from_millis(20);
/// A pod after Istio's injector, 8 KB.
const ORDINARY_POD: &str = include_str!("../../../inject/tests/pods/classic-proxy.json");

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [binary, options @ ..] = words.as_slice() else {
        return Err("usage: hostile BINARY [SECONDS [ATTACK]]".into());
    };
    let duration = Duration::from_secs(options.first().map_or(Ok(20), |seconds| seconds.parse())?);
    let wanted = options.get(1).map_or("", String::as_str);
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;

    println!("| attack | ordinary reviews answered | median, p99, slowest | peak resident | restarts |");
    println!("| --- | --- | --- | --- | --- |");
    for (name, attack) in ATTACKS.iter().filter(|(name, _)| name.contains(wanted)) {
        let folder = TempDir::new()?;
        let mut webhook = Webhook::start(binary, folder.path())?;
        let client = Arc::new(webhook.client()?);
        let stop = Arc::new(AtomicBool::new(false));
        let attackers = attack(&client, &stop);
        let ordinary: Vec<_> = (0..ORDINARY_CLIENTS).map(|_| ask_in_a_stream(&client, &stop)).collect();
        thread::sleep(duration);
        stop.store(true, Ordering::Relaxed);
        let results = ordinary.into_iter().flat_map(|client| client.join().expect("an ordinary client does not panic"));
        let (asked, times) = summarize(results.collect());
        let peak = webhook.peak_memory()?;
        println!(
            "| {name} | {} of {asked} | {} | {} | {} |",
            times.len(),
            [times.get(times.len() / 2), times.get(times.len() * 99 / 100), times.last()]
                .map(|time| time.map_or("–".to_owned(), |time| format!("{:.1} ms", time.as_secs_f64() * 1e3)))
                .join(", "),
            peak.as_deref().unwrap_or("–"),
            u8::from(peak.is_none())
        );
        for attacker in attackers {
            attacker.join().expect("an attacker does not panic");
        }
    }
    Ok(())
}

/// How long each review took; `None` if it was not answered.
type Results = Vec<Option<Duration>>;

fn ask_in_a_stream(client: &Arc<Client>, stop: &Arc<AtomicBool>) -> JoinHandle<Results> {
    let (client, stop) = (client.clone(), stop.clone());
    let review = review_of(ORDINARY_POD);
    thread::spawn(move || {
        let (mut results, mut connection) = (vec![], None);
        while !stop.load(Ordering::Relaxed) {
            let began = Instant::now();
            let asked = connection.take().map_or_else(|| client.connect(), Ok);
            let answered = asked.and_then(|mut open| Ok((client::ask(&mut open, &review)?, open)));
            match answered {
                Ok((200, open)) => {
                    results.push(Some(began.elapsed()));
                    connection = Some(open);
                }
                _ => results.push(None),
            }
            thread::sleep(ORDINARY_INTERVAL);
        }
        results
    })
}

/// How many were asked, and the times of those that were answered, in order.
fn summarize(results: Results) -> (usize, Vec<Duration>) {
    let asked = results.len();
    let mut times: Vec<_> = results.into_iter().flatten().collect();
    times.sort_unstable();
    (asked, times)
}
