"""Writes the golden files of this folder with the official clients' own writers and message classes.

    pip install wandb==0.29.0 tensorboard==2.21.0 numpy
    python make_golden.py

wandb 0.29.0 is the last with a Python `DataStore`. `tests/it/golden.rs` builds the same messages and compares bytes.
"""

import hashlib
import json
import math
import os
import tempfile
from pathlib import Path

from tensorboard.compat.proto import event_pb2, summary_pb2, tensor_pb2, tensor_shape_pb2
from tensorboard.summary.writer.record_writer import RecordWriter
from wandb.proto import wandb_internal_pb2 as pb
from wandb.sdk.internal.datastore import DataStore

HERE = Path(__file__).parent
WALL = 1796096085.25
NUMBERS = {"bad": math.nan, "most": math.inf, "policy/loss": 0.03125, "zero": 0.0}


def events():
    yield event_pb2.Event(
        wall_time=WALL, file_version="brain.Event:2", source_metadata=event_pb2.SourceMetadata(writer="espalier")
    )
    yield event_pb2.Event(wall_time=WALL, step=4, session_log=event_pb2.SessionLog(status=event_pb2.SessionLog.START))
    values = [summary_pb2.Summary.Value(tag=tag, simple_value=value) for tag, value in NUMBERS.items()]
    yield event_pb2.Event(wall_time=WALL, step=300, summary=summary_pb2.Summary(value=values))
    text = summary_pb2.Summary.Value(
        tag="samples/train",
        tensor=tensor_pb2.TensorProto(
            dtype="DT_STRING",
            tensor_shape=tensor_shape_pb2.TensorShapeProto(dim=[tensor_shape_pb2.TensorShapeProto.Dim(size=1)]),
            string_val=["Löwe".encode()],
        ),
        metadata=summary_pb2.SummaryMetadata(plugin_data=summary_pb2.SummaryMetadata.PluginData(plugin_name="text")),
    )
    yield event_pb2.Event(wall_time=WALL, step=0, summary=summary_pb2.Summary(value=[text]))


def records():
    yield pb.Record(header=pb.HeaderRecord(version_info=pb.VersionInfo(producer="espalier", min_consumer="0.70.0")))
    run = pb.RunRecord(run_id="abcd1234", project="trees", display_name="first", tags=["a", "b"], host="here")
    run.start_time.FromNanoseconds(1796096085_250000000)
    run.config.update.add(key="lr", value_json="1e-6")
    run.config.update.add(key="model", value_json='{"layers":[1,2]}')
    yield pb.Record(run=run)  # Its field `resume` is younger than this client.
    row = {"bad": "NaN", "most": "Infinity", "policy/loss": "0.03125", "_step": "0"}
    history = pb.HistoryRecord(step=pb.HistoryStep(num=0))
    summary = pb.SummaryRecord()
    for name, value in row.items():
        history.item.add(nested_key=[name], value_json=value)
        summary.update.add(nested_key=[name], value_json=value)
    summary.update.add(nested_key=["_wandb", "runtime"], value_json="7")
    yield pb.Record(history=history)
    yield pb.Record(summary=summary)
    yield pb.Record(exit=pb.RunExitRecord(exit_code=3, runtime=7))


def spanning():
    """Records around the sizes at which a block ends: short of it, at it, beyond it, and over several blocks."""
    block, chunk = 32768, 7
    room = block - chunk - chunk
    for size in [room - 15, 0, 1, room, block - chunk, 3 * block, 5, block - 20, 100_000, 0]:
        yield bytes((i * 7 + size) % 251 for i in range(size))


def store(records):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "run.wandb")
        log = DataStore()
        log.open_for_write(path)
        for record in records:
            log._write_data(record)
        log.close()
        return Path(path).read_bytes()


with open(HERE / "events.tfevents", "wb") as out:
    writer = RecordWriter(out)
    for event in events():
        writer.write(event.SerializeToString(deterministic=True))
numbered = []
for number, record in enumerate(records(), 1):
    record.num = number
    numbered.append(record.SerializeToString(deterministic=True))
(HERE / "offline.wandb").write_bytes(store(numbered))
contents = store(spanning())
digest = {"bytes": len(contents), "sha256": hashlib.sha256(contents).hexdigest()}
(HERE / "spanning.json").write_text(json.dumps(digest, indent=1) + "\n")
