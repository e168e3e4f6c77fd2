//! Checks the links of the documentation, which `make docs` builds as a site, except links in HTML.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

#[derive(Default)]
struct Page {
    links: Vec<String>,
    anchors: BTreeSet<String>,
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
                Event::Text(text) | Event::Code(text) => heading.push_str(&text),
                Event::End(TagEnd::Heading(_)) => {
                    page.anchors.insert(anchor(&heading));
                }
                _ => {}
            }
        }
        page
    }
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
