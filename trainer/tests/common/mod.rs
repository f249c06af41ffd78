//! What the tests share: references made with PyTorch, and comparisons by norm.
#![allow(dead_code, reason = "not every test uses all of it")]

pub(crate) mod world;

use std::path::{Path, PathBuf};

use espalier_trainer::files::SafetensorsReader;
use espalier_trainer::packing::{MicroBatch, PackRow};
use serde::Deserialize;
use serde_json::Value;
use tch::{Kind, Tensor};

pub(crate) fn fixture(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(path)
}

pub(crate) fn expected(path: &str) -> (Value, SafetensorsReader) {
    let json = std::fs::read_to_string(fixture(path).join("expected.json")).unwrap();
    let tensors = fixture(path).join("expected.safetensors");
    (serde_json::from_str(&json).unwrap(), SafetensorsReader::open(&tensors).unwrap())
}

#[derive(Deserialize)]
pub(crate) struct Rows {
    pub(crate) ids: Vec<Vec<u32>>,
    #[serde(default)]
    pub(crate) loss_mask: Vec<Vec<u8>>,
}

impl Rows {
    pub(crate) fn read(value: &Value) -> Self {
        let mut rows: Self = serde_json::from_value(value.clone()).unwrap();
        if rows.loss_mask.is_empty() {
            let all = |ids: &Vec<u32>| (0..ids.len()).map(|i| u8::from(i > 0)).collect();
            rows.loss_mask = rows.ids.iter().map(all).collect();
        }
        rows
    }

    /// All rows in one batch, every token predicted, and the mask in the batch's order.
    pub(crate) fn packed(&self) -> (MicroBatch, Tensor) {
        self.laid(MicroBatch::packed)
    }

    pub(crate) fn padded(&self) -> (MicroBatch, Tensor) {
        self.laid(MicroBatch::padded)
    }

    fn laid(&self, lay: fn(&[PackRow<'_>], &[usize]) -> Result<MicroBatch, tch::TchError>) -> (MicroBatch, Tensor) {
        let rows: Vec<_> = self.ids.iter().map(|tokens| PackRow { tokens, predict_from: 1 }).collect();
        let batch = lay(&rows, &(0..rows.len()).collect::<Vec<_>>()).unwrap();
        let mask: Vec<f32> =
            batch.rows.iter().flat_map(|i| self.loss_mask[*i][1..].iter().map(|m| f32::from(*m))).collect();
        (batch, Tensor::from_slice(&mask))
    }
}

/// |a - b| / |b|, by L2 norm.
pub(crate) fn distance(a: &Tensor, b: &Tensor) -> f64 {
    let (a, b) = (a.to_kind(Kind::Double), b.to_kind(Kind::Double));
    assert_eq!(a.size(), b.size());
    (&a - &b).norm().double_value(&[]) / b.norm().double_value(&[]).max(1e-12)
}

pub(crate) fn close(what: &str, a: f64, b: f64, tolerance: f64) {
    assert!((a - b).abs() <= tolerance * b.abs().max(1.0), "{what}: {a}, expected {b}");
}
