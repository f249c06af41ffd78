"""The official client against a real model: `tinker_client.py BASE_URL MODEL`."""

import math
import sys

import tinker
from tinker import types

base_url, model = sys.argv[1], sys.argv[2]
service = tinker.ServiceClient(base_url=base_url)
capabilities = tinker.RestClient(base_url=base_url).get_server_capabilities().result().supported_models
assert [(m.model_name, m.trainable) for m in capabilities] == [(model, True)], capabilities
sampler = service.create_sampling_client(base_model=model).result()
prompt = types.ModelInput.from_ints([1, 9690, 198, 2683, 359, 253, 5356, 5646, 11173])


def sample(n=1, **params):
    params = types.SamplingParams(**{"max_tokens": 8, **params})
    return sampler.sample(prompt=prompt, num_samples=n, sampling_params=params).result().sequences


def raises(kind, text, work):
    try:
        work()
    except kind as error:
        assert text in str(error), error
        return
    raise AssertionError(f"expected {kind}")


# Seeds: the same tokens again, and the samples of a request differ.
first, second = sample(4, seed=7, stop=[]), sample(4, seed=7, stop=[])
assert [list(s.tokens) for s in first] == [list(s.tokens) for s in second]
assert len({tuple(s.tokens) for s in first}) > 1
for one in first:
    assert len(one.tokens) == len(one.logprobs) == 8 and one.stop_reason == "length"
    assert all(lp <= 0 and math.isfinite(lp) for lp in one.logprobs)
# Greedy is greedy, whatever the filters.
greedy = list(sample(temperature=0.0, stop=[])[0].tokens)
assert greedy == list(sample(temperature=1.0, top_k=1, stop=[])[0].tokens)
assert greedy == list(sample(temperature=1.0, top_p=1e-6, stop=[])[0].tokens)
# A temperature scales log-probabilities: differences between two first tokens go with 1 / T.
seen = {}
for temperature in (1.0, 2.0):
    for one in sample(16, seed=3, temperature=temperature, max_tokens=1, stop=[]):
        seen.setdefault(one.tokens[0], {})[temperature] = one.logprobs[0]
both = [v for v in seen.values() if len(v) == 2]
assert len(both) >= 2, seen
for a, b in zip(both, both[1:]):
    assert abs((a[2.0] - b[2.0]) - (a[1.0] - b[1.0]) / 2) < 1e-3, both
# A stop token is part of the sample.
stopped = sample(temperature=0.0, stop=[greedy[2]])[0]
assert (list(stopped.tokens), stopped.stop_reason) == (greedy[: greedy.index(greedy[2]) + 1], "stop"), stopped

# Many in flight.
flying = [sampler.sample(prompt=prompt, num_samples=2, sampling_params=types.SamplingParams(max_tokens=4, seed=i, stop=[]))
          for i in range(64)]
assert all(len(s.tokens) == 4 for f in flying for s in f.result().sequences)

# A prompt's log-probabilities are those of the sampler.
scored = sampler.compute_logprobs(types.ModelInput.from_ints([1, 9690, 198] + list(first[0].tokens))).result()
assert scored[0] is None and len(scored) == 11 and all(math.isfinite(lp) for lp in scored[1:])

# Training: the loss of a text falls, the sampler from it says the text, and the base does not.
text = [1, 9690, 198, 2683, 359, 253, 5356, 5646, 11173, 40, 41, 42, 43, 44]
datum = types.Datum(
    model_input=types.ModelInput.from_ints(text[:-1]),
    loss_fn_inputs={"target_tokens": text[1:], "weights": [0.0] * 8 + [1.0] * 5},
)
trainer = service.create_lora_training_client(base_model=model, rank=8, seed=1).result()
assert trainer.get_info().model_data.model_name == model
# Its tokenizer is the one in the folder of its name.
tokenizer = trainer.get_tokenizer()
assert tokenizer.decode(tokenizer.encode("once upon a time")) == "once upon a time"
losses = []
for _ in range(8):
    passed = trainer.forward_backward([datum], "cross_entropy")
    stepped = trainer.optim_step(types.AdamParams(learning_rate=5e-3))
    output = passed.result()
    losses.append(output.metrics["loss:sum"])
    logprobs = output.loss_fn_outputs[0]["logprobs"].tolist()
    assert len(logprobs) == 13 and abs(losses[-1] + sum(logprobs[8:])) < 1e-3, (losses, logprobs)
    assert stepped.result().metrics["grad_norm:mean"] > 0
assert losses[-1] < losses[0] / 20, losses
taught = trainer.save_weights_and_get_sampling_client().result()
greedy_params = types.SamplingParams(max_tokens=5, temperature=0.0, stop=[])
said = taught.sample(prompt=types.ModelInput.from_ints(text[:9]), num_samples=1, sampling_params=greedy_params).result()
assert list(said.sequences[0].tokens) == text[9:], said
plain = sampler.sample(prompt=types.ModelInput.from_ints(text[:9]), num_samples=1, sampling_params=greedy_params).result()
assert list(plain.sequences[0].tokens) != text[9:], plain

# A reinforcement loss, on what was sampled: the chosen sample becomes likelier.
chosen = taught.sample(prompt=prompt, num_samples=1, sampling_params=types.SamplingParams(max_tokens=6, seed=5, stop=[])).result().sequences[0]
whole = list(prompt.to_ints()) + list(chosen.tokens)
before = len(whole) - 1 - len(chosen.tokens)
rewarded = types.Datum(
    model_input=types.ModelInput.from_ints(whole[:-1]),
    loss_fn_inputs={
        "target_tokens": whole[1:],
        "logprobs": [0.0] * before + list(chosen.logprobs),
        "advantages": [0.0] * before + [1.0] * len(chosen.tokens),
    },
)
ratios = []
for _ in range(3):
    output = trainer.forward_backward([rewarded], "importance_sampling").result()
    ratios.append(output.metrics["loss:sum"])
    trainer.optim_step(types.AdamParams(learning_rate=1e-3)).result()
assert abs(ratios[0] + len(chosen.tokens)) < 0.05, ratios
assert ratios[-1] < ratios[0], ratios

# A state goes on in another client, optimiser included.
state = trainer.save_state("after").result().path
resumed = service.create_training_client_from_state_with_optimizer(state).result()
assert resumed.get_info().lora_rank == 8
pair = [client.forward_backward([datum], "cross_entropy").result().metrics["loss:sum"] for client in (trainer, resumed)]
assert abs(pair[0] - pair[1]) < 1e-5, pair
for client in (trainer, resumed):
    client.optim_step(types.AdamParams(learning_rate=1e-3)).result()
pair = [client.forward([datum], "cross_entropy").result().metrics["loss:sum"] for client in (trainer, resumed)]
assert abs(pair[0] - pair[1]) < 1e-5, pair

# What is wrong says so, and what is not served does.
raises(tinker.RequestFailedError, "data[0].loss_fn_inputs.logprobs", lambda: trainer.forward_backward([datum], "ppo").result())
raises(tinker.RequestFailedError, "not published", lambda: trainer.forward_backward([rewarded], "stable_reinforce").result())
raises(tinker.RequestFailedError, "expected token ids below", lambda: sampler.sample(
    prompt=types.ModelInput.from_ints([10**9]), num_samples=1, sampling_params=types.SamplingParams(max_tokens=1)).result())
# And sampling goes on.
assert len(sample()) == 1
service.close("success").result()
print("ok")
