//! The table of what is one value of a GPU: what it is called, its unit, and where it is shown.
//!
//! A value that NVML gives is a call in `source::nvml`, a field of [`Gpu`] and a line here; `ps`'s table and the
//! screen's lines and cards show what this table has. Memory is no value but a balance, and has its own columns.

use super::{STAYS, UNKNOWN};
use crate::model::snapshot::Gpu;
use crate::units::Rounded;

/// How loaded something is that has an end.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum FillLevel {
    /// There is a lot left.
    Ok,
    /// It is well on its way to its end.
    Warm,
    /// Little is left.
    Full,
}

impl FillLevel {
    /// The level of a value that is warm and full from these on.
    pub fn new(value: f64, [warm, full]: [f64; 2]) -> Self {
        match value {
            _ if value >= full => Self::Full,
            _ if value >= warm => Self::Warm,
            _ => Self::Ok,
        }
    }

    /// The level of memory of which so many percent are in use.
    pub fn of_memory(percent: f64) -> Self {
        Self::new(percent, [75.0, 90.0])
    }
}

/// A value's line in the table.
#[derive(Clone, Copy, Debug)]
pub struct GpuField {
    /// The heading of its column in `ps`.
    pub title: &'static str,
    /// Whether it is at the right edge of that column; on the screen it always is.
    pub right: bool,
    /// In `ps`, when it gives way to a narrow terminal: 1 goes first, [`STAYS`] never.
    pub gives_way: usize,
    /// The heading of its column on the screen; empty where it is not on the screen.
    pub heading: &'static str,
    /// The terminal columns that it takes there; the widest text or heading decides where this is 0.
    pub width: u16,
    /// There, its place from the one that stays longest to the one that goes first.
    pub need: usize,
    /// There, the terminal's columns from which it is shown, after the charts and faint; where this is 0 it comes
    /// before the name.
    pub from_columns: u16,
    /// How loaded the GPU is by it; `None` where that is not known, or no question.
    pub level: fn(&Gpu) -> Option<FillLevel>,
    /// Whether more of it is more work done, and no strain.
    pub is_work: bool,
    /// What is before it on a card.
    label: &'static str,
    /// Whether a card shows that it is not known.
    shown_unknown: bool,
    /// What is before its number.
    prefix: &'static str,
    /// In `ps`, and on the screen.
    units: [&'static str; 2],
    value: fn(&Gpu) -> Option<f64>,
    /// The most that it can be, shown beside it on the screen.
    most: fn(&Gpu) -> Option<f64>,
}

/// At the right edge of a column of `ps` that never gives way, and not on the screen.
const VALUE: GpuField = GpuField {
    title: "",
    right: true,
    gives_way: STAYS,
    heading: "",
    width: 0,
    need: 0,
    from_columns: 0,
    level: |_| None,
    is_work: false,
    label: "",
    shown_unknown: true,
    prefix: "",
    units: ["", ""],
    value: |_| None,
    most: |_| None,
};

/// Use of the GPU, the one value that the grid of GPUs has room for.
pub const UTILIZATION: GpuField = GpuField {
    title: "UTIL",
    heading: "UTIL",
    width: 5,
    level: |gpu| Some(FillLevel::new(f64::from(gpu.gpu_percent?), [50.0, 90.0])),
    is_work: true,
    label: "util ",
    units: ["%", "%"],
    value: |gpu| gpu.gpu_percent.map(f64::from),
    ..VALUE
};

/// Every value, in the order of `ps`'s columns.
pub const GPU_FIELDS: [GpuField; 5] = [
    UTILIZATION,
    GpuField {
        title: "TEMP",
        gives_way: 3,
        heading: "TEMP",
        need: 2,
        width: 5,
        // It judges nothing: each model slows down at a temperature of its own.
        level: |gpu| {
            let celsius = f64::from(gpu.temperature_celsius?);
            Some(FillLevel::new(celsius, [75.0, 85.0]))
        },
        units: [" °C", "°C"],
        value: |gpu| gpu.temperature_celsius.map(f64::from),
        ..VALUE
    },
    GpuField {
        title: "POWER",
        gives_way: 4,
        heading: "POWER",
        need: 1,
        level: |gpu| {
            let limit = gpu.power_limit_watts.filter(|&limit| limit > 0.0)?;
            let percent = gpu.power_watts? * 100.0 / limit;
            Some(FillLevel::new(percent, [80.0, 95.0]))
        },
        units: [" W", " W"],
        value: |gpu| gpu.power_watts,
        most: |gpu| gpu.power_limit_watts,
        ..VALUE
    },
    GpuField {
        title: "LIMIT",
        gives_way: 1,
        units: [" W", " W"],
        value: |gpu| gpu.power_limit_watts,
        ..VALUE
    },
    GpuField {
        title: "STATE",
        right: false,
        gives_way: 2,
        heading: "P",
        need: 3,
        width: 3,
        from_columns: 100,
        shown_unknown: false,
        prefix: "P",
        value: |gpu| gpu.performance_state.map(f64::from),
        ..VALUE
    },
];

/// What a card has room for beside those, where it is known, from the one that stays longest.
pub const CARD_FIELDS: [GpuField; 3] = [
    GpuField {
        label: "SM ",
        shown_unknown: false,
        units: [" MHz", " MHz"],
        value: |gpu| gpu.sm_clock_mhz.map(f64::from),
        ..VALUE
    },
    GpuField {
        label: "memory busy ",
        shown_unknown: false,
        units: ["%", "%"],
        value: |gpu| gpu.memory_percent.map(f64::from),
        ..VALUE
    },
    GpuField {
        label: "fan ",
        shown_unknown: false,
        units: ["%", "%"],
        value: |gpu| gpu.fan_percent.map(f64::from),
        ..VALUE
    },
];

/// Those that the screen shows, from the one that stays longest to the one that goes first.
pub fn on_screen() -> Vec<&'static GpuField> {
    let shown = GPU_FIELDS.iter().filter(|field| !field.heading.is_empty());
    let mut shown: Vec<&GpuField> = shown.collect();
    shown.sort_by_key(|field| field.need);
    shown
}

impl GpuField {
    /// `34 °C`, as in `ps`.
    pub fn text(&self, gpu: &Gpu) -> String {
        self.write((self.value)(gpu), None, self.units[0])
    }

    /// `34°C` or `52/70 W`, as on the screen.
    pub fn short(&self, gpu: &Gpu) -> String {
        self.write((self.value)(gpu), (self.most)(gpu), self.units[1])
    }

    /// `util 37%`, as on a card; `None` where a card does not show it.
    pub fn on_card(&self, gpu: &Gpu) -> Option<String> {
        let is_shown = self.shown_unknown || (self.value)(gpu).is_some();
        is_shown.then(|| format!("{}{}", self.label, self.short(gpu)))
    }

    fn write(&self, value: Option<f64>, most: Option<f64>, unit: &str) -> String {
        let prefix = self.prefix;
        match (value, most) {
            (Some(value), Some(most)) => {
                format!("{prefix}{}/{}{unit}", Rounded(value), Rounded(most))
            }
            (Some(value), None) => format!("{prefix}{}{unit}", Rounded(value)),
            (None, _) => UNKNOWN.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(title: &str) -> GpuField {
        let mut fields = GPU_FIELDS.into_iter();
        fields.find(|field| field.title == title).unwrap()
    }

    #[test]
    fn what_is_not_known_is_no_zero() {
        let power =
            |watts, limit| Gpu { power_watts: watts, power_limit_watts: limit, ..Gpu::default() };
        for field in GPU_FIELDS {
            let unknown = Gpu::default();
            assert_eq!(
                (field.text(&unknown), field.short(&unknown)),
                (UNKNOWN.into(), UNKNOWN.into())
            );
        }
        assert_eq!(one("UTIL").text(&Gpu { gpu_percent: Some(0), ..Gpu::default() }), "0%");
        assert_eq!(one("POWER").short(&power(Some(51.6), Some(70.0))), "52/70 W");
        assert_eq!(one("POWER").short(&power(Some(51.6), None)), "52 W");
    }

    #[test]
    fn a_load_has_steps_and_what_has_no_end_has_none() {
        let gpu = |percent: u32, celsius, watts: f64| Gpu {
            gpu_percent: Some(percent),
            temperature_celsius: Some(celsius),
            power_watts: Some(watts),
            power_limit_watts: Some(700.0),
            ..Gpu::default()
        };
        let levels = |gpu: &Gpu| ["UTIL", "TEMP", "POWER"].map(|title| (one(title).level)(gpu));
        use FillLevel::{Full, Ok, Warm};
        assert_eq!(levels(&gpu(10, 34, 70.0)), [Some(Ok); 3]);
        assert_eq!(levels(&gpu(60, 75, 560.0)), [Some(Warm); 3]);
        assert_eq!(levels(&gpu(99, 85, 700.0)), [Some(Full); 3]);
        assert_eq!(levels(&Gpu::default()), [None; 3]);
        let no_limit = Gpu { power_limit_watts: Some(0.0), ..gpu(1, 1, f64::NAN) };
        assert_eq!((one("POWER").level)(&no_limit), None);
        assert_eq!((one("STATE").level)(&gpu(1, 1, 1.0)), None);
        assert_ne!(FillLevel::of_memory(10.0), FillLevel::of_memory(92.0));
    }

    /// What stays longest comes first, and the order of needs has no gap; else two would take one place.
    #[test]
    fn each_value_has_its_own_place() {
        let needs: Vec<usize> = on_screen().iter().map(|field| field.need).collect();
        assert_eq!(needs, Vec::from_iter(0..needs.len()));
        let mut steps: Vec<usize> = GPU_FIELDS.iter().map(|it| it.gives_way).collect();
        steps.retain(|&step| step != STAYS);
        steps.sort_unstable();
        assert_eq!(steps, Vec::from_iter(1..=steps.len()));
    }
}
