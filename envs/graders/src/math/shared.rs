//! Values that many terms share: cheap to copy, and cheap to compare with their own copies.
//!
//! Comparing two of them may cost their whole size, so each knows what it weighs and the budget is charged for it.

use std::cmp::Ordering;
use std::ops::Deref;
use std::sync::Arc;

use super::expr::Expr;
use super::poly::{Atom, Poly};

/// A shared value with its weight: terms and atoms, those within it included.
#[derive(Debug)]
pub(super) struct Shared<T: ?Sized> {
    value: Arc<T>,
    weight: u64,
}

impl<T: ?Sized> Shared<T> {
    pub(super) fn weight(&self) -> u64 {
        self.weight
    }
}

impl Shared<Poly> {
    pub(super) fn sum(sum: Poly) -> Self {
        Self { weight: weight(&sum), value: Arc::new(sum) }
    }
}

impl Shared<Expr> {
    pub(super) fn expr(expr: Expr) -> Self {
        Self { weight: weight(&expr.num) + weight(&expr.den), value: Arc::new(expr) }
    }
}

impl Shared<[Expr]> {
    pub(super) fn arguments(arguments: Vec<Expr>) -> Self {
        let weight = arguments.iter().map(|argument| weight(&argument.num) + weight(&argument.den)).sum();
        Self { value: arguments.into(), weight }
    }
}

fn weight(poly: &Poly) -> u64 {
    poly.terms.keys().map(|mono| 1 + mono.iter().map(|(atom, _)| 1 + atom_weight(atom)).sum::<u64>()).sum()
}

/// What an atom weighs beyond itself.
pub(super) fn atom_weight(atom: &Atom) -> u64 {
    match atom {
        Atom::Power(base, mono) => base.weight() + mono.iter().map(|(atom, _)| 1 + atom_weight(atom)).sum::<u64>(),
        Atom::Sum(sum) => sum.weight(),
        Atom::Call(_, arguments) => arguments.weight(),
        Atom::Whole(value) => value.bits() / 64,
        _ => 0,
    }
}

impl<T: ?Sized> Clone for Shared<T> {
    fn clone(&self) -> Self {
        Self { value: Arc::clone(&self.value), weight: self.weight }
    }
}

impl<T: ?Sized> Deref for Shared<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T: ?Sized + Ord> PartialEq for Shared<T> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<T: ?Sized + Ord> Eq for Shared<T> {}

impl<T: ?Sized + Ord> PartialOrd for Shared<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T: ?Sized + Ord> Ord for Shared<T> {
    fn cmp(&self, other: &Self) -> Ordering {
        if Arc::ptr_eq(&self.value, &other.value) {
            return Ordering::Equal;
        }
        self.weight.cmp(&other.weight).then_with(|| self.value.cmp(&other.value))
    }
}
