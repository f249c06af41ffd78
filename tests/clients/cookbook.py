"""The cookbook's `sl_loop` and `rl_loop`, unchanged, against `espalier serve tinker`.

usage: cookbook.py PATH_TO_ESPALIER MODEL_FOLDER [FOLDER]
needs: the Python that scripts/setup-tinker-cookbook.sh makes. `make test-clients` runs it.

The recipes load data sets and a tokenizer of names that lie on a hub; folders of these names in the one that they run in
take their place. What is asked: sums whose answer is 7. Supervised learning teaches the form, with answers drawn at random;
reinforcement then finds out which answer pays.

1. `sl_loop`: the loss falls.
2. `rl_loop` with importance_sampling from there: the reward rises.
3. Meanwhile the client is killed, and goes on from its own checkpoint.
4. `rl_loop` with cispo and with gspo goes on while its server is killed and started again.
"""

import json
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import pyarrow
import pyarrow.parquet

ESPALIER, MODEL = sys.argv[1:3]
HERE = pathlib.Path(sys.argv[3] if len(sys.argv) > 3 else tempfile.mkdtemp(prefix="espalier-cookbook-")).absolute()
# A name that the cookbook knows: a base model, whose conversations are plain text.
NAME = "Qwen/Qwen3-8B-Base"
SUFFIX = " Provide a numerical answer without units, written inside \\boxed{}."
LORA = ["lora_rank=16"]


def write(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)


def data():
    draw = random.Random(1)
    question = lambda: (lambda a: f"What is {a} plus {7 - a}?")(draw.randint(0, 7))
    sums = [{"question": question(), "answer": "It is seven.\n#### 7"} for _ in range(1024)]
    gsm8k = HERE / "openai/gsm8k"
    write(gsm8k / "main/train-00000-of-00001.parquet", sums)
    write(gsm8k / "main/test-00000-of-00001.parquet", sums[:16])
    front = "configs:\n- config_name: main\n  data_files:\n  - split: train\n    path: main/train-*\n  - split: test\n    path: main/test-*\n"
    (gsm8k / "README.md").write_text(f"---\n{front}---\n")
    said = lambda: [{"role": "user", "content": question() + SUFFIX},
                    {"role": "assistant", "content": f"\\boxed{{{draw.randint(5, 9)}}}"}]
    robots = [{"prompt": "", "messages": said()} for _ in range(160)]
    write(HERE / "HuggingFaceH4/no_robots/data/train-00000-of-00001.parquet", robots)
    write(HERE / "HuggingFaceH4/no_robots/data/test-00000-of-00001.parquet", robots[:8])


class Server:
    def __init__(self):
        self.listen = "127.0.0.1:0"
        self.start()

    def start(self):
        self.process = subprocess.Popen(
            [ESPALIER, "serve", "tinker", "--base-model", MODEL, "--name", NAME, "--precision", "f32", "--kv-cache-mb", "512",
             "--listen", self.listen, "--state", HERE / "state", "--write-client-dir", HERE],
            stderr=subprocess.PIPE, text=True)
        for line in self.process.stderr:
            if found := re.search(r"http://(\S+)", line):
                self.listen = found[1]
                return
        raise SystemExit("the server did not start")

    def kill_and_start(self):
        self.process.kill()
        self.process.wait()
        self.start()

    def stop(self):
        self.process.send_signal(signal.SIGINT)
        assert self.process.wait(60) == 0, self.process.returncode


def recipe(server, name, folder, *arguments, **more):
    """Runs a recipe to its end; `during` is called with the process while it runs. Gives what it logged."""
    environment = {**os.environ, "TINKER_BASE_URL": f"http://{server.listen}", "TINKER_API_KEY": "tml-test",
                   "TINKER_TELEMETRY": "0", "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1",
                   "HF_HOME": str(HERE / "hf"), "COLUMNS": "100"}
    # The libtorch that the server runs on is not the one of this Python.
    environment.pop("LD_LIBRARY_PATH", None)
    command = [sys.executable, "-m", f"tinker_cookbook.recipes.{name}", f"model_name={NAME}", f"log_path={HERE / folder}",
               *arguments]
    log = HERE / f"{folder}.log"
    with open(log, "a") as out:
        process = subprocess.Popen(command, cwd=HERE, env=environment, stdout=out, stderr=subprocess.STDOUT)
        stopped = "during" in more and more["during"](process, HERE / folder / "metrics.jsonl")
        code = process.wait()
    assert stopped or code == 0, log.read_text()[-4000:]
    return logged(HERE / folder / "metrics.jsonl")


def logged(path):
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def rewards(metrics):
    return [m["reward/total"] for m in metrics if "reward/total" in m]


def say(what):
    print(what, flush=True)


def main():
    data()
    server = Server()
    begun = time.time()
    taught = recipe(server, "sl_loop", "sl", "batch_size=8", "max_length=96", "learning_rate=1e-3", *LORA)
    losses = [m["train_mean_nll"] for m in taught]
    say(f"sl_loop: {len(losses)} steps, mean loss of a token {losses[0]:.3f} to {losses[-1]:.3f}, {time.time() - begun:.0f} s")
    assert losses[-1] < losses[0] / 2, losses

    # A recipe resumes from the last checkpoint of its folder: that of the form, as step 0.
    last = [json.loads(line) for line in (HERE / "sl/checkpoints.jsonl").read_text().splitlines()][-1]
    rl = ["batch_size=4", "group_size=8", "max_tokens=12", *LORA]

    def begin(folder):
        (HERE / folder).mkdir()
        (HERE / folder / "checkpoints.jsonl").write_text(json.dumps({**last, "batch": 0}) + "\n")

    begin("rl")
    begun = time.time()

    def stop(process, metrics):
        # A client that goes without a word, after a checkpoint.
        while process.poll() is None and len(rewards(logged(metrics))) < 3:
            time.sleep(0.2)
        process.kill()
        return True

    arguments = ["max_steps=8", "save_every=2", "learning_rate=1e-3", "loss_fn=importance_sampling", *rl]
    first = recipe(server, "rl_loop", "rl", *arguments, during=stop)
    got = rewards(recipe(server, "rl_loop", "rl", *arguments))
    say(f"rl_loop, importance_sampling, killed after {len(rewards(first))} steps and resumed: rewards"
        f" {[round(r, 2) for r in got]}, {time.time() - begun:.0f} s")
    assert "Resuming from batch 2" in (HERE / "rl.log").read_text()
    assert sum(got[-3:]) / 3 > sum(got[:2]) / 2 + 0.2, got

    for loss in ("cispo", "gspo"):
        begin(loss)
        begun = time.time()

        def kill(process, metrics):
            # In the middle of things: after the first batch is logged.
            while process.poll() is None and not rewards(logged(metrics)):
                time.sleep(0.2)
            if process.poll() is None:
                server.kill_and_start()
            return False

        got = rewards(recipe(server, "rl_loop", loss, "max_steps=4", "save_every=0", "learning_rate=5e-4",
                             f"loss_fn={loss}", *rl, during=kill))
        say(f"rl_loop, {loss}, server killed in between: rewards {[round(r, 2) for r in got]}, {time.time() - begun:.0f} s")
        assert len(got) == 4, got
    server.stop()
    if len(sys.argv) <= 3:
        shutil.rmtree(HERE)
    say("ok")


main()
