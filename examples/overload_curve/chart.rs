//! The plots: one file for each workload, a column for each fleet.

use crate::point::{self, Point};
use plotters::{
    coord::{
        Shift,
        ranged1d::{DefaultFormatting, KeyPointHint, Ranged},
    },
    prelude::*,
    style::text_anchor::{HPos, Pos, VPos},
};
use std::{error::Error, fs, ops::Range, path::Path};

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn = Result<(), Box<dyn Error + Send + Sync>>;

/// The curves in the order in which they are drawn, the last one on top.
const LAYERS: [(&str, RGBColor, u32); 4] = [
    ("nothing", RGBColor(0xc6, 0x28, 0x28), 2),
    ("filter only", RGBColor(0xe0, 0x8a, 0x00), 2),
    ("cap only", RGBColor(0x1f, 0x6f, 0xc4), 2),
    ("both", RGBColor(0x15, 0x80, 0x3d), 4),
];
const INK: RGBColor = RGBColor(0x22, 0x22, 0x22);
const GRID: RGBColor = RGBColor(0xe4, 0xe4, 0xe4);
/// Of what an ideal fleet would do.
const IDEAL: RGBColor = RGBColor(0xa0, 0xa0, 0xa0);
const FONT: &str = "Helvetica, Arial, sans-serif";

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
    draw_head(&head, workload)?;
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
        let curves: Vec<Curve<'_>> = LAYERS
            .iter()
            .map(|&(layers, color, width)| Curve {
                points: point::curve(points, workload, *fleet, layers),
                color,
                width,
            })
            .collect();
        let draw = |row: usize, panel: Panel<'_>| {
            panel.draw(&areas[row * columns + column], &curves, loads.clone())
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

fn text(size: i32, color: RGBColor) -> TextStyle<'static> {
    (FONT, size).into_font().color(&color)
}

fn draw_head(head: &Area<'_>, workload: &str) -> Drawn {
    let what = match workload {
        "poisson" => "Poisson arrivals",
        "azure" => "the Azure code trace",
        "mooncake" => "the Mooncake conversation trace",
        other => other,
    };
    let at_left = |style: TextStyle<'static>| style.pos(Pos::new(HPos::Left, VPos::Center));
    let title = format!("Two workers, offered up to ten times what they can serve: {what}");
    head.draw(&Text::new(title, (20, 24), at_left(text(21, INK))))?;
    let mut x = 20;
    let mut entry = |name: &str, color: RGBColor, width: u32| {
        let line = vec![(x, 62), (x + 34, 62)];
        head.draw(&PathElement::new(line, color.stroke_width(width)))?;
        let label = Text::new(name.to_owned(), (x + 42, 62), at_left(text(17, color)));
        x += 66 + 9 * name.len() as i32;
        head.draw(&label)
    };
    for (layers, color, width) in LAYERS {
        entry(layers, color, width + 1)?;
    }
    entry("an ideal fleet", IDEAL, 1)?;
    Ok(())
}

struct Curve<'a> {
    points: Vec<&'a Point>,
    color: RGBColor,
    width: u32,
}

enum Axis {
    /// With a label at every multiple.
    Linear(Range<f64>, f64),
    /// With a label at every power of ten, and if that makes few, at 2 and 5
    /// times it.
    Log(Range<f64>),
}

impl Axis {
    fn is_log(&self) -> bool {
        matches!(self, Self::Log(_))
    }

    /// Where a value is on the axis.
    fn place(&self, value: f64) -> f64 {
        if self.is_log() { value.log10() } else { value }
    }

    fn ticks(&self) -> Ticks {
        let (range, labels) = match self {
            Self::Linear(range, step) => {
                let labels = (0..).map(|n| f64::from(n) * step);
                let labels = labels.take_while(|label| *label <= range.end).collect();
                (range.clone(), labels)
            }
            Self::Log(range) => {
                let powers = range.start.log10().floor() as i32..=range.end.log10() as i32;
                let (start, end) = (range.start.log10(), range.end.log10());
                let times: &[f64] = if end - start > 3.0 {
                    &[1.0]
                } else {
                    &[1.0, 2.0, 5.0]
                };
                let labels = powers.flat_map(|power| {
                    // Powers of ten below 1 are not exact as such.
                    times
                        .iter()
                        .map(move |times| times.log10() + f64::from(power))
                });
                let labels: Vec<f64> = labels
                    .filter(|label| (start..=end).contains(label))
                    .collect();
                (start..end, labels)
            }
        };
        Ticks { range, labels }
    }

    fn label(&self, place: f64) -> String {
        let value = if self.is_log() {
            10_f64.powf(place)
        } else {
            place
        };
        // Enough digits for 1, 2 and 5 times a power of ten.
        let rounded = (value * 1000.0).round() / 1000.0;
        rounded.to_string()
    }
}

/// A linear axis with labels at given places.
struct Ticks {
    range: Range<f64>,
    labels: Vec<f64>,
}

impl Ranged for Ticks {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, (from, to): (i32, i32)) -> i32 {
        let part = (value - self.range.start) / (self.range.end - self.range.start);
        from + (part * f64::from(to - from)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        // The lines between the labels are not wanted.
        if hint.weight().allow_light_points() {
            Vec::new()
        } else {
            self.labels.clone()
        }
    }

    fn range(&self) -> Range<f64> {
        self.range.clone()
    }
}

struct Panel<'a> {
    title: String,
    x_name: &'a str,
    y_name: String,
    y_axis: Axis,
    solid: &'a dyn Fn(&Point) -> Option<f64>,
    dashed: &'a dyn Fn(&Point) -> Option<f64>,
    ideal: Option<&'a dyn Fn(f64) -> f64>,
}

impl Panel<'_> {
    fn draw(&self, area: &Area<'_>, curves: &[Curve<'_>], loads: Range<f64>) -> Drawn {
        let x_axis = Axis::Log(loads.clone());
        let y_axis = &self.y_axis;
        let mut chart = ChartBuilder::on(area)
            .margin(8)
            .margin_right(18)
            .caption(&self.title, text(17, INK))
            .x_label_area_size(if self.x_name.is_empty() { 24 } else { 44 })
            .y_label_area_size(62)
            .build_cartesian_2d(x_axis.ticks(), y_axis.ticks())?;
        chart
            .configure_mesh()
            .bold_line_style(GRID)
            .light_line_style(TRANSPARENT)
            .axis_style(IDEAL)
            .label_style(text(14, INK))
            .axis_desc_style(text(15, INK))
            .x_desc(self.x_name)
            .y_desc(&self.y_name)
            .x_label_formatter(&|place| x_axis.label(*place))
            .y_label_formatter(&|place| y_axis.label(*place))
            .draw()?;
        let at = |load: f64, value: f64| (x_axis.place(load), y_axis.place(value));
        if let Some(ideal) = self.ideal {
            let steps = (0..=200).map(|n| {
                let (from, to) = (loads.start.ln(), loads.end.ln());
                (from + (to - from) * f64::from(n) / 200.0).exp()
            });
            let line = steps.map(|load| at(load, ideal(load)));
            chart.draw_series(LineSeries::new(line, IDEAL.stroke_width(1)))?;
        }
        for curve in curves {
            let line = |value: &dyn Fn(&Point) -> Option<f64>| -> Vec<(f64, f64)> {
                let points = curve.points.iter();
                points
                    .filter_map(|point| Some(at(point.load, value(point)?)))
                    .collect()
            };
            let style = curve.color.stroke_width(curve.width);
            let solid = line(self.solid);
            let dots = solid
                .iter()
                .map(|at| Circle::new(*at, curve.width as i32 + 1, curve.color.filled()));
            chart.draw_series(dots.collect::<Vec<_>>())?;
            chart.draw_series(LineSeries::new(solid, style))?;
            let thin = curve.color.stroke_width(curve.width.div_ceil(2));
            chart.draw_series(DashedLineSeries::new(line(self.dashed), 5, 4, thin))?;
        }
        Ok(())
    }
}
