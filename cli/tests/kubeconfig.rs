//! Which cluster a command in a pod works on.

use std::fs;
use std::process::Command;

/// Returns what a command says in a pod with this KUBECONFIG and home directory.
fn said(kubeconfig: &str, home: &str) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_istio-aux"));
    command.args(["version"]).env("KUBERNETES_SERVICE_HOST", "127.0.0.1").env("KUBERNETES_SERVICE_PORT", "1");
    let output = command.env("KUBECONFIG", kubeconfig).env("HOME", home).output().unwrap();
    assert!(!output.status.success());
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn kubeconfig_that_cannot_be_used_never_means_the_pods_own_cluster() {
    let directory = tempfile::tempdir().unwrap();
    let home = directory.path().to_str().unwrap();
    let file = format!("{home}/broken");
    fs::write(&file, "{current-context: gone, contexts: []}").unwrap();
    assert!(said(&file, home).contains("gone"));
    assert!(
        said("", home).contains("default namespace"),
        "without any it is the pod's own, of which there are no files here"
    );
    assert!(said("", "/dev/null").contains("default namespace"), "nor is there any below a file");
    assert!(
        said(&format!("{home}/missing:{file}:"), home).contains("gone"),
        "as kubectl, it takes the files that exist"
    );
    fs::create_dir(format!("{home}/.kube")).unwrap();
    fs::rename(file, format!("{home}/.kube/config")).unwrap();
    assert!(said("", home).contains("gone"));
}
