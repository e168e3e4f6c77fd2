//! Properties of every pod, for any events and any observations of them.

use proptest::prelude::*;

use super::choices::Choices;
use super::kubelet::{Script, World};

/// Restart policies of containers, with exit codes after which the kubelet restarts, and some after which it does not.
/// Written by hand, not derived from the code under test.
const POLICIES: &[(&str, &[i32], &[i32])] = &[
    ("Never", &[], &[0, 1, 137]),
    ("OnFailure", &[1, 2, 137], &[0]),
    ("Never;restart:in:42,43", &[42, 43], &[0, 1]),
    ("OnFailure;restart:not-in:0,1", &[1, 2, 42], &[0]),
    ("Never;restart-all:in:42", &[42], &[0]),
];

fn script() -> impl Strategy<Value = Script> {
    let fate = (prop::sample::select(vec![1_u64, 2000, 40_000]), prop::sample::select(vec![0_u64, 0, 600]));
    let kind = (prop::bool::weighted(0.2), prop::bool::weighted(0.2));
    let codes = (prop::collection::vec(any::<prop::sample::Index>(), 0..3), any::<prop::sample::Index>());
    (prop::sample::select(POLICIES.to_vec()), codes, fate, kind).prop_map(|(policy, (failures, last), fate, kind)| {
        let (policy, again, ends) = policy;
        let failures = failures.iter().filter(|_| !again.is_empty()).map(|index| *index.get(again));
        let codes = failures.chain([*last.get(ends)]).collect();
        Script {
            policy,
            codes,
            runs: fate.0,
            pull: fate.1,
            is_probed: kind.0 && policy == "OnFailure",
            is_helper: kind.1,
        }
    })
}

/// Checks that the proxy is not asked while an awaited container runs or is certain to run, and that it is asked in the
/// end, unless nothing can be known of a container that has started and ended.
fn check(world: World) -> Result<World, String> {
    let (is_asked, world) = world.play();
    if is_asked && world.is_payload_unfinished() {
        return Err(format!("too early:\n{}", world.log.join("\n")));
    }
    if !is_asked && !world.is_unknowable() {
        return Err(format!("never:\n{}", world.log.join("\n")));
    }
    Ok(world)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn proxy_quits_exactly_when_payload_has_finished(
        mut scripts in prop::collection::vec(script(), 1..4),
        choices in prop::collection::vec(0..64_usize, 0..120),
        kills in 0..3_u32,
    ) {
        scripts[0].is_helper = false;
        if let Err(error) = check(World::new(&scripts, kills, Choices::of(choices))) {
            prop_assert!(false, "{scripts:?}\n{error}");
        }
    }
}

#[test]
fn property_holds_for_all_lives_of_small_pods() {
    const DEPTH: usize = 6;
    let script = |policy, codes: &[i32], pull| Script {
        policy,
        codes: codes.to_vec(),
        runs: 1,
        pull,
        is_probed: false,
        is_helper: false,
    };
    let pods = [
        vec![script("Never", &[0], 0)],
        vec![script("Never", &[1], 600)],
        vec![script("OnFailure", &[0], 0)],
        vec![script("OnFailure", &[1, 0], 0)],
        vec![script("Never", &[0], 0), script("Never", &[0], 600)],
        vec![script("OnFailure", &[1, 0], 0), script("Never", &[3], 0)],
    ];
    for pod in pods {
        let (mut choices, mut lives) = (Some(Choices::default()), 0);
        while let Some(next) = choices {
            let world = check(World::new(&pod, 1, next)).unwrap_or_else(|error| panic!("{pod:?}\n{error}"));
            choices = world.choices().next(DEPTH);
            lives += 1;
        }
        assert!(lives > 1000, "{lives}");
    }
}
