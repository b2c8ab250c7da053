//! Defines the table of a GPU's values, with their names, units, and positions on the screen and in `ps`.
//!
//! To add a value, add a call in `source::nvml`, a field of [`Gpu`], and a line to this table. Memory is not in this
//! table, because it is split by holder and has separate columns.

use super::{STAYS, UNKNOWN};
use crate::model::escape::escape;
use crate::model::snapshot::Gpu;
use crate::units::MIB;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum FillLevel {
    Ok,
    Warm,
    Full,
}

impl FillLevel {
    pub fn new(value: f64, [warm, full]: [f64; 2]) -> Self {
        match value {
            _ if value >= full => Self::Full,
            _ if value >= warm => Self::Warm,
            _ => Self::Ok,
        }
    }

    pub fn of_memory(percent: f64) -> Self {
        Self::new(percent, [75.0, 90.0])
    }
}

#[derive(Clone, Copy, Debug)]
pub struct GpuField {
    pub title: &'static str,
    /// Whether the column of `ps` is right-aligned.
    pub right: bool,
    /// Order in which `ps` drops columns on a narrow terminal, starting with 1. [`STAYS`] means never.
    pub gives_way: usize,
    /// Column heading on the screen, or an empty string if the screen does not show the value.
    pub heading: &'static str,
    /// Width on the screen, in terminal columns. If 0, the column is as wide as its longest text.
    pub width: u16,
    /// Rank on the screen. On a narrow terminal, the column with the highest rank is dropped first.
    pub need: usize,
    /// Minimum terminal width at which the screen shows the value, dimmed and after the charts. If 0, the screen always
    /// shows the value, in front of the name.
    pub from_columns: u16,
    /// Returns the fill level, or `None` if it is unknown or has no meaning.
    pub level: fn(&Gpu) -> Option<FillLevel>,
    pub is_work: bool,
    prefix: &'static str,
    units: [&'static str; 2],
    value: fn(&Gpu) -> Option<f64>,
    /// Text of a value that is not a number.
    words: fn(&Gpu) -> Option<String>,
    most: fn(&Gpu) -> Option<f64>,
}

/// The defaults: a right-aligned column of `ps` that is never dropped, and no column on the screen.
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
    prefix: "",
    units: ["", ""],
    value: |_| None,
    words: |_| None,
    most: |_| None,
};

/// GPU utilization, the only value that fits into the grid of GPUs.
pub const UTILIZATION: GpuField = GpuField {
    title: "UTIL",
    heading: "UTIL",
    width: 5,
    level: |gpu| Some(FillLevel::new(f64::from(gpu.gpu_percent?), [50.0, 90.0])),
    is_work: true,
    units: ["%", "%"],
    value: |gpu| gpu.gpu_percent.map(f64::from),
    ..VALUE
};

pub const GPU_FIELDS: [GpuField; 5] = [
    UTILIZATION,
    GpuField {
        title: "TEMP",
        gives_way: 3,
        heading: "TEMP",
        need: 2,
        width: 5,
        // The levels are the same for all GPU models, although the models throttle at different temperatures.
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
        prefix: "P",
        value: |gpu| gpu.performance_state.map(f64::from),
        ..VALUE
    },
];

/// The values that the screen shows if a chart shows the utilization over time, most important first.
pub const FACT_FIELDS: [GpuField; 4] = [
    GpuField {
        heading: "SM CLOCK",
        units: [" MHz", " MHz"],
        value: |gpu| gpu.sm_clock_mhz.map(f64::from),
        ..VALUE
    },
    GpuField {
        heading: "PCIE IN/OUT",
        words: |gpu| {
            let mebibytes = |bytes: u64| bytes as f64 / MIB as f64;
            let received = mebibytes(gpu.pcie_received_bytes_per_second?);
            let sent = mebibytes(gpu.pcie_sent_bytes_per_second?);
            Some(format!("{received:.0}/{sent:.0} MiB/s"))
        },
        ..VALUE
    },
    GpuField {
        heading: "FAN",
        units: ["%", "%"],
        value: |gpu| gpu.fan_percent.map(f64::from),
        ..VALUE
    },
    GpuField {
        heading: "THROTTLED",
        words: |gpu| {
            Some(match gpu.throttle_reasons.as_deref()? {
                [] => "no".to_owned(),
                [only] => escape(only).into_owned(),
                [first, more @ ..] => format!("{} +{}", escape(first), more.len()),
            })
        },
        ..VALUE
    },
];

/// Returns the values that the screen shows, most important first.
pub fn on_screen() -> Vec<&'static GpuField> {
    let shown = GPU_FIELDS.iter().filter(|field| !field.heading.is_empty());
    let mut shown: Vec<&GpuField> = shown.collect();
    shown.sort_by_key(|field| field.need);
    shown
}

impl GpuField {
    pub fn text(&self, gpu: &Gpu) -> String {
        self.write((self.value)(gpu), None, self.units[0])
    }

    /// Formats the value for the screen, such as `34°C` or `52/70 W`.
    pub fn short(&self, gpu: &Gpu) -> String {
        (self.words)(gpu).unwrap_or_else(|| self.number(gpu))
    }

    fn number(&self, gpu: &Gpu) -> String {
        self.write((self.value)(gpu), (self.most)(gpu), self.units[1])
    }

    fn write(&self, value: Option<f64>, most: Option<f64>, unit: &str) -> String {
        let prefix = self.prefix;
        match (value, most) {
            (Some(value), Some(most)) => format!("{prefix}{value:.0}/{most:.0}{unit}"),
            (Some(value), None) => format!("{prefix}{value:.0}{unit}"),
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
    fn an_unknown_value_is_not_shown_as_zero() {
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
    fn only_a_value_with_a_limit_has_a_fill_level() {
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

    /// Two columns with the same rank would share a position, and an unused rank would leave a gap.
    #[test]
    fn screen_and_ps_ranks_are_unique() {
        let needs: Vec<usize> = on_screen().iter().map(|field| field.need).collect();
        assert_eq!(needs, Vec::from_iter(0..needs.len()));
        let mut steps: Vec<usize> = GPU_FIELDS.iter().map(|field| field.gives_way).collect();
        steps.retain(|&step| step != STAYS);
        steps.sort_unstable();
        assert_eq!(steps, Vec::from_iter(1..=steps.len()));
    }
}
