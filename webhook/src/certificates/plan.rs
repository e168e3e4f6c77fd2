//! What to do next about the certificates that are kept in a Secret, and about the webhook configuration that is to trust
//! them: pure. Each step is one write, so whoever is killed between two of them leaves what the next one goes on from.
//!
//! A renewal goes: the new pair is kept as the next one; the configuration trusts both authorities; once every API server
//! has had time to see that, the next one is served; the old authority stays trusted until its certificate has expired.

use std::collections::BTreeMap;
use std::time::Duration;

use super::pair::{Pair, Validity, validity_of_first};

/// What the Secret holds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Held {
    /// What is served.
    pub(crate) current: Option<Pair>,
    /// What is served once it is trusted.
    pub(crate) next: Option<Pair>,
    /// The authority of what was served before.
    pub(crate) previous_ca: Option<String>,
}

/// Whom the configuration trusts: the bundle of each of its webhooks, by their names; `None` where there is no configuration.
pub(crate) type Trusted = Option<BTreeMap<String, String>>;

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    /// Make a certificate, and keep it as the one that is served: there is none that anybody trusts.
    IssueCurrent,
    /// Keep again what is served, and was lost.
    Restore(Pair),
    /// Make a certificate, and keep it as the next one.
    IssueNext,
    /// Have the configuration trust these authorities.
    Trust(String),
    /// Serve the next one.
    Promote,
    /// Nothing, for now.
    Keep,
}

/// Decides, for certificates that are to be valid for so long. `served` is what this replica serves; `trusted_for` is how long
/// the configuration has been seen to trust what it is to trust.
pub(crate) fn step(
    held: &Held,
    served: Option<&Pair>,
    trusted: &Trusted,
    now: i64,
    valid_for: Duration,
    trusted_for: Duration,
) -> Step {
    let Some(validity) = held.current.as_ref().and_then(|pair| lasting(pair, now)) else {
        let served = served.filter(|pair| lasting(pair, now).is_some());
        return match (&held.next, served) {
            (Some(next), _) if lasting(next, now).is_some() => Step::Promote,
            (_, Some(served)) => Step::Restore(served.clone()),
            _ => Step::IssueCurrent,
        };
    };
    let wanted = bundle(held, now);
    if !is_trusted(trusted, &wanted) {
        return Step::Trust(wanted);
    }
    if held.next.is_some() {
        let life = Duration::from_secs(u64::try_from(validity.ends - validity.begins).unwrap_or_default());
        let is_settled = trusted.is_none() || trusted_for >= settling(valid_for.min(life));
        return if is_settled { Step::Promote } else { Step::Keep };
    }
    // One that was made to last longer than they now are is renewed as they are.
    let ends = validity.ends.min(validity.begins.saturating_add(seconds(valid_for)));
    if now >= (Validity { ends, ..validity }).renewal() { Step::IssueNext } else { Step::Keep }
}

/// When a pair is valid, where it is not over. One that is still to begin is good: clocks differ.
fn lasting(pair: &Pair, now: i64) -> Option<Validity> {
    validity_of_first(&pair.cert).filter(|validity| now < validity.ends)
}

/// The authorities that are to be trusted, those of what is served first.
pub(crate) fn bundle(held: &Held, now: i64) -> String {
    let holds = |ca: &&String| validity_of_first(ca).is_some_and(|validity| validity.holds(now));
    let pairs = [&held.current, &held.next].into_iter().flatten().map(|pair| &pair.ca);
    pairs.chain(held.previous_ca.as_ref().filter(holds)).map(String::as_str).collect()
}

/// Whether every webhook of the configuration, where there is one, trusts exactly this.
fn is_trusted(trusted: &Trusted, wanted: &str) -> bool {
    trusted.iter().flatten().all(|(_, bundle)| bundle == wanted)
}

/// What is held once the next pair is served.
pub(crate) fn promoted(held: Held) -> Held {
    match held {
        Held { next: Some(next), current, .. } => {
            Held { current: Some(next), next: None, previous_ca: current.map(|pair| pair.ca) }
        }
        held @ Held { next: None, .. } => held,
    }
}

/// Since when the configuration has been seen to trust what it is to trust.
#[derive(Debug, Default)]
pub(crate) struct Settling(Option<(String, Duration)>);

impl Settling {
    /// Takes note of what is seen at a time, counted from anywhere. Returns for how long it has been so.
    pub(crate) fn see(&mut self, held: &Held, trusted: &Trusted, now: i64, at: Duration) -> Duration {
        let wanted = bundle(held, now);
        if !is_trusted(trusted, &wanted) {
            self.0 = None;
            return Duration::ZERO;
        }
        match &self.0 {
            Some((bundle, since)) if *bundle == wanted => at.saturating_sub(*since),
            _ => {
                self.0 = Some((wanted, at));
                Duration::ZERO
            }
        }
    }
}

/// How often to look: a hundredth of the certificate's life, between 1 and 10 s, for somebody may have taken the trust away.
pub(crate) fn look_every(life: Duration) -> Duration {
    (life / 100).clamp(Duration::from_secs(1), Duration::from_secs(10))
}

/// How long API servers are given to see whom the configuration trusts, with certificates of this life.
fn settling(life: Duration) -> Duration {
    (life / 50).clamp(Duration::from_secs(2), Duration::from_mins(1))
}

fn seconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_secs()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod laws;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::certificates::pair::issue;

    const NOW: i64 = 1_800_000_000;
    const LIFE: Duration = Duration::from_hours(1);
    const LONG: Duration = Duration::from_hours(1);

    fn pair(now: i64) -> Pair {
        issue("istio-aux.team.svc", now, LIFE).unwrap()
    }

    fn trusting_each(bundles: [&str; 2]) -> Trusted {
        ["completing", "lasting"]
            .map(str::to_owned)
            .into_iter()
            .zip(bundles.map(str::to_owned))
            .collect::<BTreeMap<_, _>>()
            .into()
    }

    fn trusting(bundle: &str) -> Trusted {
        trusting_each([bundle, bundle])
    }

    #[test]
    fn each_state_has_its_step() {
        let (old, new) = (pair(NOW), pair(NOW + 3000));
        let held = |current: Option<&Pair>, next: Option<&Pair>| Held {
            current: current.cloned(),
            next: next.cloned(),
            previous_ca: None,
        };
        let both = format!("{}{}", old.ca, new.ca);
        let one_of_two = trusting_each([&old.ca, &both]);
        let rubbish = Pair { cert: "x".to_owned(), ..old.clone() };
        let later = NOW + 3000;
        let cases = [
            ("an empty Secret", held(None, None), trusting(""), NOW, LONG, Step::IssueCurrent),
            ("no configuration", held(Some(&old), None), None, NOW, LONG, Step::Keep),
            ("nobody is trusted", held(Some(&old), None), trusting(""), NOW, LONG, Step::Trust(old.ca.clone())),
            ("all is well", held(Some(&old), None), trusting(&old.ca), NOW, LONG, Step::Keep),
            ("another is trusted", held(Some(&old), None), trusting(&new.ca), NOW, LONG, Step::Trust(old.ca.clone())),
            ("two thirds are over", held(Some(&old), None), trusting(&old.ca), later, LONG, Step::IssueNext),
            ("it has expired", held(Some(&old), None), trusting(&old.ca), NOW + 3600, LONG, Step::IssueCurrent),
            ("it cannot be read", held(Some(&rubbish), None), trusting(&old.ca), NOW, LONG, Step::IssueCurrent),
            (
                "the next is new",
                held(Some(&old), Some(&new)),
                trusting(&old.ca),
                later,
                LONG,
                Step::Trust(both.clone()),
            ),
            ("one webhook trusts", held(Some(&old), Some(&new)), one_of_two, later, LONG, Step::Trust(both.clone())),
            ("since a moment", held(Some(&old), Some(&new)), trusting(&both), later, Duration::ZERO, Step::Keep),
            ("since long enough", held(Some(&old), Some(&new)), trusting(&both), later, LONG, Step::Promote),
            ("nobody calls", held(Some(&old), Some(&new)), None, later, Duration::ZERO, Step::Promote),
        ];
        for (case, held, trusted, now, trusted_for, expected) in cases {
            assert_eq!(step(&held, None, &trusted, now, LIFE, trusted_for), expected, "{case}");
        }
    }

    #[test]
    fn a_certificate_that_lasts_longer_than_they_now_are_to_is_renewed() {
        let old = pair(NOW);
        let held = Held { current: Some(old.clone()), ..Held::default() };
        let step = |valid_for| step(&held, None, &trusting(&old.ca), NOW + 60, valid_for, LONG);
        assert_eq!(step(Duration::from_mins(1)), Step::IssueNext);
        assert_eq!(step(LIFE), Step::Keep);
        assert_eq!(step(LIFE * 1000), Step::Keep);
    }

    #[test]
    fn what_is_served_goes_back_into_a_secret_that_was_emptied() {
        let (old, new) = (pair(NOW), pair(NOW + 3000));
        let step = |held: &Held, served, now| step(held, served, &trusting(&old.ca), now, LIFE, LONG);
        assert_eq!(step(&Held::default(), Some(&old), NOW), Step::Restore(old.clone()));
        assert_eq!(step(&Held::default(), Some(&old), NOW + 3600), Step::IssueCurrent);
        // Nor is a next one thrown away.
        let held = Held { current: Some(old.clone()), next: Some(new), previous_ca: None };
        assert_eq!(step(&held, Some(&old), NOW + 3600), Step::Promote);
    }

    #[test]
    fn a_clock_that_is_behind_replaces_nothing() {
        let old = pair(NOW);
        let held = Held { current: Some(old.clone()), ..Held::default() };
        assert_eq!(step(&held, None, &trusting(&old.ca), NOW - 3600, LIFE, LONG), Step::Keep);
    }

    #[test]
    fn the_old_authority_is_trusted_until_its_certificate_has_expired() {
        let (old, new) = (pair(NOW), pair(NOW + 3000));
        let held = promoted(Held { current: Some(old.clone()), next: Some(new.clone()), previous_ca: None });
        assert_eq!(held.current.as_ref(), Some(&new));
        assert_eq!(bundle(&held, NOW + 3599), format!("{}{}", new.ca, old.ca));
        assert_eq!(bundle(&held, NOW + 3600), new.ca);
    }

    #[test]
    fn a_certificate_of_minutes_is_looked_at_each_second() {
        assert_eq!(look_every(Duration::from_mins(1)), Duration::from_secs(1));
        assert_eq!(look_every(Duration::from_hours(8760)), Duration::from_secs(10));
    }
}
