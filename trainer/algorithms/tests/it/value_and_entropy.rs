//! The critic's loss and the entropy term.

use espalier_algorithms::entropy::{entropy_from_logits, entropy_term};
use espalier_algorithms::tokens::TokenError;
use espalier_algorithms::value_loss::{ValueLossInput, value_loss};
use tch::{Kind, Tensor};

use crate::batch::{assert_close, numbers};

const SCALES: [f64; 4] = [0.5, 0.25, 0.25, 1.0];

fn run(values: &[f64; 4], old: &[f64; 4], returns: &[f64; 4]) -> Result<(f64, Vec<f64>, Option<f64>), TokenError> {
    let values = Tensor::from_slice(values).set_requires_grad(true);
    let input = ValueLossInput {
        values: &values,
        old_values: &Tensor::from_slice(old),
        returns: &Tensor::from_slice(returns),
        scales: &Tensor::from_slice(&SCALES),
        mask: &Tensor::from_slice(&[true, true, true, false]),
        row_offsets: &[0, 1, 4],
    };
    let output = value_loss(&input, 0.2)?;
    output.loss.backward();
    Ok((output.loss.double_value(&[]), numbers(&values.grad()), output.metrics.value("value_clipfrac")))
}

#[test]
fn the_value_loss_takes_the_larger_of_two_errors() {
    // Inside the range; beyond it towards the target, where the clip holds it back; beyond it away from the target.
    let (loss, gradient, clipped) =
        run(&[1.1, 1.5, 0.5, 9.0], &[1.0, 1.0, 1.0, 0.0], &[2.0, 2.0, 2.0, f64::NAN]).unwrap();
    let expected = 0.5 * 0.5 * 0.9_f64.powi(2) + 0.25 * 0.5 * 0.8_f64.powi(2) + 0.25 * 0.5 * 1.5_f64.powi(2);
    assert_close(&[loss], &[expected], 1e-12);
    assert_close(&gradient, &[0.5 * -0.9, 0.0, 0.25 * -1.5, 0.0], 1e-12);
    assert_close(&[clipped.unwrap()], &[1.0 / 3.0], 1e-12);
}

#[test]
fn a_value_loss_that_is_not_finite_names_its_token() {
    let error = run(&[1.0, 1.0, f64::INFINITY, 0.0], &[1.0; 4], &[1.0; 4]).unwrap_err();
    let message = error.to_string();
    assert!(message.contains("row 1, token 1 of the row has value inf, old value 1, return 1"), "{message}");
}

#[test]
fn entropy_is_that_of_the_distribution() {
    let logits = Tensor::from_slice2(&[[0.0_f64, 0.0, 0.0], [2.0, 1.0, 0.0], [1.0, 1.0, f64::NEG_INFINITY]]);
    let logits = logits.set_requires_grad(true);
    let entropy = entropy_from_logits(&logits);
    let z = 2.0_f64.exp() + 1.0_f64.exp() + 1.0;
    let second: f64 = -[2.0_f64, 1.0, 0.0].iter().map(|x| x.exp() / z * (x - z.ln())).sum::<f64>();
    assert_close(&numbers(&entropy), &[3.0_f64.ln(), second, 2.0_f64.ln()], 1e-12);
    entropy.sum(Kind::Double).backward();
    assert!(numbers(&logits.grad().flatten(0, -1)).iter().all(|slope| slope.is_finite()));
}

#[test]
fn the_entropy_term_shares_the_scales() {
    let entropy = Tensor::from_slice(&[1.0, 2.0, 4.0, f64::NAN]);
    let mask = Tensor::from_slice(&[1_u8, 1, 1, 0]);
    let (term, metrics) = entropy_term(&entropy, &Tensor::from_slice(&SCALES), &mask).unwrap();
    assert_close(&[term.double_value(&[])], &[0.5 + 0.5 + 1.0], 1e-12);
    assert_close(&[metrics.value("policy_entropy").unwrap()], &[7.0 / 3.0], 1e-12);
}
