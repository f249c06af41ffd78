"""The official clients, for `official.rs`: reads what trackers wrote, and prints it as JSON.

    official.py records FILE.wandb     every record, by the client's own reader
    official.py sync FOLDER...         what `wandb sync` uploads to a server on this machine that speaks as much of
                                       the API as it needs
    official.py events FOLDER          scalars and texts, by TensorBoard's `EventAccumulator`
"""

import gzip
import http.server
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

WANDB = str(Path(sys.executable).with_name("wandb"))


def has_python_reader():
    """The last client that reads offline runs in Python is 0.29.0; later ones have a command for it."""
    return importlib.util.find_spec("wandb.sdk.internal.datastore") is not None


def records(path):
    if not has_python_reader():
        said = subprocess.run([WANDB, "leet", "inspect", "--json", path], check=True, capture_output=True, text=True)
        return [by_command(json.loads(line)) for line in said.stdout.splitlines()]
    from wandb.proto import wandb_internal_pb2 as pb
    from wandb.sdk.internal.datastore import DataStore

    log = DataStore()
    log.open_for_scan(path)
    found = []
    while (data := log.scan_data()) is not None:
        record = pb.Record()
        record.ParseFromString(data)
        found.append(by_message(record))
    return found


def by_command(record):
    kind = record["type"]
    body = record[kind]
    out = {"num": record["num"], "type": kind}
    if kind == "run":
        out |= {key: body.get(key, "") for key in ("run_id", "project", "display_name", "host")}
        out |= {"tags": body.get("tags", []), "config": body.get("config", {}).get("update", {})}
    elif kind == "history":
        out |= {"step": body["step"]["num"], "values": body["item"]}
    elif kind == "summary":
        out["values"] = body["update"]
    elif kind == "exit":
        out["exit_code"] = body.get("exit_code", 0)
    return out


def by_message(record):
    kind = record.WhichOneof("record_type")
    body = getattr(record, kind)

    def values(items):
        return {".".join(item.nested_key) or item.key: plain(json.loads(item.value_json)) for item in items}

    out = {"num": record.num, "type": kind}
    if kind == "run":
        out |= {key: getattr(body, key) for key in ("run_id", "project", "display_name", "host")}
        out |= {"tags": list(body.tags), "config": values(body.config.update)}
    elif kind == "history":
        out |= {"step": body.step.num, "values": values(body.item)}
    elif kind == "summary":
        out["values"] = values(body.update)
    elif kind == "exit":
        out["exit_code"] = body.exit_code
    return out


def plain(value):
    """Numbers that are not finite as the texts `NaN`, `Infinity` and `-Infinity`: JSON has none."""
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return json.dumps(value)
    return value


class Server(http.server.BaseHTTPRequestHandler):
    """Accounts, runs, rows and files, each as far as a client asks for it."""

    protocol_version = "HTTP/1.1"
    runs: dict = {}

    def log_message(self, *arguments):
        pass

    def answer(self):
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        if self.headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        out = {}
        if self.path == "/graphql":
            out = {"data": self.graphql(json.loads(body))}
        elif self.path.endswith("/file_stream"):
            self.stream(self.path.split("/")[-2], json.loads(body))
        elif self.path.startswith("/upload/"):
            _, _, run, name = self.path.split("/", 3)
            self.runs[run]["files"][name] = body.decode()
        data = json.dumps(out).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = do_PUT = answer

    def graphql(self, request):
        query, variables = request["query"], request.get("variables") or {}
        project = {"id": "p", "name": variables.get("project"), "entity": {"id": "e", "name": "us"}}
        data = {}
        if "viewer" in query:
            data["viewer"] = {"id": "u", "entity": "us", "username": "us", "flags": "{}", "teams": {"edges": []}}
        if "upsertBucket" in query:
            name = variables["name"]
            run = self.runs.setdefault(name, {"rows": [], "files": {}, "ends": [], "summary": {}})
            for key in ("displayName", "tags", "project", "host"):
                if variables.get(key) is not None:
                    run[key] = variables[key]
            if variables.get("config"):
                run["config"] = json.loads(variables["config"])
            bucket = {"id": name, "name": name, "displayName": name, "project": project, "config": "{}"}
            bucket["historyLineCount"] = len(run["rows"])
            data["upsertBucket"] = {"bucket": bucket, "inserted": True}
        if "RunResumeStatus" in query:
            run = self.runs.get(variables["name"])
            bucket = run and {
                "id": variables["name"],
                "name": variables["name"],
                "displayName": run.get("displayName"),
                "historyLineCount": len(run["rows"]),
                "eventsLineCount": 0,
                "logLineCount": 0,
                "historyTail": json.dumps([json.dumps(row) for row in run["rows"][-1:]]),
                "eventsTail": "[]",
                "summaryMetrics": json.dumps(run["summary"]),
                "config": json.dumps(run.get("config", {})),
                "tags": run.get("tags", []),
                "wandbConfig": "{}",
            }
            data["model"] = {**project, "bucket": bucket}
        if "createRunFiles" in query:
            host = f"http://127.0.0.1:{self.server.server_port}/upload/{variables['run']}"
            files = [{"name": name, "uploadUrl": f"{host}/{name}"} for name in variables["files"]]
            data["createRunFiles"] = {"runID": "r", "uploadHeaders": [], "files": files}
        return data

    def stream(self, name, body):
        run = self.runs[name]
        for file, part in (body.get("files") or {}).items():
            lines = [json.loads(line) for line in part["content"]]
            if file == "wandb-history.jsonl":
                run["rows"][part["offset"] :] = lines
            elif file == "wandb-summary.json":
                run["summary"] = lines[-1]
        if body.get("complete"):
            run["ends"].append(body.get("exitcode"))


class Quiet(http.server.ThreadingHTTPServer):
    def handle_error(self, request, client_address):
        pass  # Clients leave without a word.


def sync(folders):
    server = Quiet(("127.0.0.1", 0), Server)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory() as home:
        environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith("WANDB_")},
            "HOME": home,
            "WANDB_API_KEY": "a" * 40,
            "WANDB_BASE_URL": f"http://127.0.0.1:{server.server_port}",
            "WANDB_ERROR_REPORTING": "false",
            "NO_PROXY": "127.0.0.1",
        }
        # Newer clients take the folders of a run in the order of their starts; older ones want one after another.
        old = has_python_reader()
        command = [WANDB, "beta", "sync"] if old else [WANDB, "sync"]
        for some in [[folder] for folder in folders] if old else [folders]:
            done = subprocess.run([*command, *some], env=environment, cwd=home, capture_output=True, text=True)
            if done.returncode != 0 or "ERROR" in done.stderr:
                sys.exit(done.stdout + done.stderr)
    for run in Server.runs.values():
        run["rows"] = [{key: plain(value) for key, value in row.items()} for row in run["rows"]]
        run["summary"] = {key: plain(value) for key, value in run["summary"].items()}
    return Server.runs


def events(folder):
    """What the two readers of TensorBoard say: that of programs and that of its server."""
    from tensorboard.backend.event_processing import event_accumulator, plugin_event_accumulator
    from tensorboard.util.tensor_util import make_ndarray

    found = event_accumulator.EventAccumulator(folder, size_guidance={"scalars": 0, "tensors": 0})
    found.Reload()
    tags = found.Tags()
    out = {
        "scalars": {tag: [[e.step, plain(e.value)] for e in found.Scalars(tag)] for tag in tags["scalars"]},
        "texts": {
            tag: [[e.step, e.tensor_proto.string_val[0].decode()] for e in found.Tensors(tag)]
            for tag in tags["tensors"]
            if found.SummaryMetadata(tag).plugin_data.plugin_name == "text"
        },
    }
    found = plugin_event_accumulator.EventAccumulator(folder, tensor_size_guidance={"scalars": 0, "text": 0})
    found.Reload()
    out["server"] = {
        tag: [[e.step, plain(make_ndarray(e.tensor_proto).item())] for e in found.Tensors(tag)]
        for tag in found.PluginTagToContent("scalars")
    }
    return out


command, *arguments = sys.argv[1:]
print(json.dumps({"records": records, "sync": lambda *folders: sync(folders), "events": events}[command](*arguments)))
