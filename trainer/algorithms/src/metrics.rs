//! Figures that merge over micro-batches and ranks as if everything had been one batch.
//!
//! A mean of means depends on how a batch was cut. A [`Metric`] therefore keeps what its figure is made of, and
//! [`Metrics::merge`] adds those. [`Recorder`] collects figures on the device and fetches all of them in one copy.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tch::{Device, Kind, TchError, Tensor};

/// What a figure is made of.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// A weighted mean.
    Mean {
        /// Weighted sum.
        sum: f64,
        /// Sum of the weights.
        weight: f64,
    },
    /// A population standard deviation.
    Std {
        /// Number of values.
        count: f64,
        /// Their mean.
        mean: f64,
        /// Sum of their squared differences from the mean.
        squares: f64,
    },
    /// A largest value; absent is negative infinity.
    Max(f64),
    /// A smallest value; absent is positive infinity.
    Min(f64),
    /// A total.
    Sum(f64),
}

impl Metric {
    /// The figure; none where nothing was measured.
    pub fn value(&self) -> Option<f64> {
        match *self {
            Self::Mean { sum, weight } => (weight != 0.0).then(|| sum / weight),
            Self::Std { count, squares, .. } => (count > 0.0).then(|| (squares / count).max(0.0).sqrt()),
            Self::Max(value) => (value != f64::NEG_INFINITY).then_some(value),
            Self::Min(value) => (value != f64::INFINITY).then_some(value),
            Self::Sum(value) => Some(value),
        }
    }

    /// Adds what another part of the batch measured. Figures of different kinds do not merge: the first stays.
    fn merge(&mut self, other: Self) {
        match (self, other) {
            (Self::Mean { sum, weight }, Self::Mean { sum: more, weight: added }) => {
                *sum += more;
                *weight += added;
            }
            (
                Self::Std { count, mean, squares },
                Self::Std { count: more, mean: other_mean, squares: other_squares },
            ) => {
                // Chan, Golub and LeVeque (1979): no cancellation, unlike a sum of squares.
                let total = *count + more;
                if total > 0.0 {
                    let difference = other_mean - *mean;
                    *squares += other_squares + difference * difference * *count * more / total;
                    *mean += difference * more / total;
                    *count = total;
                }
            }
            (Self::Max(value), Self::Max(other)) => *value = value.max(other),
            (Self::Min(value), Self::Min(other)) => *value = value.min(other),
            (Self::Sum(value), Self::Sum(other)) => *value += other,
            _ => {}
        }
    }
}

/// Named figures.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Metrics {
    entries: BTreeMap<String, Metric>,
}

impl Metrics {
    /// The same figures, with `prefix` before every name.
    #[must_use]
    pub fn prefixed(self, prefix: &str) -> Self {
        Self { entries: self.entries.into_iter().map(|(name, metric)| (format!("{prefix}{name}"), metric)).collect() }
    }

    /// Sets a figure.
    pub fn insert(&mut self, name: impl Into<String>, metric: Metric) {
        self.entries.insert(name.into(), metric);
    }

    /// Takes a figure out.
    pub fn remove(&mut self, name: &str) -> Option<f64> {
        self.entries.remove(name).and_then(|metric| metric.value())
    }

    /// Adds what another micro-batch or rank measured.
    pub fn merge(&mut self, other: Self) {
        for (name, metric) in other.entries {
            match self.entries.get_mut(&name) {
                Some(mine) => mine.merge(metric),
                None => {
                    self.entries.insert(name, metric);
                }
            }
        }
    }

    /// One figure; none where it was not measured.
    pub fn value(&self, name: &str) -> Option<f64> {
        self.entries.get(name).and_then(Metric::value)
    }

    /// All figures that were measured, by name.
    pub fn values(&self) -> impl Iterator<Item = (&str, f64)> {
        self.entries.iter().filter_map(|(name, metric)| Some((name.as_str(), metric.value()?)))
    }
}

/// The shape of a figure whose numbers are still on the device.
#[derive(Clone, Copy)]
enum Shape {
    Mean,
    Std,
    Max,
    Min,
    Sum,
}

/// Collects figures of one batch of tokens on the device.
///
/// Nothing waits for the device until [`Recorder::finish`], which copies all numbers at once.
#[derive(Default)]
pub struct Recorder {
    names: Vec<(String, Shape)>,
    numbers: Vec<Tensor>,
}

impl Recorder {
    /// The mean of `values` (`[n]`, any kind) where `mask` (`[n]`, bool) is set.
    pub fn mean(&mut self, name: &str, values: &Tensor, mask: &Tensor) {
        let sum = tch::no_grad(|| double(values).masked_fill(&mask.logical_not(), 0.0).sum(Kind::Double));
        self.push(name, Shape::Mean, [sum, mask.sum(Kind::Double)]);
    }

    /// The population standard deviation of `values` where `mask` is set.
    pub fn std(&mut self, name: &str, values: &Tensor, mask: &Tensor) {
        let outside = mask.logical_not();
        let count = mask.sum(Kind::Double);
        let (mean, squares) = tch::no_grad(|| {
            let values = double(values);
            let mean = values.masked_fill(&outside, 0.0).sum(Kind::Double) / count.clamp_min(1.0);
            let squares = (values - &mean).square().masked_fill(&outside, 0.0).sum(Kind::Double);
            (mean, squares)
        });
        self.push(name, Shape::Std, [count, mean, squares]);
    }

    /// The largest of `values` where `mask` is set.
    pub fn max(&mut self, name: &str, values: &Tensor, mask: &Tensor) {
        let values = tch::no_grad(|| double(values).masked_fill(&mask.logical_not(), f64::NEG_INFINITY));
        let largest = if values.numel() == 0 { values.sum(Kind::Double) + f64::NEG_INFINITY } else { values.max() };
        self.push(name, Shape::Max, [largest]);
    }

    /// The smallest of `values` where `mask` is set.
    pub fn min(&mut self, name: &str, values: &Tensor, mask: &Tensor) {
        let values = tch::no_grad(|| double(values).masked_fill(&mask.logical_not(), f64::INFINITY));
        let smallest = if values.numel() == 0 { values.sum(Kind::Double) + f64::INFINITY } else { values.min() };
        self.push(name, Shape::Min, [smallest]);
    }

    /// The sum of all of `values`.
    pub fn sum(&mut self, name: &str, values: &Tensor) {
        let sum = tch::no_grad(|| double(values).sum(Kind::Double));
        self.push(name, Shape::Sum, [sum]);
    }

    fn push<const N: usize>(&mut self, name: &str, shape: Shape, numbers: [Tensor; N]) {
        self.names.push((name.to_owned(), shape));
        self.numbers.extend(numbers);
    }

    /// Fetches every figure in one copy.
    pub fn finish(self) -> Result<Metrics, TchError> {
        let mut metrics = Metrics::default();
        if self.numbers.is_empty() {
            return Ok(metrics);
        }
        let numbers = Tensor::f_stack(&self.numbers, 0)?.f_to_device(Device::Cpu)?;
        let mut numbers = Vec::<f64>::try_from(numbers)?.into_iter();
        let mut next = || numbers.next().unwrap_or(f64::NAN);
        for (name, shape) in self.names {
            let metric = match shape {
                Shape::Mean => Metric::Mean { sum: next(), weight: next() },
                Shape::Std => Metric::Std { count: next(), mean: next(), squares: next() },
                Shape::Max => Metric::Max(next()),
                Shape::Min => Metric::Min(next()),
                Shape::Sum => Metric::Sum(next()),
            };
            metrics.insert(name, metric);
        }
        Ok(metrics)
    }
}

fn double(values: &Tensor) -> Tensor {
    values.detach().to_kind(Kind::Double)
}
