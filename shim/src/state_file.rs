//! Stores what was observed in a file, for a restarted shim: a line for the machine's boot, one for each container, and
//! one for each unidentified exit.

use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

use crate::pod::{ContainerState, Exit, Instance, PodState, UnidentifiedExit};

const HEADER: &str = "aux-shim 2";
/// Replaces a container's name on the line of an unidentified exit.
const UNIDENTIFIED: &str = "?";

/// Renders the file's text.
pub(crate) fn render(pod: &PodState, boot: &str) -> String {
    let mut lines = vec![format!("{HEADER} {boot}")];
    for container in &pod.containers {
        let Some(Instance { id, pid, started }) = &container.instance else { continue };
        let (state, exit, at) = match container.state {
            ContainerState::Waiting => continue,
            ContainerState::Running => ("running", Exit::Unknown, Duration::ZERO),
            ContainerState::Terminated { exit, at } => ("terminated", exit, at),
        };
        let pending = if container.restart_pending { "restart-pending" } else { "-" };
        let assumed = container.assumed_until.map_or("-".to_owned(), |until| until.as_nanos().to_string());
        let (name, restarts, started) = (&container.name, container.restarts, started.as_nanos());
        let at = at.as_nanos();
        lines.push(format!("{name} {id} {pid} {started} {restarts} {state} {exit} {at} {pending} {assumed}"));
    }
    for UnidentifiedExit { process, exit, at, candidates } in &pod.unidentified {
        let candidates: Vec<String> = candidates.iter().map(usize::to_string).collect();
        lines.push(format!("{UNIDENTIFIED} {process} {exit} {} {}", at.as_nanos(), candidates.join(",")));
    }
    lines.join("\n") + "\n"
}

/// Restores the pod's containers from a file's text. Times of an earlier boot are meaningless: what ended then counts as
/// ended now. Returns `None`, and restores nothing, if the text is not of this program.
pub(crate) fn parse(pod: &mut PodState, text: &str, boot: &str, now: Duration) -> Option<()> {
    let mut lines = text.lines();
    let same_boot = lines.next()?.strip_prefix(HEADER)?.trim_start() == boot;
    let time = |text: &str| Some(Duration::from_nanos(text.parse().ok()?));
    let ended_at = |text: &str| time(text).map(|at| if same_boot { at } else { now });
    let mut restored = pod.clone();
    for line in lines {
        match line.split(' ').collect::<Vec<_>>()[..] {
            [UNIDENTIFIED, process, exit, at, candidates] => {
                let candidates: Option<Vec<usize>> = candidates.split(',').map(|index| index.parse().ok()).collect();
                let candidates = candidates.filter(|all| all.iter().all(|&index| index < restored.containers.len()))?;
                let (process, exit, at) = (process.to_owned(), parse_exit(exit)?, ended_at(at)?);
                restored.unidentified.push(UnidentifiedExit { process, exit, at, candidates });
            }
            [name, id, pid, started, restarts, state, exit, at, pending, assumed] => {
                let state = match state {
                    "running" => ContainerState::Running,
                    "terminated" => ContainerState::Terminated { exit: parse_exit(exit)?, at: ended_at(at)? },
                    _ => return None,
                };
                // A process of an earlier boot is never found, whatever its PID.
                let (pid, started) = if same_boot { (pid.parse().ok()?, time(started)?) } else { (0, Duration::ZERO) };
                let instance = Instance { id: id.to_owned(), pid, started };
                let restarts = restarts.parse().ok()?;
                let Some(container) = restored.containers.iter_mut().find(|container| container.name == name) else {
                    continue;
                };
                (container.state, container.instance) = (state, Some(instance));
                (container.restarts, container.restart_pending) = (restarts, pending == "restart-pending");
                container.assumed_until = if assumed == "-" { None } else { Some(ended_at(assumed)?) };
            }
            _ => return None,
        }
    }
    *pod = restored;
    Some(())
}

fn parse_exit(text: &str) -> Option<Exit> {
    if text == "unknown" { Some(Exit::Unknown) } else { text.parse().ok().map(Exit::Code) }
}

/// Replaces the file as a whole. If that fails, the old file is removed.
pub(crate) fn save(file: &Path, text: &str) -> io::Result<()> {
    let part = file.with_extension("part");
    let replace = || {
        fs::write(&part, text)?;
        fs::rename(&part, file)
    };
    replace().inspect_err(|_| {
        let _ = fs::remove_file(&part);
        let _ = fs::remove_file(file);
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::Event;
    use contract::args::WatchArgs;
    use contract::policy::RestartPolicy;

    const NOW: Duration = Duration::from_secs(500);

    fn fresh() -> PodState {
        let names = ["main", "metrics", "late"].map(str::to_owned).to_vec();
        PodState::new(&WatchArgs::new(names, RestartPolicy::OnFailure), NOW)
    }

    fn observed() -> PodState {
        let mut pod = fresh();
        for (name, id, started) in [("main", "a", 1), ("metrics", "b", 2), ("istio-proxy", "p", 3), ("main", "a2", 4)] {
            let instance = Instance {
                id: id.into(),
                pid: started,
                started: Duration::from_secs(u64::from(started.cast_unsigned())),
            };
            pod.apply(Event::Started { container: name.into(), instance }, NOW);
        }
        pod.apply(Event::Reaped { instance: "a2".into(), code: Some(3) }, Duration::from_secs(42));
        pod.apply(Event::Ended { instance: "p".into() }, Duration::from_secs(43));
        let at = Duration::from_secs(44);
        let exit = UnidentifiedExit { process: "9-1".into(), exit: Exit::Code(0), at, candidates: vec![0, 2] };
        pod.unidentified.push(exit);
        pod
    }

    #[test]
    fn rendered_state_is_parsed() {
        let text = render(&observed(), "boot-1");
        let expected = "aux-shim 2 boot-1\n\
            main a2 4 4000000000 1 terminated 3 42000000000 - -\n\
            metrics b 2 2000000000 0 running unknown 0 - -\n\
            istio-proxy p 3 3000000000 0 terminated unknown 43000000000 - -\n\
            ? 9-1 0 44000000000 0,2\n";
        assert_eq!(text, expected);
        let mut pod = fresh();
        assert_eq!(parse(&mut pod, &text, "boot-1", NOW), Some(()));
        assert_eq!(render(&pod, "boot-1"), text);
    }

    #[test]
    fn earlier_boot_keeps_only_exit_codes() {
        let mut pod = fresh();
        parse(&mut pod, &render(&observed(), "boot-1"), "boot-2", NOW).unwrap();
        assert_eq!(pod.containers[0].state, ContainerState::Terminated { exit: Exit::Code(3), at: NOW });
        assert_eq!(pod.containers[1].state, ContainerState::Running);
        assert_eq!(pod.containers[1].instance.as_ref().map(|instance| instance.pid), Some(0));
    }

    #[test]
    fn restored_doubt_ends_without_scans() {
        // In mode wrap, no scan ends what a restored state had announced.
        let mut args = WatchArgs::new(vec!["main".to_owned()], RestartPolicy::OnFailure);
        args.may_restart = args.awaited.clone();
        let mut pod = PodState::new(&args, NOW);
        let text = "aux-shim 2 b\nmain a 2 2 0 terminated 0 1 - -\n";
        parse(&mut pod, text, "b", NOW).unwrap();
        let instance = Instance { id: "p".into(), pid: 1, started: NOW };
        pod.apply(Event::Started { container: "istio-proxy".into(), instance }, NOW);
        assert_eq!(pod.next(NOW + Duration::from_secs(5)), crate::pod::Action::QuitProxy);
    }

    #[test]
    fn invalid_text_changes_nothing() {
        let whole = render(&observed(), "boot-1");
        let cases = [
            "",
            "\n",
            "rubbish",
            "aux-shim 1 boot\n",
            "\0\0\0",
            &whole.replace(" -\n", "\n"),
            &whole.replace("terminated", "ended"),
            &whole.replace("42000000000", "x"),
            &whole.replace(" 3 ", " three "),
        ];
        for text in cases {
            let mut pod = fresh();
            assert_eq!(parse(&mut pod, text, "boot-1", NOW), None, "{text:?}");
            assert_eq!(pod, fresh(), "{text:?}");
        }
    }

    #[test]
    fn unknown_containers_are_skipped() {
        let mut pod = fresh();
        let text = "aux-shim 2 b\nother x 1 1 0 running unknown 0 - -\nmain a 2 2 0 terminated 0 1 - -\n";
        parse(&mut pod, text, "b", NOW).unwrap();
        assert_eq!(
            pod.containers[0].state,
            ContainerState::Terminated { exit: Exit::Code(0), at: Duration::from_nanos(1) }
        );
    }

    #[test]
    fn file_is_replaced_as_a_whole() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("state");
        for text in ["one\n", "two\n"] {
            save(&file, text).unwrap();
            assert_eq!(fs::read_to_string(&file).unwrap(), text);
        }
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn failed_save_leaves_no_older_file() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("state");
        save(&file, "older\n").unwrap();
        fs::create_dir(file.with_extension("part")).unwrap();
        assert!(save(&file, "newer\n").is_err());
        assert!(!file.exists());
    }
}
