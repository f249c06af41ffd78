"""A session of training as PyTorch and peft do it: `reference.py BASE START SESSION` prints what each request gives, as JSON.

SESSION is JSON: {"steps": [{"passes": [{"loss", "config", "data": [{"tokens", "targets", COLUMN...}]}], "adam": {...}}]}.
Prints {"passes": [{"loss", "logprobs"}], "norms": [...]} and writes the adapter's end beside START as `end.safetensors`.
"""

import json
import sys

import torch
from peft import PeftModel
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

base, start, session = sys.argv[1:4]
torch.manual_seed(0)
torch.set_num_threads(1)
model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32, attn_implementation="eager")
model = PeftModel.from_pretrained(model, start, is_trainable=True)
model.train()
trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
session = json.load(open(session))


def clip(row, like, config, low, high):
    column = lambda name, default: torch.tensor(row[name]) if name in row else torch.full_like(like, config.get(name, default))
    return column("clip_low_threshold", low), column("clip_high_threshold", high)


def loss_of(name, config, row, logprobs):
    weights = torch.tensor(row["weights"]) if "weights" in row else torch.ones_like(logprobs)
    if name == "cross_entropy":
        return -(weights * logprobs).sum()
    sampled, advantages = torch.tensor(row["logprobs"]), torch.tensor(row["advantages"])
    if name == "dro":
        return -(weights * (logprobs * advantages - 0.5 * config["beta"] * (logprobs - sampled) ** 2)).sum()
    if name == "gspo":
        mask = torch.tensor(row["sequence_ratio_mask"]) != 0
        sequence = ((logprobs.detach() - sampled) * mask).sum() / mask.sum()
        ratio = torch.exp(sequence + logprobs - logprobs.detach())
        low, high = clip(row, logprobs, config, 0.8, 1.2)
        return -(weights * torch.minimum(ratio * advantages, torch.clamp(ratio, low, high) * advantages)).sum()
    ratio = torch.exp(logprobs - sampled)
    if name == "importance_sampling":
        return -(weights * ratio * advantages).sum()
    if name == "ppo":
        low, high = clip(row, logprobs, config, 0.8, 1.2)
        return -(weights * torch.minimum(ratio * advantages, torch.clamp(ratio, low, high) * advantages)).sum()
    if name == "cispo":
        low, high = clip(row, logprobs, config, 0.0, 4.0)
        return -(weights * torch.clamp(ratio, low, high).detach() * advantages * logprobs).sum()
    raise ValueError(name)


passes, norms = [], []
optimizer = torch.optim.AdamW(list(trained.values()), lr=0.0)
for step in session["steps"]:
    for one in step["passes"]:
        total, all_logprobs = torch.zeros(()), []
        for row in one["data"]:
            logits = model(torch.tensor([row["tokens"]])).logits[0].float()
            targets = torch.tensor(row["targets"])
            logprobs = torch.log_softmax(logits, -1).gather(1, targets[:, None])[:, 0]
            total = total + loss_of(one["loss"], one["config"], row, logprobs)
            all_logprobs += logprobs.tolist()
        total.backward()
        passes.append({"loss": float(total), "logprobs": all_logprobs})
    adam = step["adam"]
    clip_norm = adam["grad_clip_norm"]
    norms.append(float(torch.nn.utils.clip_grad_norm_(trained.values(), clip_norm if clip_norm > 0 else float("inf"))))
    for group in optimizer.param_groups:
        group.update(lr=adam["learning_rate"], betas=(adam["beta1"], adam["beta2"]), eps=adam["eps"],
                     weight_decay=adam["weight_decay"])
    optimizer.step()
    optimizer.zero_grad()
save_file({name.replace(".default", ""): p.detach().contiguous() for name, p in trained.items()}, start + "/end.safetensors")
print(json.dumps({"passes": passes, "norms": norms}))
