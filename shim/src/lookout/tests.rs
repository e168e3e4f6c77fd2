//! What a look sees, in a process file system of plain files.

use super::*;
use crate::procfs::fake::{give_out, mounts_of, process};
use contract::args::Watch;
use contract::policy::RestartPolicy;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;

/// A pod of one container, with the shim at PID 7, after a first look.
fn looked_once() -> (TempDir, Lookout, Pod) {
    let root = tempfile::tempdir().unwrap();
    let shim = mounts_of("aux-shim", "0988f5a5");
    process(root.path(), 7, 0, 100, &shim);
    std::fs::create_dir(root.path().join("self")).unwrap();
    std::fs::write(root.path().join("self/mountinfo"), &shim).unwrap();
    give_out(root.path(), 7);
    let mut lookout = Lookout::new(Procfs::new(root.path()));
    let mut pod = Pod::new(&Watch::new(vec!["main".into()], RestartPolicy::Never));
    assert_eq!(sighted(&mut lookout, &mut pod), []);
    (root, lookout, pod)
}

fn sighted(lookout: &mut Lookout, pod: &mut Pod) -> Vec<i32> {
    lookout.look(pod).starts.into_iter().map(|sighting| sighting.process.pid).collect()
}

#[test]
fn a_pid_that_is_given_out_before_proc_has_it_is_looked_at_again() {
    let (root, mut lookout, mut pod) = looked_once();
    give_out(root.path(), 43);
    assert_eq!(sighted(&mut lookout, &mut pod), []);
    process(root.path(), 43, 0, 200, "");
    assert_eq!(sighted(&mut lookout, &mut pod), [], "the runtime has not mounted anything yet");
    std::fs::write(root.path().join("43/mountinfo"), mounts_of("istio-proxy", "53ef4a5b")).unwrap();
    assert_eq!(sighted(&mut lookout, &mut pod), [43]);
    assert_eq!(sighted(&mut lookout, &mut pod), []);
}

#[test]
fn an_exec_session_is_never_taken_for_the_init_that_was_missed() {
    let (root, mut lookout, mut pod) = looked_once();
    process(root.path(), 60, 0, 300, &mounts_of("istio-proxy", "53ef4a5b"));
    process(root.path(), 43, 0, 200, &mounts_of("istio-proxy", "53ef4a5b"));
    lookout.last_pid = 50;
    give_out(root.path(), 60);
    assert_eq!(sighted(&mut lookout, &mut pod), [43]);
}

/// What the runtime is making a container of: a process of this machine that ends when it is killed.
fn in_the_making(root: &TempDir) -> Child {
    let child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
    let pid = i32::try_from(child.id()).unwrap();
    process(root.path(), pid, 0, 200, "");
    give_out(root.path(), pid);
    child
}

/// Ends it, and has it reaped.
fn end(root: &TempDir, mut child: Child) {
    drop(child.stdin.take());
    child.wait().unwrap();
    std::fs::remove_dir_all(root.path().join(child.id().to_string())).unwrap();
}

#[test]
fn what_ends_before_it_has_a_name_is_known_to_have_been_a_container() {
    let (root, mut lookout, mut pod) = looked_once();
    pod.proxy_started("53ef4a5b", now());
    let child = in_the_making(&root);
    assert!(lookout.look(&mut pod).nameless.is_empty());
    lookout.unseen_since = None;
    end(&root, child);
    let seen = lookout.look(&mut pod);
    assert!(matches!(seen.nameless[..], [Process::Watched(_)]));
    assert_eq!(lookout.unseen_since, None, "it was seen");
    assert!(lookout.unready.is_empty());
}

#[test]
fn before_the_proxy_runs_it_may_be_any_other() {
    let (root, mut lookout, mut pod) = looked_once();
    let child = in_the_making(&root);
    lookout.look(&mut pod);
    lookout.unseen_since = None;
    end(&root, child);
    assert!(lookout.look(&mut pod).nameless.is_empty());
    assert!(lookout.unseen_since.is_some());
}

#[test]
fn a_pid_that_was_listed_before_it_was_given_out_counts_once() {
    let (root, mut lookout, mut pod) = looked_once();
    pod.proxy_started("53ef4a5b", now());
    lookout.last_pid = 0;
    let child = in_the_making(&root);
    // Made between the two readings.
    give_out(root.path(), i32::try_from(child.id()).unwrap() - 1);
    lookout.look(&mut pod);
    give_out(root.path(), i32::try_from(child.id()).unwrap());
    lookout.look(&mut pod);
    end(&root, child);
    assert_eq!(lookout.look(&mut pod).nameless.len(), 1);
}

/// A hosts file, and somebody who listens to it.
fn listened_to(root: &TempDir) -> (PathBuf, Starts) {
    let hosts = root.path().join("hosts");
    std::fs::write(&hosts, "").unwrap();
    let starts = Starts::listen(hosts.to_str().unwrap()).unwrap();
    (hosts, starts)
}

#[test]
fn where_starts_are_announced_what_was_not_is_no_container() {
    let (root, mut lookout, mut pod) = looked_once();
    let (hosts, starts) = listened_to(&root);
    lookout.announcements = Announcements::Proven(starts);
    lookout.listening_since = now().saturating_sub(ANNOUNCED_BEFORE);
    pod.proxy_started("53ef4a5b", now());
    for (is_announced, nameless) in [(false, 0), (true, 1)] {
        if is_announced {
            std::fs::write(&hosts, "1").unwrap();
        }
        let child = in_the_making(&root);
        lookout.look(&mut pod);
        end(&root, child);
        assert_eq!(lookout.look(&mut pod).nameless.len(), nameless, "announced: {is_announced}");
    }
}

#[test]
fn what_ended_before_it_could_be_opened_was_unseen() {
    let (root, mut lookout, mut pod) = looked_once();
    let mut child = in_the_making(&root);
    lookout.unseen_since = None;
    drop(child.stdin.take());
    child.wait().unwrap();
    assert!(lookout.look(&mut pod).nameless.is_empty());
    std::fs::remove_dir_all(root.path().join(child.id().to_string())).unwrap();
    assert!(lookout.look(&mut pod).nameless.is_empty(), "it may have been an exec session");
    assert!(lookout.unseen_since.is_some());
}

#[test]
fn a_container_is_watched_by_what_was_opened_before_it_had_a_name() {
    let (root, mut lookout, mut pod) = looked_once();
    let child = in_the_making(&root);
    assert!(lookout.look(&mut pod).starts.is_empty());
    std::fs::write(root.path().join(format!("{}/mountinfo", child.id())), mounts_of("main", "53ef4a5b")).unwrap();
    let seen = lookout.look(&mut pod);
    assert!(matches!(&seen.starts[..], [Sighting { opened: Some(Process::Watched(_)), .. }]));
    end(&root, child);
}

#[test]
fn a_start_right_after_listening_began_says_nothing_of_announcements() {
    let (root, mut lookout, mut pod) = looked_once();
    let (hosts, starts) = listened_to(&root);
    lookout.announcements = Announcements::Unproven(starts);
    lookout.judge_announcements(false, lookout.listening_since);
    std::fs::write(&hosts, "1").unwrap();
    lookout.hear(&mut pod);
    assert!(pod.expects_a_start(), "the next announcement is heard");
    lookout.judge_announcements(false, lookout.listening_since + ANNOUNCED_BEFORE);
    assert!(matches!(lookout.announcements, Announcements::None));
}

#[test]
fn a_pid_that_never_turns_up_was_unseen() {
    let (root, mut lookout, mut pod) = looked_once();
    lookout.unseen_since = None;
    give_out(root.path(), 43);
    for _ in 0..THERE_WITHIN {
        assert_eq!(lookout.unseen_since, None);
        assert_eq!(sighted(&mut lookout, &mut pod), []);
    }
    assert!(lookout.unseen_since.is_some());
    assert!(lookout.unready.is_empty());
}
