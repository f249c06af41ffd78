"""Makes the trainer's references: what PyTorch, transformers and peft compute on tiny random models.

    python3 -m venv venv && venv/bin/pip install -r trainer/tests/reference/requirements.txt
    venv/bin/python trainer/tests/reference/make_fixtures.py            # writes trainer/tests/fixtures
    venv/bin/python trainer/tests/reference/make_fixtures.py --check    # compares with what is there

Any build of torch 2.11.0 will do; everything runs on the CPU, on one thread, in 32-bit floats. Seeds are fixed: the
same versions on the same kind of processor write the same bytes, another processor differs in the last digits.
`trainer/tests/fixtures/README.md` says what each file holds.
"""

import argparse
import json
import math
import shutil
import tempfile
import warnings
from pathlib import Path

import peft
import torch
import transformers
from peft import LoraConfig, PeftModel, get_peft_model
from peft.utils import get_peft_model_state_dict
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

VERSIONS = {"torch": "2.11.0", "transformers": "4.57.6", "peft": "0.18.1"}
VOCAB = 96
SHAPE = dict(
    hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
    head_dim=16, vocab_size=VOCAB, max_position_embeddings=64, rms_norm_eps=1e-5,
    bos_token_id=0, eos_token_id=1, pad_token_id=2, attn_implementation="eager",
)
LLAMA3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=32)
# Boundaries by which some frequencies are kept, some blended, some stretched.
YARN = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=16, beta_fast=1.0, beta_slow=0.125)
LINEAR = dict(rope_type="linear", factor=2.5)
ALL_LINEAR = ["down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"]


def families():
    """(folder, model, largest shard): the models whose only difference is their rotation have one layer."""
    one = dict(SHAPE, num_hidden_layers=1)
    return [
        ("llama", LlamaForCausalLM(LlamaConfig(**SHAPE, rope_theta=10000.0, tie_word_embeddings=False)), "5GB"),
        ("llama_tied", LlamaForCausalLM(LlamaConfig(**SHAPE, rope_theta=10000.0, rope_scaling=LLAMA3,
                                                    tie_word_embeddings=True)), "5GB"),
        ("llama_yarn", LlamaForCausalLM(LlamaConfig(**one, rope_theta=1000.0, rope_scaling=YARN,
                                                    tie_word_embeddings=True)), "5GB"),
        ("llama_linear", LlamaForCausalLM(LlamaConfig(**one, rope_theta=10000.0, rope_scaling=LINEAR,
                                                      tie_word_embeddings=True)), "5GB"),
        ("qwen2", Qwen2ForCausalLM(Qwen2Config(**SHAPE, rope_theta=1000000.0, tie_word_embeddings=True)), "5GB"),
        ("qwen3", Qwen3ForCausalLM(Qwen3Config(**SHAPE, rope_theta=1000000.0, tie_word_embeddings=True)), "60KB"),
    ]


def numbers(*parts):
    """A generator of random numbers that depends on the name only."""
    seed = 0
    for byte in ".".join(map(str, parts)).encode():
        seed = (seed * 1000003 ^ byte) % (1 << 62)
    return torch.Generator().manual_seed(seed)


def randomise(model, name):
    """Sets every parameter, norms and biases too, so that leaving one out or mixing two up shows."""
    for key, parameter in model.named_parameters():
        raw = torch.randn(parameter.shape, generator=numbers(name, key))
        if "embed_tokens" in key or "lm_head" in key:
            values = 0.4 * raw
        elif parameter.dim() == 2:
            values = raw * 1.2 / math.sqrt(parameter.shape[1])
        elif key.endswith("bias"):
            values = 0.3 * raw
        else:
            values = 1 + 0.25 * raw
        parameter.data.copy_(values)


def tokens(length, *parts):
    """Token ids above the special ones."""
    return torch.randint(3, VOCAB, (length,), generator=numbers("tokens", *parts))


def row_logits(model, ids):
    """Logits (length, vocab) of one sequence: nothing is padded."""
    return model(ids[None]).logits[0]


def token_logprobs(logits, ids):
    """Log-probability of each token given those before it, (length,); that of the first is 0."""
    chosen = logits[:-1].log_softmax(-1).gather(1, ids[1:, None])[:, 0]
    return torch.cat([chosen.new_zeros(1), chosen])


def sft_loss(model, rows):
    """Minus the mean log-probability over all tokens of all rows whose mask is 1; a row's first token never counts."""
    total = sum(-(token_logprobs(row_logits(model, ids), ids) * mask).sum() for ids, mask in rows)
    return total / sum(mask.sum() for _, mask in rows)


def next_token_mask(ids):
    mask = torch.ones(len(ids))
    mask[0] = 0
    return mask


def save(path, tensors):
    save_file({name: tensor.detach().contiguous().clone() for name, tensor in tensors.items()}, path)


def write_json(path, value):
    """One line for each key."""
    lines = [f"{json.dumps(key)}: {json.dumps(part)}" for key, part in sorted(value.items())]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def write_json_list(path, values):
    """One line for each value."""
    path.write_text("[\n" + ",\n".join(json.dumps(value) for value in values) + "\n]\n")


def gradients(model):
    """The gradient of every trainable parameter, by name."""
    return {name: p.grad for name, p in model.named_parameters() if p.requires_grad}


def adapter_name(parameter):
    """A LoRA parameter as a saved adapter names it."""
    return parameter.replace(".default.", ".")


def adapter_gradients(model):
    return {adapter_name(name): grad for name, grad in gradients(model).items()}


def adapter_parameters(model):
    return {adapter_name(name): p.data for name, p in model.named_parameters() if p.requires_grad}


def norm(tensors):
    return torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(t) for t in tensors])).item()


def make_models(out):
    for name, model, shard in families():
        folder = out / "models" / name
        randomise(model, name)
        model.save_pretrained(folder, max_shard_size=shard)
        model.train()
        rows = [tokens(n, "models", i) for i, n in enumerate([7, 13, 24])]
        loss = sft_loss(model, [(ids, next_token_mask(ids)) for ids in rows])
        loss.backward()
        tensors = {f"logits.{i}": row_logits(model, ids) for i, ids in enumerate(rows)}
        tensors |= {f"grad.{key}": grad for key, grad in gradients(model).items()}
        save(folder / "expected.safetensors", tensors)
        write_json(folder / "expected.json", {
            "ids": [ids.tolist() for ids in rows],
            "loss": loss.item(),
            "grad_norm": norm(gradients(model).values()),
        })


def adapted(out, base, folder, config):
    """A base model with a new adapter whose B is not zero."""
    model = AutoModelForCausalLM.from_pretrained(out / "models" / base, attn_implementation="eager")
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = get_peft_model(model, config)
    for key, parameter in model.named_parameters():
        if parameter.requires_grad:
            scale = 0.06 if "lora_B" in key else 1 / math.sqrt(parameter.shape[1])
            parameter.data.copy_(scale * torch.randn(parameter.shape, generator=numbers(folder, key)))
    model.train()
    return model


def make_lora(out):
    cases = [
        ("llama_all_linear", "llama", dict(target_modules="all-linear", r=4, lora_alpha=8)),
        ("llama_qv", "llama", dict(target_modules=["q_proj", "v_proj"], r=4, lora_alpha=8)),
        ("llama_lm_head", "llama", dict(target_modules=["q_proj", "lm_head"], r=4, lora_alpha=8)),
        ("qwen3_all_linear", "qwen3", dict(target_modules="all-linear", r=4, lora_alpha=8)),
        ("qwen3_qv_rslora", "qwen3", dict(target_modules=["q_proj", "v_proj"], r=4, lora_alpha=8, use_rslora=True)),
    ]
    for name, base, options in cases:
        folder = out / "lora" / name
        model = adapted(out, base, name, LoraConfig(**options, lora_dropout=0.0, bias="none", task_type="CAUSAL_LM"))
        rows = []
        for i, (length, prompt) in enumerate([(7, 3), (13, 4)]):
            mask = (torch.arange(length) >= prompt).float()
            rows.append((tokens(length, "lora", i), mask))
        loss = sft_loss(model, rows)
        loss.backward()
        model.peft_config["default"].base_model_name_or_path = f"../../models/{base}"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.save_pretrained(folder)
        (folder / "README.md").unlink()
        # peft keeps target modules in a set, whose order changes from run to run.
        config = json.loads((folder / "adapter_config.json").read_text())
        config["target_modules"] = sorted(config["target_modules"])
        (folder / "adapter_config.json").write_text(json.dumps(config, indent=2))
        tensors = {f"logits.{i}": row_logits(model, ids) for i, (ids, _) in enumerate(rows)}
        tensors |= {f"grad.{key}": grad for key, grad in adapter_gradients(model).items()}
        save(folder / "expected.safetensors", tensors)
        write_json(folder / "expected.json", {
            "base": f"models/{base}",
            "ids": [ids.tolist() for ids, _ in rows],
            "loss_mask": [[int(m) for m in mask] for _, mask in rows],
            "loss": loss.item(),
            "grad_norm": norm(gradients(model).values()),
            "trainable": sum(p.numel() for p in model.parameters() if p.requires_grad),
        })


OPTIMIZER = dict(lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01)
MAX_GRAD_NORM = 1.0
EPS_CLIP = 0.2
KL_COEF = 0.01
STEPS = 5


def group_advantages(scores):
    """GRPO: (s - mean) / (std + 1e-6) within the group, std with n - 1."""
    scores = torch.tensor(scores)
    return (scores - scores.mean()) / (scores.std(unbiased=True) + 1e-6)


def grpo_rows():
    """Four answers to one prompt: (ids, mask, advantage, noise of the old log-probabilities)."""
    prompt = tokens(5, "grpo", "prompt")
    rows = []
    for i, (length, advantage) in enumerate(zip([4, 9, 3, 7], group_advantages([1.0, 0.0, 0.0, 1.0]))):
        ids = torch.cat([prompt, tokens(length, "grpo", i)])
        mask = (torch.arange(len(ids)) >= len(prompt)).float()
        if i == 1:
            mask[8:11] = 0  # an observation between two turns
        noise = 0.25 * torch.randn(len(ids), generator=numbers("grpo", "noise", i))
        rows.append((ids, mask, advantage, noise * mask))
    return rows


def grpo_loss(model, rows, old, reference):
    """Clipped policy loss, mean over all tokens of the batch, plus coefficient x mean of k3 over the same tokens.

    r = exp(lp - old), l = -min(r A, clamp(r, 0.8, 1.2) A), k3 = exp(ref - lp) - (ref - lp) - 1. Trainers bound k3 to
    10, which these rows must not reach.
    """
    total = sum(mask.sum() for _, mask, _, _ in rows)
    policy, kl, clipped, entropy = 0.0, 0.0, 0.0, 0.0
    for (ids, mask, advantage, _), before, ref in zip(rows, old, reference):
        logits = row_logits(model, ids)
        logprobs = token_logprobs(logits, ids)
        ratio = (logprobs - before).exp()
        plain, bounded = ratio * advantage, ratio.clamp(1 - EPS_CLIP, 1 + EPS_CLIP) * advantage
        policy = policy - (torch.minimum(plain, bounded) * mask).sum() / total
        clipped = clipped + ((bounded < plain).float() * mask).sum() / total
        d = ref - logprobs
        k3 = (d.exp() - d - 1) * mask
        assert k3.max() < 10
        kl = kl + k3.sum() / total
        each = torch.distributions.Categorical(logits=logits.detach()[:-1]).entropy()
        entropy = entropy + (each * mask[1:]).sum() / total
    loss = policy + KL_COEF * kl
    return loss, {"loss": loss, "policy_loss": policy, "kl": kl, "clip_ratio": clipped, "entropy": entropy}


def train(model, loss_of, steps):
    """Runs steps; returns each one's figures, and the gradients (before clipping) and parameters of the first."""
    trainable = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trainable, **OPTIMIZER)
    figures, first = [], {}
    for step in range(steps):
        optimizer.zero_grad()
        loss, metrics = loss_of(model)
        loss.backward()
        if step == 0:
            first = {f"grad.{k}": g.clone() for k, g in adapter_gradients(model).items()}
        before = torch.nn.utils.clip_grad_norm_(trainable, MAX_GRAD_NORM)
        optimizer.step()
        if step == 0:
            first |= {f"after.{k}": p.clone() for k, p in adapter_parameters(model).items()}
        figures.append({k: v.item() for k, v in metrics.items()} | {"grad_norm": before.item()})
    return figures, first


def whole(out):
    return AutoModelForCausalLM.from_pretrained(out / "models" / "llama", attn_implementation="eager").train()


def with_adapter(out):
    base = AutoModelForCausalLM.from_pretrained(out / "models" / "llama", attn_implementation="eager")
    return PeftModel.from_pretrained(base, out / "lora" / "llama_all_linear", is_trainable=True).train()


def settings():
    return {
        "base": "models/llama",
        "optimizer": dict(OPTIMIZER, betas=list(OPTIMIZER["betas"])),
        "max_grad_norm": MAX_GRAD_NORM,
    }


def make_grpo(out):
    rows = grpo_rows()
    with torch.no_grad():
        reference = [token_logprobs(row_logits(whole(out), ids), ids) * mask for ids, mask, _, _ in rows]
    shared = settings() | {
        "ids": [ids.tolist() for ids, _, _, _ in rows],
        "loss_mask": [[int(m) for m in mask] for _, mask, _, _ in rows],
        "scores": [1.0, 0.0, 0.0, 1.0],
        "eps_clip": EPS_CLIP,
        "kl_coef": KL_COEF,
    }
    for name, make, adapter in [("grpo", with_adapter, "lora/llama_all_linear"), ("grpo_full", whole, None)]:
        folder = out / "steps" / name
        folder.mkdir(parents=True)
        model = make(out)
        with torch.no_grad():
            start = [token_logprobs(row_logits(model, ids), ids) * mask for ids, mask, _, _ in rows]
        old = [lp + noise for lp, (_, _, _, noise) in zip(start, rows)]
        figures, first = train(model, lambda m: grpo_loss(m, rows, old, reference), STEPS)
        tensors = {"advantages": torch.stack([advantage for _, _, advantage, _ in rows])}
        for key, values in [("logprobs", start), ("old_logprobs", old), ("reference_logprobs", reference)]:
            tensors |= {f"{key}.{i}": value for i, value in enumerate(values)}
        # A whole model's gradients are pinned under models/: its case is figures only.
        save(folder / "expected.safetensors", tensors | (first if adapter else {}))
        write_json(folder / "expected.json", shared | {"adapter": adapter, "steps": figures})


def make_sft(out):
    rows = []
    for i, (length, prompt) in enumerate([(11, 4), (6, 2), (17, 9)]):
        rows.append((tokens(length, "sft", i), (torch.arange(length) >= prompt).float()))
    shared = settings() | {
        "ids": [ids.tolist() for ids, _ in rows],
        "loss_mask": [[int(m) for m in mask] for _, mask in rows],
    }

    def loss_of(model):
        loss = sft_loss(model, rows)
        return loss, {"loss": loss}

    for name, make, adapter in [("sft", with_adapter, "lora/llama_all_linear"), ("sft_full", whole, None)]:
        folder = out / "steps" / name
        folder.mkdir(parents=True)
        figures, first = train(make(out), loss_of, STEPS)
        if adapter:
            save(folder / "expected.safetensors", first)
        write_json(folder / "expected.json", shared | {"adapter": adapter, "steps": figures})


def make_adamw(out):
    """Five steps on given gradients; the third leaves one parameter's gradient at 0."""
    folder = out / "steps" / "adamw"
    folder.mkdir(parents=True)
    cases = [
        dict(lr=1e-2, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.1),
        dict(lr=1e-2, betas=(0.9, 0.95), eps=1e-12, weight_decay=0.0),
        dict(lr=1e-1, betas=(0.8, 0.9), eps=1e-3, weight_decay=0.5),
    ]
    generator = numbers("adamw")
    initial = torch.randn(6, generator=generator)
    grads = torch.randn(5, 6, generator=generator) * torch.tensor([1.0, 10.0, 0.1, 1e-3, 1e-6, 1.0])
    grads[2, 0] = 0.0
    tensors = {"initial": initial, "gradients": grads}
    for i, options in enumerate(cases):
        parameter = torch.nn.Parameter(initial.clone())
        optimizer = torch.optim.AdamW([parameter], **options)
        history = []
        for grad in grads:
            parameter.grad = grad.clone()
            optimizer.step()
            history.append(parameter.data.clone())
        tensors[f"parameters.{i}"] = torch.stack(history)
        tensors[f"exp_avg.{i}"] = optimizer.state[parameter]["exp_avg"]
        tensors[f"exp_avg_sq.{i}"] = optimizer.state[parameter]["exp_avg_sq"]
    save(folder / "expected.safetensors", tensors)
    write_json(folder / "expected.json", {"cases": [dict(c, betas=list(c["betas"])) for c in cases]})


def make_schedules(out):
    """The rate of each of 20 steps, relative to the base rate."""
    folder = out / "steps" / "schedules"
    folder.mkdir(parents=True)
    cases = []
    for name in ["constant_with_warmup", "linear", "cosine"]:
        for warmup, total in [(0, 20), (5, 20), (3, 12)]:
            optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
            scheduler = transformers.get_scheduler(name, optimizer, warmup, total)
            rates = []
            for _ in range(20):
                rates.append(scheduler.get_last_lr()[0])
                optimizer.step()
                scheduler.step()
            cases.append({"name": name, "warmup_steps": warmup, "total_steps": total, "rates": rates})
    write_json_list(folder / "expected.json", cases)


def make_rope(out):
    """Frequencies and attention factor of each way to scale a rotation, as transformers computes them."""
    qwen = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=32768)
    cases = [
        (64, 1000000.0, 32768, None),
        (64, 500000.0, 131072, dict(LLAMA3, original_max_position_embeddings=8192)),
        (64, 10000.0, 16384, dict(rope_type="linear", factor=4.0)),
        (128, 1000000.0, 131072, qwen),
        (128, 1000000.0, 131072, dict(qwen, truncate=False)),
        (128, 1000000.0, 131072, dict(qwen, attention_factor=1.5)),
        (64, 10000.0, 163840, dict(rope_type="yarn", factor=40.0, original_max_position_embeddings=4096, beta_fast=32,
                                   beta_slow=1, mscale=1.0, mscale_all_dim=0.8)),
        (64, 150000.0, 131072, dict(rope_type="yarn", factor=32.0, original_max_position_embeddings=4096,
                                    beta_fast=32.0, beta_slow=1.0, truncate=False)),
        (64, 10000.0, 8192, dict(rope_type="yarn", factor=2.0)),
        (64, 10000.0, 2048, dict(rope_type="yarn", factor=0.5, original_max_position_embeddings=4096)),
        (16, 1000.0, 64, YARN),
        # The ramp starts where it ends, and starts beyond its end.
        (16, 10000.0, 64, dict(YARN, original_max_position_embeddings=6, beta_fast=32.0, beta_slow=1.0)),
        (16, 10000.0, 64, dict(YARN, original_max_position_embeddings=4, beta_fast=32.0, beta_slow=16.0)),
    ]
    written = []
    for head_dim, theta, context, scaling in cases:
        config = LlamaConfig(**dict(SHAPE, head_dim=head_dim, max_position_embeddings=context), rope_theta=theta,
                             rope_scaling=scaling)
        kind = scaling["rope_type"] if scaling else "default"
        frequencies, factor = ROPE_INIT_FUNCTIONS[kind](config, "cpu")
        written.append({
            "head_dim": head_dim, "rope_theta": theta, "max_position_embeddings": context, "rope_scaling": scaling,
            # Nine digits hold every 32-bit float.
            "frequencies": [float(f"{f:.9g}") for f in frequencies.tolist()],
            "attention_factor": factor,
        })
    write_json_list(out / "rope.json", written)


def difference(a, b):
    """The largest difference of two JSON values' numbers, relative to those above 1; infinite where shapes differ."""
    if isinstance(a, dict) and isinstance(b, dict) and a.keys() == b.keys():
        return max((difference(a[k], b[k]) for k in a), default=0.0)
    if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        return max(map(difference, a, b), default=0.0)
    if isinstance(a, (int, float)) and isinstance(b, (int, float)):
        return abs(a - b) / max(1.0, abs(a))
    return 0.0 if a == b else math.inf


def check(made, kept):
    """Whether two folders say the same up to rounding; says where they do not."""
    files = {p.relative_to(made) for p in made.rglob("*") if p.is_file()}
    stored = {p.relative_to(kept) for p in kept.rglob("*") if p.is_file() and p.name != "README.md"}
    sound = True
    for path in sorted(files ^ stored):
        sound = False
        print(f"{path}: only in {'the new run' if path in files else str(kept)}")
    for path in sorted(files & stored):
        if path.suffix == ".safetensors":
            a, b = load_file(made / path), load_file(kept / path)
            same = a.keys() == b.keys() and all(a[k].shape == b[k].shape for k in a)
            worst = max((a[k] - b[k]).abs().max().item() for k in a) if same else math.inf
        else:
            worst = difference(json.loads((made / path).read_text()), json.loads((kept / path).read_text()))
        if worst > 1e-5:
            sound = False
            print(f"{path}: differs by {worst:g}")
    return sound


def main():
    fixtures = Path(__file__).resolve().parents[1] / "fixtures"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=fixtures, help="where to write (default: %(default)s)")
    parser.add_argument("--check", action="store_true", help="write nothing: compare a new run with what is there")
    arguments = parser.parse_args()
    for package in (torch, transformers, peft):
        found = package.__version__.split("+")[0]
        if found != VERSIONS[package.__name__]:
            parser.error(f"{package.__name__} {VERSIONS[package.__name__]} is needed, {found} is here")
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as name:
        made = Path(name)
        make_models(made)
        make_lora(made)
        make_grpo(made)
        make_sft(made)
        make_adamw(made)
        make_schedules(made)
        make_rope(made)
        if arguments.check:
            raise SystemExit(0 if check(made, arguments.out) else 1)
        for part in ["models", "lora", "steps"]:
            shutil.rmtree(arguments.out / part, ignore_errors=True)
        for path in made.rglob("*"):
            path.chmod(0o755 if path.is_dir() else 0o644)
        shutil.copytree(made, arguments.out, dirs_exist_ok=True)


if __name__ == "__main__":
    main()
