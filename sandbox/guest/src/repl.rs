//! One REPL: requests in, replies out.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;

use espalier_sandbox_protocol::{
    BlockEnd, Decode, ExecuteReply, ExecuteRequest, FinalAnswer, ReplConfig, Reply, Request, Value, abi, policy,
};
use rustpython_vm::builtins::{PyBaseExceptionRef, PyStr};
use rustpython_vm::common::espalier;
use rustpython_vm::compiler::Mode;
use rustpython_vm::function::FuncArgs;
use rustpython_vm::scope::Scope;
use rustpython_vm::{AsObject, PyObjectRef, PyResult, VirtualMachine};

use crate::namespace::{Namespace, policy_builtins};
use crate::{boot, convert, heap, scaffold, traceback};

/// Bytes of block sources that are kept for tracebacks.
const MAX_SOURCES: usize = 4 << 20;
/// Bytes of an encoded `Request::BindContext` before its value: tag and index.
const CONTEXT_HEAD: usize = 5;

/// The state of the one REPL of this guest.
pub struct Repl {
    /// The model's names.
    pub namespace: Namespace,
    /// The last answer of the running block.
    pub answer: RefCell<Option<FinalAnswer>>,
    /// Largest value that crosses, bytes.
    pub max_value_bytes: usize,
    recursion_limit: usize,
    python_tools: RefCell<Vec<PyObjectRef>>,
}

thread_local! {
    static REPL: RefCell<Option<Rc<Repl>>> = const { RefCell::new(None) };
    /// The text of each block that code may still come from.
    static SOURCES: RefCell<BTreeMap<u64, Rc<str>>> = const { RefCell::new(BTreeMap::new()) };
    static SOURCE_BYTES: Cell<usize> = const { Cell::new(0) };
}

/// The REPL that runs.
pub fn current(vm: &VirtualMachine) -> PyResult<Rc<Repl>> {
    REPL.with(|repl| repl.borrow().clone()).ok_or_else(|| vm.new_runtime_error("this REPL was not configured"))
}

/// Line `line` (from 1) of the block that `file` names.
pub fn source_line(file: &str, line: usize) -> Option<String> {
    let source = source(file)?;
    Some(source.lines().nth(line.checked_sub(1)?)?.to_owned())
}

/// The text of the block that `file` names.
pub fn source(file: &str) -> Option<Rc<str>> {
    let number = file.strip_prefix("<block ")?.strip_suffix('>')?.parse::<u64>().ok()?;
    SOURCES.with(|sources| sources.borrow().get(&number).cloned())
}

fn remember(block: u64, code: &str) {
    SOURCES.with(|sources| {
        let mut sources = sources.borrow_mut();
        let mut bytes = SOURCE_BYTES.get() + code.len();
        if let Some(old) = sources.insert(block, Rc::from(code)) {
            bytes -= old.len();
        }
        while bytes > MAX_SOURCES && sources.len() > 1 {
            let Some((_, oldest)) = sources.pop_first() else { break };
            bytes -= oldest.len();
        }
        SOURCE_BYTES.set(bytes);
    });
}

/// Serves one encoded request.
pub fn serve(vm: &VirtualMachine, bytes: Vec<u8>) -> Reply {
    let bytes = match bind_large_text(vm, bytes) {
        Ok(reply) => return reply,
        Err(bytes) => bytes,
    };
    let request = heap::exempt(|| Request::from_bytes(&bytes));
    let length = bytes.len();
    drop(bytes);
    let request = match request {
        Ok(request) => request,
        Err(error) => return Reply::Refused(format!("the request is unreadable: {error}")),
    };
    if let Request::Configure(config) = request {
        return match configure(vm, config) {
            Ok(()) => Reply::Done,
            Err(error) => Reply::Refused(traceback::format(vm, &error)),
        };
    }
    let Some(repl) = REPL.with(|repl| repl.borrow().clone()) else {
        return Reply::Refused("expected `Configure` first".to_owned());
    };
    let reply = match request {
        Request::Configure(_) => unreachable!("served above"),
        Request::Execute(request) => Ok(Reply::Executed(repl.execute(vm, request))),
        Request::BindContext { index, value } => heap::exempt(|| convert::to_python(vm, value))
            .and_then(|value| repl.bind_context(vm, index, value, length.saturating_sub(CONTEXT_HEAD)))
            .map(|()| Reply::Done),
        Request::Bind { name, value } => repl.bind(vm, &name, value),
        Request::Get { name } => Ok(match repl.namespace.get(vm, &name) {
            None => Reply::Refused(format!("there is no variable `{name}`")),
            Some(value) => heap::exempt(|| match convert::from_python(vm, &value, repl.max_value_bytes) {
                Ok(value) => Reply::Value(value),
                Err(refusal) => {
                    Reply::Refused(refusal.message(&format!("the variable `{name}`"), repl.max_value_bytes))
                }
            }),
        }),
        Request::FinalVar { name } => match scaffold::final_variable(vm, &repl, &name) {
            Ok(value) => scaffold::answer(vm, &repl, &value).map(Reply::Answer),
            Err(message) => Ok(Reply::Refused(message)),
        },
        Request::Variables => Ok(Reply::Variables(repl.namespace.variables(vm))),
        Request::Reseed { seed } => boot::reseed(vm, seed).map(|()| Reply::Done),
    };
    reply.unwrap_or_else(|error| {
        espalier::INTERRUPT.store(abi::INTERRUPT_NONE, Relaxed);
        Reply::Refused(format!("{}: {}", error.class().name(), traceback::message(&error, vm)))
    })
}

/// Binds a context that is one string without a second copy of it: the request's own buffer becomes the string.
fn bind_large_text(vm: &VirtualMachine, mut bytes: Vec<u8>) -> Result<Reply, Vec<u8>> {
    const HEAD: usize = 10;
    if bytes.len() < 4096 || bytes[0] != 2 || bytes[5] != 5 {
        return Err(bytes);
    }
    let number = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    let (index, length) = (number(1), number(6) as usize);
    if length != bytes.len() - HEAD || std::str::from_utf8(&bytes[HEAD..]).is_err() {
        return Err(bytes);
    }
    let Some(repl) = REPL.with(|repl| repl.borrow().clone()) else { return Err(bytes) };
    bytes.drain(..HEAD);
    let text = match String::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => return Err(error.into_bytes()),
    };
    let value = heap::exempt(|| vm.ctx.new_str(text).into());
    Ok(match repl.bind_context(vm, index, value, HEAD - CONTEXT_HEAD + length) {
        Ok(()) => Reply::Done,
        Err(error) => Reply::Refused(traceback::message(&error, vm)),
    })
}

fn configure(vm: &VirtualMachine, config: ReplConfig) -> PyResult<()> {
    if REPL.with(|repl| repl.borrow().is_some()) {
        return Err(vm.new_runtime_error("this REPL is already configured"));
    }
    let size = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
    heap::limit(size(config.soft_memory_bytes), size(config.max_allocation_bytes));
    espalier::MAX_ALLOCATION.store(size(config.max_allocation_bytes), Relaxed);
    let recursion_limit = (config.recursion_limit as usize).max(16);
    espalier::MAX_RECURSION.store(recursion_limit, Relaxed);
    vm.recursion_limit.set(recursion_limit);
    boot::reseed(vm, config.seed)?;

    let strict = config.strict;
    let import = scaffold::function(vm, "__import__", "Imports a module that the policy allows.", move |vm, args| {
        import(vm, strict, args)
    });
    let refuse = |name: &'static str| {
        scaffold::function(vm, name, "Blocked by the sandbox policy.", move |vm, _| {
            let class = vm.ctx.exceptions.permission_error.to_owned();
            Err(vm.invoke_exception(&class, vec![vm.ctx.new_str(policy::builtin_refusal(name)).into()])?)
        })
    };
    let builtins = policy_builtins(vm, strict, import, refuse)?;
    let repl = Rc::new(Repl {
        namespace: Namespace::new(vm, builtins)?,
        answer: RefCell::new(None),
        max_value_bytes: size(config.max_value_bytes),
        recursion_limit,
        python_tools: RefCell::default(),
    });
    REPL.with(|slot| slot.replace(Some(repl.clone())));
    for (name, function) in scaffold::functions(vm, &config.functions) {
        repl.namespace.reserve(vm, name, function)?;
    }
    for (name, description) in &config.tools {
        repl.check_tool_name(vm, name)?;
        repl.namespace.reserve(vm, name, scaffold::tool(vm, name, description))?;
    }
    for (name, source) in &config.python_tools {
        repl.check_tool_name(vm, name)?;
        repl.python_tool(vm, name, source)?;
    }
    Ok(())
}

/// `__import__` of the model's code.
fn import(vm: &VirtualMachine, strict: bool, args: FuncArgs) -> PyResult {
    let name = args
        .args
        .first()
        .cloned()
        .or_else(|| args.kwargs.get("name").cloned())
        .and_then(|name| name.downcast::<PyStr>().ok())
        .ok_or_else(|| vm.new_type_error("__import__() takes the name of a module"))?;
    let refused = |vm: &VirtualMachine, reason: String| {
        // Programs that can do without a module catch either class; under the strict policy nothing is a module.
        let exceptions = &vm.ctx.exceptions;
        let class = if strict { exceptions.import_error } else { exceptions.module_not_found_error }.to_owned();
        Err(vm.invoke_exception(&class, vec![vm.ctx.new_str(reason).into()])?)
    };
    let text = name.as_wtf8().to_string_lossy().into_owned();
    if strict {
        return refused(vm, format!("importing `{text}` is blocked by the sandbox policy (rule `imports.none`)"));
    }
    if let Some(reason) = policy::import_refusal(&text) {
        return refused(vm, reason);
    }
    // `from package import submodule` names the submodule only here.
    if let Some(list) = args.args.get(3).or_else(|| args.kwargs.get("fromlist")) {
        if let Some(list) = list.downcast_ref::<rustpython_vm::builtins::PyTuple>() {
            for item in list.as_slice() {
                let Some(item) = item.downcast_ref::<PyStr>() else { continue };
                let dotted = format!("{text}.{}", item.as_wtf8().to_string_lossy());
                if policy::BLOCKED_SUBMODULES.iter().any(|(name, _)| *name == dotted) {
                    return refused(vm, policy::import_refusal(&dotted).unwrap_or_default());
                }
            }
        }
    }
    match Repl::pristine_builtin(vm, "__import__") {
        Some(import) => import.call_with_args(args, vm),
        None => Err(vm.new_runtime_error("the interpreter has no `__import__`")),
    }
}

impl Repl {
    /// A builtin of the interpreter as it was at boot.
    pub fn pristine_builtin(vm: &VirtualMachine, name: &str) -> Option<PyObjectRef> {
        let repl = REPL.with(|repl| repl.borrow().clone());
        match repl {
            Some(repl) => repl.namespace.real_builtin(name),
            None => vm.builtins.get_attr(vm.ctx.intern_str(name), vm).ok(),
        }
    }

    fn check_tool_name(&self, vm: &VirtualMachine, name: &str) -> PyResult<()> {
        if policy::is_reserved(name) || self.namespace.is_reserved(name) {
            return Err(vm.new_value_error(format!("a tool cannot be named `{name}`: the name is taken")));
        }
        if !vm.ctx.new_str(name).isidentifier() || policy::KEYWORDS.contains(&name) {
            return Err(vm.new_value_error(format!("a tool's name must be a Python identifier, not `{name}`")));
        }
        Ok(())
    }

    /// Runs a tool's source in a namespace of its own and binds what it defines behind a native function.
    fn python_tool(&self, vm: &VirtualMachine, name: &str, source: &str) -> PyResult<()> {
        let globals = vm.ctx.new_dict();
        globals.set_item("__name__", vm.ctx.new_str(name).into(), vm)?;
        globals.set_item("__builtins__", vm.builtins.clone().into(), vm)?;
        for function in policy::HOST_FUNCTIONS {
            if let Some(value) = self.namespace.get(vm, function) {
                globals.set_item(*function, value, vm)?;
            }
        }
        let code = vm
            .compile(source, Mode::Exec, format!("<tool {name}>"))
            .map_err(|error| error.into_pyexception(vm, Some(source)))?;
        vm.run_code_obj(code, Scope::with_builtins(None, globals.clone(), vm))?;
        let Some(value) = globals.get_item_opt(name, vm)? else {
            return Err(vm.new_value_error(format!("the source of the tool `{name}` must bind the name `{name}`")));
        };
        let value = if value.is_callable() && value.downcast_ref::<rustpython_vm::builtins::PyType>().is_none() {
            let doc = match value.get_attr("__doc__", vm) {
                Ok(doc) => doc.downcast_ref::<PyStr>().map(|doc| doc.as_wtf8().to_string_lossy().into_owned()),
                Err(_) => None,
            };
            let index = self.python_tools.borrow().len();
            self.python_tools.borrow_mut().push(value);
            scaffold::function(vm, name, &doc.unwrap_or_default(), move |vm, args| {
                let tool = current(vm)?.python_tools.borrow().get(index).cloned();
                match tool {
                    Some(tool) => tool.call_with_args(args, vm),
                    None => Err(vm.new_runtime_error("this tool is gone")),
                }
            })
        } else {
            value
        };
        self.namespace.reserve(vm, name, value)
    }

    /// Binds a context that was `length` bytes as an encoded value. The host gives three times as much memory for it.
    fn bind_context(&self, vm: &VirtualMachine, index: u32, value: PyObjectRef, length: usize) -> PyResult<()> {
        self.namespace.reserve(vm, &format!("context_{index}"), value.clone())?;
        if index == 0 {
            self.namespace.reserve(vm, "context", value)?;
        }
        heap::raise_limits(length.saturating_mul(3), length.saturating_mul(2));
        Ok(())
    }

    fn bind(&self, vm: &VirtualMachine, name: &str, value: Value) -> PyResult<Reply> {
        if policy::is_reserved(name) || self.namespace.is_reserved(name) {
            return Ok(Reply::Refused(format!("`{name}` is reserved and cannot be bound")));
        }
        if !vm.ctx.new_str(name).isidentifier() || policy::KEYWORDS.contains(&name) {
            return Ok(Reply::Refused(format!("`{name}` is not a Python identifier")));
        }
        let value = heap::exempt(|| convert::to_python(vm, value))?;
        self.namespace.set(vm, name, value)?;
        Ok(Reply::Done)
    }

    fn execute(&self, vm: &VirtualMachine, request: ExecuteRequest) -> ExecuteReply {
        self.answer.replace(None);
        remember(request.block, &request.code);
        let name = format!("<block {}>", request.block);
        heap::set_running(true);
        let result = self.run(vm, &request.code, &name, request.echo);
        heap::set_running(false);
        // The block's own frame has unwound: from here on nothing of it is left to interrupt.
        espalier::INTERRUPT.store(abi::INTERRUPT_NONE, Relaxed);
        let end = match result {
            Ok(()) => BlockEnd::Completed,
            Err(error) => {
                let end = BlockEnd::Raised {
                    type_name: error.class().name().to_string(),
                    message: traceback::message(&error, vm),
                };
                let text = traceback::format(vm, &error);
                // The word says that memory is why while the host looks, as it does for the soft limit.
                if heap::was_refused() && error.fast_isinstance(vm.ctx.exceptions.memory_error) {
                    espalier::INTERRUPT.store(abi::INTERRUPT_MEMORY, Relaxed);
                }
                espalier::write(2, text.as_bytes());
                espalier::INTERRUPT.store(abi::INTERRUPT_NONE, Relaxed);
                end
            }
        };
        vm.recursion_limit.set(self.recursion_limit);
        boot::stop_tracing(vm);
        self.namespace.restore(vm);
        espalier::INTERRUPT.store(abi::INTERRUPT_NONE, Relaxed);
        ExecuteReply {
            end,
            final_answer: self.answer.take(),
            variables: self.namespace.variables(vm),
            heap_bytes: heap::in_use() as u64,
        }
    }

    fn run(&self, vm: &VirtualMachine, code: &str, name: &str, echo: bool) -> Result<(), PyBaseExceptionRef> {
        let scope = || Scope::with_builtins(None, self.namespace.globals().clone(), vm);
        let compile = |text: &str, mode| {
            vm.compile(text, mode, name.to_owned()).map_err(|error| error.into_pyexception(vm, Some(text)))
        };
        let tail = if echo { boot::trailing_expression(code) } else { None };
        let Some(start) = tail else {
            vm.run_code_obj(compile(code, Mode::Exec)?, scope())?;
            return Ok(());
        };
        let (body, tail) = code.split_at(start);
        // Both parts compile before either runs; the tail keeps its line numbers.
        let padded = format!("{}{}", "\n".repeat(body.matches('\n').count()), tail);
        let (body, tail) = (compile(body, Mode::Exec)?, compile(&padded, Mode::Eval)?);
        vm.run_code_obj(body, scope())?;
        let value = vm.run_code_obj(tail, scope())?;
        if !vm.is_none(&value) {
            let mut text = value.repr(vm)?.as_wtf8().to_string_lossy().into_owned();
            convert::truncate(&mut text, self.max_value_bytes);
            text.push('\n');
            espalier::write(1, text.as_bytes());
        }
        Ok(())
    }
}
