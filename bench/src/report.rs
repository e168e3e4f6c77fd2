//! Makes tables of the results of `pod-ends` for bench/README.md, and plots of the ends for a light page and a dark one.

use std::fmt::Display;
use std::fs;
use std::path::{Path, PathBuf};

use plotters::coord::Shift;
use plotters::prelude::*;
use serde::{Deserialize, Serialize};

use crate::timing::{quantile, random};

/// Names the kind to which the others are compared.
const BASELINE: &str = "no-mesh";
/// Counts how often the times are drawn again for the interval of a ratio.
const RESAMPLES: usize = 10_000;

/// Holds one run of `pod-ends`. Times are in seconds.
#[derive(Serialize, Deserialize)]
pub(crate) struct Results {
    pub(crate) command: String,
    pub(crate) date: String,
    pub(crate) kubernetes: String,
    pub(crate) kinds: Vec<Times>,
}

/// Holds the times of one kind of pod, in the order of the rounds.
#[derive(Serialize, Deserialize)]
pub(crate) struct Times {
    pub(crate) name: String,
    /// From a pod's creation to its payload's first instruction.
    pub(crate) starts: Vec<f64>,
    /// From the payload's exit to the pod's success. Empty where it never succeeds.
    pub(crate) ends: Vec<f64>,
    /// Milliseconds that all containers used of the processors.
    pub(crate) cpu: Vec<u64>,
    /// MiB, the largest working set.
    pub(crate) memory: Vec<u64>,
    /// Requests of others than the bench to the API server, for the pod's namespace.
    pub(crate) requests: Vec<usize>,
    /// How often the kubelet worked on a pod.
    pub(crate) syncs: Vec<u64>,
}

/// Counts the rounds of a run; one of fewer is a trial.
const ROUNDS: usize = 30;

fn results_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("results")
}

impl Results {
    /// Returns the times of the kind of this name, if it was measured.
    fn kind(&self, name: &str) -> Option<&Times> {
        self.kinds.iter().find(|kind| kind.name == name)
    }

    /// Writes them in place of an earlier run's on the same Kubernetes; a trial's, below target/. Returns the file.
    pub(crate) fn write(&self) -> PathBuf {
        let rounds = self.kinds.iter().map(|kind| kind.starts.len()).max().unwrap_or_default();
        let directory = if rounds < ROUNDS { results_dir().join("../../target") } else { results_dir() };
        let file = directory.join(format!("pod-ends-{}.json", self.kubernetes));
        // A line for each kind.
        let text = serde_json::to_string(self).expect("results are JSON").replace("},{", "},\n{");
        fs::write(&file, format!("{text}\n")).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        file
    }
}

/// Reads the results that are kept, by their files.
fn all() -> Vec<(PathBuf, Results)> {
    let entries = fs::read_dir(results_dir()).expect("there is bench/results");
    let mut files: Vec<_> = entries.map(|entry| entry.expect("it is read").path()).collect();
    files.retain(|file| file.extension().is_some_and(|it| it == "json"));
    files.sort();
    let read = |file: PathBuf| {
        let text = fs::read_to_string(&file).expect("the results are read");
        let results = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        (file, results)
    };
    files.into_iter().map(read).collect()
}

/// Prints the tables of each run, and writes its plots beside it.
pub(crate) fn run() {
    for (file, results) in all() {
        println!("{}\n{}", table(&results), summary(&results));
        for (theme, ink) in [("light", RGBColor(31, 35, 40)), ("dark", RGBColor(230, 237, 243))] {
            let plot = file.with_extension(format!("{theme}.svg"));
            fs::write(&plot, draw(&results, ink)).unwrap_or_else(|error| panic!("{}: {error}", plot.display()));
        }
    }
}

/// Returns a run's figures as Markdown.
fn table(results: &Results) -> String {
    let baseline = results.kind(BASELINE).map(|kind| kind.ends.as_slice());
    let mut text = format!("`{}`, {}, Kubernetes {}:\n\n", results.command, results.date, results.kubernetes);
    text += "| | n | creation → first instruction: median, p95 | exit → Succeeded: median, p95 | its ratio to no mesh, 95 % | CPU | memory | API requests | kubelet's syncs |\n";
    text += "| --- | --- | --- | --- | --- | --- | --- | --- | --- |\n";
    let rows = results.kinds.iter().map(|Times { name, starts, ends, cpu, memory, requests, syncs }| {
        let ratio = baseline.filter(|_| name != BASELINE).and_then(|baseline| ratio_interval(ends, baseline));
        let ratio = ratio.map_or_else(|| "–".to_owned(), |[low, high]| format!("{low:.2} to {high:.2}"));
        let [cpu, requests, syncs] =
            [until_end(ends, cpu, " ms"), until_end(ends, requests, ""), until_end(ends, syncs, "")];
        format!(
            "| {name} | {} | {} | {} | {ratio} | {cpu} | {} MiB | {requests} | {syncs} |\n",
            starts.len(),
            cell(starts),
            cell(ends),
            median_count(memory).unwrap_or_default()
        )
    });
    text.extend(rows);
    text
}

/// Returns the median of what is counted until a pod's end, which one that never ends has not.
fn until_end<T: Copy + Ord + Display>(ends: &[f64], counts: &[T], unit: &str) -> String {
    let median = median_count(counts).filter(|_| !ends.is_empty());
    median.map_or_else(|| "–".to_owned(), |median| format!("{median}{unit}"))
}

/// Names the kinds of pods of the project's README, and what it calls them.
const SUMMARY: [(&str, &str); 6] = [
    (BASELINE, "no mesh"),
    ("mesh-with-hold", "Istio's sidecar, held"),
    ("istio-native-sidecar", "Istio's native sidecar"),
    ("istio-aux-native", "istio-aux, mode native"),
    ("istio-aux-image-volume", "istio-aux, its image as a volume"),
    ("istio-aux-node", "a proxy beside the pod"),
];

/// Returns the medians of a run as Markdown, for the project's README.
fn summary(results: &Results) -> String {
    let mut text = "| a pod with | starts after | ends after | API requests | CPU | memory |\n".to_owned();
    text += "| --- | --- | --- | --- | --- | --- |\n";
    let row = |(name, words)| {
        let kind = results.kind(name)?;
        let [start, end] = [&kind.starts, &kind.ends].map(|times| median(times));
        let end = end.map_or_else(|| "never".to_owned(), |end| format!("{end:.2} s"));
        let memory = median_count(&kind.memory)?;
        let (cpu, requests) = (until_end(&kind.ends, &kind.cpu, " ms"), until_end(&kind.ends, &kind.requests, ""));
        Some(format!("| {words} | {:.2} s | {end} | {requests} | {cpu} | {memory} MiB |\n", start?))
    };
    text.extend(SUMMARY.into_iter().filter_map(row));
    text
}

/// Returns the median of what was counted.
fn median_count<T: Copy + Ord>(counts: &[T]) -> Option<T> {
    let mut sorted = counts.to_vec();
    sorted.sort_unstable();
    quantile(&sorted, 500)
}

fn cell(times: &[f64]) -> String {
    match (median(times), quantile(&sorted(times), 950)) {
        (Some(median), Some(p95)) => format!("{median:.2} s, {p95:.2} s"),
        _ => "never".to_owned(),
    }
}

fn sorted(times: &[f64]) -> Vec<f64> {
    let mut sorted = times.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

fn median(times: &[f64]) -> Option<f64> {
    quantile(&sorted(times), 500)
}

/// Returns the interval that has 95 % of the ratios of medians, when both are drawn again from what was measured (bootstrap).
fn ratio_interval(times: &[f64], baseline: &[f64]) -> Option<[f64; 2]> {
    let mut next = random(1);
    let mut drawn = |from: &[f64]| {
        let draw = |_: &f64| from.get(next() % from.len()).copied();
        median(&from.iter().filter_map(draw).collect::<Vec<_>>())
    };
    let ratios: Option<Vec<f64>> = (0..RESAMPLES).map(|_| Some(drawn(times)? / drawn(baseline)?)).collect();
    let ratios = sorted(&ratios?);
    Some([quantile(&ratios, 25)?, quantile(&ratios, 975)?])
}

/// Draws the starts and the ends of each kind of pod as dots on a line, with a bar at the median. The background is the page's.
fn draw(results: &Results, ink: RGBColor) -> String {
    let mut svg = String::new();
    let height = 60 + 32 * u32::try_from(results.kinds.len()).unwrap_or(1);
    {
        let root = SVGBackend::with_string(&mut svg, (LABELS + 2 * PANEL, height)).into_drawing_area();
        let (starts, ends) = root.split_horizontally(LABELS + PANEL);
        let starting: Vec<_> = results.kinds.iter().map(|kind| kind.starts.as_slice()).collect();
        let ending: Vec<_> = results.kinds.iter().map(|kind| kind.ends.as_slice()).collect();
        let names: Vec<_> = results.kinds.iter().map(|kind| kind.name.as_str()).collect();
        draw_panel(&starts, "creation to the payload's first instruction, in seconds", &names, &starting, ink);
        draw_panel(&ends, "payload's exit to the pod's success, in seconds", &[], &ending, ink);
        root.present().expect("the plot is drawn");
    }
    svg
}

/// Is the width of the kinds' names, and of what is drawn of their starts or ends, in pixels.
const LABELS: u32 = 180;
const PANEL: u32 = 420;

/// Draws a line of dots for each row of times, with the names to the left of them, if there are any.
fn draw_panel(
    area: &DrawingArea<SVGBackend<'_>, Shift>,
    description: &str,
    names: &[&str],
    rows: &[&[f64]],
    ink: RGBColor,
) {
    let y = |row: usize| -> f64 { u32::try_from(rows.len() - row).map_or(0.0, f64::from) };
    let latest = rows.iter().copied().flatten().fold(1.0, |a: f64, b| a.max(*b));
    let font = ("sans-serif", 15).into_font().color(&ink);
    let mut chart = ChartBuilder::on(area)
        .margin(10)
        .x_label_area_size(36)
        .y_label_area_size(if names.is_empty() { 0 } else { LABELS })
        .build_cartesian_2d(0.0..latest.ceil(), 0.5..y(0) + 0.5)
        .expect("the plot has axes");
    let label = |at: &f64| {
        let row = (0..rows.len()).find(|&row| (y(row) - at).abs() < 0.01);
        row.and_then(|row| names.get(row)).map_or_else(String::new, |name| (*name).to_owned())
    };
    let mesh = |ink: RGBColor| ShapeStyle { color: ink.mix(0.15), filled: false, stroke_width: 1 };
    chart
        .configure_mesh()
        .disable_y_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(mesh(ink))
        .axis_style(mesh(ink))
        .y_labels(rows.len() + 1)
        .y_label_formatter(&label)
        .label_style(font.clone())
        .x_desc(description)
        .axis_desc_style(font.clone())
        .draw()
        .expect("the axes are drawn");
    for (row, times) in rows.iter().enumerate() {
        let place = y(row);
        let dots = times.iter().map(|&time| Circle::new((time, place), 4, RGBColor(70, 107, 176).mix(0.45).filled()));
        chart.draw_series(dots).expect("the dots are drawn");
        if let Some(median) = median(times) {
            let bar = PathElement::new(vec![(median, place - 0.3), (median, place + 0.3)], ink.stroke_width(3));
            chart.draw_series([bar]).expect("the bar is drawn");
        } else {
            chart.draw_series([Text::new("never", (0.1, place + 0.15), font.clone())]).expect("the word is drawn");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_of_the_bench_readme_are_those_of_the_results() {
        let readme = fs::read_to_string(results_dir().join("../README.md")).unwrap();
        assert!(!all().is_empty(), "there are results");
        for (file, results) in all() {
            let table = table(&results);
            assert!(
                readme.contains(&table),
                "next: bench report, and put this into bench/README.md:\n{table}\n({file:?})"
            );
        }
    }

    #[test]
    fn figure_of_the_projects_readme_shows_what_its_text_says() {
        let readme = fs::read_to_string(results_dir().join("../../README.md")).unwrap();
        let is_shown =
            |file: &Path| readme.contains(&file.with_extension("light.svg").file_name().unwrap().display().to_string());
        let (_, results) =
            all().into_iter().find(|(file, _)| is_shown(file)).expect("README has a figure of the results");
        let ends = |name: &str| &results.kind(name).unwrap().ends;
        let summary = summary(&results);
        assert!(readme.contains(&summary), "next: put this into README.md:\n{summary}");
        assert_eq!(median(ends("mesh-with-hold")), None, "beside the mesh alone: never");
        let ratio = ratio_interval(ends("istio-aux-image-volume"), ends(BASELINE)).unwrap();
        assert!(ratio[0] < 1.0 && ratio[1] < 1.25, "as without a mesh: {ratio:?}");
        for name in ["istio-aux-native", "istio-native-sidecar", "watch-and-exec"] {
            let later = median(ends(name)).unwrap() - median(ends(BASELINE)).unwrap();
            assert!((0.5..1.5).contains(&later), "{name}: about a second later, not {later}");
        }
        let status = median(ends("istio-aux-status")).unwrap() - median(ends(BASELINE)).unwrap();
        assert!((1.5..2.5).contains(&status), "in mode status, two, not {status}");
    }

    const NODE: &str = "istio-aux-node";

    /// Shows what docs/node.md says, to a tenth of a second.
    #[test]
    fn proxy_beside_a_pod_starts_and_ends_as_its_page_says() {
        let page = fs::read_to_string(results_dir().join("../../docs/node.md")).unwrap();
        let with_node = all().into_iter().filter(|(_, results)| results.kind(NODE).is_some());
        let with_node: Vec<_> = with_node.collect();
        assert!(!with_node.is_empty(), "the claim has results");
        for (file, results) in with_node {
            let of = |name: &str| results.kind(name).unwrap();
            let starts = [NODE, BASELINE].map(|name| median(&of(name).starts).unwrap());
            let claim = format!(
                "[starts {:.1} s later](../bench/README.md) than in no mesh, and ends as there",
                starts[0] - starts[1]
            );
            assert!(page.contains(&claim), "{file:?}: {claim}");
            let [low, high] = ratio_interval(&of(NODE).ends, &of(BASELINE).ends).unwrap();
            assert!(low < 1.0 && 1.0 < high, "{file:?}: {low} {high}");
        }
    }

    #[test]
    fn quantiles_and_intervals_are_those_of_the_times() {
        let times: Vec<f64> = (0..101).map(f64::from).collect();
        assert_eq!([500, 950].map(|part| quantile(&times, part)), [Some(50.0), Some(95.0)]);
        assert_eq!(median(&[]), None);
        assert_eq!(ratio_interval(&[3.0; 5], &[2.0; 5]), Some([1.5, 1.5]));
        let [low, high] = ratio_interval(&times, &times).unwrap();
        assert!(low < 1.0 && 1.0 < high && low > 0.5 && high < 2.0, "{low} {high}");
        assert_eq!(ratio_interval(&[], &times), None);
    }
}
