//! The plots: one file for each workload, a column for each fleet.

use crate::{
    panel::{Axis, Curve, Drawn, IDEAL, Panel, draw_head},
    point::{self, Point},
};
use plotters::prelude::*;
use std::{fs, ops::Range, path::Path};

/// The curves in the order in which they are drawn, the last one on top.
const LAYERS: [(&str, RGBColor, u32); 4] = [
    ("nothing", RGBColor(0xc6, 0x28, 0x28), 2),
    ("filter only", RGBColor(0xe0, 0x8a, 0x00), 2),
    ("cap only", RGBColor(0x1f, 0x6f, 0xc4), 2),
    ("both", RGBColor(0x15, 0x80, 0x3d), 4),
];

const COLUMN: u32 = 400;
const ROW: u32 = 250;
const ROWS: u32 = 4;
const HEAD: u32 = 88;

/// Draws a file for each workload.
pub fn draw(points: &[Point], folder: &Path) -> Drawn {
    fs::create_dir_all(folder)?;
    for workload in point::workloads(points) {
        let file = folder.join(format!("{workload}.svg"));
        draw_workload(points, workload, &file)?;
    }
    Ok(())
}

fn draw_workload(points: &[Point], workload: &str, file: &Path) -> Drawn {
    let fleets = point::fleets(points, workload);
    let columns = fleets.len().max(1);
    let size = (COLUMN * columns.max(2) as u32, HEAD + ROWS * ROW);
    let root = SVGBackend::new(file, size).into_drawing_area();
    root.fill(&WHITE)?;
    let (head, body) = root.split_vertically(HEAD);
    let mut names: Vec<_> = LAYERS
        .iter()
        .map(|&(layers, color, width)| (layers, color, width + 1))
        .collect();
    names.push(("an ideal fleet", IDEAL, 1));
    draw_head(&head, title(workload), &names)?;
    let areas = body.split_evenly((ROWS as usize, columns));
    let all = || points.iter().filter(|point| point.workload == workload);
    let loads = range(all().map(|point| point.load));
    let times = range(
        all()
            .flat_map(|point| [point.first_token_p50, point.first_token_p99])
            .flatten(),
    );
    let refusals = range(
        all()
            .flat_map(|point| [point.refusal_p50, point.refusal_p99])
            .flatten(),
    );
    for (column, fleet) in fleets.iter().enumerate() {
        let curves: Vec<Curve<'_, Point>> = LAYERS
            .iter()
            .map(|&(layers, color, width)| Curve {
                points: point::curve(points, workload, *fleet, layers),
                color,
                width,
            })
            .collect();
        let draw = |row: usize, panel: Panel<'_, Point>| {
            panel.draw(&areas[row * columns + column], &curves)
        };
        let titled = |name: &str| {
            if column == 0 {
                name.to_owned()
            } else {
                String::new()
            }
        };
        draw(
            0,
            Panel {
                title: format!("N = {}, Q = {}", fleet.0, fleet.1),
                y_name: titled("goodput, % of capacity"),
                y_axis: Axis::Linear(0.0..110.0, 25.0),
                solid: &|point| Some(point.of_capacity),
                dashed: &|_| None,
                ideal: Some(&|load| 100.0 * load.min(1.0)),
                x_axis: Axis::Log(loads.clone()),
                x: &|point| point.load,
                x_name: "",
            },
        )?;
        draw(
            1,
            Panel {
                title: String::new(),
                y_name: titled("TTFT, ms: p99, dashed p50"),
                y_axis: Axis::Log(times.clone()),
                solid: &|point| point.first_token_p99,
                dashed: &|point| point.first_token_p50,
                ideal: None,
                x_axis: Axis::Log(loads.clone()),
                x: &|point| point.load,
                x_name: "",
            },
        )?;
        draw(
            2,
            Panel {
                title: String::new(),
                y_name: titled("refused, %"),
                y_axis: Axis::Linear(0.0..100.0, 25.0),
                solid: &|point| Some(point.refused),
                dashed: &|_| None,
                ideal: Some(&|load| 100.0 * (1.0 - 1.0 / load).max(0.0)),
                x_axis: Axis::Log(loads.clone()),
                x: &|point| point.load,
                x_name: "",
            },
        )?;
        draw(
            3,
            Panel {
                title: String::new(),
                y_name: titled("refusal in gateway, ms"),
                y_axis: Axis::Log(refusals.clone()),
                solid: &|point| point.refusal_p99,
                dashed: &|point| point.refusal_p50,
                ideal: None,
                x_axis: Axis::Log(loads.clone()),
                x: &|point| point.load,
                x_name: "offered load, times the capacity",
            },
        )?;
    }
    root.present()?;
    Ok(())
}

fn range(values: impl Iterator<Item = f64>) -> Range<f64> {
    let (from, to) = values.fold((f64::MAX, f64::MIN_POSITIVE), |(from, to), value| {
        (from.min(value), to.max(value))
    });
    (from.min(to) / 1.15)..(to * 1.15)
}

fn title(workload: &str) -> String {
    let what = match workload {
        "poisson" => "Poisson arrivals",
        "azure" => "the Azure code trace",
        "mooncake" => "the Mooncake conversation trace",
        other => other,
    };
    format!("Two workers, offered up to ten times what they can serve: {what}")
}
