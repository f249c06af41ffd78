//! The local engine's decoding and prefill. `benches/engine_peer.py` runs the same cases with transformers beside
//! it, for the ratios.

use espalier_engine::EngineOptions;
use espalier_engine::bench::{DecodeCase, adapters_ratio, decode, reprefilled, weight_update};

use super::figure::{Better, Figure, Report};
use crate::failure::Failure;
use crate::settings::model_folder;

/// What each case is called as a figure. No rate can be demanded of an unknown machine: what must be reached are the
/// ratios.
const NAMES: [(&str, &str); 5] = [
    ("b1", "decode_tokens_per_s_b1"),
    ("b8", "decode_tokens_per_s_b8"),
    ("b32", "decode_tokens_per_s_b32"),
    ("ragged32", "decode_tokens_per_s_ragged32"),
    ("prefill4k", "prefill_tokens_per_s_4k"),
];

pub(super) async fn measure(report: &mut Report, quick: bool) -> Result<(), Failure> {
    let folder = model_folder("smollm2-135m-instruct");
    let failed = |error| Failure::Engine(format!("`{}`: {error}", folder.display()));
    for case in DecodeCase::standard() {
        let Some((_, figure)) = NAMES.iter().find(|(name, _)| *name == case.name) else { continue };
        if !report.wants(figure) {
            continue;
        }
        let figures = decode(&folder, EngineOptions::default(), std::slice::from_ref(&case), if quick { 1 } else { 3 })
            .await
            .map_err(failed)?;
        for measured in figures {
            report.add(Figure {
                figure,
                value: measured.tokens_per_second,
                unit: "tokens/s",
                must: 0.0,
                better: Better::Higher,
            })?;
        }
    }
    if report.wants("reprefilled_tokens") {
        let tokens = reprefilled(&folder, EngineOptions::default(), 6).await.map_err(failed)?;
        report.add(Figure {
            figure: "reprefilled_tokens",
            value: tokens as f64,
            unit: "tokens",
            must: 0.0,
            better: Better::Lower,
        })?;
    }
    let repeat = if quick { 2 } else { 5 };
    for (figure, rank, batch, must) in
        [("adapters8_decode_ratio_r8_b32", 8, 32, 1.25), ("adapters8_decode_ratio_r32_b8", 32, 8, 1.7)]
    {
        if report.wants(figure) {
            let value = adapters_ratio(&folder, EngineOptions::default(), rank, batch, repeat).await.map_err(failed)?;
            report.add(Figure { figure, value, unit: "x", must, better: Better::Lower })?;
        }
    }
    if report.wants("weight_update_ms") {
        let seconds = weight_update(&folder, EngineOptions::default(), 32, 4 * repeat).await.map_err(failed)?;
        report.add(Figure {
            figure: "weight_update_ms",
            value: seconds * 1e3,
            unit: "ms",
            must: 50.0,
            better: Better::Lower,
        })?;
    }
    Ok(())
}
