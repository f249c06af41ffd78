"""A client that trains while its server dies: `tinker_survivor.py BASE_URL MODEL`.

Says `step N LOSS` after each step, then `other LOSS` for the same training done at once by another client.
"""

import sys

import tinker
from tinker import types

base_url, model = sys.argv[1], sys.argv[2]
STEPS = 6


def datum(i):
    text = [1, 9690, 198, 2683 + i, 359, 253, 5356, 5646, 11173, 40 + i, 41, 42, 43, 44]
    weights = [0.0] * 8 + [1.0] * 5
    return types.Datum(model_input=types.ModelInput.from_ints(text[:-1]),
                       loss_fn_inputs={"target_tokens": text[1:], "weights": weights})


def train(client, say):
    loss = None
    for i in range(STEPS):
        passed = client.forward_backward([datum(i), datum(i + 1)], "cross_entropy")
        stepped = client.optim_step(types.AdamParams(learning_rate=2e-3))
        loss = passed.result().metrics["loss:sum"]
        stepped.result()
        if say:
            print(f"step {i} {loss}", flush=True)
    return loss


service = tinker.ServiceClient(base_url=base_url)
first = service.create_lora_training_client(base_model=model, rank=4, seed=3).result()
mine = train(first, True)
second = service.create_lora_training_client(base_model=model, rank=4, seed=3).result()
other = train(second, False)
print(f"other {other}", flush=True)
assert abs(mine - other) < 1e-4 * abs(other), (mine, other)
# What each would say next is the same, too.
pair = [c.forward([datum(9)], "cross_entropy").result().metrics["loss:sum"] for c in (first, second)]
assert abs(pair[0] - pair[1]) < 1e-4 * abs(pair[1]), pair
service.close("success").result()
print("ok")
