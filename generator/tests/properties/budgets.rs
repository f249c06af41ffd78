//! Budgets.

use espalier_generator::TreeLimits;
use espalier_generator::budget::{Resource, TreeBudget};
use proptest::prelude::*;

proptest! {
    #[test]
    fn what_is_set_aside_and_spent_never_exceeds_the_limit(
        limit in 0_u64..200,
        spends in prop::collection::vec((0_u64..60, 0_u64..60, 0_u64..100, any::<bool>()), 0..30),
    ) {
        let budget = TreeBudget::new(&TreeLimits { tokens: limit, ..TreeLimits::default() });
        let (mut held, mut spent) = (Vec::new(), 0_u64);
        for (least, more, used, hold) in spends {
            let before = budget.used(Resource::Tokens);
            match budget.reserve_between(Resource::Tokens, least, least + more) {
                Ok(reservation) => {
                    prop_assert!((least..=least + more).contains(&reservation.amount()));
                    if hold {
                        held.push(reservation);
                    } else {
                        spent += used.min(reservation.amount());
                        reservation.spend(used);
                    }
                }
                Err(_) => prop_assert!(limit - before < least),
            }
            prop_assert!(budget.used(Resource::Tokens) <= limit);
        }
        drop(held);
        prop_assert_eq!(budget.used(Resource::Tokens), spent);
    }
}
