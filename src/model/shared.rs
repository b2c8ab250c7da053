//! Compares shared values without reading their contents if both are in the same allocation.
//!
//! Consecutive samples share facts about processes. The standard library compares addresses first only for sized
//! types; for two `Arc<str>`, it always compares the contents.

use std::sync::Arc;

pub fn equal<T: ?Sized + Eq>(one: &Option<Arc<T>>, other: &Option<Arc<T>>) -> bool {
    match (one, other) {
        (Some(one), Some(other)) => Arc::ptr_eq(one, other) || one == other,
        (None, None) => true,
        (Some(_), None) | (None, Some(_)) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_values_need_not_share_an_allocation() {
        let text = |text: &str| Some(Arc::<str>::from(text));
        let one = text("train.py");
        assert!(equal(&one, &one.clone()) && equal(&one, &text("train.py")));
        assert!(!equal(&one, &text("train.pz")) && !equal(&one, &None) && !equal(&None, &one));
        assert!(equal::<str>(&None, &None));
    }

    #[test]
    fn the_same_allocation_is_not_read() {
        struct Unread;
        impl PartialEq for Unread {
            fn eq(&self, _: &Self) -> bool {
                unreachable!("the same allocation must not be read")
            }
        }
        impl Eq for Unread {}
        let one: Option<Arc<[Unread]>> = Some(vec![Unread].into());
        assert!(equal(&one, &one.clone()));
    }
}
