//! `--where`, as it may be typed to every command that selects, and fields as they are typed (`--sort`, `--by`).

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};

use crate::model::Selector;
use crate::model::field::{Field, GROUPED, SORTED};

/// Which rows are meant.
#[derive(Args, Clone, Debug, Default)]
pub struct Where {
    /// Only what fits all of these terms: 'user:ann gpu:0 idle>10m mem>4GiB', as after / in watch
    ///
    /// A word is looked for everywhere; NAME:VALUE in one field, with commas between alternatives; < and >
    /// compare what has a number; ! before a term negates it. Unknown values never match, negated or
    /// not. 'mem>4GiB' is what frees much, 'idle>2h' what was long idle, 'runtime>1d !user:ann' what runs
    /// long and is not ann's. ? in `gpumem watch` lists the fields.
    #[arg(long = "where", value_name = "TERMS", value_parser = terms)]
    pub terms: Vec<Selector>,
}

/// What leaves nothing out was hardly meant: a variable of a script was empty.
fn terms(text: &str) -> Result<Selector, String> {
    match Selector::parse(text) {
        Ok(Some(selector)) => Ok(selector),
        Ok(None) => Err("it is empty; write user:ann, or leave it out".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

/// The fields that rows are added up by, as they are typed.
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
