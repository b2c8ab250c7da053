//! `--where`, as it may be typed to every command that selects, and fields as they are typed (`--sort`, `--by`).

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};

use crate::model::Selector;
use crate::model::field::{Field, GROUPED, SORTED};

/// Selects rows.
#[derive(Args, Clone, Debug, Default)]
pub struct Where {
    /// Only what matches all of these terms: 'user:ann gpu:0 idle>10m mem>4GiB', as after / in watch
    ///
    /// A word is searched for in all fields; NAME:VALUE in one field, with commas between alternatives;
    /// < and > compare numbers; ! before a term negates it. Unknown values never match, negated or not.
    ///
    /// 'mem>4GiB' selects large processes, 'idle>2h' those that have been idle for long, 'runtime>1d
    /// !user:ann' those that have run for long and are not ann's. ? in `gpumem watch` lists the fields.
    #[arg(long = "where", value_name = "TERMS", value_parser = terms)]
    pub terms: Vec<Selector>,
}

/// Rejects terms that leave nothing out: a script's variable was probably empty.
fn terms(text: &str) -> Result<Selector, String> {
    match Selector::parse(text) {
        Ok(Some(selector)) => Ok(selector),
        Ok(None) => Err("it is empty; write user:ann, or leave it out".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

/// The fields that totals can be grouped by, by their names.
pub(super) fn grouped() -> impl TypedValueParser<Value = Field> {
    let names = GROUPED.iter().filter_map(|field| field.spec().names.first());
    PossibleValuesParser::new(names).map(|typed| {
        let mut fields = GROUPED.iter();
        let is_it = |field: &&Field| field.spec().names.first() == Some(&typed.as_str());
        *fields.find(is_it).unwrap_or(&Field::User)
    })
}

impl ValueEnum for Field {
    fn value_variants<'a>() -> &'a [Self] {
        &SORTED
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        let (name, help) = self.spec().sort;
        Some(PossibleValue::new(name).help(help))
    }
}
