//! What the shim saw, kept in a file of some lines for a shim that is started again: one line for the machine's boot, one
//! for each container. A start of a container has an id of its own, so no PID is kept.

use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

use crate::decide::{Exit, Life, Pod};

const HEAD: &str = "aux-shim 1";

/// The file's text.
pub(crate) fn write(pod: &Pod, boot: &str) -> String {
    let mut text = format!("{HEAD} {boot}\n");
    for container in &pod.containers {
        let Some(attempt) = &container.attempt else { continue };
        let life = match container.life {
            Life::Unseen => continue,
            Life::Running => "running - 0".to_owned(),
            Life::Exited { exit: Exit::Code(code), at } => format!("exited {code} {}", at.as_millis()),
            Life::Exited { exit: Exit::Unknown, at } => format!("exited ? {}", at.as_millis()),
        };
        let due_again = if container.due_again { "due-again" } else { "-" };
        text += &[container.name.as_str(), attempt, &life, &container.restarts.to_string(), due_again].join(" ");
        text.push('\n');
    }
    text
}

/// Takes up what a file's text says of the pod's containers. From another boot the verdicts hold and the times do not:
/// what ended then counts as ended now. `None`, and nothing is taken up, where the text is not one of ours.
pub(crate) fn read(pod: &mut Pod, text: &str, boot: &str, now: Duration) -> Option<()> {
    let mut lines = text.lines();
    let written_in = lines.next()?.strip_prefix(HEAD)?.trim_start();
    let mut restored = pod.clone();
    for line in lines {
        let [name, attempt, life, code, at, restarts, due_again] =
            line.split(' ').collect::<Vec<_>>().try_into().ok()?;
        let Some(container) = restored.containers.iter_mut().find(|container| container.name == name) else { continue };
        let at = Duration::from_millis(at.parse().ok()?);
        container.life = match life {
            "running" => Life::Running,
            "exited" => Life::Exited {
                exit: if code == "?" { Exit::Unknown } else { Exit::Code(code.parse().ok()?) },
                at: if written_in == boot { at } else { now },
            },
            _ => return None,
        };
        container.attempt = Some(attempt.to_owned());
        container.restarts = restarts.parse().ok()?;
        container.due_again = due_again == "due-again";
    }
    *pod = restored;
    Some(())
}

/// Writes a file as a whole or not at all.
pub(crate) fn store(file: &Path, text: &str) -> io::Result<()> {
    let part = file.with_extension("part");
    fs::write(&part, text)?;
    fs::rename(&part, file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use contract::args::Watch;
    use contract::policy::RestartPolicy;

    const NOW: Duration = Duration::from_secs(500);

    fn fresh() -> Pod {
        Pod::new(&Watch::new(vec!["main".into(), "metrics".into(), "late".into()], RestartPolicy::OnFailure))
    }

    fn seen() -> Pod {
        let mut pod = fresh();
        for (name, attempt) in [("main", "a"), ("metrics", "b"), ("istio-proxy", "p"), ("main", "a2")] {
            pod.started(name, attempt, true, NOW);
        }
        pod.exited(0, Exit::Code(3), Duration::from_secs(42));
        pod.exited(3, Exit::Unknown, Duration::from_secs(43));
        pod
    }

    #[test]
    fn what_is_written_is_read() {
        let text = write(&seen(), "boot-1");
        assert_eq!(
            text,
            "aux-shim 1 boot-1\nmain a2 exited 3 42000 1 -\nmetrics b running - 0 0 -\nistio-proxy p exited ? 43000 0 -\n"
        );
        let mut pod = fresh();
        assert_eq!(read(&mut pod, &text, "boot-1", NOW), Some(()));
        assert_eq!(pod, seen());
    }

    #[test]
    fn verdicts_of_another_boot_hold_and_its_times_do_not() {
        let mut pod = fresh();
        read(&mut pod, &write(&seen(), "boot-1"), "boot-2", NOW).unwrap();
        assert_eq!(pod.containers[0].life, Life::Exited { exit: Exit::Code(3), at: NOW });
    }

    #[test]
    fn what_is_not_ours_changes_nothing() {
        let whole = write(&seen(), "boot-1");
        let cases = [
            "",
            "\n",
            "rubbish",
            "aux-shim 2 boot\n",
            "\0\0\0",
            &whole[..whole.len() - 9],
            &whole.replace("exited", "ended"),
            &whole.replace("42000", "x"),
            &whole.replace(" 3 ", " three "),
        ];
        for text in cases {
            let mut pod = fresh();
            assert_eq!(read(&mut pod, text, "boot-1", NOW), None, "{text:?}");
            assert_eq!(pod, fresh(), "{text:?}");
        }
    }

    #[test]
    fn containers_that_the_pod_has_not_are_passed_over() {
        let mut pod = fresh();
        read(&mut pod, "aux-shim 1 b\nother x running - 0 0 -\nmain a exited 0 1 0 -\n", "b", NOW).unwrap();
        assert_eq!(pod.containers[0].life, Life::Exited { exit: Exit::Code(0), at: Duration::from_millis(1) });
    }

    #[test]
    fn a_file_is_replaced_as_a_whole() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("state");
        for text in ["one\n", "two\n"] {
            store(&file, text).unwrap();
            assert_eq!(fs::read_to_string(&file).unwrap(), text);
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
