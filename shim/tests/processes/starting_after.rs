//! `aux-shim start-after` in a pod with a stand-in for Katib's metrics collector.

use std::os::unix::process::ExitStatusExt;

use super::pod::{Container, Pod, SHIM, copy_program, status_field, until};

/// Starts a collector that computes until a file appears, and then runs this.
fn collector(pod: &Pod, then: &str) -> Container {
    let script = format!("while ! [ -e {} ]; do :; done; {then}", pod.file("loaded").display());
    // Until its own program runs, the container has no such argument.
    let start = format!("exec sh -c '{script}' sh -t trial -s-db db:6789");
    pod.start("metrics-logger-and-collector", &start)
}

/// Starts a training that ends at once: with 7 after the collector was loaded, with 1 before. It writes its PID.
fn training(pod: &Pod) -> Container {
    let [pid, loaded] = ["pid", "loaded"].map(|file| pod.file(file).display().to_string());
    let script = format!("echo $$ > {pid}; [ -e {loaded} ] && exit 7; exit 1");
    pod.run("training", &[SHIM, "start-after", "--argument=-s-db", "--", "sh", "-c", &script])
}

/// Ends the collector's computation, once the training's shim has seen it.
fn load(pod: &Pod, collector: &Container, training: &Container) {
    until_runs(training, "aux-shim");
    until_runs(collector, "sh");
    // It sleeps after each scan. A few sleeps more are its program's, which is being loaded.
    let sleeps = || status_field(&training.init(), "voluntary_ctxt_switches").parse::<u64>().unwrap();
    let before = sleeps();
    until("scans of the shim", || sleeps() > before + 10);
    std::fs::write(pod.file("loaded"), "").unwrap();
}

/// Waits until a container's init process runs this program.
fn until_runs(container: &Container, program: &str) {
    let comm = format!("/proc/{}/comm", container.init());
    until(program, || std::fs::read_to_string(&comm).is_ok_and(|found| found.trim_end() == program));
}

#[test]
fn training_starts_once_its_collector_is_idle() {
    let pod = Pod::new();
    let mut training = training(&pod);
    let pid = training.pid_in_pod();
    let collector = collector(&pod, "sleep 1000");
    load(&pod, &collector, &training);
    assert_eq!(training.wait().code(), Some(7));
    assert_eq!(std::fs::read_to_string(pod.file("pid")).unwrap().trim(), pid);
}

/// Katib's collector of files polls for the metrics file without a pause.
#[test]
fn training_starts_beside_spinning_collector() {
    let pod = Pod::new();
    let mut training = training(&pod);
    let program = pod.file("file-metricscollector");
    copy_program("/bin/sh", &program);
    let words = [program.to_str().unwrap(), "-c", "while :; do :; done", "-s-db"];
    let _collector = pod.run("metrics-logger-and-collector", &words);
    assert_eq!(training.wait().code(), Some(1), "nothing was loaded");
}

#[test]
fn training_starts_after_ended_collector() {
    let pod = Pod::new();
    let mut training = training(&pod);
    let mut collector = collector(&pod, "exit 1");
    load(&pod, &collector, &training);
    collector.wait();
    assert_eq!(training.wait().code(), Some(7));
}

#[test]
fn waiting_training_ends_by_sigterm() {
    let pod = Pod::new();
    let mut training = training(&pod);
    until_runs(&training, "aux-shim");
    training.signal("TERM");
    assert_eq!(training.wait().signal(), Some(15));
}

#[test]
fn missing_command_exits_with_127() {
    let pod = Pod::new();
    let mut training = pod.run("training", &[SHIM, "start-after", "--argument=-s-db", "--", "/no/such/command"]);
    let collector = collector(&pod, "sleep 1000");
    load(&pod, &collector, &training);
    assert_eq!(training.wait().code(), Some(127));
}
