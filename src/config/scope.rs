//! Reads which processes a rule, an override or an exemption is for.

use serde::{Deserialize, Serialize};
use toml::Value;

use super::ConfigError;
use super::section::{Entry, Section};
use crate::rules::hours::{DAYS, DayHours, Hours, Zone};
use crate::rules::scope::Scope;
use crate::rules::setting::keys;

/// What a scope may hold.
pub(super) fn scope_keys() -> Vec<&'static str> {
    [keys::<Scope>(), keys::<HoursKeys>()].concat()
}

/// At which hours it is, as it is written.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub(super) struct HoursKeys {
    time: Option<DayHours>,
    days: Option<Value>,
    timezone: Option<Zone>,
}

impl From<&Hours> for HoursKeys {
    fn from(hours: &Hours) -> Self {
        // Without a time the days are what there is, all seven of them too.
        let is_written = hours.stretch.is_none() || hours.days != [true; 7];
        let days = DAYS.iter().zip(hours.days);
        let days: Vec<&str> = days.filter_map(|(day, is)| is.then_some(*day)).collect();
        Self {
            time: hours.stretch,
            days: is_written.then(|| days.into()),
            timezone: Some(hours.zone.clone()).filter(|zone| zone.name().is_some()),
        }
    }
}

/// The zone that a table names, else the machine's; `key` is what goes by it.
pub(super) fn zone(section: &Section<'_>, key: &str) -> Result<Zone, ConfigError> {
    let named = section.read::<HoursKeys>()?.timezone;
    let at = section.get(key).map_or(section.at.clone(), |entry| entry.source.span());
    named.map_or_else(Zone::local, Ok).map_err(|error| {
        let key = section.get(key).map_or(&section.key, |entry| &entry.key);
        section.file.wrong(at, key, error.to_string())
    })
}

/// Reads the scope of a table. `may_name_zone`: whether something else than its hours goes by the time
/// zone.
pub(super) fn scope(section: &Section<'_>, may_name_zone: bool) -> Result<Scope, ConfigError> {
    let mut scope: Scope = section.read()?;
    let hours: HoursKeys = section.read()?;
    let bounds = scope.memory_above.zip(scope.memory_below);
    if bounds.is_some_and(|(above, below)| above >= below) {
        return Err(section.wrong("memory_below must be greater than memory_above"));
    }
    let days = section.get("days").map(days).transpose()?;
    if hours.time.is_some() || days.is_some() {
        scope.hours = Some(Hours {
            stretch: hours.time,
            days: days.unwrap_or([true; 7]),
            zone: zone(section, "")?,
        });
    } else if let Some(zone) = section.get("timezone").filter(|_| !may_name_zone) {
        let message = "has no effect without `time` or `days`; add one of them";
        let at = zone.at.clone();
        return Err(section.file.wrong(at, &zone.key, message.to_owned()));
    }
    Ok(scope)
}

fn days(entry: &Entry<'_>) -> Result<[bool; 7], ConfigError> {
    let example = "a list of days such as [\"mon\", \"fri\"]";
    let named = entry.list(example, |day| {
        let mut days = DAYS.iter();
        days.position(|name| Some(*name) == day.value.as_str())
            .ok_or_else(|| day.wrong(&format!("one of {}", DAYS.join(", "))))
    })?;
    let mut days = [false; 7];
    named.into_iter().for_each(|day| days[day] = true);
    Ok(days)
}
