//! Names that the host gives: of tools, of bound variables, of exceptions that a call raises.
//!
//! A tool or variable with the name of a builtin would change what the model's code means without a word; one with a
//! name of the scaffold would break it. Both are refused before the guest hears of them.

use espalier_sandbox_protocol::policy;

use crate::{CallError, SandboxError, Tool};

/// Python's builtins that are no exceptions (CPython 3.13, `dir(builtins)`).
const BUILTINS: &[&str] = &[
    "Ellipsis",
    "NotImplemented",
    "__build_class__",
    "__debug__",
    "__import__",
    "abs",
    "aiter",
    "all",
    "anext",
    "any",
    "ascii",
    "bin",
    "bool",
    "breakpoint",
    "bytearray",
    "bytes",
    "callable",
    "chr",
    "classmethod",
    "compile",
    "complex",
    "copyright",
    "credits",
    "delattr",
    "dict",
    "dir",
    "divmod",
    "enumerate",
    "eval",
    "exec",
    "exit",
    "filter",
    "float",
    "format",
    "frozenset",
    "getattr",
    "globals",
    "hasattr",
    "hash",
    "help",
    "hex",
    "id",
    "input",
    "int",
    "isinstance",
    "issubclass",
    "iter",
    "len",
    "license",
    "list",
    "locals",
    "map",
    "max",
    "memoryview",
    "min",
    "next",
    "object",
    "oct",
    "open",
    "ord",
    "pow",
    "print",
    "property",
    "quit",
    "range",
    "repr",
    "reversed",
    "round",
    "set",
    "setattr",
    "slice",
    "sorted",
    "staticmethod",
    "str",
    "sum",
    "super",
    "tuple",
    "type",
    "vars",
    "zip",
];

/// Python's exceptions and warnings, which are builtins too.
const EXCEPTIONS: &[&str] = &[
    "ArithmeticError",
    "AssertionError",
    "AttributeError",
    "BaseException",
    "BaseExceptionGroup",
    "BlockingIOError",
    "BrokenPipeError",
    "BufferError",
    "BytesWarning",
    "ChildProcessError",
    "ConnectionAbortedError",
    "ConnectionError",
    "ConnectionRefusedError",
    "ConnectionResetError",
    "DeprecationWarning",
    "EOFError",
    "EncodingWarning",
    "EnvironmentError",
    "Exception",
    "ExceptionGroup",
    "FileExistsError",
    "FileNotFoundError",
    "FloatingPointError",
    "FutureWarning",
    "GeneratorExit",
    "IOError",
    "ImportError",
    "ImportWarning",
    "IndentationError",
    "IndexError",
    "InterruptedError",
    "IsADirectoryError",
    "KeyError",
    "KeyboardInterrupt",
    "LookupError",
    "MemoryError",
    "ModuleNotFoundError",
    "NameError",
    "NotADirectoryError",
    "NotImplementedError",
    "OSError",
    "OverflowError",
    "PendingDeprecationWarning",
    "PermissionError",
    "ProcessLookupError",
    "PythonFinalizationError",
    "RecursionError",
    "ReferenceError",
    "ResourceWarning",
    "RuntimeError",
    "RuntimeWarning",
    "StopAsyncIteration",
    "StopIteration",
    "SyntaxError",
    "SyntaxWarning",
    "SystemError",
    "SystemExit",
    "TabError",
    "TimeoutError",
    "TypeError",
    "UnboundLocalError",
    "UnicodeDecodeError",
    "UnicodeEncodeError",
    "UnicodeError",
    "UnicodeTranslateError",
    "UnicodeWarning",
    "UserWarning",
    "ValueError",
    "Warning",
    "ZeroDivisionError",
];

/// Exceptions that a message alone does not make.
const BY_MORE_THAN_A_MESSAGE: &[&str] =
    &["BaseExceptionGroup", "ExceptionGroup", "UnicodeDecodeError", "UnicodeEncodeError", "UnicodeTranslateError"];

/// Refuses a name that no tool and no bound variable may have.
pub(crate) fn check(name: &str) -> Result<(), SandboxError> {
    let reason = if policy::is_reserved(name) {
        "the name belongs to the REPL's own functions and contexts"
    } else if BUILTINS.contains(&name) || EXCEPTIONS.contains(&name) {
        "it is one of Python's builtins; take another name"
    } else if policy::KEYWORDS.contains(&name) {
        "it is one of Python's keywords"
    } else if !looks_like_a_name(name) {
        "it is no Python identifier"
    } else {
        return Ok(());
    };
    Err(SandboxError::Name { name: name.to_owned(), reason: reason.to_owned() })
}

/// Whether a text can be an identifier; of letters beyond ASCII the guest decides.
fn looks_like_a_name(name: &str) -> bool {
    let may = |letter: char| letter == '_' || letter.is_ascii_alphanumeric() || !letter.is_ascii();
    !name.is_empty() && !name.starts_with(|first: char| first.is_ascii_digit()) && name.chars().all(may)
}

/// Refuses tools whose names cannot be used, or that share one.
pub(crate) fn check_tools(tools: &[Tool]) -> Result<(), SandboxError> {
    for (index, tool) in tools.iter().enumerate() {
        let name = tool.name();
        check(name)?;
        if tools[..index].iter().any(|other| other.name() == name) {
            let reason = "two tools have it".to_owned();
            return Err(SandboxError::Name { name: name.to_owned(), reason });
        }
    }
    Ok(())
}

/// What a call raises in the guest: a type that Python does not know becomes a `RuntimeError` that names it.
pub(crate) fn raised(error: CallError) -> (String, String) {
    let CallError { type_name, message } = error;
    let known = EXCEPTIONS.contains(&type_name.as_str()) && !BY_MORE_THAN_A_MESSAGE.contains(&type_name.as_str());
    if known { (type_name, message) } else { ("RuntimeError".to_owned(), format!("{type_name}: {message}")) }
}
