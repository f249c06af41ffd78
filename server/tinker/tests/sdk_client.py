"""The official client against a server with the scripted engine: `sdk_client.py BASE_URL MODEL`.

The script of the engine: a sample's tokens count up from the prompt's last, plus one for each sample before it; a target's
log-probability is minus its token over 100; a prompt that begins with token 13 fails.
"""

import json
import os
import subprocess
import sys
import tempfile
import urllib.request

os.environ.setdefault("TINKER_TELEMETRY", "1")
import tinker
from tinker import types

base_url, model = sys.argv[1], sys.argv[2]


def prompt(*tokens):
    return types.ModelInput.from_ints(list(tokens))


def raises(kind, text, work):
    try:
        work()
    except kind as error:
        assert text in str(error), error
        return error
    raise AssertionError(f"expected {kind}")


service = tinker.ServiceClient(base_url=base_url, user_metadata={"test": "sdk"})
found = tinker.RestClient(base_url=base_url).get_server_capabilities().result().supported_models
assert [m.model_name for m in found] == [model], found

# Sampling, with every parameter.
sampler = service.create_sampling_client(base_model=model).result()
assert sampler.get_base_model() == model
params = types.SamplingParams(max_tokens=3, seed=7, temperature=0.5, top_p=0.9, top_k=5, stop=[14])
answer = sampler.sample(prompt=prompt(10, 11), num_samples=3, sampling_params=params).result()
assert [list(s.tokens) for s in answer.sequences] == [[12, 13, 14], [13, 14], [14]], answer
assert [s.stop_reason for s in answer.sequences] == ["stop"] * 3
assert all(abs(lp + t / 100) < 1e-6 for s in answer.sequences for t, lp in zip(s.tokens, s.logprobs))
assert len({s.sequence_id for s in answer.sequences}) == 3
for stop in (None, [], "w9", ["a", "b"]):
    params = types.SamplingParams(max_tokens=2, stop=stop)
    one = sampler.sample(prompt=prompt(10), num_samples=1, sampling_params=params).result().sequences[0]
    assert (list(one.tokens), one.stop_reason) == ([11, 12], "length"), (stop, one)
assert sampler.compute_logprobs(prompt(10, 20, 30)).result() == [None, -0.20000000298023224, -0.30000001192092896]

# Failures are raised with what the server says.
short = types.SamplingParams(max_tokens=1)
raises(tinker.RequestFailedError, "the script fails here",
       lambda: sampler.sample(prompt=prompt(13), num_samples=1, sampling_params=short).result())
raises(tinker.BadRequestError, "sampling_params.top_p",
       lambda: sampler.sample(prompt=prompt(10), num_samples=1, sampling_params=types.SamplingParams(top_p=2.0)).result())
raises(tinker.BadRequestError, "exceeds the model's context window",
       lambda: sampler.sample(prompt=prompt(10), num_samples=1, sampling_params=types.SamplingParams(max_tokens=9999)).result())
raises(tinker.BadRequestError, "base_model", lambda: service.create_sampling_client(base_model="no/such").result())

# Many in flight.
flying = [sampler.sample(prompt=prompt(20 + i), num_samples=2, sampling_params=types.SamplingParams(max_tokens=2))
          for i in range(300)]
for i, future in enumerate(flying):
    assert [list(s.tokens) for s in future.result().sequences] == [[21 + i, 22 + i], [22 + i, 23 + i]], i

# Operations of a model, pipelined.
training = service.create_lora_training_client(base_model=model, rank=8, user_metadata={"k": "1"}).result()
assert training.get_info().model_data.model_name == model


def datum(*tokens):
    tokens = list(tokens)
    return types.Datum(model_input=types.ModelInput.from_ints(tokens[:-1]),
                       loss_fn_inputs={"target_tokens": tokens[1:], "weights": [1.0] * (len(tokens) - 1)})


passed = training.forward_backward([datum(10, 11, 12), datum(20, 21)], "cross_entropy")
stepped = training.optim_step(types.AdamParams(learning_rate=1e-4))
saved = training.save_state("step-1")
result = passed.result()
assert [list(round(x, 2) for x in o["logprobs"].data) for o in result.loss_fn_outputs] == [[-0.11, -0.12], [-0.21]], result
assert abs(result.metrics["loss:sum"] - 0.44) < 1e-6, result.metrics
assert stepped.result().metrics == {"grad_norm:mean": 1.0}
assert saved.result().path.endswith(":train:0/weights/step-1")
assert abs(training.forward([datum(10, 11)], "cross_entropy").result().metrics["loss:sum"] - 0.11) < 1e-6
# What is refused and what fails does not stop what follows.
raises(tinker.BadRequestError, "adam_params.beta1",
       lambda: training.optim_step(types.AdamParams(learning_rate=1e-4, beta1=2.0)).result())
raises(tinker.BadRequestError, "loss_fn_inputs.mask", lambda: training.forward_backward([types.Datum(
    model_input=types.ModelInput.from_ints([10]),
    loss_fn_inputs={"target_tokens": [11], "mask": types.TensorData(data=[1.0], dtype="float32", shape=[1])})],
    "cross_entropy").result())
raises(tinker.BadRequestError, "path", lambda: training.save_state("../out").result())
assert training.optim_step(types.AdamParams(learning_rate=1e-4)).result().metrics
follower = training.save_weights_and_get_sampling_client().result()
assert list(follower.sample(prompt=prompt(5), num_samples=1, sampling_params=short).result().sequences[0].tokens) == [6]

# What there is.
rest = tinker.RestClient(base_url=base_url)
run = rest.get_training_run(training.model_id).result()
assert (run.base_model, run.lora_rank, run.user_metadata) == (model, 8, {"k": "1"}), run
runs = rest.list_training_runs().result()
assert [r.training_run_id for r in runs.training_runs] == [training.model_id]

# Checkpoints.
weights = f"tinker://{training.model_id}/weights/step-1"
raises(tinker.RequestFailedError, "step-1", lambda: training.save_state("step-1").result())
assert training.save_state("step-1", overwrite=True).result().path == weights
sampling = training.save_weights_for_sampler("sample-1", ttl_seconds=7200).result().path
listed = rest.list_checkpoints(training.model_id).result().checkpoints
assert [c.tinker_path for c in listed] == [sampling, weights], listed
assert (listed[0].checkpoint_type, listed[0].size_bytes > 100_000, listed[0].public) == ("sampler", True, False), listed
assert listed[0].expires_at is not None and listed[1].expires_at is None
mine = rest.list_user_checkpoints(limit=1).result()
assert ([c.tinker_path for c in mine.checkpoints], mine.cursor.total_count) == ([sampling], 2), mine
info = rest.get_weights_info_by_tinker_path(weights).result()
assert (info.base_model, info.is_lora, info.lora_rank, info.train_attn, info.train_unembed) == (model, True, 8, True, True)
rest.publish_checkpoint_from_tinker_path(weights).result()
rest.set_checkpoint_ttl_from_tinker_path(weights, 3600).result()
run = rest.get_training_run(training.model_id).result()
assert (run.last_checkpoint.tinker_path, run.last_sampler_checkpoint.tinker_path) == (weights, sampling), run
assert run.last_checkpoint.public and run.last_checkpoint.expires_at is not None
rest.unpublish_checkpoint_from_tinker_path(weights).result()
rest.set_checkpoint_ttl_from_tinker_path(weights, None).result()
last = rest.get_training_run_by_tinker_path(weights).result().last_checkpoint
assert (last.public, last.expires_at) == (False, None), last
for path in (sampling, weights):
    one = service.create_sampling_client(model_path=path).result()
    assert one.get_base_model() == model
    assert list(one.sample(prompt=prompt(5), num_samples=1, sampling_params=short).result().sequences[0].tokens) == [6]
for resume in (service.create_training_client_from_state, service.create_training_client_from_state_with_optimizer):
    resumed = resume(weights).result()
    assert resumed.get_info().lora_rank == 8
assert resumed.save_state("again").result().path == f"tinker://{resumed.model_id}/weights/again"
raises(tinker.NotFoundError, "no checkpoint", lambda: service.create_sampling_client(model_path=weights + "0").result())
external = training.save_weights_external("ext-1").result().path
files = rest.get_external_weights_urls(external).result().urls
assert set(files) == {"adapter_config.json", "weights/adapter_model.safetensors"}, files
assert json.load(urllib.request.urlopen(files["adapter_config.json"])) == {"path": external}
rest.delete_checkpoint_from_tinker_path(external).result()
rest.delete_checkpoint(training.model_id, "sampler_weights/sample-1").result()
assert [c.tinker_path for c in rest.list_checkpoints(training.model_id).result().checkpoints] == [weights]
raises(tinker.NotFoundError, "no checkpoint", lambda: rest.delete_checkpoint_from_tinker_path(sampling).result())

# The command of the package.
command = os.path.join(os.path.dirname(sys.executable), "tinker")
if os.path.exists(command):
    def cli(*words):
        done = subprocess.run([command, *words], capture_output=True, text=True,
                              env=os.environ | {"TINKER_BASE_URL": base_url, "COLUMNS": "400"})
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        return done.stdout
    assert weights in cli("checkpoint", "list")
    assert weights in cli("checkpoint", "list", "--run-id", training.model_id)
    external = training.save_weights_external("ext-2").result().path
    with tempfile.TemporaryDirectory() as folder:
        for path in (external, weights):
            cli("checkpoint", "download", path, "--output", folder)
            place = os.path.join(folder, path.replace("tinker://", "").replace("/", "_"))
            assert os.path.getsize(os.path.join(place, "weights/adapter_model.safetensors")) == 100_000
            # Training weights come through an export that is gone again.
            with open(os.path.join(place, "adapter_config.json")) as file:
                assert "/external_weights/" in json.load(file)["path"]
    kept = [c.tinker_path for c in rest.list_user_checkpoints().result().checkpoints]
    assert external in kept and not any(path.endswith("/download") for path in kept), kept
    cli("checkpoint", "set-ttl", weights, "--ttl", "3600")
    cli("checkpoint", "delete", weights, "--yes")
    assert weights not in cli("checkpoint", "list")
session = training.model_id.split(":")[0]
assert session in rest.list_sessions().result().sessions
assert training.model_id in rest.get_session(session).result().training_run_ids
service.close("success").result()
print("ok")
