//! Reads whom a rule, an override or an exemption is for.

use std::ops::Range;
use std::sync::Arc;

use toml::de::DeValue;

use super::ConfigError;
use super::read::{File, SpannedEntry, SpannedKey, written};
use crate::rules::hours::{DAYS, DayHours, Hours, Zone};
use crate::rules::scope::{self, GpuName, SHORTEST_CONTAINER_ID, Scope, is_container_id};
use crate::rules::setting::{TomlValue, ValueKind, Written};
use crate::units::Bytes;

/// What a scope may hold.
pub(super) const KEYS: &[&str] = &[
    "user",
    "command",
    "gpu",
    "framework",
    "container",
    "notebook",
    "memory_above",
    "memory_below",
    "time",
    "days",
    "timezone",
];

/// A scope while its keys are read: the hours need several of them.
#[derive(Default)]
pub(super) struct ScopeKeys {
    scope: Scope,
    stretch: Option<DayHours>,
    days: Option<[bool; 7]>,
    zone: Option<(Zone, Range<usize>)>,
}

impl ScopeKeys {
    /// Takes a key of the table `prefix`; `false` where it is none of a scope.
    pub(super) fn take(
        &mut self,
        file: &File<'_>,
        prefix: &str,
        key: &SpannedKey<'_>,
        value: &SpannedEntry<'_>,
    ) -> Result<bool, ConfigError> {
        let entry = ScopeField {
            file,
            key: format!("{prefix}.{}", key.get_ref()),
            value,
        };
        match &**key.get_ref() {
            "user" => self.scope.user = Some(entry.user()?),
            "command" => self.scope.command = Some(entry.name()?),
            "framework" => {
                let name = entry.name()?;
                self.scope.framework = Some(scope::framework(&name).into());
            }
            "container" => self.scope.container = Some(entry.container()?),
            "notebook" => self.scope.notebook = Some(entry.name()?),
            "gpu" => self.scope.gpu = Some(entry.gpu()?),
            "memory_above" => self.scope.memory_above = Some(entry.bytes()?),
            "memory_below" => self.scope.memory_below = Some(entry.bytes()?),
            "time" => self.stretch = Some(entry.stretch()?),
            "days" => self.days = Some(entry.days()?),
            "timezone" => self.zone = Some((entry.zone()?, key.span())),
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// The zone that was named, else the machine's.
    pub(super) fn zone(
        &self,
        file: &File<'_>,
        at: Range<usize>,
        key: &str,
    ) -> Result<Zone, ConfigError> {
        match &self.zone {
            Some((zone, _)) => Ok(zone.clone()),
            None => Zone::local().map_err(|error| file.wrong(at, key, error.to_string())),
        }
    }

    /// The scope. `may_name_zone`: whether something else than its hours goes by the time zone.
    pub(super) fn finish(
        mut self,
        file: &File<'_>,
        prefix: &str,
        at: Range<usize>,
        may_name_zone: bool,
    ) -> Result<Scope, ConfigError> {
        let (above, below) = (self.scope.memory_above, self.scope.memory_below);
        if above
            .zip(below)
            .is_some_and(|(above, below)| above >= below)
        {
            let message = "nobody holds more than memory_above and less than memory_below; make \
                           memory_below the larger";
            return Err(file.wrong(at, prefix, message.to_owned()));
        }
        if self.stretch.is_some() || self.days.is_some() {
            self.scope.hours = Some(Hours {
                stretch: self.stretch,
                days: self.days.unwrap_or([true; 7]),
                zone: self.zone(file, at, prefix)?,
            });
        } else if let Some((_, at)) = self.zone.filter(|_| !may_name_zone) {
            let message = "says nothing without time or days; add one of them";
            return Err(file.wrong(at, &format!("{prefix}.timezone"), message.to_owned()));
        }
        Ok(self.scope)
    }
}

/// A value and the dotted key that it stands at.
pub(super) struct ScopeField<'f, 'v> {
    pub(super) file: &'f File<'f>,
    pub(super) key: String,
    pub(super) value: &'f SpannedEntry<'v>,
}

impl ScopeField<'_, '_> {
    /// What was written is not allowed; `write` says what is.
    pub(super) fn wrong(&self, write: &str) -> ConfigError {
        let written = written(self.value.get_ref());
        self.error_at(format!("{written} is not allowed; write {write}"))
    }

    /// What is wrong with it, in other words.
    pub(super) fn error_at(&self, message: String) -> ConfigError {
        self.file.wrong(self.value.span(), &self.key, message)
    }

    pub(super) fn name(&self) -> Result<Arc<str>, ConfigError> {
        match self.value.get_ref().as_str() {
            Some(text) if !text.is_empty() => Ok(text.into()),
            _ => Err(self.wrong("a name in quotes")),
        }
    }

    /// The entries of a list, of which there is at least one, each read by `read`.
    pub(super) fn list<T>(
        &self,
        example: &str,
        read: impl Fn(&ScopeField<'_, '_>) -> Result<T, ConfigError>,
    ) -> Result<Vec<T>, ConfigError> {
        let DeValue::Array(list) = self.value.get_ref() else {
            return Err(self.wrong(example));
        };
        if list.is_empty() {
            return Err(self.error_at(format!("is empty; write {example}, or leave it out")));
        }
        list.iter()
            .map(|value| {
                read(&ScopeField {
                    file: self.file,
                    key: self.key.clone(),
                    value,
                })
            })
            .collect()
    }

    fn user(&self) -> Result<Arc<str>, ConfigError> {
        match written(self.value.get_ref()) {
            Written::Number(uid) => {
                let uid = whole(uid).ok_or_else(|| self.wrong("a name in quotes or a uid"))?;
                Ok(uid.to_string().into())
            }
            _ => self.name(),
        }
    }

    fn gpu(&self) -> Result<GpuName, ConfigError> {
        let name = match written(self.value.get_ref()) {
            Written::Number(number) => whole(number).map(GpuName::Index),
            Written::Text(text) if text.starts_with("GPU-") => Some(GpuName::Uuid(text.into())),
            _ => None,
        };
        name.ok_or_else(|| self.wrong("an index such as 0 or a uuid such as \"GPU-89d1f0e5-…\""))
    }

    fn container(&self) -> Result<Arc<str>, ConfigError> {
        let name = self.name()?;
        if is_container_id(&name) && name.len() < SHORTEST_CONTAINER_ID {
            let message = format!(
                "{name:?} is too short for an id; write at least {SHORTEST_CONTAINER_ID} digits of it, \
                 or a runtime such as \"docker\""
            );
            return Err(self.error_at(message));
        }
        Ok(name)
    }

    fn bytes(&self) -> Result<Bytes, ConfigError> {
        let value = ValueKind::Bytes.read(written(self.value.get_ref()));
        match value.map_err(|message| self.error_at(message))? {
            TomlValue::Bytes(bytes) => Ok(bytes),
            _ => Err(self.wrong(ValueKind::Bytes.example())),
        }
    }

    fn stretch(&self) -> Result<DayHours, ConfigError> {
        let stretch = self.value.get_ref().as_str().and_then(DayHours::read);
        stretch.ok_or_else(|| {
            self.wrong("two different times of day such as \"22:00-06:00\", from 00:00 to 24:00")
        })
    }

    fn days(&self) -> Result<[bool; 7], ConfigError> {
        let example = "a list of days such as [\"mon\", \"fri\"]";
        let named = self.list(example, |day| {
            let name = day.value.get_ref().as_str();
            DAYS.iter()
                .position(|day| Some(*day) == name)
                .ok_or_else(|| day.wrong(&format!("one of {}", DAYS.join(", "))))
        })?;
        let mut days = [false; 7];
        for day in named {
            days[day] = true;
        }
        Ok(days)
    }

    fn zone(&self) -> Result<Zone, ConfigError> {
        let name = self.name()?;
        Zone::named(&name).map_err(|error| self.error_at(error.to_string()))
    }
}

fn whole(number: f64) -> Option<u32> {
    (number.fract() == 0.0 && (0.0..=f64::from(u32::MAX)).contains(&number))
        .then_some(number as u32)
}
