//! Prints decoding figures of a model folder as JSON lines: `bench_decode MODEL [bf16|f32] [repeat] [case...]`.

use std::path::PathBuf;

use espalier_engine::bench::{DecodeCase, decode};
use espalier_engine::{EngineOptions, Precision};

#[expect(clippy::print_stdout, reason = "a program's output")]
#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let mut arguments = std::env::args().skip(1);
    let folder = PathBuf::from(arguments.next().ok_or("usage: bench_decode MODEL [bf16|f32] [repeat] [case...]")?);
    let precision = match arguments.next().as_deref() {
        None | Some("bf16") => Precision::Bf16,
        Some("f32") => Precision::F32,
        Some(other) => return Err(format!("expected `bf16` or `f32`, got `{other}`").into()),
    };
    let repeat = arguments.next().map_or(Ok(2), |n| n.parse())?;
    let wanted: Vec<String> = arguments.collect();
    let mut cases = DecodeCase::standard();
    cases.retain(|case| wanted.is_empty() || wanted.contains(&case.name));
    let options = EngineOptions { precision, ..EngineOptions::default() };
    for figure in decode(&folder, options, &cases, repeat).await? {
        println!("{}", serde_json::to_string(&figure)?);
    }
    Ok(())
}
