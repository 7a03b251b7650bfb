//! Drawing: scales, axes and marks of one plot as SVG text. Colours are classes, so that the
//! page's style decides them for light and dark.

use std::fmt::Write as _;

/// Colours that the style has.
pub(super) const COLOURS: usize = 8;

/// Size of a plot and its margins, in pixels.
pub(super) const WIDTH: f64 = 560.0;
const LEFT: f64 = 74.0;
const RIGHT: f64 = 28.0;
const TOP: f64 = 12.0;
/// Room for tick labels and the axis' name.
const BOTTOM: f64 = 46.0;

/// A way from values to pixels.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Scale {
    /// Equal steps, from 0.
    Linear { most: f64 },
    /// Equal factors.
    Log { least: f64, most: f64 },
}

impl Scale {
    /// From 0 to a round number above `most`.
    pub(super) fn linear(most: f64) -> Self {
        let most = if most > 0.0 { most } else { 1.0 };
        let step = step(most);
        Scale::Linear { most: (most / step).ceil() * step }
    }

    /// Whole powers of `base` around the values.
    pub(super) fn log(least: f64, most: f64, base: f64) -> Self {
        let (least, most) = (least.max(1e-9), most.max(1e-9));
        let low = base.powf((least.log(base) + 1e-9).floor());
        let high = base.powf((most.log(base) - 1e-9).ceil());
        Scale::Log { least: low, most: if high > low { high } else { low * base } }
    }

    /// Where a value lies, from 0 to 1.
    pub(super) fn place(self, value: f64) -> f64 {
        let share = match self {
            Scale::Linear { most } => value / most,
            Scale::Log { least, most } => (value.max(least) / least).ln() / (most / least).ln(),
        };
        share.clamp(0.0, 1.0)
    }

    /// Values for ticks.
    pub(super) fn ticks(self) -> Vec<f64> {
        match self {
            Scale::Linear { most } => {
                let step = step(most);
                (0..).map(|n| f64::from(n) * step).take_while(|v| *v <= most * 1.0001).collect()
            }
            Scale::Log { least, most } => {
                let mut ticks = Vec::new();
                let mut tick = least;
                while tick <= most * 1.0001 {
                    ticks.push(tick);
                    tick *= 10.0;
                }
                ticks
            }
        }
    }
}

/// A step of 1, 2 or 5 with about four of them up to `most`.
fn step(most: f64) -> f64 {
    let rough = most / 4.0;
    let power = 10f64.powf(rough.log10().floor());
    let factor = [1.0, 2.0, 5.0, 10.0].into_iter().find(|f| f * power >= rough * 0.999);
    factor.unwrap_or(10.0) * power
}

/// One plot that is being drawn.
pub(super) struct Plot {
    body: String,
    height: f64,
    left: f64,
}

impl Plot {
    /// An empty one with room for `inner` pixels between the axes.
    pub(super) fn new(inner: f64) -> Self {
        Self { body: String::new(), height: inner + TOP + BOTTOM, left: LEFT }
    }

    /// The same with another margin for the names on the left.
    pub(super) fn with_names(inner: f64, left: f64) -> Self {
        Self { left, ..Self::new(inner) }
    }

    /// X of a place from 0 to 1.
    pub(super) fn x(&self, place: f64) -> f64 {
        self.left + place * (WIDTH - self.left - RIGHT)
    }

    /// Y of a place from 0 (below) to 1 (above).
    pub(super) fn y(&self, place: f64) -> f64 {
        let inner = self.height - TOP - BOTTOM;
        TOP + (1.0 - place) * inner
    }

    /// A text. `anchor`: start, middle or end.
    pub(super) fn text(&mut self, at: (f64, f64), anchor: &str, class: &str, text: &str) {
        let text = escape(text);
        write!(
            self.body,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\" class=\"{class}\">{text}\
             </text>",
            at.0, at.1
        )
        .expect("writing to a String never fails");
    }

    pub(super) fn line(&mut self, from: (f64, f64), to: (f64, f64), class: &str) {
        write!(
            self.body,
            "<line x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" class=\"{class}\"/>",
            from.0, from.1, to.0, to.1
        )
        .expect("writing to a String never fails");
    }

    /// Lines across with labels on the left, and the axis' name above them.
    pub(super) fn y_axis(&mut self, scale: Scale, write: &dyn Fn(f64) -> String) {
        for tick in scale.ticks() {
            let y = self.y(scale.place(tick));
            self.line((self.left, y), (WIDTH - RIGHT, y), "grid");
            self.text((self.left - 8.0, y + 4.0), "end", "tick", &write(tick));
        }
    }

    /// Labels below, at places from 0 to 1, and the axis' name.
    pub(super) fn x_labels(&mut self, labels: &[(f64, String)], name: &str) {
        let y = self.y(0.0);
        self.line((self.left, y), (WIDTH - RIGHT, y), "axis");
        for (place, label) in labels {
            let x = self.x(*place);
            self.line((x, y), (x, y + 4.0), "axis");
            self.text((x, y + 17.0), "middle", "tick", label);
        }
        let middle = self.x(0.5);
        self.text((middle, y + 36.0), "middle", "axis-name", name);
    }

    /// Lines from above to below with labels under them: the x axis of bars.
    pub(super) fn x_axis(&mut self, scale: Scale, write: &dyn Fn(f64) -> String, name: &str) {
        let (top, bottom) = (self.y(1.0), self.y(0.0));
        for tick in scale.ticks() {
            let x = self.x(scale.place(tick));
            self.line((x, top), (x, bottom), "grid");
            self.text((x, bottom + 17.0), "middle", "tick", &write(tick));
        }
        let middle = self.x(0.5);
        self.text((middle, bottom + 36.0), "middle", "axis-name", name);
    }

    /// A rectangle that says what it is when it is pointed at.
    pub(super) fn bar(&mut self, from: (f64, f64), size: (f64, f64), class: &str, title: &str) {
        write!(
            self.body,
            "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\" class=\"{class}\">\
             <title>{}</title></rect>",
            from.0,
            from.1,
            size.0.max(0.0),
            size.1,
            escape(title)
        )
        .expect("writing to a String never fails");
    }

    /// A line through points, with a mark at each.
    pub(super) fn series(&mut self, points: &[(f64, f64, String)], number: usize) {
        let colour = number % COLOURS;
        // Beyond the colours, lines are dashed.
        let dash = if number < COLOURS { "" } else { " dash" };
        let path: Vec<String> = points.iter().map(|(x, y, _)| format!("{x:.1},{y:.1}")).collect();
        let body = &mut self.body;
        write!(body, "<polyline points=\"{}\" class=\"line s{colour}{dash}\"/>", path.join(" "))
            .expect("writing to a String never fails");
        for (x, y, title) in points {
            write!(
                body,
                "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.5\" class=\"mark f{colour}\"><title>{}\
                 </title></circle>",
                escape(title)
            )
            .expect("writing to a String never fails");
        }
    }

    /// The whole plot; `label` is for those who do not see it.
    pub(super) fn finish(self, label: &str) -> String {
        let height = self.height;
        format!(
            "<svg viewBox=\"0 0 {WIDTH} {height:.0}\" role=\"img\" aria-label=\"{}\">{}</svg>",
            escape(label),
            self.body
        )
    }
}

/// Text that is safe in XML.
pub(super) fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            other => safe.push(other),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_cover_the_values() {
        assert_eq!(Scale::linear(7.3).ticks(), [0.0, 2.0, 4.0, 6.0, 8.0]);
        assert_eq!(Scale::linear(0.0).ticks(), [0.0, 0.5, 1.0]);
        assert_eq!(Scale::log(30.0, 4000.0, 10.0).ticks(), [10.0, 100.0, 1000.0, 10_000.0]);
        assert_eq!(Scale::log(100.0, 100.0, 10.0).place(100.0), 0.0);
        assert!((Scale::log(10.0, 1000.0, 10.0).place(100.0) - 0.5).abs() < 1e-9);
    }

    #[test]
    fn text_is_safe() {
        assert_eq!(escape("a<b> & \"c\""), "a&lt;b&gt; &amp; &quot;c&quot;");
    }
}
