//! Exact fractions over 128-bit integers. Every operation is checked: what does not fit is no number.

/// A fraction in lowest terms; the denominator is positive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rational {
    numerator: i128,
    denominator: i128,
}

impl Rational {
    /// A whole number.
    pub const fn whole(number: i128) -> Self {
        Self { numerator: number, denominator: 1 }
    }

    /// The number, where the fraction is whole.
    pub fn to_whole(self) -> Option<i128> {
        (self.denominator == 1).then_some(self.numerator)
    }

    fn new(numerator: i128, denominator: i128) -> Option<Self> {
        if denominator == 0 {
            return None;
        }
        let shared = gcd(numerator.checked_abs()?, denominator.checked_abs()?);
        let sign = denominator.signum();
        Some(Self { numerator: numerator / shared * sign, denominator: denominator / shared * sign })
    }

    /// The sum.
    pub fn checked_add(self, other: Self) -> Option<Self> {
        let left = self.numerator.checked_mul(other.denominator)?;
        let right = other.numerator.checked_mul(self.denominator)?;
        Self::new(left.checked_add(right)?, self.denominator.checked_mul(other.denominator)?)
    }

    /// The difference.
    pub fn checked_sub(self, other: Self) -> Option<Self> {
        self.checked_add(other.negated()?)
    }

    /// The product.
    pub fn checked_mul(self, other: Self) -> Option<Self> {
        Self::new(self.numerator.checked_mul(other.numerator)?, self.denominator.checked_mul(other.denominator)?)
    }

    /// The quotient; none for a divisor of 0.
    pub fn checked_div(self, other: Self) -> Option<Self> {
        Self::new(self.numerator.checked_mul(other.denominator)?, self.denominator.checked_mul(other.numerator)?)
    }

    /// The number with the other sign.
    pub fn negated(self) -> Option<Self> {
        Some(Self { numerator: self.numerator.checked_neg()?, denominator: self.denominator })
    }
}

/// The greatest common divisor of two numbers that are not negative; 1 for two zeros.
fn gcd(mut left: i128, mut right: i128) -> i128 {
    while right != 0 {
        (left, right) = (right, left % right);
    }
    left.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fractions_are_exact() {
        let third = Rational::whole(1).checked_div(Rational::whole(3)).unwrap();
        let sum = third.checked_add(third).and_then(|sum| sum.checked_add(third)).unwrap();
        assert_eq!(sum.to_whole(), Some(1));
        assert_eq!(third.to_whole(), None);
        assert_eq!(
            Rational::whole(6).checked_div(Rational::whole(-4)),
            Rational::whole(-3).checked_div(Rational::whole(2))
        );
        assert_eq!(third.checked_sub(third).unwrap().to_whole(), Some(0));
        assert_eq!(third.checked_div(Rational::whole(0)), None);
    }

    #[test]
    fn what_does_not_fit_is_no_number() {
        let large = Rational::whole(i128::MAX);
        assert_eq!(large.checked_add(large), None);
        assert_eq!(large.checked_mul(Rational::whole(2)), None);
        assert_eq!(Rational::whole(i128::MIN).checked_div(Rational::whole(-1)), None);
        assert_eq!(Rational::whole(i128::MIN).negated(), None);
    }
}
