//! Requests, replies and host calls.

use crate::Value;
use crate::codec::{Decode, DecodeError, Decoder, Encode, Encoder};

macro_rules! codec_struct {
    ($(#[$meta:meta])* pub struct $name:ident { $($(#[$field_meta:meta])* pub $field:ident: $kind:ty,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq)]
        pub struct $name { $($(#[$field_meta])* pub $field: $kind,)* }

        impl Encode for $name {
            fn encode(&self, out: &mut Encoder) { $(self.$field.encode(out);)* }
        }

        impl Decode for $name {
            fn decode(input: &mut Decoder<'_>) -> Result<Self, DecodeError> {
                Ok(Self { $($field: Decode::decode(input)?,)* })
            }
        }
    };
}

codec_struct! {
    /// How a fresh REPL is set up. Sent once, before anything else.
    pub struct ReplConfig {
        /// `true`: no imports and the original's builtin list. `false`: the default policy.
        pub strict: bool,
        /// Scaffold functions that exist in this REPL, such as `llm_query`; a name that is absent raises `NameError`.
        pub functions: Vec<String>,
        /// Host functions the author adds: name and one-line description.
        pub tools: Vec<(String, String)>,
        /// Tools the author wrote in Python: name and source text that binds that name.
        pub python_tools: Vec<(String, String)>,
        /// Python's recursion limit, frames.
        pub recursion_limit: u32,
        /// Bytes of the guest's heap at which `MemoryError` is raised.
        pub soft_memory_bytes: u64,
        /// Largest single allocation, bytes, outside contexts.
        pub max_allocation_bytes: u64,
        /// Largest `repr` and largest value that crosses to the host, bytes.
        pub max_value_bytes: u64,
        /// Seed of `random` and `os.urandom`'s users that were imported at boot.
        pub seed: u64,
    }
}

codec_struct! {
    /// One block of code.
    pub struct ExecuteRequest {
        /// The block's source text.
        pub code: String,
        /// The block's number, from 1; tracebacks name it `<block N>`.
        pub block: u64,
        /// Evaluate and print a trailing expression's `repr`, as an interactive prompt does.
        pub echo: bool,
        /// Largest number of host calls in this block.
        pub max_host_calls: u32,
    }
}

/// How a block ended, as the guest saw it. Limits are the host's to judge: it knows what it interrupted.
#[derive(Clone, Debug, PartialEq)]
pub enum BlockEnd {
    /// The last statement ran.
    Completed,
    /// An exception left the block (`SystemExit` and other `BaseException`s too). The traceback was written to
    /// stderr.
    Raised {
        /// `type(e).__name__`
        type_name: String,
        /// `str(e)`, bounded.
        message: String,
    },
}

codec_struct! {
    /// What `FINAL_VAR` or `FINAL` was called with.
    pub struct FinalAnswer {
        /// `str(value)`, bounded by `max_value_bytes`.
        pub text: String,
        /// The value with its type, or [`Value::Opaque`].
        pub value: Value,
    }
}

codec_struct! {
    /// One variable of the model's namespace.
    pub struct VariableInfo {
        /// Its name.
        pub name: String,
        /// `type(x).__name__`
        pub type_name: String,
        /// `len(x)` of the built-in containers and strings.
        pub length: Option<u64>,
    }
}

codec_struct! {
    /// Answer to [`Request::Execute`].
    pub struct ExecuteReply {
        /// How the block ended.
        pub end: BlockEnd,
        /// The last answer given in this block.
        pub final_answer: Option<FinalAnswer>,
        /// The model's variables after the block (no scaffold names, none with a leading underscore), sorted by
        /// first assignment.
        pub variables: Vec<VariableInfo>,
        /// Bytes of the guest's heap in use.
        pub heap_bytes: u64,
    }
}

/// What the host asks of the guest.
#[derive(Clone, Debug, PartialEq)]
pub enum Request {
    /// Set up a fresh REPL. Answer: [`Reply::Done`].
    Configure(ReplConfig),
    /// Run a block. Answer: [`Reply::Executed`].
    Execute(ExecuteRequest),
    /// Bind a context: `context_{index}`, and `context` as well when the index is 0. Answer: [`Reply::Done`].
    BindContext {
        /// The context's number.
        index: u32,
        /// The context.
        value: Value,
    },
    /// Bind an ordinary variable. Answer: [`Reply::Done`].
    Bind {
        /// The variable's name: a Python identifier that is not reserved.
        name: String,
        /// The value.
        value: Value,
    },
    /// Read a variable. Answer: [`Reply::Value`], or [`Reply::Refused`] where there is none.
    Get {
        /// The variable's name.
        name: String,
    },
    /// What `FINAL_VAR(name)` written as text means: look the name up. Answer: [`Reply::Answer`] or
    /// [`Reply::Refused`].
    FinalVar {
        /// The variable's name.
        name: String,
    },
    /// List the model's variables. Answer: [`Reply::Variables`].
    Variables,
    /// Re-seed `random` (a fork or restored REPL that asks for it). Answer: [`Reply::Done`].
    Reseed {
        /// The new seed.
        seed: u64,
    },
}

/// What the guest answers.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    /// It is done.
    Done,
    /// The block's end.
    Executed(ExecuteReply),
    /// A variable's value.
    Value(Value),
    /// A final answer.
    Answer(FinalAnswer),
    /// The model's variables.
    Variables(Vec<VariableInfo>),
    /// The request could not be served; the text says what was expected and what came.
    Refused(String),
}

codec_struct! {
    /// What the guest asks of the host, in the middle of a block.
    pub struct HostCall {
        /// `llm_query`, a tool's name...
        pub function: String,
        /// Positional arguments.
        pub args: Vec<Value>,
        /// Keyword arguments.
        pub kwargs: Vec<(String, Value)>,
    }
}

/// What the host answers.
#[derive(Clone, Debug, PartialEq)]
pub enum HostReply {
    /// The call's value.
    Return(Value),
    /// The call raises: a built-in exception's name (`RuntimeError` where it is not one) and its message.
    Raise {
        /// The exception's name.
        type_name: String,
        /// Its message.
        message: String,
    },
}

macro_rules! codec_enum {
    ($name:ident { $($tag:literal => $variant:ident $(($($item:ident: $kind:ty),+))? $({ $($field:ident: $field_kind:ty),+ })?,)* }) => {
        impl Encode for $name {
            fn encode(&self, out: &mut Encoder) {
                match self {
                    $(Self::$variant $(($($item),+))? $({ $($field),+ })? => {
                        out.byte($tag);
                        $($($item.encode(out);)+)?
                        $($($field.encode(out);)+)?
                    })*
                }
            }
        }

        impl Decode for $name {
            fn decode(input: &mut Decoder<'_>) -> Result<Self, DecodeError> {
                Ok(match input.byte()? {
                    $($tag => Self::$variant
                        $(($({ let $item: $kind = Decode::decode(input)?; $item }),+))?
                        $({ $($field: <$field_kind as Decode>::decode(input)?),+ })?,)*
                    tag => return Err(DecodeError::Tag { what: stringify!($name), tag }),
                })
            }
        }
    };
}

codec_enum!(BlockEnd {
    0 => Completed,
    1 => Raised { type_name: String, message: String },
});

codec_enum!(Request {
    0 => Configure(config: ReplConfig),
    1 => Execute(request: ExecuteRequest),
    2 => BindContext { index: u32, value: Value },
    3 => Bind { name: String, value: Value },
    4 => Get { name: String },
    5 => FinalVar { name: String },
    6 => Variables,
    7 => Reseed { seed: u64 },
});

codec_enum!(Reply {
    0 => Done,
    1 => Executed(reply: ExecuteReply),
    2 => Value(value: Value),
    3 => Answer(answer: FinalAnswer),
    4 => Variables(variables: Vec<VariableInfo>),
    5 => Refused(reason: String),
});

codec_enum!(HostReply {
    0 => Return(value: Value),
    1 => Raise { type_name: String, message: String },
});
