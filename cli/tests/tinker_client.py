"""The official client against a real model: `tinker_client.py BASE_URL MODEL`."""

import math
import sys

import tinker
from tinker import types

base_url, model = sys.argv[1], sys.argv[2]
service = tinker.ServiceClient(base_url=base_url)
capabilities = tinker.RestClient(base_url=base_url).get_server_capabilities().result().supported_models
assert [(m.model_name, m.trainable) for m in capabilities] == [(model, False)], capabilities
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

# What is not served says so.
raises(tinker.RequestFailedError, "log-probabilities of the prompt are not served yet",
       lambda: sampler.compute_logprobs(prompt).result())
raises(tinker.RequestFailedError, "training is not served yet",
       lambda: service.create_lora_training_client(base_model=model, rank=8).result())
raises(tinker.RequestFailedError, "expected token ids below", lambda: sampler.sample(
    prompt=types.ModelInput.from_ints([10**9]), num_samples=1, sampling_params=types.SamplingParams(max_tokens=1)).result())
# And sampling goes on.
assert len(sample()) == 1
service.close("success").result()
print("ok")
