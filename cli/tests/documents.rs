//! Checks the documentation, which `make docs` builds as a site: its links, except those in HTML, and the tests that it names.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

#[derive(Default)]
struct Page {
    links: Vec<String>,
    anchors: BTreeSet<String>,
    /// The names of tests: sentences of four words and more.
    tests: Vec<String>,
}

impl Page {
    fn read(path: &Path) -> Self {
        let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let (mut page, mut heading) = (Self::default(), String::new());
        for event in Parser::new_ext(&text, Options::ENABLE_TABLES) {
            match event {
                Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                    page.links.push(dest_url.to_string());
                }
                Event::Start(Tag::Heading { .. }) => heading.clear(),
                Event::Text(text) => heading.push_str(&text),
                Event::Code(text) => {
                    heading.push_str(&text);
                    page.tests.extend(names_a_test(&text).then(|| text.to_string()));
                }
                Event::End(TagEnd::Heading(_)) => {
                    page.anchors.insert(anchor(&heading));
                }
                _ => {}
            }
        }
        page
    }
}

/// Returns true for a name such as `job_completes_with_the_label`. Metrics have their producers' prefixes.
fn names_a_test(code: &str) -> bool {
    let is_name = code.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_');
    let is_metric = ["istio_aux_", "kube_"].iter().any(|prefix| code.starts_with(prefix));
    is_name && !is_metric && code.matches('_').count() >= 3
}

/// Returns the anchor of a heading, on GitHub and in mdBook.
fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.collect::<String>().to_lowercase().replace(' ', "-")
}

fn summary() -> PathBuf {
    fs::canonicalize(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/SUMMARY.md")).expect("there is docs/SUMMARY.md")
}

/// Returns the file that a link of `page` leads to, if it exists.
fn target(page: &Path, link: &str) -> Option<PathBuf> {
    if link.is_empty() { Some(page.to_owned()) } else { fs::canonicalize(page.with_file_name(link)).ok() }
}

fn has_extension(file: &Path, extension: &str) -> bool {
    file.extension().is_some_and(|it| it == extension)
}

/// Returns the pages of the site.
fn pages() -> BTreeSet<PathBuf> {
    let summary = summary();
    let resolve = |link: &String| target(&summary, link).unwrap_or_else(|| panic!("docs/SUMMARY.md: no file {link}"));
    Page::read(&summary).links.iter().map(resolve).collect()
}

#[test]
fn readme_and_every_file_of_docs_are_pages() {
    let summary = summary();
    let files = fs::read_dir(summary.with_file_name("")).unwrap().map(|entry| entry.unwrap().path());
    let documents = files.filter(|file| has_extension(file, "md") && *file != summary);
    let expected = documents.chain(target(&summary, "../README.md")).collect();
    let missing: Vec<_> = BTreeSet::difference(&expected, &pages()).cloned().collect();
    assert!(missing.is_empty(), "not in docs/SUMMARY.md: {missing:?}");
}

#[test]
fn every_link_leads_to_a_heading_or_picture() {
    let pages = pages();
    let mut broken = Vec::new();
    for page in &pages {
        for link in Page::read(page).links.iter().filter(|link| !link.contains("://")) {
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let leads_somewhere = target(page, file).is_some_and(|file| {
                let has_anchor = || anchor.is_empty() || Page::read(&file).anchors.contains(anchor);
                has_extension(&file, "svg") || (pages.contains(&file) && has_anchor())
            });
            if !leads_somewhere {
                broken.push(format!("{}: {link}", page.display()));
            }
        }
    }
    assert!(broken.is_empty(), "these lead to no page of docs/SUMMARY.md, or to no heading: {broken:#?}");
}

#[test]
fn every_test_that_a_page_names_exists() {
    let root = summary().with_file_name("..");
    // The directory of a running cluster changes while it is read.
    let sources = ["--include=*.rs", "--include=*.py", "--exclude-dir=target", "--exclude-dir=.cluster"];
    let mut grep = Command::new("grep");
    grep.args(["-rhoE", "(fn|def) [a-z0-9_]+"]).args(sources).arg(".").current_dir(root);
    let listed = grep.output().unwrap();
    assert!(listed.status.success(), "{}", String::from_utf8_lossy(&listed.stderr));
    let listed = String::from_utf8(listed.stdout).unwrap();
    let defined: BTreeSet<&str> = listed.lines().filter_map(|line| line.split(' ').nth(1)).collect();
    let named = pages().into_iter().flat_map(|page| {
        let place = page.display().to_string();
        Page::read(&page).tests.into_iter().map(move |test| (test, place.clone()))
    });
    let (known, missing): (Vec<_>, Vec<_>) = named.partition(|(test, _)| defined.contains(&**test));
    assert!(missing.is_empty(), "no test has these names: {missing:#?}");
    assert!(known.len() > 30, "{known:?}");
}

/// Are longer than a page to be read: what an option means is looked up.
const REFERENCES: [&str; 2] = ["configuration.md", "troubleshooting.md"];

#[test]
fn pages_have_200_lines_of_100_columns_at_most() {
    let mut long = Vec::new();
    for page in pages() {
        let text = fs::read_to_string(&page).unwrap();
        let (mut is_code, mut is_result, mut count) = (false, false, 0);
        for (number, line) in (1..).zip(text.lines()) {
            is_code ^= line.trim_start().starts_with("```");
            // What make conformance and istio-suites write.
            is_result = line.starts_with("<!-- tables") || (is_result && !line.starts_with("<!-- end"));
            // Tables, HTML, and commands and links, which have no place to break.
            let is_free =
                is_code || is_result || line.trim_start().starts_with(['|', '<', '!']) || line.starts_with("`bench ");
            if !is_free && line.chars().count() > 100 {
                long.push(format!("{}:{number}", page.display()));
            }
            count += usize::from(!is_result);
        }
        if !REFERENCES.iter().any(|name| page.ends_with(name)) && count > 200 {
            long.push(format!("{}: {count} lines", page.display()));
        }
    }
    assert!(long.is_empty(), "these are too long: {long:#?}");
}

/// Without one of them it is the context's namespace, which is not where pods hang after an outage.
#[test]
fn all_stuck_pods_are_those_of_a_named_namespace_or_of_all() {
    let mut count = 0;
    for page in pages() {
        let text = fs::read_to_string(&page).unwrap();
        let commands = text.split(['`', '\n']).filter(|code| code.contains("finish ") && code.contains("--all-stuck"));
        for command in commands {
            let names_one = command.split_whitespace().any(|word| ["-n", "-A"].contains(&word));
            assert!(names_one, "{}: {command}; next: -n NAMESPACE or -A", page.display());
            count += 1;
        }
    }
    assert!(count > 5, "{count}");
}

#[test]
fn every_alert_is_explained() {
    let docs = summary().with_file_name("");
    let rules = ["istio-aux/rules.yaml", "istio-aux/rules-tenancy.yaml", "istio-aux-node/rules.yaml"]
        .map(|path| fs::read_to_string(docs.join("../deploy/helm").join(path)).unwrap())
        .concat();
    let operations = fs::read_to_string(docs.join("operations.md")).unwrap();
    let alerts: BTreeSet<&str> = rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    let rows = operations.lines().filter_map(|line| line.strip_prefix("| `IstioAux")?.split_once('`'));
    let explained = rows.map(|(name, _)| format!("IstioAux{name}")).collect::<BTreeSet<_>>();
    assert_eq!(explained.iter().map(String::as_str).collect::<BTreeSet<_>>(), alerts);
}
