//! Runs AD-LOAD, a fixed limit and Netflix's gradient2 on the queueing model of the tests, writes the
//! rows of the table in `docs/adaptive.md` and draws `docs/img/adaptive-load.svg`:
//! `cargo run -p palisade-core --example load_plot docs/img/adaptive-load.svg`.

#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "a simulation whose numbers are small"
)]

use std::fmt::Write as _;
use std::io::Write as _;

#[path = "../tests/load/mod.rs"]
mod load;

use load::server::{Run, run};
use load::{SLOW, SURGE, limiters};

const COLOURS: [&str; 4] = ["#999999", "#d1495b", "#3a6ea5", "#2e8b57"];
const WIDTH: f64 = 760.0;
const LEFT: f64 = 60.0;
const PANEL: f64 = 150.0;

fn main() -> std::io::Result<()> {
    let names = limiters().map(|(name, _)| name);
    let surge: Vec<Run> = runs(&SURGE);
    let slow: Vec<Run> = runs(&SLOW);
    let mut out = std::io::stdout().lock();
    for (title, runs, from, to) in [("surge", &surge, 75, 120), ("slow", &slow, 65, 90)] {
        for (name, run) in names.iter().zip(runs) {
            writeln!(out, "{title}: {}", row(name, run, from, to))?;
        }
    }
    match std::env::args().nth(1) {
        Some(path) => std::fs::write(path, picture(&names, &surge, &slow)),
        None => Ok(()),
    }
}

fn runs(phases: &[load::server::Phase]) -> Vec<Run> {
    let all = limiters().into_iter();
    all.map(|(_, mut limiter)| run(&mut *limiter, phases, 1))
        .collect()
}

fn row(name: &str, run: &Run, from: u64, to: u64) -> String {
    format!(
        "| {name} | {:.0} | {:.0} | {:.0} | {:.0} ± {:.0} % | {:.1} % |",
        run.answered(from, to),
        run.quantile(from, to, 0.5),
        run.quantile(from, to, 0.99),
        run.mean_limit(from, to),
        run.swing(from, to) * 100.0,
        run.shed_share(to + 5, to + 30) * 100.0,
    )
}

/// Mean latency of each second in milliseconds.
fn latencies(run: &Run) -> Vec<f64> {
    let seconds = run.ticks.chunks(10).map(|ticks| {
        let sum: u64 = ticks.iter().map(|tick| tick.latency_sum).sum();
        let count: u32 = ticks.iter().map(|tick| tick.answered).sum();
        sum as f64 / 1e3 / f64::from(count.max(1))
    });
    seconds.collect()
}

fn limits(run: &Run) -> Vec<f64> {
    let seconds = run.ticks.chunks(10);
    seconds
        .map(|ticks| ticks.last().map_or(0.0, |tick| tick.limit))
        .collect()
}

fn picture(names: &[&str], surge: &[Run], slow: &[Run]) -> String {
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} 830\" font-family=\"system-ui,sans-serif\" font-size=\"12\">\n\
         <title>Requests in progress and latency under load</title><rect width=\"{WIDTH}\" height=\"830\" fill=\"#fff\"/>\n"
    );
    let panels = [
        (
            "Three times the capacity from 60 s to 120 s: limit on requests in progress",
            each(surge, limits),
        ),
        ("The same: mean latency in ms", each(surge, latencies)),
        (
            "The application is four times as slow from 60 s to 90 s: limit",
            each(slow, limits),
        ),
        ("The same: mean latency in ms", each(slow, latencies)),
    ];
    for (index, (title, lines)) in panels.iter().enumerate() {
        panel(&mut svg, 30.0 + index as f64 * 195.0, title, lines);
    }
    for (index, (name, colour)) in names.iter().zip(COLOURS).enumerate() {
        let x = LEFT + index as f64 * 140.0;
        let _ = writeln!(
            svg,
            "<rect x=\"{x}\" y=\"806\" width=\"14\" height=\"4\" fill=\"{colour}\"/><text x=\"{}\" y=\"813\" fill=\"#555\">{name}</text>",
            x + 20.0
        );
    }
    svg + "</svg>\n"
}

fn each(runs: &[Run], read: fn(&Run) -> Vec<f64>) -> Vec<Vec<f64>> {
    runs.iter().map(read).collect()
}

/// Draws lines over seconds on a logarithmic scale from 5 to 5000.
fn panel(svg: &mut String, top: f64, title: &str, lines: &[Vec<f64>]) {
    let y = |value: f64| {
        top + 10.0 + (PANEL - 10.0) * (1.0 - (value.clamp(5.0, 5e3) / 5.0).log10() / 3.0)
    };
    let seconds = lines.first().map_or(1, Vec::len) as f64;
    let x = |second: f64| LEFT + second / seconds * (WIDTH - LEFT - 20.0);
    let _ = writeln!(
        svg,
        "<text x=\"{LEFT}\" y=\"{top}\" font-weight=\"600\" fill=\"#222\">{title}</text>"
    );
    for value in [5.0, 50.0, 500.0, 5_000.0] {
        let _ = writeln!(
            svg,
            "<line x1=\"{LEFT}\" y1=\"{0:.0}\" x2=\"{1:.0}\" y2=\"{0:.0}\" stroke=\"#ddd\"/><text x=\"{2}\" y=\"{3:.0}\" text-anchor=\"end\" fill=\"#555\">{value}</text>",
            y(value),
            WIDTH - 20.0,
            LEFT - 6.0,
            y(value) + 4.0
        );
    }
    for second in [0.0, 30.0, 60.0, 90.0, 120.0] {
        let _ = writeln!(
            svg,
            "<text x=\"{:.0}\" y=\"{:.0}\" text-anchor=\"middle\" fill=\"#555\">{second} s</text>",
            x(second),
            top + PANEL + 16.0
        );
    }
    for (values, colour) in lines.iter().zip(COLOURS) {
        let points = values.iter().enumerate();
        let points: Vec<String> = points
            .map(|(second, value)| format!("{:.0},{:.0}", x(second as f64), y(*value)))
            .collect();
        let _ = writeln!(
            svg,
            "<polyline fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.5\" points=\"{}\"/>",
            points.join(" ")
        );
    }
}
