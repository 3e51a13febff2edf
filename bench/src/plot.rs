//! The bar chart of what `bench http` found: CPU time per request ÷ that of other proxies. It is
//! drawn from the tables in `docs/performance.md`, so that a run of some workloads redraws all of
//! them, and the same tables make the same file.

use std::fs;

use anyhow::Result;
use portcullis_testbed::workspace;

use super::document;
use super::peers::{HAPROXY, NGINX};
use super::sample::Interval;
use super::workload::WORKLOADS;

const FILE: &str = "docs/plots/http.svg";
/// Proxies that are compared with.
const OTHERS: [&str; 2] = [HAPROXY, NGINX];
/// In pixels, as all of them. Titles are left of the bars, values right.
const WIDTH: f64 = 760.0;
const LEFT: f64 = 310.0;
const RIGHT: f64 = 700.0;
const TOP: f64 = 56.0;
const BAR: f64 = 12.0;
const GROUP: f64 = 36.0;
/// Between marks of the scale.
const STEP: f64 = 0.25;
const STYLE: &str = "\
text { font: 12px sans-serif; fill: #1f2328 }
.back { fill: #ffffff }
.proxy0 { fill: #0072b2 }
.proxy1 { fill: #d55e00 }
.mark { stroke: #d1d9e0 }
.one, .whisker { stroke: #1f2328 }
.one { stroke-dasharray: 4 3 }
@media (prefers-color-scheme: dark) {
text { fill: #f0f6fc }
.back { fill: #0d1117 }
.proxy0 { fill: #3d8fd1 }
.proxy1 { fill: #db7a2b }
.mark { stroke: #3d444d }
.one, .whisker { stroke: #f0f6fc }
}
";

/// A workload's ratios, by proxy; one that was not measured has none.
struct Group {
    title: &'static str,
    ratios: [Option<Interval>; OTHERS.len()],
}

/// Draws what the document says.
pub(super) fn draw() -> Result<()> {
    let file = workspace::root().join(FILE);
    if let Some(directory) = file.parent() {
        fs::create_dir_all(directory)?;
    }
    Ok(fs::write(file, svg(&groups(&document::read("http")?)))?)
}

fn groups(report: &str) -> Vec<Group> {
    let groups = WORKLOADS.iter().filter_map(|workload| {
        let section = document::section(report, workload.title)?;
        Some(Group { title: workload.title, ratios: OTHERS.map(|name| ratio(&section, name)) })
    });
    groups.filter(|group| group.ratios.iter().any(Option::is_some)).collect()
}

/// The cell `**1.16** (1.09–1.27)` of a proxy's row in a section's first table.
fn ratio(section: &str, name: &str) -> Option<Interval> {
    let row = section.lines().find_map(|line| line.strip_prefix(&format!("| {name} |")))?;
    let (median, rest) = row.split('|').nth(1)?.trim().strip_prefix("**")?.split_once("** (")?;
    let (low, high) = rest.strip_suffix(')')?.split_once('–')?;
    Some(Interval { median: median.parse().ok()?, low: low.parse().ok()?, high: high.parse().ok()? })
}

fn svg(groups: &[Group]) -> String {
    let highest = groups.iter().flat_map(|group| group.ratios.iter().flatten());
    let steps = (highest.map(|ratio| ratio.high).fold(1.0, f64::max) / STEP).ceil();
    let x = |value: f64| LEFT + value / (steps * STEP) * (RIGHT - LEFT);
    let bottom = TOP + GROUP * groups.len() as f64;
    let vertical = |class: &str, value: f64| line(class, (x(value), TOP), (x(value), bottom));
    let mut marks = String::new();
    let mut mark = 0.0;
    while mark <= steps {
        marks += &vertical("mark", mark * STEP);
        marks += &text("middle", (x(mark * STEP), bottom + 18.0), &format!("{:.2}", mark * STEP));
        mark += 1.0;
    }
    let bars = groups.iter().zip(0..).map(|(group, at)| bars(group, TOP + GROUP * f64::from(at), x));
    let legend = OTHERS.iter().zip(0..).map(|(name, at)| {
        let left = LEFT + 100.0 * f64::from(at);
        format!(
            "<rect class=\"proxy{at}\" x=\"{left:.1}\" y=\"34.0\" width=\"{BAR:.1}\" height=\"{BAR:.1}\"/>\n{}",
            text("start", (left + 18.0, 44.0), &format!("÷ {name}"))
        )
    });
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH:.0} {height:.0}\" role=\"img\" \
         aria-labelledby=\"title desc\">\n\
         <!-- Drawn from docs/performance.md by `cargo xtask bench plot`. -->\n\
         <title id=\"title\">CPU time per request: Portcullis ÷ other proxies</title>\n\
         <desc id=\"desc\">{}</desc>\n<style>\n{STYLE}</style>\n\
         <rect class=\"back\" width=\"{WIDTH:.0}\" height=\"{height:.0}\"/>\n{}{}{marks}{}{}</svg>\n",
        described(groups),
        text(
            "start",
            (10.0, 20.0),
            "CPU time per request: Portcullis ÷ others, medians and their 95 % intervals"
        ),
        legend.collect::<String>(),
        bars.collect::<String>(),
        vertical("one", 1.0),
        height = bottom + 30.0,
    )
}

/// A workload's title and bars, from this height on.
fn bars(group: &Group, top: f64, x: impl Fn(f64) -> f64) -> String {
    let mut drawn = text("end", (LEFT - 10.0, top + 22.0), group.title);
    for (at, ratio) in (0..).zip(group.ratios).filter_map(|(at, ratio)| Some((at, ratio?))) {
        let top = top + 5.0 + f64::from(at) * (BAR + 2.0);
        let (middle, low, high) = (top + BAR / 2.0, x(ratio.low), x(ratio.high));
        let width = x(ratio.median) - LEFT;
        drawn += &format!(
            "<rect class=\"proxy{at}\" x=\"{LEFT:.1}\" y=\"{top:.1}\" width=\"{width:.1}\" height=\"{BAR:.1}\"/>\n"
        );
        drawn += &line("whisker", (low, middle), (high, middle));
        for end in [low, high] {
            drawn += &line("whisker", (end, middle - 3.0), (end, middle + 3.0));
        }
        drawn += &text("start", (high + 6.0, top + 10.0), &format!("{:.2}", ratio.median));
    }
    drawn
}

/// All values, for those who have them read out.
fn described(groups: &[Group]) -> String {
    let values = |group: &Group| {
        let each = OTHERS.iter().zip(group.ratios).filter_map(|(name, ratio)| {
            let Interval { median, low, high } = ratio?;
            Some(format!("{median:.2} of {name}'s ({low:.2} to {high:.2})"))
        });
        format!("{}: {}.", group.title, each.collect::<Vec<_>>().join(", "))
    };
    groups.iter().map(values).collect::<Vec<_>>().join(" ")
}

fn line(class: &str, (x1, y1): (f64, f64), (x2, y2): (f64, f64)) -> String {
    format!("<line class=\"{class}\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"/>\n")
}

fn text(anchor: &str, (x, y): (f64, f64), text: &str) -> String {
    format!("<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{text}</text>\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECTION: &str = "| | µs CPU/request | Portcullis ÷ it (95 %) | requests/s |\n|---|---|---|---|\n\
                           | Portcullis | 19.5 | 1 | 50418 |\n\
                           | HAProxy | 16.6 | **1.16** (1.09–1.27) | 58917 |\n\n\
                           | HAProxy | 3.1 | **9.00** (8.00–9.90) |\n";

    fn report() -> String {
        let titles = [WORKLOADS[2].title, WORKLOADS[0].title];
        titles.map(|title| format!("{}\n{SECTION}", document::title_line(title))).concat()
    }

    #[test]
    fn ratios_are_read_from_a_sections_first_table() {
        let expected = Interval { median: 1.16, low: 1.09, high: 1.27 };
        assert_eq!(ratio(SECTION, HAPROXY), Some(expected));
        assert_eq!(ratio(SECTION, NGINX), None);
        assert_eq!(ratio(SECTION, "Portcullis"), None);
        assert_eq!(ratio("| HAProxy | 1 | **NaN** |\n", HAPROXY), None);
    }

    #[test]
    fn workloads_have_their_order_whatever_the_report_has() {
        let titles: Vec<_> = groups(&report()).iter().map(|group| group.title).collect();
        assert_eq!(titles, [WORKLOADS[0].title, WORKLOADS[2].title]);
    }

    #[test]
    fn a_bar_ends_at_its_median_and_has_whiskers() {
        let drawn = svg(&groups(&report()));
        // 390 pixels are 1.5.
        let bar = "<rect class=\"proxy0\" x=\"310.0\" y=\"61.0\" width=\"301.6\" height=\"12.0\"/>\n";
        let whisker = "<line class=\"whisker\" x1=\"593.4\" y1=\"67.0\" x2=\"640.2\" y2=\"67.0\"/>\n";
        let one = "<line class=\"one\" x1=\"570.0\" y1=\"56.0\" x2=\"570.0\" y2=\"128.0\"/>\n";
        for part in [bar, whisker, one, ": 1.16 of HAProxy's (1.09 to 1.27).", ">1.50</text>"] {
            assert!(drawn.contains(part), "no {part} in {drawn}");
        }
        assert!(!drawn.contains("NaN") && !drawn.contains("1.75"), "{drawn}");
        // The legend has one, a workload without a value of that proxy has none.
        assert_eq!(drawn.matches("<rect class=\"proxy1\"").count(), 1);
    }

    #[test]
    fn nothing_measured_is_an_empty_chart() {
        let drawn = svg(&groups(""));
        assert!(drawn.starts_with("<svg ") && drawn.ends_with("</svg>\n") && !drawn.contains("whisker\""));
    }

    #[test]
    fn the_chart_is_of_the_documents_tables() {
        let file = fs::read_to_string(workspace::root().join(FILE)).unwrap();
        let drawn = svg(&groups(&document::read("http").unwrap()));
        assert!(file == drawn, "{FILE} is stale: `cargo xtask bench plot` draws it");
    }
}
