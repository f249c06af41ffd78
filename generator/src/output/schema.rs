//! The columns of [`SCHEMA`], to and from Arrow.
//!
//! One record is one [`Trajectory`]; the columns are named like its fields in JSON. A Parquet file names the format
//! under the key [`SCHEMA_KEY`] of its metadata, a JSONL line under `schema`. What has no fixed type (`env_metrics`,
//! a turn's `metadata`) is JSON text in both, so that readers that infer column types see one type.
//!
//! A change that a reader of v1 would misread makes a v2; a column may be added to v1 if it may be absent.

use std::sync::Arc;

use arrow_array::{
    Array, ArrayRef, BooleanArray, Float32Array, ListArray, RecordBatch, StringArray, StructArray, UInt8Array,
    UInt32Array, UInt64Array,
};
use arrow_buffer::{NullBuffer, OffsetBuffer};
use arrow_schema::{DataType, Field, Fields, Schema};
use espalier_inference::message::FunctionCall;
use espalier_inference::{Fidelity, Message, Role, StopReason, ToolCall};

use crate::row::{Row, RowParts, VersionRun};
use crate::trajectory::{CallKind, CallRecord, RolloutStop, SCHEMA, Timings, TokenUsage, Trajectory, Turn};

/// The metadata key that names the format in a Parquet file.
pub const SCHEMA_KEY: &str = "espalier.schema";

/// A column: its name, whether it may be absent, its values.
type Column = (&'static str, bool, ArrayRef);

/// The Arrow schema.
pub fn schema() -> Arc<Schema> {
    to_batch(&[]).schema()
}

fn fields(columns: &[Column]) -> Fields {
    let field = |(name, nullable, array): &Column| Field::new(*name, array.data_type().clone(), *nullable);
    columns.iter().map(field).collect()
}

fn record(columns: Vec<Column>) -> ArrayRef {
    let fields = fields(&columns);
    Arc::new(StructArray::new(fields, columns.into_iter().map(|(_, _, array)| array).collect(), None))
}

fn list(lengths: impl IntoIterator<Item = usize>, values: ArrayRef) -> ArrayRef {
    let field = Arc::new(Field::new("item", values.data_type().clone(), false));
    Arc::new(ListArray::new(field, OffsetBuffer::from_lengths(lengths), values, None))
}

fn texts<'a>(values: impl Iterator<Item = &'a str>) -> ArrayRef {
    Arc::new(StringArray::from_iter_values(values))
}

fn maybe_texts<'a>(values: impl Iterator<Item = Option<&'a str>>) -> ArrayRef {
    Arc::new(values.collect::<StringArray>())
}

fn u32s(values: impl Iterator<Item = u32>) -> ArrayRef {
    Arc::new(UInt32Array::from_iter_values(values))
}

fn u64s(values: impl Iterator<Item = u64>) -> ArrayRef {
    Arc::new(UInt64Array::from_iter_values(values))
}

fn f32s(values: impl Iterator<Item = f32>) -> ArrayRef {
    Arc::new(Float32Array::from_iter_values(values))
}

fn name_of(value: impl serde::Serialize) -> String {
    // Unit variants of our own enumerations: always text.
    serde_json::to_value(value).ok().and_then(|value| value.as_str().map(str::to_owned)).unwrap_or_default()
}

/// Trajectories as one batch of columns.
pub fn to_batch(all: &[Trajectory]) -> RecordBatch {
    let columns: Vec<Column> = vec![
        ("rollout_id", false, texts(all.iter().map(|t| t.rollout_id.as_str()))),
        ("_rlm_parent_rid", true, maybe_texts(all.iter().map(|t| t.parent_id.as_deref()))),
        ("root_id", false, texts(all.iter().map(|t| t.root_id.as_str()))),
        ("depth", false, u32s(all.iter().map(|t| t.depth))),
        ("child_index", true, Arc::new(all.iter().map(|t| t.child_index).collect::<UInt32Array>())),
        ("instance_id", false, texts(all.iter().map(|t| t.instance_id.as_str()))),
        ("repetition_id", false, u32s(all.iter().map(|t| t.repetition_id))),
        ("env_id", false, texts(all.iter().map(|t| t.env_id.as_str()))),
        ("model", false, texts(all.iter().map(|t| t.model.as_str()))),
        ("trained", false, Arc::new(all.iter().map(|t| Some(t.trained)).collect::<BooleanArray>())),
        ("fidelity", false, Arc::new(StringArray::from_iter_values(all.iter().map(|t| name_of(t.fidelity))))),
        ("seed", false, u64s(all.iter().map(|t| t.seed))),
        ("stop", false, texts(all.iter().map(|t| t.stop.name()))),
        ("error", true, maybe_texts(all.iter().map(|t| t.error.as_deref()))),
        ("reward", false, f32s(all.iter().map(|t| t.reward))),
        ("answer", true, maybe_texts(all.iter().map(|t| t.answer.as_deref()))),
        ("rows", false, rows(all)),
        ("messages", false, messages(all)),
        ("turns", false, turns(all)),
        ("calls", false, calls(all)),
        ("env_metrics", false, json_texts(all.iter().map(|t| &t.env_metrics))),
        (
            "timings",
            false,
            record(vec![
                ("llm_us", false, u64s(all.iter().map(|t| t.timings.llm_us))),
                ("env_us", false, u64s(all.iter().map(|t| t.timings.env_us))),
                ("total_us", false, u64s(all.iter().map(|t| t.timings.total_us))),
            ]),
        ),
        (
            "usage",
            false,
            record(vec![
                ("prompt_tokens", false, u64s(all.iter().map(|t| t.usage.prompt_tokens))),
                ("cached_tokens", false, u64s(all.iter().map(|t| t.usage.cached_tokens))),
                ("sampled_tokens", false, u64s(all.iter().map(|t| t.usage.sampled_tokens))),
            ]),
        ),
    ];
    let metadata = std::collections::HashMap::from([(SCHEMA_KEY.to_owned(), SCHEMA.to_owned())]);
    let schema = Arc::new(Schema::new_with_metadata(fields(&columns), metadata));
    let arrays = columns.into_iter().map(|(_, _, array)| array).collect();
    RecordBatch::try_new(schema, arrays).unwrap_or_else(|error| {
        // The schema was made from these very columns, each with one entry per trajectory.
        unreachable!("the columns do not fit their own schema: {error}")
    })
}

fn json_texts<'a>(maps: impl Iterator<Item = &'a serde_json::Map<String, serde_json::Value>>) -> ArrayRef {
    Arc::new(StringArray::from_iter_values(maps.map(|map| serde_json::Value::Object(map.clone()).to_string())))
}

fn rows(all: &[Trajectory]) -> ArrayRef {
    let flat: Vec<&RowParts> = all.iter().flat_map(|t| t.rows.iter().map(Row::parts)).collect();
    let tokens = |of: fn(&RowParts) -> &[u32]| {
        list(flat.iter().map(|row| of(row).len()), u32s(flat.iter().flat_map(|row| of(row).iter().copied())))
    };
    let runs: Vec<VersionRun> = flat.iter().flat_map(|row| row.versions.iter().copied()).collect();
    let none = Vec::new();
    let logprobs: Vec<&Vec<f32>> = flat.iter().map(|row| row.logprobs.as_ref().unwrap_or(&none)).collect();
    let present: NullBuffer = flat.iter().map(|row| row.logprobs.is_some()).collect::<Vec<_>>().into();
    let item = Arc::new(Field::new("item", DataType::Float32, false));
    let lengths = OffsetBuffer::from_lengths(logprobs.iter().map(|values| values.len()));
    let values = f32s(logprobs.iter().flat_map(|values| values.iter().copied()));
    let masks = UInt8Array::from_iter_values(flat.iter().flat_map(|row| row.mask.iter().copied()));
    let values = record(vec![
        ("prompt_ids", false, tokens(|row| &row.prompt_ids)),
        ("response_ids", false, tokens(|row| &row.response_ids)),
        ("mask", false, list(flat.iter().map(|row| row.mask.len()), Arc::new(masks))),
        ("logprobs", true, Arc::new(ListArray::new(item, lengths, values, Some(present)))),
        (
            "rewards",
            false,
            list(flat.iter().map(|r| r.rewards.len()), f32s(flat.iter().flat_map(|r| r.rewards.iter().copied()))),
        ),
        (
            "versions",
            false,
            list(
                flat.iter().map(|row| row.versions.len()),
                record(vec![
                    ("start", false, u32s(runs.iter().map(|run| run.start))),
                    ("len", false, u32s(runs.iter().map(|run| run.len))),
                    ("version", false, u64s(runs.iter().map(|run| run.version))),
                ]),
            ),
        ),
    ]);
    list(all.iter().map(|t| t.rows.len()), values)
}

fn messages(all: &[Trajectory]) -> ArrayRef {
    let flat: Vec<&Message> = all.iter().flat_map(|t| &t.messages).collect();
    let tools: Vec<&ToolCall> = flat.iter().flat_map(|message| &message.tool_calls).collect();
    let function = record(vec![
        ("name", false, texts(tools.iter().map(|call| call.function.name.as_str()))),
        ("arguments", false, texts(tools.iter().map(|call| call.function.arguments.as_str()))),
    ]);
    let tool_calls = record(vec![
        ("id", false, texts(tools.iter().map(|call| call.id.as_str()))),
        ("type", false, texts(tools.iter().map(|call| call.kind.as_str()))),
        ("function", false, function),
    ]);
    let values = record(vec![
        ("role", false, Arc::new(StringArray::from_iter_values(flat.iter().map(|m| name_of(m.role))))),
        ("content", false, texts(flat.iter().map(|m| m.content.as_str()))),
        ("reasoning_content", true, maybe_texts(flat.iter().map(|m| m.reasoning_content.as_deref()))),
        ("tool_calls", false, list(flat.iter().map(|m| m.tool_calls.len()), tool_calls)),
        ("tool_call_id", true, maybe_texts(flat.iter().map(|m| m.tool_call_id.as_deref()))),
        ("name", true, maybe_texts(flat.iter().map(|m| m.name.as_deref()))),
    ]);
    list(all.iter().map(|t| t.messages.len()), values)
}

fn turns(all: &[Trajectory]) -> ArrayRef {
    let flat: Vec<&Turn> = all.iter().flat_map(|t| &t.turns).collect();
    let values = record(vec![
        ("row", true, Arc::new(flat.iter().map(|turn| turn.row).collect::<UInt32Array>())),
        ("start", false, u32s(flat.iter().map(|turn| turn.start))),
        ("end", false, u32s(flat.iter().map(|turn| turn.end))),
        ("message", false, u32s(flat.iter().map(|turn| turn.message))),
        ("stop", false, Arc::new(StringArray::from_iter_values(flat.iter().map(|turn| name_of(turn.stop))))),
        ("reward", false, f32s(flat.iter().map(|turn| turn.reward))),
        ("prompt_tokens", false, u32s(flat.iter().map(|turn| turn.prompt_tokens))),
        ("cached_tokens", false, u32s(flat.iter().map(|turn| turn.cached_tokens))),
        ("sampled_tokens", false, u32s(flat.iter().map(|turn| turn.sampled_tokens))),
        ("llm_us", false, u64s(flat.iter().map(|turn| turn.llm_us))),
        ("env_us", false, u64s(flat.iter().map(|turn| turn.env_us))),
        ("metadata", false, json_texts(flat.iter().map(|turn| &turn.metadata))),
    ]);
    list(all.iter().map(|t| t.turns.len()), values)
}

fn calls(all: &[Trajectory]) -> ArrayRef {
    let flat: Vec<&CallRecord> = all.iter().flat_map(|t| &t.calls).collect();
    let values = record(vec![
        ("index", false, u32s(flat.iter().map(|call| call.index))),
        // Only judges are named: a reader of an older file, without the column, sees queries, as they were.
        ("kind", true, maybe_texts(flat.iter().map(|call| (!call.kind.is_query()).then_some("judge")))),
        ("turn", false, u32s(flat.iter().map(|call| call.turn))),
        ("model", false, texts(flat.iter().map(|call| call.model.as_str()))),
        ("prompt", false, texts(flat.iter().map(|call| call.prompt.as_str()))),
        ("response", true, maybe_texts(flat.iter().map(|call| call.response.as_deref()))),
        ("error", true, maybe_texts(flat.iter().map(|call| call.error.as_deref()))),
        ("prompt_tokens", false, u32s(flat.iter().map(|call| call.prompt_tokens))),
        ("sampled_tokens", false, u32s(flat.iter().map(|call| call.sampled_tokens))),
        ("us", false, u64s(flat.iter().map(|call| call.us))),
    ]);
    list(all.iter().map(|t| t.calls.len()), values)
}

/// The columns of a batch or of a nested record, by name.
#[derive(Clone, Copy)]
struct Columns<'a> {
    of: &'a StructArray,
    path: &'a str,
}

impl<'a> Columns<'a> {
    fn array<T: 'static>(self, name: &str) -> Result<&'a T, String> {
        let array = self
            .of
            .column_by_name(name)
            .ok_or_else(|| format!("expected a column `{}{name}`, there is none", self.path))?;
        array.as_any().downcast_ref::<T>().ok_or_else(|| {
            format!("column `{}{name}` holds {}, which {SCHEMA} does not expect", self.path, array.data_type())
        })
    }

    fn text(self, name: &str, at: usize) -> Result<String, String> {
        self.maybe_text(name, at)?.ok_or_else(|| format!("column `{}{name}` is null", self.path))
    }

    fn maybe_text(self, name: &str, at: usize) -> Result<Option<String>, String> {
        let array = self.array::<StringArray>(name)?;
        Ok(array.is_valid(at).then(|| array.value(at).to_owned()))
    }

    fn u32(self, name: &str, at: usize) -> Result<u32, String> {
        Ok(self.array::<UInt32Array>(name)?.value(at))
    }

    fn maybe_u32(self, name: &str, at: usize) -> Result<Option<u32>, String> {
        let array = self.array::<UInt32Array>(name)?;
        Ok(array.is_valid(at).then(|| array.value(at)))
    }

    fn u64(self, name: &str, at: usize) -> Result<u64, String> {
        Ok(self.array::<UInt64Array>(name)?.value(at))
    }

    fn f32(self, name: &str, at: usize) -> Result<f32, String> {
        Ok(self.array::<Float32Array>(name)?.value(at))
    }

    fn named<T: serde::de::DeserializeOwned>(self, name: &str, at: usize) -> Result<T, String> {
        let text = self.text(name, at)?;
        serde_json::from_value(serde_json::Value::String(text))
            .map_err(|error| format!("column `{}{name}`: {error}", self.path))
    }

    fn json(self, name: &str, at: usize) -> Result<serde_json::Map<String, serde_json::Value>, String> {
        serde_json::from_str(&self.text(name, at)?)
            .map_err(|error| format!("column `{}{name}` is not a JSON object: {error}", self.path))
    }

    fn u32s(self, name: &str, at: usize) -> Result<Vec<u32>, String> {
        let list = self.array::<ListArray>(name)?.value(at);
        let values = list.as_any().downcast_ref::<UInt32Array>();
        Ok(values.ok_or_else(|| self.items(name, &list))?.values().to_vec())
    }

    fn f32s(self, name: &str, at: usize) -> Result<Option<Vec<f32>>, String> {
        let array = self.array::<ListArray>(name)?;
        if array.is_null(at) {
            return Ok(None);
        }
        let list = array.value(at);
        let values = list.as_any().downcast_ref::<Float32Array>();
        Ok(Some(values.ok_or_else(|| self.items(name, &list))?.values().to_vec()))
    }

    fn items(self, name: &str, list: &ArrayRef) -> String {
        format!("column `{}{name}` holds a list of {}, which {SCHEMA} does not expect", self.path, list.data_type())
    }

    /// Reads a list of records.
    fn records<T>(
        self,
        name: &str,
        at: usize,
        read: impl Fn(Columns<'_>, usize) -> Result<T, String>,
    ) -> Result<Vec<T>, String> {
        let list = self.array::<ListArray>(name)?.value(at);
        let of = list.as_any().downcast_ref::<StructArray>().ok_or_else(|| self.items(name, &list))?;
        let path = format!("{}{name}.", self.path);
        (0..of.len()).map(|index| read(Columns { of, path: &path }, index)).collect()
    }

    fn nested(self, name: &str) -> Result<&'a StructArray, String> {
        self.array::<StructArray>(name)
    }
}

/// A batch as records, to read with [`from_record`].
pub fn records(batch: &RecordBatch) -> StructArray {
    StructArray::from(batch.clone())
}

/// The trajectory in one record.
pub fn from_record(of: &StructArray, at: usize) -> Result<Trajectory, String> {
    let columns = Columns { of, path: "" };
    let stop = columns.text("stop", at)?;
    let timings = Columns { of: columns.nested("timings")?, path: "timings." };
    let usage = Columns { of: columns.nested("usage")?, path: "usage." };
    Ok(Trajectory {
        rollout_id: columns.text("rollout_id", at)?,
        parent_id: columns.maybe_text("_rlm_parent_rid", at)?,
        root_id: columns.text("root_id", at)?,
        depth: columns.u32("depth", at)?,
        child_index: columns.maybe_u32("child_index", at)?,
        instance_id: columns.text("instance_id", at)?,
        repetition_id: columns.u32("repetition_id", at)?,
        env_id: columns.text("env_id", at)?,
        model: columns.text("model", at)?,
        trained: columns.array::<BooleanArray>("trained")?.value(at),
        fidelity: columns.named::<Fidelity>("fidelity", at)?,
        seed: columns.u64("seed", at)?,
        stop: RolloutStop::from_name(&stop).ok_or_else(|| format!("column `stop`: no stop reason `{stop}`"))?,
        error: columns.maybe_text("error", at)?,
        reward: columns.f32("reward", at)?,
        answer: columns.maybe_text("answer", at)?,
        rows: columns.records("rows", at, row)?,
        messages: columns.records("messages", at, message)?,
        turns: columns.records("turns", at, turn)?,
        calls: columns.records("calls", at, call)?,
        env_metrics: columns.json("env_metrics", at)?,
        timings: Timings {
            llm_us: timings.u64("llm_us", at)?,
            env_us: timings.u64("env_us", at)?,
            total_us: timings.u64("total_us", at)?,
        },
        usage: TokenUsage {
            prompt_tokens: usage.u64("prompt_tokens", at)?,
            cached_tokens: usage.u64("cached_tokens", at)?,
            sampled_tokens: usage.u64("sampled_tokens", at)?,
        },
    })
}

fn row(columns: Columns<'_>, at: usize) -> Result<Row, String> {
    let mask = columns.array::<ListArray>("mask")?.value(at);
    let mask = mask.as_any().downcast_ref::<UInt8Array>().ok_or_else(|| columns.items("mask", &mask))?;
    let parts = RowParts {
        prompt_ids: columns.u32s("prompt_ids", at)?,
        response_ids: columns.u32s("response_ids", at)?,
        mask: mask.values().to_vec(),
        logprobs: columns.f32s("logprobs", at)?,
        rewards: columns.f32s("rewards", at)?.unwrap_or_default(),
        versions: columns.records("versions", at, |run, index| {
            Ok(VersionRun {
                start: run.u32("start", index)?,
                len: run.u32("len", index)?,
                version: run.u64("version", index)?,
            })
        })?,
    };
    Row::new(parts).map_err(|error| format!("`rows`, entry {at}: {error}"))
}

fn message(columns: Columns<'_>, at: usize) -> Result<Message, String> {
    Ok(Message {
        role: columns.named::<Role>("role", at)?,
        content: columns.text("content", at)?,
        reasoning_content: columns.maybe_text("reasoning_content", at)?,
        tool_calls: columns.records("tool_calls", at, |call, index| {
            let function = Columns { of: call.nested("function")?, path: "messages.tool_calls.function." };
            Ok(ToolCall {
                id: call.text("id", index)?,
                kind: call.text("type", index)?,
                function: FunctionCall {
                    name: function.text("name", index)?,
                    arguments: function.text("arguments", index)?,
                },
            })
        })?,
        tool_call_id: columns.maybe_text("tool_call_id", at)?,
        name: columns.maybe_text("name", at)?,
    })
}

fn turn(columns: Columns<'_>, at: usize) -> Result<Turn, String> {
    Ok(Turn {
        row: columns.maybe_u32("row", at)?,
        start: columns.u32("start", at)?,
        end: columns.u32("end", at)?,
        message: columns.u32("message", at)?,
        stop: columns.named::<StopReason>("stop", at)?,
        reward: columns.f32("reward", at)?,
        prompt_tokens: columns.u32("prompt_tokens", at)?,
        cached_tokens: columns.u32("cached_tokens", at)?,
        sampled_tokens: columns.u32("sampled_tokens", at)?,
        llm_us: columns.u64("llm_us", at)?,
        env_us: columns.u64("env_us", at)?,
        metadata: columns.json("metadata", at)?,
    })
}

fn call(columns: Columns<'_>, at: usize) -> Result<CallRecord, String> {
    Ok(CallRecord {
        index: columns.u32("index", at)?,
        kind: match columns.of.column_by_name("kind").map(|_| columns.maybe_text("kind", at)).transpose()?.flatten() {
            None => CallKind::Query,
            Some(kind) if kind == "judge" => CallKind::Judge,
            Some(other) => return Err(format!("`{}kind`: expected `judge` or nothing, got `{other}`", columns.path)),
        },
        turn: columns.u32("turn", at)?,
        model: columns.text("model", at)?,
        prompt: columns.text("prompt", at)?,
        response: columns.maybe_text("response", at)?,
        error: columns.maybe_text("error", at)?,
        prompt_tokens: columns.u32("prompt_tokens", at)?,
        sampled_tokens: columns.u32("sampled_tokens", at)?,
        us: columns.u64("us", at)?,
    })
}
