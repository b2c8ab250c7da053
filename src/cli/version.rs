//! `gpumem --version`: gpumem's own, and NVML's and the driver's where there is one.

use super::args::Global;
use super::exit::Exit;
use super::{nvml_options, print};
use crate::source::nvml;

pub(super) fn run(global: &Global) -> anyhow::Result<Exit> {
    let mut text = format!("gpumem {}\n", env!("CARGO_PKG_VERSION"));
    match nvml::versions(&nvml_options(global)?) {
        Ok(driver) => {
            let or_unknown = |version: &Option<std::sync::Arc<str>>| {
                version.as_deref().unwrap_or("unknown").to_owned()
            };
            text.push_str(&format!(
                "NVML {}, driver {}, CUDA {}\n",
                or_unknown(&driver.nvml_version),
                or_unknown(&driver.version),
                or_unknown(&driver.cuda_version)
            ));
        }
        Err(error) => text.push_str(&format!("{error}\n")),
    }
    print(&text)?;
    Ok(Exit::Clean)
}
