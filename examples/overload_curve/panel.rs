//! The parts of the plots: an axis, and a panel of curves.

use plotters::{
    coord::{
        Shift,
        ranged1d::{DefaultFormatting, KeyPointHint, Ranged},
    },
    prelude::*,
    style::text_anchor::{HPos, Pos, VPos},
};
use std::{error::Error, ops::Range};

pub type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
pub type Drawn = Result<(), Box<dyn Error + Send + Sync>>;

pub const INK: RGBColor = RGBColor(0x22, 0x22, 0x22);
const GRID: RGBColor = RGBColor(0xe4, 0xe4, 0xe4);
/// Of what an ideal fleet would do.
pub const IDEAL: RGBColor = RGBColor(0xa0, 0xa0, 0xa0);
const FONT: &str = "Helvetica, Arial, sans-serif";

pub fn text(size: i32, color: RGBColor) -> TextStyle<'static> {
    (FONT, size).into_font().color(&color)
}

/// The title of a plot, and below it the names of its curves in their colors.
pub fn draw_head(head: &Area<'_>, title: String, names: &[(&str, RGBColor, u32)]) -> Drawn {
    let at_left = |style: TextStyle<'static>| style.pos(Pos::new(HPos::Left, VPos::Center));
    head.draw(&Text::new(title, (20, 24), at_left(text(21, INK))))?;
    let mut x = 20;
    for &(name, color, width) in names {
        let line = vec![(x, 62), (x + 34, 62)];
        head.draw(&PathElement::new(line, color.stroke_width(width)))?;
        let label = Text::new(name.to_owned(), (x + 42, 62), at_left(text(17, color)));
        x += 66 + 9 * name.len() as i32;
        head.draw(&label)?;
    }
    Ok(())
}

pub struct Curve<'a, P> {
    pub points: Vec<&'a P>,
    pub color: RGBColor,
    pub width: u32,
}

pub enum Axis {
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
                let first = (range.start / step).ceil() as i32;
                let labels = (first..).map(|n| f64::from(n) * step);
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

    /// What is at a place of it.
    fn value(&self, place: f64) -> f64 {
        if self.is_log() {
            10_f64.powf(place)
        } else {
            place
        }
    }

    fn label(&self, place: f64) -> String {
        let value = self.value(place);
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

pub struct Panel<'a, P> {
    pub title: String,
    pub x_name: &'a str,
    pub x_axis: Axis,
    pub x: &'a dyn Fn(&P) -> f64,
    pub y_name: String,
    pub y_axis: Axis,
    pub solid: &'a dyn Fn(&P) -> Option<f64>,
    pub dashed: &'a dyn Fn(&P) -> Option<f64>,
    pub ideal: Option<&'a dyn Fn(f64) -> f64>,
}

impl<P> Panel<'_, P> {
    pub fn draw(&self, area: &Area<'_>, curves: &[Curve<'_, P>]) -> Drawn {
        let x_axis = &self.x_axis;
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
        let at = |x: f64, y: f64| (x_axis.place(x), y_axis.place(y));
        if let Some(ideal) = self.ideal {
            let Range { start, end } = x_axis.ticks().range;
            let steps = (0..=200).map(|n| {
                let place = start + (end - start) * f64::from(n) / 200.0;
                (place, y_axis.place(ideal(x_axis.value(place))))
            });
            chart.draw_series(LineSeries::new(steps, IDEAL.stroke_width(1)))?;
        }
        for curve in curves {
            let line = |value: &dyn Fn(&P) -> Option<f64>| -> Vec<(f64, f64)> {
                let points = curve.points.iter();
                points
                    .filter_map(|point| Some(at((self.x)(point), value(point)?)))
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
