//! README and docs/getting-started.md as a new user follows them: their commands run as they stand, and print what stands there. In a
//! binary of its own: it takes the installation away.

use std::time::{Duration, Instant};
use std::{env, fs, thread};

use e2e::cluster::MESH;
use e2e::command::{in_background, on_cluster};
use e2e::install_methods::{InstallMethod, remove_all};
use e2e::kubectl::kubectl;
use e2e::manifests::{job, pod_spec, shell};
use e2e::namespace::WAIT_TIMEOUT;
use e2e::{PodView, scenario};
use pulldown_cmark::{CodeBlockKind, Event, Parser, Tag, TagEnd};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
/// Where the component `pages` of the one-node cluster has a registry.
const REGISTRY: (&str, &str) = ("registry.example", "127.0.0.1:15000");

/// A command of a page, and what it prints, where the page says it.
struct Step {
    command: String,
    prints: Option<String>,
}

/// Returns the commands of a page: blocks `sh` are commands, blocks `console` a terminal with both. Blocks `yaml` have to be files of
/// `examples`, and blocks `text` are pictures.
fn steps(page: &str) -> Vec<Step> {
    let text = fs::read_to_string(format!("{ROOT}/{page}")).expect("the page can be read");
    let (mut language, mut steps) = (None, Vec::new());
    for event in Parser::new(&text) {
        match event {
            Event::Start(Tag::CodeBlock(CodeBlockKind::Fenced(name))) => language = Some(name),
            Event::End(TagEnd::CodeBlock) => language = None,
            Event::Text(block) => match language.as_deref() {
                Some("sh") => steps.push(Step { command: block.to_string(), prints: None }),
                Some("console") => steps.extend(session(&block)),
                Some("yaml") => assert!(is_an_example(&block), "{page}: this is not a file of examples/:\n{block}"),
                Some("text") | None => {}
                Some(other) => panic!("{page}: a block is sh, console, yaml or text, not {other:?}:\n{block}"),
            },
            _ => {}
        }
    }
    steps
}

fn session(block: &str) -> impl Iterator<Item = Step> {
    let commands = block.strip_prefix("$ ").expect("a terminal begins with a command").split("\n$ ");
    commands.map(|text| {
        let (command, prints) = text.split_once('\n').unwrap_or((text, ""));
        Step { command: command.to_owned(), prints: Some(prints.to_owned()) }
    })
}

/// Returns true if a file of `examples` has this text below its comment.
fn is_an_example(text: &str) -> bool {
    let files = fs::read_dir(format!("{ROOT}/examples"))
        .expect("they can be listed")
        .map(|file| file.expect("it is there").path());
    let mut texts = files.filter_map(|file| fs::read_to_string(file).ok());
    texts.any(|example| example.lines().skip_while(|line| line.starts_with('#')).eq(text.lines()))
}

/// Returns true if each line has what the page says, where `…` stands for anything, and columns may be of any width.
fn is_as_said(printed: &str, said: &str) -> bool {
    let words = |text: &str| text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    let (printed, said): (Vec<String>, Vec<String>) = (words(printed), words(said));
    printed.len() == said.len() && printed.iter().zip(&said).all(|(printed, said)| fits(printed, said))
}

fn fits(printed: &str, said: &str) -> bool {
    let Some((before, after)) = said.split_once('…') else { return printed == said };
    let Some(rest) = printed.strip_prefix(before) else { return false };
    rest.char_indices().map(|(at, _)| at).chain([rest.len()]).any(|at| fits(&rest[at..], after))
}

/// Runs the commands of a page, in which placeholders are replaced.
fn follow(page: &str, placeholders: &[(&str, &str)]) {
    let cluster = env::var("ONE_NODE_CLUSTER").expect("hack/cluster/cluster run sets it");
    let path = format!("{ROOT}/target/images:{}", env::var("PATH").expect("it is set"));
    for Step { command, prints } in steps(page) {
        println!("$ {command}");
        let filled = placeholders.iter().fold(command, |text, (name, value)| text.replace(name, value));
        let mut shell = on_cluster("bash", &["-euo", "pipefail", "-c", &filled]);
        shell.current_dir(ROOT).env("PATH", &path);
        // Of the registry.
        shell.env("SSL_CERT_FILE", format!("{cluster}/pki/ca.crt"));
        let began = Instant::now();
        let output = loop {
            let output = shell.output().expect("there is bash");
            // Nobody types the next command before the Job's controller has created the pod.
            let is_early = String::from_utf8_lossy(&output.stderr).contains("no matching resources found");
            if !is_early || began.elapsed() > WAIT_TIMEOUT {
                break output;
            }
            thread::sleep(Duration::from_millis(100));
        };
        let [text, errors] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
        if let Some(said) = &prints {
            assert!(is_as_said(&text, said), "{page}: this is printed:\n{text}\nand not:\n{said}\n{errors}");
        }
        // `check` ends with 1 where it has found a problem.
        let expected = i32::from(prints.is_some_and(|said| said.starts_with("problem")));
        assert_eq!(output.status.code(), Some(expected), "{page}: {text}{errors}");
    }
}

#[tokio::test]
async fn getting_started_and_readme_run_as_they_stand() {
    in_background(|| {
        remove_all();
        kubectl(&["delete", "namespace", "istio-aux", "team", "--ignore-not-found"]);
        follow("docs/getting-started.md", &[REGISTRY]);
    })
    .await;
    // README begins with a pod that hangs.
    let ns = &scenario("readme", &[MESH]).await;
    ns.create_object(job("stuck", &pod_spec("Never", &[shell("main", "true")]))).await;
    let pod = ns.pod_of_job("stuck").await;
    let hangs = |pod: PodView| pod.exit_code("main").is_some() && pod.is_ready("istio-proxy");
    ns.pod_until(&pod, "a payload that has ended beside its proxy", |pod| hangs(PodView(pod)).then_some(())).await;
    let name = ns.name().to_owned();
    in_background(move || {
        kubectl(&["create", "namespace", "team"]);
        follow("README.md", &[REGISTRY, ("NAMESPACE", &name), ("POD", &pod)]);
        kubectl(&["delete", "namespace", "team"]);
        remove_all();
        InstallMethod::Chart(&[]).install();
    })
    .await;
    ns.until_complete("stuck").await;
}

#[test]
fn said_lines_are_compared_with_printed_ones() {
    let said = "NAME     READY\nhello-…  0/3  …s\n";
    assert!(is_as_said("NAME READY\nhello-x1 0/3 12s\n", said));
    for printed in
        ["NAME READY\nhello-x1 1/3 12s", "NAME READY\nhello-x1 0/3 12m", "NAME READY", "", "READY\nhello-x1 0/3 12s"]
    {
        assert!(!is_as_said(printed, said), "{printed}");
    }
}
