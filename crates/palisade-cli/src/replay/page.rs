//! A replay as one HTML page: plots are inline SVG, and the page loads nothing and runs no script.
//! Subjects are named by lines of the file; no path, address or name is in the page.

use std::fmt::Write;

use palisade_core::time::Micros;

use super::compared::{ChangedDecisions, ReplayComparison};
use super::subjects::Share;
use super::summary::{PLOT_ROWS_MAX, Summary};

const STYLE: &str = include_str!("page.css");
/// Size of the plot over time.
const WIDTH: u64 = 960;
const HEIGHT: u64 = 200;
/// Length of the longest bar of a table.
const BAR: u64 = 240;

/// Returns the page.
pub(super) fn page(summary: &mut Summary) -> String {
    let mut body = format!("<h1>Replay of {} events</h1>\n<p>", summary.events);
    let shown: Vec<String> = summary
        .decisions()
        .iter()
        .map(|(name, count)| format!("{} <b>{count}</b>", escaped(name)))
        .collect();
    let _ = writeln!(body, "{}</p>", shown.join(" · "));
    if summary.wrong.count > 0 {
        let _ = writeln!(
            body,
            "<p>{} lines could not be used.</p>",
            summary.wrong.count
        );
    }
    let rows = summary.over_time(PLOT_ROWS_MAX);
    body.push_str(&plot(&rows));
    body.push_str(&tables(summary));
    if let Some(compared) = &summary.compared {
        body.push_str(&comparison(compared));
    }
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n<title>Palisade replay</title>\n\
         <style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n{body}</main>\n</body>\n</html>\n"
    )
}

/// Draws allowed and refused events over time, one column a step.
fn plot(rows: &[(Micros, Share)]) -> String {
    let most = rows.iter().map(|(_, share)| share.events).max();
    let (Some(most), Some((first, _)), Some((last, _))) = (most, rows.first(), rows.last()) else {
        return String::new();
    };
    let count = rows.len() as u64;
    let high = |events: u64| events * HEIGHT / most.max(1);
    let mut svg = format!(
        "<h2>Over time</h2>\n<svg viewBox=\"0 0 {WIDTH} {}\" role=\"img\" aria-label=\"Events over time\">\n",
        HEIGHT + 20
    );
    for (n, (at, share)) in (0_u64..).zip(rows) {
        let (x, wide) = (n * WIDTH / count, (WIDTH / count).max(2) - 1);
        let (all, refused) = (high(share.events), high(share.refused));
        let _ = writeln!(
            svg,
            "<g><title>{}: {} events, {} refused</title>\
             <rect class=\"allowed\" x=\"{x}\" y=\"{}\" width=\"{wide}\" height=\"{}\"/>\
             <rect class=\"refused\" x=\"{x}\" y=\"{}\" width=\"{wide}\" height=\"{refused}\"/></g>",
            at.to_rfc3339(),
            share.events,
            share.refused,
            HEIGHT - all,
            all - refused,
            HEIGHT - refused,
        );
    }
    let y = HEIGHT + 15;
    let _ = writeln!(
        svg,
        "<text x=\"0\" y=\"{y}\">{}</text><text x=\"{WIDTH}\" y=\"{y}\" text-anchor=\"end\">{}</text>\n</svg>",
        first.to_rfc3339(),
        last.to_rfc3339(),
    );
    svg
}

fn tables(summary: &Summary) -> String {
    let causes: Vec<(String, Share)> = summary
        .causes()
        .into_iter()
        .map(|(cause, count)| {
            let (events, refused) = (count, count);
            (cause, Share { events, refused })
        })
        .collect();
    let classes: Vec<(String, Share)> = summary.classes().into_iter().collect();
    let (top, _) = summary.subjects();
    let subjects: Vec<(String, Share)> = top
        .iter()
        .map(|one| (format!("of line {}", one.first_line), one.share))
        .collect();
    table("Refused by", &causes)
        + &table("Class", &classes)
        + &table("Subjects refused most", &subjects)
}

/// Returns a table of names with their events and the refused part of them.
fn table(title: &str, rows: &[(String, Share)]) -> String {
    let Some(most) = rows.iter().map(|(_, share)| share.events).max() else {
        return String::new();
    };
    let mut text = format!(
        "<h2>{title}</h2>\n<table><tr><th>Name</th><th>Events</th><th>Refused</th><th></th></tr>\n"
    );
    for (name, share) in rows {
        let wide = |events: u64| events * BAR / most.max(1);
        let (all, refused) = (wide(share.events), wide(share.refused));
        let _ = writeln!(
            text,
            "<tr><td>{}</td><td>{}</td><td>{}</td><td><svg width=\"{BAR}\" height=\"12\" aria-hidden=\"true\">\
             <rect class=\"allowed\" width=\"{all}\" height=\"12\"/>\
             <rect class=\"refused\" width=\"{refused}\" height=\"12\"/></svg></td></tr>",
            escaped(name),
            share.events,
            share.refused,
        );
    }
    text + "</table>\n"
}

fn comparison(compared: &ReplayComparison) -> String {
    let mut text = format!(
        "<h2>Against the other policy</h2>\n<p><b>{}</b> treated differently.</p>\n",
        compared.differ()
    );
    text.push_str(&changed("Newly denied", &compared.newly_denied));
    text.push_str(&changed("Newly allowed", &compared.newly_allowed));
    if compared.otherwise > 0 {
        let _ = writeln!(
            text,
            "<p>{} denied either way, by another rule or for longer.</p>",
            compared.otherwise
        );
    }
    text
}

fn changed(title: &str, changed: &ChangedDecisions) -> String {
    let rows: Vec<(String, Share)> = changed
        .by
        .iter()
        .map(|(cause, count)| {
            let (events, refused) = (*count, *count);
            (cause.to_string(), Share { events, refused })
        })
        .collect();
    let mut text = table(&format!("{title}: {}", changed.count), &rows);
    if !changed.first.is_empty() {
        text.push_str("<ol>\n");
        for one in &changed.first {
            let (at, cause) = (one.at.to_rfc3339(), escaped(&one.cause));
            let _ = writeln!(text, "<li>line {}, {at}: {cause}</li>", one.line);
        }
        text.push_str("</ol>\n");
    }
    text
}

/// Returns text that cannot be markup.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}
