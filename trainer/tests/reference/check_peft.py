"""Loads a base model and an adapter with peft and prints the logits of given ids: what another loader makes of a
folder that Espalier wrote.

    check_peft.py BASE ADAPTER '[[5, 6, 7], [8, 9]]'

Prints one JSON object: `logits`, of shape (sequences, length, vocabulary), `parameters`, how many the adapter has, and
`scaling`, what each of its products is multiplied by. An adapter that lacks a weight, or holds one that the model has
no place for, is an error. Needs what requirements.txt lists; runs on the CPU in 32-bit floats.
"""

import argparse
import json
from pathlib import Path

import torch
import transformers
from peft import PeftModel
from peft.utils import get_peft_model_state_dict
from safetensors import safe_open


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", type=Path, help="folder of the base model")
    parser.add_argument("adapter", type=Path, help="folder with adapter_config.json and adapter_model.safetensors")
    parser.add_argument("ids", type=json.loads, help="token ids as JSON, a list for each sequence")
    arguments = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    base = transformers.AutoModelForCausalLM.from_pretrained(
        arguments.base, dtype=torch.float32, attn_implementation="eager"
    )
    model = PeftModel.from_pretrained(base, arguments.adapter).eval()
    # peft only warns of missing weights, and says nothing of surplus ones. The copy of an adapted output layer that
    # peft saves with an adapter may be there or not.
    expected = set(get_peft_model_state_dict(model, save_embedding_layers=False))
    with safe_open(arguments.adapter / "adapter_model.safetensors", "pt") as weights:
        found = {name for name in weights.keys() if not name.endswith(".base_layer.weight")}
    if found != expected:
        parser.error(f"missing: {sorted(expected - found)}; surplus: {sorted(found - expected)}")
    layers = [module for module in model.modules() if hasattr(module, "lora_A") and "default" in module.scaling]
    with torch.inference_mode():
        logits = [model(torch.tensor([row])).logits[0].tolist() for row in arguments.ids]
    print(json.dumps({
        "logits": logits,
        "parameters": sum(p.numel() for name, p in model.named_parameters() if "lora_" in name),
        "scaling": sorted({layer.scaling["default"] for layer in layers}),
    }))


if __name__ == "__main__":
    main()
