//! Decides the next write of the Secret's certificates or the webhook configurations' CA bundles, from values alone. Each action
//! is one write, so another replica can continue if one is killed between two writes.
//!
//! Steps of a renewal:
//! 1. Store a new certificate, with a CA of its own, as the next one.
//! 2. Let the webhook configurations trust both CAs.
//! 3. Once every API server has had time to see that, make the next certificate the current one, which is served.
//! 4. Once every replica has had time to see that, remove the previous CA from the webhook configurations.

use std::collections::BTreeMap;
use std::time::Duration;

use super::serving_cert::{ServingCert, Validity, validity_of_first};

/// Holds the content of the Secret.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct StoredCerts {
    /// Certificate that is served.
    pub(crate) current: Option<ServingCert>,
    /// Certificate that is served once its CA is trusted.
    pub(crate) next: Option<ServingCert>,
    /// CA of the certificate that was served before.
    pub(crate) previous_ca: Option<String>,
    /// True while a requested renewal has not begun.
    pub(crate) is_renewal_requested: bool,
}

/// Holds what a webhook configuration trusts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Configuration {
    pub(crate) name: String,
    /// The resourceVersion that a write must still find.
    pub(crate) version: String,
    /// Maps the name of each webhook to its CA bundle.
    pub(crate) bundles: BTreeMap<String, String>,
}

impl Configuration {
    /// Returns true if every webhook has exactly this bundle.
    pub(crate) fn trusts(&self, bundle: &str) -> bool {
        self.bundles.values().all(|other| other == bundle)
    }
}

/// Names the next write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Action {
    /// Issue a certificate and store it as the current one, because no stored or served one is valid.
    IssueCurrent,
    /// Store the served certificate again, because the Secret has lost it.
    RestoreSecret(ServingCert),
    /// Issue a certificate and store it as the next one.
    IssueNext,
    /// Write this CA bundle to the webhook configurations.
    PatchCaBundle(String),
    /// Make the next certificate the current one.
    Promote,
    /// Remove the previous CA.
    RetirePreviousCa,
    /// Write nothing for now.
    Idle,
}

/// Decides the next action. `valid_for` is the validity of a new certificate, and `trusted_for` is the time for which this
/// replica has seen the configurations trust the CAs of the Secret.
pub(crate) fn next_action(
    stored: &StoredCerts,
    served: Option<&ServingCert>,
    configurations: &[Configuration],
    now: i64,
    valid_for: Duration,
    trusted_for: Duration,
) -> Action {
    let Some(validity) = stored.current.as_ref().and_then(|cert| unexpired(cert, now)) else {
        let served = served.filter(|cert| unexpired(cert, now).is_some());
        return match (served, &stored.next) {
            // Others may serve it, too, and the next one's CA may not be trusted yet.
            (Some(served), _) => Action::RestoreSecret(served.clone()),
            (None, Some(next)) if unexpired(next, now).is_some() => Action::Promote,
            _ => Action::IssueCurrent,
        };
    };
    let wanted = ca_bundle(stored, now);
    if !is_trusted(configurations, &wanted) {
        return Action::PatchCaBundle(wanted);
    }
    let life = Duration::from_secs(u64::try_from(validity.not_after - validity.not_before).unwrap_or_default());
    let life = valid_for.min(life);
    if stored.next.is_some() {
        let is_settled = configurations.is_empty() || trusted_for >= promotion_delay(life);
        return if is_settled { Action::Promote } else { Action::Idle };
    }
    // A certificate that was issued for longer than `valid_for` is renewed as if it had been issued for that.
    let not_after = validity.not_after.min(validity.not_before.saturating_add(seconds(valid_for)));
    if now >= (Validity { not_after, ..validity }).renew_at() {
        return Action::IssueNext;
    }
    match &stored.previous_ca {
        // A requested renewal waits until the one before it is complete.
        None if stored.is_renewal_requested => Action::IssueNext,
        Some(ca) if !is_valid(ca, now) || trusted_for >= retirement_delay(life) => Action::RetirePreviousCa,
        _ => Action::Idle,
    }
}

/// Returns the content of the Secret after an action.
pub(crate) fn after<E>(
    action: &Action,
    stored: StoredCerts,
    issue: impl FnOnce() -> Result<ServingCert, E>,
) -> Result<StoredCerts, E> {
    Ok(match action {
        Action::IssueCurrent => StoredCerts { current: Some(issue()?), ..StoredCerts::default() },
        Action::RestoreSecret(served) => StoredCerts { current: Some(served.clone()), next: None, ..stored },
        Action::IssueNext => StoredCerts { next: Some(issue()?), is_renewal_requested: false, ..stored },
        Action::Promote => promoted(stored),
        Action::RetirePreviousCa => StoredCerts { previous_ca: None, ..stored },
        Action::PatchCaBundle(_) | Action::Idle => stored,
    })
}

fn promoted(stored: StoredCerts) -> StoredCerts {
    let StoredCerts { current, next, is_renewal_requested, .. } = stored;
    StoredCerts { current: next, next: None, previous_ca: current.map(|cert| cert.ca), is_renewal_requested }
}

/// Returns the validity of a certificate that has not expired. One that is not valid yet counts as good, because clocks differ.
fn unexpired(cert: &ServingCert, now: i64) -> Option<Validity> {
    validity_of_first(&cert.cert).filter(|validity| now < validity.not_after)
}

/// Returns the CAs that the configuration must trust, that of the current certificate first.
pub(crate) fn ca_bundle(stored: &StoredCerts, now: i64) -> String {
    let certs = [&stored.current, &stored.next].into_iter().flatten().map(|cert| &cert.ca);
    let all = certs.chain(stored.previous_ca.as_ref().filter(|ca| is_valid(ca, now)));
    // A CA that another client wrote may lack its last newline, and two in one line cannot be parsed.
    all.flat_map(|ca| [ca.trim_end(), "\n"]).collect()
}

fn is_valid(ca: &str, now: i64) -> bool {
    validity_of_first(ca).is_some_and(|validity| validity.contains(now))
}

fn is_trusted(configurations: &[Configuration], wanted: &str) -> bool {
    configurations.iter().all(|configuration| configuration.trusts(wanted))
}

/// Measures how long the configurations have had the bundle that the Secret asks for.
#[derive(Debug, Default)]
pub(crate) struct TrustTimer(Option<(String, Duration)>);

impl TrustTimer {
    /// Records what was read at a time, which may count from any moment. Returns how long it has been trusted.
    pub(crate) fn observe(
        &mut self,
        stored: &StoredCerts,
        configurations: &[Configuration],
        now: i64,
        at: Duration,
    ) -> Duration {
        let wanted = ca_bundle(stored, now);
        if !is_trusted(configurations, &wanted) {
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

/// Returns the pause between two reads of both objects, which other clients may change at any time.
pub(crate) fn reconcile_interval(life: Duration) -> Duration {
    (life / 100).clamp(Duration::from_secs(1), Duration::from_secs(10))
}

/// Returns the time that API servers have to see a new CA bundle before a certificate of its new CA is served.
fn promotion_delay(life: Duration) -> Duration {
    (life / 50).clamp(Duration::from_secs(2), Duration::from_mins(1))
}

/// Returns the time that replicas have to see a promotion before the previous CA is removed. A replica that cannot read the
/// Secret for that long serves a certificate that is no longer trusted.
fn retirement_delay(life: Duration) -> Duration {
    (life / 12).clamp(Duration::from_secs(30), Duration::from_mins(5))
}

fn seconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_secs()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::certificates::serving_cert::issue;

    const NOW: i64 = 1_800_000_000;
    const LIFE: Duration = Duration::from_hours(1);
    /// Longer than every delay.
    const LONG: Duration = Duration::from_hours(1);

    fn cert(now: i64) -> ServingCert {
        issue("istio-aux.team.svc", now, LIFE).unwrap()
    }

    fn bundles_of_two(bundles: [&str; 2]) -> Vec<Configuration> {
        let configuration = |(name, bundle): (&str, &str)| Configuration {
            name: name.to_owned(),
            bundles: BTreeMap::from([("webhook".to_owned(), bundle.to_owned())]),
            ..Configuration::default()
        };
        ["istio-aux", "zz-istio-aux"].into_iter().zip(bundles).map(configuration).collect()
    }

    fn bundles(bundle: &str) -> Vec<Configuration> {
        bundles_of_two([bundle, bundle])
    }

    fn stored(current: Option<&ServingCert>, next: Option<&ServingCert>) -> StoredCerts {
        StoredCerts { current: current.cloned(), next: next.cloned(), ..StoredCerts::default() }
    }

    #[test]
    fn each_state_has_its_action() {
        let (old, new) = (cert(NOW), cert(NOW + 3000));
        let both = format!("{}{}", old.ca, new.ca);
        let one_of_two = bundles_of_two([&old.ca, &both]);
        let rubbish = ServingCert { cert: "x".to_owned(), ..old.clone() };
        let later = NOW + 3000;
        let patch = |bundle: &str| Action::PatchCaBundle(bundle.to_owned());
        let cases = [
            ("the Secret is empty", stored(None, None), bundles(""), NOW, LONG, Action::IssueCurrent),
            ("nothing to trust it", stored(Some(&old), None), vec![], NOW, LONG, Action::Idle),
            ("no CA is trusted", stored(Some(&old), None), bundles(""), NOW, LONG, patch(&old.ca)),
            ("the current CA is trusted", stored(Some(&old), None), bundles(&old.ca), NOW, LONG, Action::Idle),
            ("another CA is trusted", stored(Some(&old), None), bundles(&new.ca), NOW, LONG, patch(&old.ca)),
            ("two thirds are over", stored(Some(&old), None), bundles(&old.ca), later, LONG, Action::IssueNext),
            ("it has expired", stored(Some(&old), None), bundles(&old.ca), NOW + 3600, LONG, Action::IssueCurrent),
            ("it is not PEM", stored(Some(&rubbish), None), bundles(&old.ca), NOW, LONG, Action::IssueCurrent),
            ("the next is new", stored(Some(&old), Some(&new)), bundles(&old.ca), later, LONG, patch(&both)),
            ("one of two trusts", stored(Some(&old), Some(&new)), one_of_two, later, LONG, patch(&both)),
            ("just now", stored(Some(&old), Some(&new)), bundles(&both), later, Duration::ZERO, Action::Idle),
            ("long enough", stored(Some(&old), Some(&new)), bundles(&both), later, LONG, Action::Promote),
            ("no configuration", stored(Some(&old), Some(&new)), vec![], later, Duration::ZERO, Action::Promote),
        ];
        for (case, stored, bundles, now, trusted_for, expected) in cases {
            assert_eq!(next_action(&stored, None, &bundles, now, LIFE, trusted_for), expected, "{case}");
        }
    }

    #[test]
    fn cas_stand_on_lines_of_their_own() {
        let (own, mut of_others) = (cert(NOW), cert(NOW));
        of_others.ca = of_others.ca.trim_end().to_owned();
        let bundle = ca_bundle(&stored(Some(&of_others), Some(&own)), NOW);
        assert_eq!(bundle, format!("{}\n{}", of_others.ca, own.ca));
    }

    #[test]
    fn longer_validity_than_configured_is_renewed() {
        let old = cert(NOW);
        let action =
            |valid_for| next_action(&stored(Some(&old), None), None, &bundles(&old.ca), NOW + 60, valid_for, LONG);
        assert_eq!(action(Duration::from_mins(1)), Action::IssueNext);
        assert_eq!(action(LIFE), Action::Idle);
        assert_eq!(action(LIFE * 1000), Action::Idle);
    }

    #[test]
    fn emptied_secret_gets_served_certificate_back() {
        let (old, new) = (cert(NOW), cert(NOW + 3000));
        let action =
            |stored: &StoredCerts, served, now| next_action(stored, served, &bundles(&old.ca), now, LIFE, LONG);
        assert_eq!(action(&StoredCerts::default(), Some(&old), NOW), Action::RestoreSecret(old.clone()));
        assert_eq!(action(&StoredCerts::default(), Some(&old), NOW + 3600), Action::IssueCurrent);
        assert_eq!(action(&stored(None, Some(&new)), Some(&old), NOW), Action::RestoreSecret(old.clone()));
        // A next certificate is used rather than discarded.
        assert_eq!(action(&stored(Some(&old), Some(&new)), Some(&old), NOW + 3600), Action::Promote);
    }

    #[test]
    fn restored_or_first_certificate_stands_alone() {
        let (old, new) = (cert(NOW), cert(NOW + 3000));
        let before =
            StoredCerts { previous_ca: Some(old.ca.clone()), is_renewal_requested: true, ..stored(None, Some(&old)) };
        let restored = after(&Action::RestoreSecret(new.clone()), before.clone(), || Err(())).unwrap();
        assert_eq!((restored.current.as_ref(), restored.next), (Some(&new), None));
        let issued = after(&Action::IssueCurrent, before, || Ok::<_, ()>(new.clone())).unwrap();
        assert_eq!(issued, stored(Some(&new), None));
    }

    #[test]
    fn expired_next_certificate_is_not_promoted() {
        let (old, new) = (cert(NOW), cert(NOW + 3000));
        let action = |served| next_action(&stored(None, Some(&old)), served, &bundles(&old.ca), NOW + 3600, LIFE, LONG);
        assert_eq!(action(None), Action::IssueCurrent);
        assert_eq!(action(Some(&new)), Action::RestoreSecret(new.clone()));
    }

    #[test]
    fn configuration_trusts_by_all_its_webhooks() {
        let old = cert(NOW);
        let mut configurations = bundles(&old.ca);
        configurations[1].bundles.insert("added".to_owned(), String::new());
        let action = next_action(&stored(Some(&old), None), None, &configurations, NOW, LIFE, LONG);
        assert_eq!(action, Action::PatchCaBundle(old.ca));
    }

    #[test]
    fn shorter_of_two_validities_sets_the_delay() {
        let (old, new) = (cert(NOW), cert(NOW + 3000));
        let short = issue("istio-aux.team.svc", NOW, Duration::from_mins(1)).unwrap();
        let action = |current: &ServingCert| {
            let both = bundles(&format!("{}{}", current.ca, new.ca));
            let trusted_for = Duration::from_secs(2);
            next_action(&stored(Some(current), Some(&new)), None, &both, NOW, LIFE * 1000, trusted_for)
        };
        assert_eq!((action(&short), action(&old)), (Action::Promote, Action::Idle));
    }

    #[test]
    fn trust_counts_again_after_it_was_lost() {
        let old = cert(NOW);
        let (mut timer, stored) = (TrustTimer::default(), stored(Some(&old), None));
        let mut at = |seconds, bundle: &str| {
            timer.observe(&stored, &bundles(bundle), NOW, Duration::from_secs(seconds)).as_secs()
        };
        assert_eq!([at(0, &old.ca), at(5, &old.ca), at(10, ""), at(20, &old.ca), at(21, &old.ca)], [0, 5, 0, 0, 1]);
    }

    #[test]
    fn clock_that_is_behind_replaces_no_certificate() {
        let old = cert(NOW);
        let action = next_action(&stored(Some(&old), None), None, &bundles(&old.ca), NOW - 3600, LIFE, LONG);
        assert_eq!(action, Action::Idle);
    }

    #[test]
    fn previous_ca_is_removed_minutes_after_promotion() {
        let (old, new) = (cert(NOW), cert(NOW + 3000));
        let promoted = promoted(stored(Some(&old), Some(&new)));
        assert_eq!(promoted.current.as_ref(), Some(&new));
        let both = format!("{}{}", new.ca, old.ca);
        let action = |trusted_for| next_action(&promoted, None, &bundles(&both), NOW + 3000, LIFE, trusted_for);
        assert_eq!(action(Duration::from_secs(299)), Action::Idle);
        assert_eq!(action(Duration::from_mins(5)), Action::RetirePreviousCa);
        let retired = after(&Action::RetirePreviousCa, promoted.clone(), || Err(())).unwrap();
        assert_eq!(ca_bundle(&retired, NOW + 3000), new.ca);
    }

    #[test]
    fn expired_previous_ca_is_neither_trusted_nor_kept() {
        let (old, new) = (cert(NOW), cert(NOW + 3000));
        let promoted = promoted(stored(Some(&old), Some(&new)));
        assert_eq!(ca_bundle(&promoted, NOW + 3599), format!("{}{}", new.ca, old.ca));
        assert_eq!(ca_bundle(&promoted, NOW + 3600), new.ca);
        let action = next_action(&promoted, None, &bundles(&new.ca), NOW + 3600, LIFE, Duration::ZERO);
        assert_eq!(action, Action::RetirePreviousCa);
    }

    #[test]
    fn requested_renewal_waits_for_the_previous_one() {
        let (old, new, other) = (cert(NOW), cert(NOW), cert(NOW));
        let requested = |stored| StoredCerts { is_renewal_requested: true, ..stored };
        let good = requested(stored(Some(&old), None));
        assert_eq!(next_action(&good, Some(&old), &bundles(&old.ca), NOW, LIFE, LONG), Action::IssueNext);
        let after_it = after(&Action::IssueNext, good, || Ok::<_, ()>(new.clone())).unwrap();
        assert_eq!(after_it, stored(Some(&old), Some(&new)));
        let renewing = requested(after_it);
        let both = format!("{}{}", old.ca, new.ca);
        assert_eq!(next_action(&renewing, Some(&old), &bundles(&both), NOW, LIFE, LONG), Action::Promote);
        let promoted = after(&Action::Promote, renewing, || Err(())).unwrap();
        let both = format!("{}{}", new.ca, old.ca);
        assert_eq!(next_action(&promoted, None, &bundles(&both), NOW, LIFE, Duration::ZERO), Action::Idle);
        let retired = after(&Action::RetirePreviousCa, promoted, || Err(())).unwrap();
        assert_eq!(next_action(&retired, None, &bundles(&new.ca), NOW, LIFE, LONG), Action::IssueNext);
        let again = after(&Action::IssueNext, retired, || Ok::<_, ()>(other)).unwrap();
        assert!(!again.is_renewal_requested);
    }

    #[test]
    fn delays_follow_validity_within_limits() {
        let cases = [
            (Duration::from_mins(1), [1, 2, 30]),
            (Duration::from_mins(10), [6, 12, 50]),
            (Duration::from_hours(8760), [10, 60, 300]),
        ];
        for (life, expected) in cases {
            let delays = [reconcile_interval(life), promotion_delay(life), retirement_delay(life)];
            assert_eq!(delays, expected.map(Duration::from_secs), "{life:?}");
        }
    }
}
