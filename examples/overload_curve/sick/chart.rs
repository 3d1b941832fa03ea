//! The plot: goodput and failures over time, a row for each kind of sickness
//! and a column for each load.

use super::measure::Step;
use crate::panel::{Axis, Curve, Drawn, IDEAL, Panel, draw_head};
use plotters::prelude::*;
use std::{fs, path::Path};

const GOOD: RGBColor = RGBColor(0x15, 0x80, 0x3d);
const FAILED: RGBColor = RGBColor(0xc6, 0x28, 0x28);
const COLUMN: u32 = 330;
const ROW: u32 = 150;
const HEAD: u32 = 88;

/// Draws `sick.svg`.
pub fn draw(steps: &[Step], folder: &Path) -> Drawn {
    fs::create_dir_all(folder)?;
    let kinds = distinct(steps, |step| step.kind.clone());
    let loads = distinct(steps, |step| step.load);
    let (rows, columns) = (kinds.len().max(1), loads.len().max(1));
    let width = (COLUMN * columns as u32).max(900);
    let file = folder.join("sick.svg");
    let size = (width, HEAD + ROW * rows as u32);
    let root = SVGBackend::new(&file, size).into_drawing_area();
    root.fill(&WHITE)?;
    let (head, body) = root.split_vertically(HEAD);
    let title =
        "One of four workers falls sick at 0 s: goodput in % of what the other three can do";
    let names = [
        ("the four", GOOD, 3),
        ("the other three by themselves", IDEAL, 2),
        ("requests that failed, %", FAILED, 2),
    ];
    draw_head(&head, title.into(), &names)?;
    let areas = body.split_evenly((rows, columns));
    let times = steps.iter().map(|step| step.at);
    let from = times.clone().fold(0.0, f64::min).floor();
    let to = times.fold(1.0, f64::max).ceil();
    for (row, kind) in kinds.iter().enumerate() {
        for (column, load) in loads.iter().enumerate() {
            let of = |step: &&Step| step.kind == *kind && step.load == *load;
            let line = |value: fn(&Step) -> f64| -> Vec<(f64, f64)> {
                let steps = steps.iter().filter(of);
                steps.map(|step| (step.at, value(step))).collect()
            };
            let lines = [
                (line(|step| step.alone), IDEAL, 1),
                (line(|step| step.failed), FAILED, 1),
                (line(|step| step.good), GOOD, 2),
            ];
            let curves = lines.each_ref().map(|(line, color, width)| Curve {
                points: line.iter().collect(),
                color: *color,
                width: *width,
            });
            let title = format!("offered {load} × what the three can do");
            Panel {
                title: if row == 0 { title } else { String::new() },
                x_name: if row + 1 == rows { "s" } else { "" },
                x_axis: Axis::Linear(from..to, 2.0),
                x: &|(at, _): &(f64, f64)| *at,
                y_name: if column == 0 {
                    kind.clone()
                } else {
                    String::new()
                },
                y_axis: Axis::Linear(0.0..140.0, 50.0),
                solid: &|(_, value)| Some(*value),
                dashed: &|_| None,
                ideal: None,
            }
            .draw(&areas[row * columns + column], &curves)?;
        }
    }
    root.present()?;
    Ok(())
}

fn distinct<T: PartialEq>(steps: &[Step], of: impl Fn(&Step) -> T) -> Vec<T> {
    let mut distinct = Vec::new();
    for step in steps {
        let value = of(step);
        if !distinct.contains(&value) {
            distinct.push(value);
        }
    }
    distinct
}
