//! Converts a GGUF file to a model folder: `convert_gguf IN.gguf OUT [bf16|f32]`.

use std::path::Path;

use espalier_engine::{WeightType, convert_gguf};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (source, destination, weights) = match arguments.as_slice() {
        [source, destination] => (source, destination, WeightType::Bf16),
        [source, destination, kind] if kind == "bf16" => (source, destination, WeightType::Bf16),
        [source, destination, kind] if kind == "f32" => (source, destination, WeightType::F32),
        _ => return Err("usage: convert_gguf IN.gguf OUT [bf16|f32]".into()),
    };
    convert_gguf(Path::new(source), Path::new(destination), weights)?;
    Ok(())
}
