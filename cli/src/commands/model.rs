//! `espalier model`.

use espalier_engine::{WeightType, convert_gguf};

use crate::arguments::ModelCommand;
use crate::failure::Failure;

pub(crate) fn run(command: ModelCommand) -> Result<(), Failure> {
    let ModelCommand::Convert { source, destination, dtype } = command;
    let weights = if dtype == "f32" { WeightType::F32 } else { WeightType::Bf16 };
    Ok(convert_gguf(&source, &destination, weights)?)
}
