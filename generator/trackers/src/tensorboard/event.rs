//! The messages of event files: `tensorflow.Event` and what it holds.
//!
//! `tensorboard/compat/proto/{event,summary,tensor}.proto`. Wall times are seconds since 1970.

use crate::Numbers;
use crate::protobuf::Message;

/// The version of the format, as the first event of a file says it.
const VERSION: &str = "brain.Event:2";
/// `SessionLog.SessionStatus.START`.
const START: i64 = 1;
/// `DataType.DT_STRING`.
const DT_STRING: i64 = 7;

/// The first event of a file.
pub fn version(wall_time: f64) -> Vec<u8> {
    let writer = Message::new().string(1, "espalier");
    event(wall_time, 0).string(3, VERSION).message(10, &writer).as_bytes().to_vec()
}

/// A start: events of earlier files that are of `step` or a later one do not count any more.
pub fn start(wall_time: f64, step: u64) -> Vec<u8> {
    event(wall_time, step).message(7, &Message::new().int(1, START)).as_bytes().to_vec()
}

/// Numbers as scalars.
pub fn scalars(wall_time: f64, step: u64, numbers: &Numbers) -> Vec<u8> {
    let mut summary = Message::new();
    for (name, value) in numbers {
        summary = summary.message(1, &Message::new().string(1, name).float(2, *value as f32));
    }
    event(wall_time, step).message(5, &summary).as_bytes().to_vec()
}

/// A text, which TensorBoard shows as Markdown: a tensor of one string.
pub fn text(wall_time: f64, step: u64, name: &str, text: &str) -> Vec<u8> {
    let shape = Message::new().message(2, &Message::new().int(1, 1));
    let tensor = Message::new().int(1, DT_STRING).message(2, &shape).bytes(8, text.as_bytes());
    let plugin = Message::new().message(1, &Message::new().string(1, "text"));
    let value = Message::new().string(1, name).message(8, &tensor).message(9, &plugin);
    event(wall_time, step).message(5, &Message::new().message(1, &value)).as_bytes().to_vec()
}

fn event(wall_time: f64, step: u64) -> Message {
    Message::new().double(1, wall_time).int(2, step as i64)
}
