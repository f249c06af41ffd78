//! What the model's code may name: modules, builtins and the names that the scaffold keeps.
//!
//! Policy is what models are trained under, not what keeps the host safe: that is the WebAssembly boundary. It applies
//! to the model's own code; the standard library's modules import and call each other freely.

/// Python's reserved words: identifiers by their letters, and no names.
pub const KEYWORDS: &[&str] = &[
    "False", "None", "True", "and", "as", "assert", "async", "await", "break", "class", "continue", "def", "del",
    "elif", "else", "except", "finally", "for", "from", "global", "if", "import", "in", "is", "lambda", "nonlocal",
    "not", "or", "pass", "raise", "return", "try", "while", "with", "yield",
];

/// Top-level modules that the default policy lets the model import, sorted.
pub const ALLOWED_MODULES: &[&str] = &[
    "__future__",
    "_collections_abc",
    "abc",
    "argparse",
    "array",
    "ast",
    "base64",
    "binascii",
    "bisect",
    "calendar",
    "cmath",
    "codecs",
    "collections",
    "colorsys",
    "configparser",
    "contextlib",
    "contextvars",
    "copy",
    "copyreg",
    "csv",
    "dataclasses",
    "datetime",
    "decimal",
    "difflib",
    "dis",
    "enum",
    "errno",
    "fnmatch",
    "fractions",
    "functools",
    "gc",
    "genericpath",
    "getopt",
    "graphlib",
    "hashlib",
    "heapq",
    "hmac",
    "html",
    "inspect",
    "io",
    "ipaddress",
    "itertools",
    "json",
    "keyword",
    "linecache",
    "locale",
    "logging",
    "math",
    "numbers",
    "opcode",
    "operator",
    "os",
    "pathlib",
    "pickle",
    "posixpath",
    "pprint",
    "queue",
    "quopri",
    "random",
    "re",
    "reprlib",
    "secrets",
    "shlex",
    "stat",
    "statistics",
    "string",
    "stringprep",
    "struct",
    "sys",
    "textwrap",
    "threading",
    "time",
    "timeit",
    "token",
    "tokenize",
    "tomllib",
    "traceback",
    "types",
    "typing",
    "unicodedata",
    "urllib",
    "uuid",
    "warnings",
    "weakref",
    "xml",
    "zlib",
];

/// Submodules of allowed modules that are not allowed, with the reason.
pub const BLOCKED_SUBMODULES: &[(&str, &str)] = &[
    ("logging.config", NO_NETWORK),
    ("logging.handlers", NO_NETWORK),
    ("urllib.request", NO_NETWORK),
    ("urllib.robotparser", NO_NETWORK),
    ("xml.sax", NO_NETWORK),
];

const NO_NETWORK: &str = "there is no network in this sandbox";
const NO_FILES: &str = "there are no files in this sandbox; keep data in variables";
const NO_PROCESSES: &str = "there are no processes in this sandbox";
const NO_CONCURRENCY: &str =
    "there are no threads or event loops in this sandbox; `llm_query_batched` and `rlm_query_batched` run side by side";
const NO_NATIVE: &str = "there is no native code in this sandbox";
const NO_CODE: &str = "loading and running code by other ways than a block is not part of this sandbox";
const NO_TERMINAL: &str = "there is no terminal and no display in this sandbox";

/// Modules of the standard library that have no place here, with the reason, sorted.
pub const BLOCKED_MODULES: &[(&str, &str)] = &[
    ("_ctypes", NO_NATIVE),
    ("_posixsubprocess", NO_PROCESSES),
    ("_socket", NO_NETWORK),
    ("_thread", NO_CONCURRENCY),
    ("asyncio", NO_CONCURRENCY),
    ("builtins", "the builtins are already there under their own names"),
    ("code", NO_CODE),
    ("codeop", NO_CODE),
    ("concurrent", NO_CONCURRENCY),
    ("ctypes", NO_NATIVE),
    ("curses", NO_TERMINAL),
    ("dbm", NO_FILES),
    ("email", NO_NETWORK),
    ("fcntl", NO_FILES),
    ("fileinput", NO_FILES),
    ("ftplib", NO_NETWORK),
    ("getpass", NO_TERMINAL),
    ("glob", NO_FILES),
    ("http", NO_NETWORK),
    ("imaplib", NO_NETWORK),
    ("importlib", NO_CODE),
    ("marshal", NO_CODE),
    ("mmap", NO_FILES),
    ("multiprocessing", NO_PROCESSES),
    ("nt", NO_PROCESSES),
    ("pdb", NO_TERMINAL),
    ("pkgutil", NO_CODE),
    ("poplib", NO_NETWORK),
    ("posix", NO_PROCESSES),
    ("pty", NO_PROCESSES),
    ("pwd", NO_PROCESSES),
    ("readline", NO_TERMINAL),
    ("resource", NO_PROCESSES),
    ("runpy", NO_CODE),
    ("select", NO_NETWORK),
    ("selectors", NO_NETWORK),
    ("shelve", NO_FILES),
    ("shutil", NO_FILES),
    ("signal", NO_PROCESSES),
    ("site", NO_CODE),
    ("smtplib", NO_NETWORK),
    ("socket", NO_NETWORK),
    ("socketserver", NO_NETWORK),
    ("sqlite3", NO_NATIVE),
    ("ssl", NO_NETWORK),
    ("subprocess", NO_PROCESSES),
    ("tarfile", NO_FILES),
    ("telnetlib", NO_NETWORK),
    ("tempfile", NO_FILES),
    ("termios", NO_TERMINAL),
    ("tkinter", NO_TERMINAL),
    ("tty", NO_TERMINAL),
    ("turtle", NO_TERMINAL),
    ("webbrowser", NO_NETWORK),
    ("winreg", NO_PROCESSES),
    ("xmlrpc", NO_NETWORK),
    ("zipfile", NO_FILES),
    ("zipimport", NO_CODE),
];

/// Builtins that the default policy blocks, with what to do instead, sorted.
pub const BLOCKED_BUILTINS: &[(&str, &str)] = &[
    ("breakpoint", "there is no debugger; use `print`"),
    ("compile", "write the code in a block"),
    ("eval", "write the expression in a block; `ast.literal_eval` reads literals"),
    ("exec", "write the code in a block"),
    ("exit", "a block ends at its last line"),
    ("globals", "use the variables by name; `SHOW_VARS()` lists them"),
    ("input", "nobody answers; the data is in `context`"),
    ("locals", "use the variables by name; `SHOW_VARS()` lists them"),
    ("open", "there are no files; keep data in variables, or use `io.StringIO`"),
    ("quit", "a block ends at its last line"),
];

/// Builtins of the strict policy: the original's list and what language features need. Every exception type is there
/// as well.
pub const STRICT_BUILTINS: &[&str] = &[
    "Ellipsis",
    "NotImplemented",
    "__build_class__",
    "__debug__",
    "abs",
    "all",
    "any",
    "ascii",
    "bin",
    "bool",
    "bytearray",
    "bytes",
    "callable",
    "chr",
    "classmethod",
    "complex",
    "delattr",
    "dict",
    "dir",
    "divmod",
    "enumerate",
    "filter",
    "float",
    "format",
    "getattr",
    "hasattr",
    "hash",
    "hex",
    "id",
    "int",
    "isinstance",
    "issubclass",
    "iter",
    "len",
    "list",
    "map",
    "max",
    "memoryview",
    "min",
    "next",
    "object",
    "oct",
    "ord",
    "pow",
    "print",
    "property",
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

/// Scaffold functions that the guest itself implements.
pub const GUEST_FUNCTIONS: &[&str] = &["FINAL", "FINAL_VAR", "SHOW_VARS"];

/// Scaffold functions that the host answers.
pub const HOST_FUNCTIONS: &[&str] = &["llm_query", "llm_query_batched", "rlm_query", "rlm_query_batched"];

/// Whether `name` belongs to the scaffold: no tool and no bound variable may have it. `context` and every `context_N`
/// are reserved.
pub fn is_reserved(name: &str) -> bool {
    name == "context" || is_numbered_context(name) || GUEST_FUNCTIONS.contains(&name) || HOST_FUNCTIONS.contains(&name)
}

/// Whether `name` is `context_` and a decimal number.
pub fn is_numbered_context(name: &str) -> bool {
    name.strip_prefix("context_")
        .is_some_and(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Why the default policy does not let the model import `module` (a dotted name), or `None` where it does.
pub fn import_refusal(module: &str) -> Option<String> {
    let top = module.split('.').next().unwrap_or(module);
    let blocked = |name: &str, reason: &str| {
        Some(format!("`{name}` is blocked by the sandbox policy (rule `imports`): {reason}"))
    };
    for (name, reason) in BLOCKED_SUBMODULES {
        if module == *name || module.strip_prefix(name).is_some_and(|rest| rest.starts_with('.')) {
            return blocked(name, reason);
        }
    }
    if ALLOWED_MODULES.binary_search(&top).is_ok() {
        return None;
    }
    // The interpreter's own parts import each other by such names in the model's frame.
    if top.starts_with('_') && BLOCKED_MODULES.binary_search_by(|(name, _)| (*name).cmp(top)).is_err() {
        return None;
    }
    match BLOCKED_MODULES.binary_search_by(|(name, _)| (*name).cmp(top)) {
        Ok(index) => blocked(top, BLOCKED_MODULES[index].1),
        Err(_) => blocked(top, "only modules of Python's standard library that need no system are here"),
    }
}

/// The message of the error that the blocked builtin `name` raises.
pub fn builtin_refusal(name: &str) -> String {
    let hint = BLOCKED_BUILTINS.iter().find(|(blocked, _)| *blocked == name).map_or("", |(_, hint)| hint);
    let separator = if hint.is_empty() { "" } else { ": " };
    format!("`{name}` is blocked by the sandbox policy (rule `builtins.{name}`){separator}{hint}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tables_are_sorted() {
        assert!(ALLOWED_MODULES.is_sorted());
        assert!(BLOCKED_MODULES.is_sorted());
        assert!(BLOCKED_BUILTINS.is_sorted());
        assert!(STRICT_BUILTINS.is_sorted());
    }

    #[test]
    fn no_module_is_both_allowed_and_blocked() {
        for (name, _) in BLOCKED_MODULES {
            assert!(ALLOWED_MODULES.binary_search(name).is_err(), "{name}");
        }
    }

    #[test]
    fn a_refused_import_says_why() {
        assert_eq!(import_refusal("json.decoder"), None);
        assert_eq!(import_refusal("urllib.parse"), None);
        assert!(import_refusal("urllib.request").is_some_and(|reason| reason.contains("network")));
        assert!(
            import_refusal("socket").is_some_and(|reason| reason.contains("`socket`") && reason.contains("network"))
        );
        assert!(import_refusal("numpy.linalg").is_some_and(|reason| reason.contains("`numpy`")));
    }

    #[test]
    fn contexts_are_reserved_by_number() {
        assert!(is_reserved("context") && is_reserved("context_12"));
        assert!(!is_reserved("context_") && !is_reserved("context_a") && !is_reserved("my_context"));
    }
}
