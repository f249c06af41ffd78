//! The interpreter and its modules, booted once at build time.

use std::cell::OnceCell;

use ruff_python_ast::Stmt;
use rustpython_vm::builtins::PyModule;
use rustpython_vm::common::espalier;
use rustpython_vm::compiler::Mode;
use rustpython_vm::scope::Scope;
use rustpython_vm::{AsObject, Interpreter, PyObjectRef, PyRef, PyResult, Settings, VirtualMachine};

use crate::{repl, scaffold};

/// Where the standard library seems to lie.
const LIBRARY: &str = "/lib/python";

/// Imported at boot, so that the first use in a REPL is cheap.
const IMPORTED: &[&str] = &[
    "abc",
    "argparse",
    "array",
    "ast",
    "base64",
    "binascii",
    "bisect",
    "calendar",
    "cmath",
    "collections",
    "collections.abc",
    "contextlib",
    "contextvars",
    "copy",
    "csv",
    "dataclasses",
    "datetime",
    "decimal",
    "difflib",
    "enum",
    "fnmatch",
    "fractions",
    "functools",
    "graphlib",
    "hashlib",
    "heapq",
    "html",
    "html.parser",
    "inspect",
    "io",
    "itertools",
    "json",
    "keyword",
    "linecache",
    "locale",
    "logging",
    "math",
    "numbers",
    "operator",
    "os",
    "os.path",
    "pathlib",
    "pickle",
    "pprint",
    "queue",
    "random",
    "re",
    "reprlib",
    "secrets",
    "shlex",
    "statistics",
    "string",
    "struct",
    "sys",
    "textwrap",
    "threading",
    "time",
    "tokenize",
    "traceback",
    "types",
    "typing",
    "unicodedata",
    "urllib.parse",
    "uuid",
    "warnings",
    "weakref",
    "zlib",
];

thread_local! {
    /// `random.seed` as it was at boot.
    static SEED: OnceCell<PyObjectRef> = const { OnceCell::new() };
}

/// Boots the interpreter and imports what models use most.
pub fn interpreter() -> Interpreter {
    let mut settings = Settings::default();
    settings.hash_seed = Some(0);
    settings.argv = vec![String::new()];
    settings.install_signal_handlers = false;
    settings.import_site = false;
    settings.write_bytecode = false;
    settings.path_list = Vec::new();
    let builder = Interpreter::builder(settings);
    let modules = rustpython_stdlib::stdlib_module_defs(&builder.ctx);
    let interpreter = builder
        .add_native_modules(&modules)
        .add_frozen_modules(rustpython_pylib::FROZEN_STDLIB)
        .init_hook(|vm| {
            if let Some(state) = rustpython_vm::common::rc::PyRc::get_mut(&mut vm.state) {
                state.config.paths.stdlib_dir = Some(LIBRARY.to_owned());
            }
        })
        .build();
    interpreter.enter(|vm| {
        if let Err(error) = prepare(vm) {
            let text = crate::traceback::format(vm, &error);
            panic!("the interpreter does not boot: {text}");
        }
    });
    interpreter
}

fn prepare(vm: &VirtualMachine) -> PyResult<()> {
    let sys = &vm.sys_module;
    let str_list = |items: &[&str]| vm.ctx.new_list(items.iter().map(|item| vm.ctx.new_str(*item).into()).collect());
    sys.set_attr("argv", str_list(&[""]), vm)?;
    sys.set_attr("orig_argv", str_list(&[]), vm)?;
    sys.set_attr("path", str_list(&[]), vm)?;
    for name in ["executable", "_base_executable", "prefix", "base_prefix", "exec_prefix", "base_exec_prefix"] {
        sys.set_attr(name, vm.ctx.new_str(""), vm)?;
    }
    sys.set_attr("platform", vm.ctx.new_str("espalier"), vm)?;
    sys.set_attr("dont_write_bytecode", vm.ctx.new_bool(true), vm)?;
    let builtin_names = sys.get_attr("builtin_module_names", vm)?;
    let mut names: Vec<PyObjectRef> = builtin_names.try_to_value(vm)?;
    names.push(vm.ctx.new_str("posix").into());
    sys.set_attr("builtin_module_names", vm.ctx.new_tuple(names), vm)?;

    let urandom = scaffold::function(vm, "urandom", "Random bytes from the host's seeded generator.", |vm, args| {
        let size = args.args.first().cloned().ok_or_else(|| vm.new_type_error("urandom() takes a size"))?;
        let size: isize = size.try_into_value(vm)?;
        let size = usize::try_from(size).map_err(|_| vm.new_value_error("negative argument not allowed"))?;
        if !espalier::may_allocate(size) {
            return Err(vm.new_memory_error("too many random bytes at once"));
        }
        let mut bytes = vec![0u8; size];
        espalier::random(&mut bytes);
        Ok(vm.ctx.new_bytes(bytes).into())
    });
    module(vm, "posix", include_str!("../python/posix.py"), &[("urandom", urandom)])?;
    let source = scaffold::function(vm, "block_source", "The text of a block.", |vm, args| {
        let name = args.args.first().and_then(|name| name.downcast_ref::<rustpython_vm::builtins::PyStr>()?.to_str());
        Ok(match name.and_then(repl::source) {
            Some(text) => vm.ctx.new_str(&*text).into(),
            None => vm.ctx.none(),
        })
    });
    let writer = |name: &'static str, stream: i32| {
        scaffold::function(vm, name, "Writes text; answers the number of characters.", move |vm, args| {
            let [text] = args.args.as_slice() else {
                return Err(
                    vm.new_type_error(format!("write() takes exactly one argument ({} given)", args.args.len()))
                );
            };
            let Some(text) = text.downcast_ref::<rustpython_vm::builtins::PyStr>() else {
                return Err(vm.new_type_error(format!("write() argument must be str, not {}", text.class().name())));
            };
            match text.to_str() {
                Some(text) => espalier::write(stream, text.as_bytes()),
                None => espalier::write(stream, text.to_string_lossy().as_bytes()),
            }
            vm.check_signals()?;
            Ok(vm.ctx.new_int(text.char_len()).into())
        })
    };
    module(vm, "_espalier", include_str!("../python/sources.py"), &[("block_source", source)])?;
    let (stdout, stderr) = (writer("write", 1), writer("write", 2));
    module(
        vm,
        "_espalier_streams",
        include_str!("../python/streams.py"),
        &[("write_stdout", stdout), ("write_stderr", stderr)],
    )?;
    for name in IMPORTED {
        if let Err(error) = import(vm, name) {
            vm.sys_module.get_attr("modules", vm)?;
            let text = crate::traceback::format(vm, &error);
            panic!("`{name}` does not import: {text}");
        }
    }
    let random = import(vm, "random")?;
    let seed = random.get_attr("seed", vm)?;
    SEED.with(|slot| {
        let _ = slot.set(seed);
    });
    vm.state.gc.collect_force(2);
    Ok(())
}

fn import(vm: &VirtualMachine, name: &str) -> PyResult {
    let name = vm.ctx.new_str(name);
    vm.import(&*name, 0)
}

fn module(
    vm: &VirtualMachine,
    name: &'static str,
    source: &str,
    values: &[(&'static str, PyObjectRef)],
) -> PyResult<PyRef<PyModule>> {
    let dict = vm.ctx.new_dict();
    let module = vm.new_module(name, dict.clone(), None);
    for (name, value) in values {
        dict.set_item(*name, value.clone(), vm)?;
    }
    let code = vm
        .compile(source, Mode::Exec, format!("<{name}>"))
        .map_err(|error| error.into_pyexception(vm, Some(source)))?;
    vm.run_code_obj(code, Scope::with_builtins(None, dict, vm))?;
    vm.sys_module.get_attr("modules", vm)?.set_item(name, module.clone().into(), vm)?;
    Ok(module)
}

/// Seeds `random`.
pub fn reseed(vm: &VirtualMachine, seed: u64) -> PyResult<()> {
    match SEED.with(|slot| slot.get().cloned()) {
        Some(function) => function.call((vm.ctx.new_int(seed),), vm).map(|_| ()),
        None => Ok(()),
    }
}

/// Turns off what `sys.settrace` and `sys.setprofile` turned on.
pub fn stop_tracing(vm: &VirtualMachine) {
    if !vm.use_tracing.get() {
        return;
    }
    for name in ["settrace", "setprofile"] {
        if let Ok(function) = vm.sys_module.get_attr(name, vm) {
            let _ = function.call((vm.ctx.none(),), vm);
        }
    }
}

/// Where the last statement of `code` begins, if it is an expression.
pub fn trailing_expression(code: &str) -> Option<usize> {
    let parsed = ruff_python_parser::parse_module(code).ok()?;
    match parsed.syntax().body.last() {
        Some(Stmt::Expr(statement)) => Some(statement.range.start().to_usize()),
        _ => None,
    }
}
