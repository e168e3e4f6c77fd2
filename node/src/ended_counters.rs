//! Adds up what proxies have counted when they end: Prometheus sees nothing of a pod that lives shorter than its interval.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use tokio::time::Instant;

/// How long a new series stays at 0. It must exceed the scrape interval, since Prometheus' `increase` ignores the first value of a
/// series.
const ZERO_FOR: Duration = Duration::from_mins(2);
/// Time for which a series is kept after its last change.
const KEPT_FOR: Duration = Duration::from_hours(1);
/// Limits the series with labels. Beyond it, each counter has one series without labels, at most a hundred in all.
const SERIES_LIMIT: usize = 2000;
/// Limits the series of one proxy: a payload may listen on its port instead.
const SERIES_OF_PROXY_LIMIT: usize = 100;
/// Bytes of a counter's name and kept labels.
const KEY_LIMIT: usize = 256;

/// Says whose proxy it was.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct Owner {
    /// The pod's namespace.
    pub namespace: String,
    /// The workload, as istiod's injector names it: a Job, a Deployment.
    pub workload: String,
    /// The pod's service account.
    pub service_account: String,
}

/// Holds the labels of Istio's metrics that are kept.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Kind {
    reporter: String,
    response_code: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    #[prometheus(flatten)]
    owner: Owner,
    #[prometheus(flatten)]
    kind: Kind,
}

/// Holds the counters of one proxy: sums by the name and the kept labels.
#[derive(Debug, Default)]
pub struct Counts(HashMap<(String, Kind), u64>);

impl Counts {
    /// Takes a line of Prometheus' text format. What is not a sample of a counter whose name ends in `_total` is left out.
    pub fn take(&mut self, line: &str) {
        let Some((name, kind, value)) = sample(line) else { return };
        let key = (name.to_owned(), kind);
        if self.0.len() < SERIES_OF_PROXY_LIMIT || self.0.contains_key(&key) {
            let sum = self.0.entry(key).or_default();
            *sum = sum.saturating_add(value);
        }
    }
}

/// Holds the sums of the proxies that have ended.
#[derive(Debug, Default)]
pub struct EndedCounters(Mutex<Sums>);

#[derive(Debug, Default)]
struct Sums {
    series: HashMap<(String, Labels), Series>,
    /// Proxies that were counted lately, so that a repeated removal adds nothing.
    counted: HashMap<String, Instant>,
}

#[derive(Debug)]
struct Series {
    value: u64,
    began: Instant,
    changed: Instant,
}

impl EndedCounters {
    /// Adds what a proxy has counted, once.
    pub fn add(&self, proxy: &str, owner: &Owner, counts: Counts) {
        let now = Instant::now();
        let mut sums = self.sums();
        sums.forget(now);
        if sums.counted.insert(proxy.to_owned(), now).is_some() {
            return;
        }
        for ((name, kind), value) in counts.0 {
            let mut key = (name, Labels { owner: owner.clone(), kind });
            if sums.have_no_place(&key, SERIES_LIMIT) {
                key.1 = Labels { owner: Owner::default(), kind: Kind::default() };
            }
            if sums.have_no_place(&key, SERIES_LIMIT + SERIES_OF_PROXY_LIMIT) {
                continue;
            }
            let series = sums.series.entry(key).or_insert(Series { value: 0, began: now, changed: now });
            series.value = series.value.saturating_add(value);
            series.changed = now;
        }
    }

    /// Lets a container be counted again: its id is used again by a proxy that is started in its place.
    pub fn removed(&self, proxy: &str) {
        self.sums().counted.remove(proxy);
    }

    fn sums(&self) -> MutexGuard<'_, Sums> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a metric for each counter: `ended_` and its name.
    pub(crate) fn register(&self, registry: &mut Registry) {
        let now = Instant::now();
        let mut families: HashMap<_, Family<Labels, Counter>> = HashMap::new();
        let mut sums = self.sums();
        sums.forget(now);
        for ((name, labels), series) in &sums.series {
            let shown = if now - series.began < ZERO_FOR { 0 } else { series.value };
            families.entry(name.clone()).or_default().get_or_create(labels).inc_by(shown);
        }
        for (name, family) in families {
            // The encoder appends it.
            let name = name.strip_suffix("_total").unwrap_or(&name);
            registry.register(
                format!("ended_{name}"),
                format!("What proxies had counted when they ended: {name}"),
                family,
            );
        }
    }
}

impl Sums {
    fn have_no_place(&self, key: &(String, Labels), limit: usize) -> bool {
        self.series.len() >= limit && !self.series.contains_key(key)
    }

    /// Forgets what has not changed for long.
    fn forget(&mut self, now: Instant) {
        self.series.retain(|_, series| now - series.changed < KEPT_FOR);
        self.counted.retain(|_, at| now - *at < KEPT_FOR);
    }
}

/// Returns the name, the kept labels and the value of a line of Prometheus' text format.
fn sample(line: &str) -> Option<(&str, Kind, u64)> {
    let end = line.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == ':'))?;
    let (name, mut rest) = line.split_at(end);
    let mut kind = Kind::default();
    if let Some(labels) = rest.strip_prefix('{') {
        rest = labels;
        while !rest.starts_with('}') {
            let (key, quoted) = rest.split_once("=\"")?;
            let (value, after) = unquoted(quoted)?;
            match key {
                "reporter" => kind.reporter = value,
                "response_code" => kind.response_code = value,
                _ => {}
            }
            rest = after.strip_prefix(',').unwrap_or(after);
        }
        rest = &rest[1..];
    }
    let value = rest.trim().parse().ok()?;
    let length = name.len() + kind.reporter.len() + kind.response_code.len();
    // Envoy has counters `X` beside `X_total`, which would be one name in OpenMetrics.
    (name.ends_with("_total") && length <= KEY_LIMIT).then_some((name, kind, value))
}

/// Returns the text up to a quotation mark that is not escaped, and what follows the mark.
fn unquoted(text: &str) -> Option<(String, &str)> {
    let (mut value, mut chars) = (String::new(), text.chars());
    loop {
        match chars.next()? {
            '"' => return Some((value, chars.as_str())),
            '\\' => value.push(chars.next().map(|c| if c == 'n' { '\n' } else { c })?),
            c => value.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode;

    use super::*;

    /// What Envoy of Istio 1.31 responds, without most of the labels.
    const RESPONSE: &str = r#"# TYPE istio_requests_total counter
istio_requests_total{reporter="source",source_workload="train",destination_service="web.a.svc",response_code="200"} 7
istio_requests_total{reporter="source",source_workload="train",destination_service="db.a.svc",response_code="200"} 3
istio_requests_total{reporter="source",source_workload="train",destination_service="db.a.svc",response_code="503"} 1

istio_tcp_sent_bytes_total{reporter="destination",request_protocol="a \"b\\, c="} 512
envoy_cluster_upstream_rq{} 4
envoy_cluster_upstream_rq_total{} 5
"#;

    fn owner(workload: &str) -> Owner {
        Owner { namespace: "team".into(), workload: workload.into(), service_account: "default".into() }
    }

    fn counts(text: &str) -> Counts {
        let mut counts = Counts::default();
        text.lines().for_each(|line| counts.take(line));
        counts
    }

    fn shown(counters: &EndedCounters) -> Vec<String> {
        let (mut registry, mut text) = (Registry::default(), String::new());
        counters.register(&mut registry);
        encode(&mut text, &registry).unwrap();
        let mut samples: Vec<_> = text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect();
        samples.sort_unstable();
        samples
    }

    #[test]
    fn counters_are_added_by_reporter_and_response_code() {
        let counts = counts(RESPONSE);
        let mut sums: Vec<_> = counts
            .0
            .iter()
            .map(|((name, kind), value)| (name.as_str(), kind.reporter.as_str(), kind.response_code.as_str(), *value))
            .collect();
        sums.sort_unstable();
        let expected = [
            ("envoy_cluster_upstream_rq_total", "", "", 5),
            ("istio_requests_total", "source", "200", 10),
            ("istio_requests_total", "source", "503", 1),
            ("istio_tcp_sent_bytes_total", "destination", "", 512),
        ];
        assert_eq!(sums, expected);
    }

    #[test]
    fn text_that_is_no_sample_of_a_counter_counts_nothing() {
        let endless = format!("a_total{{{}", "b=\"c\",".repeat(1000));
        let long = format!("a_total{{reporter=\"{}\"}} 1", "x".repeat(KEY_LIMIT));
        for line in [
            "",
            "#",
            "# HELP a b",
            "a_total",
            "a_total{",
            "a_total{b",
            "a_total{b=\"c",
            "a_total{b=\"c\"}",
            "a_total{} x",
            "a_total{} -1",
            "a_total{} 1.5",
            "a{} 1",
            "{} 1",
            &endless,
            &long,
        ] {
            assert!(counts(line).0.is_empty(), "{line}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn series_begins_with_zero_and_ends_an_hour_after_its_last_change() {
        let counters = EndedCounters::default();
        let add = |proxy| counters.add(proxy, &owner("train"), counts("istio_requests_total{reporter=\"source\"} 10"));
        let sample = |value: u64| {
            let labels =
                r#"namespace="team",workload="train",service_account="default",reporter="source",response_code="""#;
            vec![format!("ended_istio_requests_total{{{labels}}} {value}")]
        };
        assert_eq!(shown(&counters), [""; 0]);
        add("one");
        assert_eq!(shown(&counters), sample(0));
        tokio::time::advance(ZERO_FOR).await;
        assert_eq!(shown(&counters), sample(10));
        add("two");
        assert_eq!(shown(&counters), sample(20));
        tokio::time::advance(Duration::from_mins(59)).await;
        assert_eq!(shown(&counters), sample(20));
        tokio::time::advance(Duration::from_mins(1)).await;
        assert_eq!(shown(&counters), [""; 0]);
    }

    #[tokio::test(start_paused = true)]
    async fn proxy_is_counted_once_until_its_container_is_removed() {
        let counters = EndedCounters::default();
        let add = || counters.add("sandbox-proxy-1", &owner("train"), counts("istio_requests_total{} 10"));
        // The end of a proxy is repeated until it succeeds.
        add();
        add();
        // An id is used again, such as after an upgrade that failed.
        counters.removed("sandbox-proxy-1");
        add();
        tokio::time::advance(ZERO_FOR).await;
        assert!(shown(&counters)[0].ends_with(" 20"), "{:?}", shown(&counters));
    }

    #[tokio::test(start_paused = true)]
    async fn too_many_series_are_added_to_one_without_labels() {
        let counters = EndedCounters::default();
        let codes = (0..SERIES_OF_PROXY_LIMIT + 50).map(|code| format!("c_total{{response_code=\"{code}\"}} 1\n"));
        let codes: String = codes.collect();
        for number in 0..SERIES_LIMIT {
            let workload = number.to_string();
            let of_this = if number == 0 { &codes } else { "c_total{} 1" };
            counters.add(&workload, &owner(&workload), counts(of_this));
        }
        tokio::time::advance(ZERO_FOR).await;
        let shown = shown(&counters);
        assert_eq!(shown.len(), SERIES_LIMIT + 1);
        let of = |labels: &str| shown.iter().filter(|sample| sample.contains(labels)).count();
        assert_eq!(of(r#"workload="0""#), SERIES_OF_PROXY_LIMIT);
        let other = shown.iter().find(|sample| sample.contains(r#"namespace="""#)).unwrap();
        assert!(other.ends_with(&format!(" {}", SERIES_OF_PROXY_LIMIT - 1)), "{other}");
        // A payload may make up names.
        for number in 0..2 * SERIES_OF_PROXY_LIMIT {
            counters.add(&format!("made-up-{number}"), &owner("any"), counts(&format!("d{number}_total{{}} 1")));
        }
        assert_eq!(self::shown(&counters).len(), SERIES_LIMIT + SERIES_OF_PROXY_LIMIT);
    }
}
