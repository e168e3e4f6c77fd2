//! Laws over random lives of random pods, run by a stand-in kubelet that restarts containers by their policies.

use proptest::prelude::*;

use super::*;

const NOW: Duration = Duration::from_secs(100);

/// A container's policy, and the codes with which its attempts end; the last one is always final.
#[derive(Debug, Clone)]
struct Script {
    policy: &'static str,
    codes: Vec<i32>,
}

/// Policies with codes that the kubelet restarts, and one that it does not. Written by hand, not derived from the code under test.
const POLICIES: &[(&str, &[i32], &[i32])] = &[
    ("Never", &[], &[0, 1, 137]),
    ("OnFailure", &[1, 2, 137], &[0]),
    ("Never;restart:in:42,43", &[42, 43], &[0, 1]),
    ("OnFailure;restart:in:0", &[0, 1, 9], &[]),
    ("OnFailure;restart:not-in:0,1", &[1, 2, 42], &[0]),
    ("Always", &[0, 1], &[]),
];

fn script() -> impl Strategy<Value = Script> {
    (0..POLICIES.len()).prop_flat_map(|which| {
        let (policy, again, last) = POLICIES[which];
        let retries = if again.is_empty() { 0..1 } else { 0..4_usize };
        let retries = prop::collection::vec(
            prop::sample::select(if again.is_empty() { vec![0] } else { again.to_vec() }),
            retries,
        );
        // Without a final code it is restarted for ever.
        let last = if last.is_empty() {
            Just(None).boxed()
        } else {
            prop::sample::select(last.to_vec()).prop_map(Some).boxed()
        };
        (retries, last).prop_map(move |(retries, last)| {
            let retries = if again.is_empty() { vec![] } else { retries };
            Script { policy, codes: retries.into_iter().chain(last).collect() }
        })
    })
}

fn ends_for_good(script: &Script) -> bool {
    POLICIES.iter().any(|(policy, _, last)| *policy == script.policy && !last.is_empty())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    /// Never asks while an awaited container may come back, and asks as soon as none will, whatever the order of events.
    #[test]
    fn the_proxy_is_asked_when_and_only_when_all_is_over(
        scripts in prop::collection::vec(script(), 1..4),
        order in prop::collection::vec(any::<prop::sample::Index>(), 0..40),
    ) {
        let names: Vec<String> = (0..scripts.len()).map(|n| format!("c{n}")).collect();
        let mut arguments = Watch::new(names.clone(), RestartPolicy::Never);
        arguments.container_policies = names.iter().cloned().zip(scripts.iter().map(|script| script.policy.parse().unwrap())).collect();
        let mut pod = Pod::new(&arguments);
        pod.started("istio-proxy", "p", true, NOW);
        // How many starts and ends each container has had.
        let mut events = vec![0; scripts.len()];
        let mut now = Duration::from_secs(100);
        let check = |pod: &Pod, events: &[usize], now| {
            let is_over = |n: usize| ends_for_good(&scripts[n]) && events[n] == 2 * scripts[n].codes.len();
            let all_over = (0..scripts.len()).all(is_over);
            assert_eq!(pod.next(now) == Step::Quit, all_over, "{pod:?} after {events:?} of {scripts:?}");
        };
        let mut step = |n: usize, pod: &mut Pod, events: &mut Vec<usize>| {
            if events[n] == 2 * scripts[n].codes.len() {
                return;
            }
            let attempt = events[n] / 2;
            if events[n].is_multiple_of(2) {
                assert_eq!(pod.started(&names[n], &attempt.to_string(), true, NOW), Some(n));
            } else {
                pod.exited(n, Exit::Code(scripts[n].codes[attempt]), now);
            }
            events[n] += 1;
            now += Duration::from_secs(1);
            check(pod, events, now);
        };
        for index in order {
            step(index.index(scripts.len()), &mut pod, &mut events);
        }
        // Whatever was left happens in the end.
        for (n, script) in scripts.iter().enumerate() {
            for _ in 0..2 * script.codes.len() {
                step(n, &mut pod, &mut events);
            }
        }
        if scripts.iter().all(ends_for_good) {
            prop_assert_eq!(pod.next(Duration::from_secs(9999)), Step::Quit);
            let proxy = pod.containers.len() - 1;
            pod.exited(proxy, Exit::Code(0), Duration::from_secs(9999));
            prop_assert_eq!(pod.next(Duration::from_secs(9999)), Step::End);
        }
    }
}
