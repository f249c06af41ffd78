//! The functions that the model finds in its namespace.
//!
//! All are native: no `__globals__`, no `__code__`, no attributes to change. What the host answers leaves as a
//! [`HostCall`]; arguments that do not cross raise an error that names them.

use espalier_sandbox_protocol::{FinalAnswer, HostCall, HostReply, Value, policy};
use rustpython_vm::builtins::{PyBaseExceptionRef, PyStr, PyType};
use rustpython_vm::function::{Callee, FuncArgs, PyMethodDef, PyMethodFlags, PyNativeFn};
use rustpython_vm::{PyObject, PyObjectRef, PyResult, VirtualMachine};

use crate::convert;
use crate::host;
use crate::repl::{Repl, current};

/// A native function object. Name, text and function live as long as the guest.
pub fn function(
    vm: &VirtualMachine,
    name: &str,
    doc: &str,
    work: impl Fn(&VirtualMachine, FuncArgs) -> PyResult + 'static,
) -> PyObjectRef {
    let work: &'static dyn PyNativeFn =
        Box::leak(Box::new(move |vm: &VirtualMachine, args: FuncArgs, _: Callee| work(vm, args)));
    let definition: &'static PyMethodDef = Box::leak(Box::new(PyMethodDef {
        name: vm.ctx.intern_str(name).as_str(),
        func: work,
        flags: PyMethodFlags::EMPTY,
        doc: Some(&*Box::leak(doc.to_owned().into_boxed_str())),
    }));
    definition.build_function(&vm.ctx).into()
}

/// The functions of `config` that this guest knows, with their names.
pub fn functions(vm: &VirtualMachine, wanted: &[String]) -> Vec<(&'static str, PyObjectRef)> {
    let mut functions = vec![
        (
            "FINAL_VAR",
            function(
                vm,
                "FINAL_VAR",
                "FINAL_VAR(name, /)\n--\n\nAnswers with the value of the variable of that name, or with any other value.",
                |vm, args| final_var(vm, &*one(vm, "FINAL_VAR", args)?),
            ),
        ),
        (
            "FINAL",
            function(vm, "FINAL", "FINAL(answer, /)\n--\n\nAnswers with a value.", |vm, args| {
                final_value(vm, &*one(vm, "FINAL", args)?)
            }),
        ),
        (
            "SHOW_VARS",
            function(vm, "SHOW_VARS", "SHOW_VARS()\n--\n\nSays which variables exist.", |vm, args| {
                if !args.args.is_empty() || !args.kwargs.is_empty() {
                    return Err(vm.new_type_error("SHOW_VARS() takes no arguments"));
                }
                Ok(vm.ctx.new_str(show_vars(vm)).into())
            }),
        ),
    ];
    for name in policy::HOST_FUNCTIONS {
        if !wanted.iter().any(|wanted| wanted == name) {
            continue;
        }
        let (doc, optional): (_, &'static [&'static str]) = match *name {
            "llm_query" => {
                ("llm_query(prompt, model=None)\n--\n\nAsks a language model; answers its text.", &["model"])
            }
            "llm_query_batched" => (
                "llm_query_batched(prompts, model=None)\n--\n\nAsks several prompts at once; answers in order.",
                &["model"],
            ),
            "rlm_query" => (
                "rlm_query(prompt, model=None, context=None)\n--\n\nHands a task to a model with a REPL of its own.",
                &["model", "context"],
            ),
            _ => (
                "rlm_query_batched(prompts, model=None, context_list=None)\n--\n\nHands out several tasks at once.",
                &["model", "context_list"],
            ),
        };
        let batched = name.ends_with("batched");
        functions.push((name, function(vm, name, doc, move |vm, args| query(vm, name, batched, optional, args))));
    }
    functions
}

/// A function that the host serves with whatever arguments come.
pub fn tool(vm: &VirtualMachine, name: &str, description: &str) -> PyObjectRef {
    let called = name.to_owned();
    function(vm, name, description, move |vm, args| {
        let repl = current(vm)?;
        let limit = repl.max_value_bytes;
        let positional = args
            .args
            .iter()
            .enumerate()
            .map(|(index, value)| crossing(vm, value, limit, &format!("argument {} of `{called}`", index + 1)))
            .collect::<PyResult<Vec<_>>>()?;
        let mut named = Vec::new();
        for (key, value) in &args.kwargs {
            let key = key.to_string();
            let value = crossing(vm, value, limit, &format!("argument `{key}` of `{called}`"))?;
            named.push((key, value));
        }
        ask(vm, HostCall { function: called.clone(), args: positional, kwargs: named })
    })
}

fn one(vm: &VirtualMachine, name: &str, args: FuncArgs) -> PyResult {
    if args.args.len() == 1 && args.kwargs.is_empty() {
        return args.args.into_iter().next().ok_or_else(|| vm.new_type_error("no argument"));
    }
    Err(vm.new_type_error(format!(
        "{name}() takes exactly one positional argument ({} given)",
        args.args.len() + args.kwargs.len()
    )))
}

fn crossing(vm: &VirtualMachine, value: &PyObject, limit: usize, what: &str) -> PyResult<Value> {
    convert::from_python(vm, value, limit).map_err(|refusal| vm.new_value_error(refusal.message(what, limit)))
}

/// Calls the host and turns its answer into a Python value or exception.
fn ask(vm: &VirtualMachine, request: HostCall) -> PyResult {
    let reply = host::call(&request);
    // The host may have ended the block while it was suspended.
    vm.check_signals()?;
    match reply {
        Ok(HostReply::Return(value)) => crate::heap::exempt(|| convert::to_python(vm, value)),
        Ok(HostReply::Raise { type_name, message }) => Err(exception(vm, &type_name, message)),
        Err(error) => {
            Err(vm.new_runtime_error(format!("the host's answer to `{}` is unreadable: {error}", request.function)))
        }
    }
}

/// The built-in exception `type_name`, or `RuntimeError`.
fn exception(vm: &VirtualMachine, type_name: &str, message: String) -> PyBaseExceptionRef {
    let class = Repl::pristine_builtin(vm, type_name)
        .and_then(|class| class.downcast::<PyType>().ok())
        .filter(|class| class.fast_issubclass(vm.ctx.exceptions.base_exception_type))
        .unwrap_or_else(|| vm.ctx.exceptions.runtime_error.to_owned());
    let message = vm.ctx.new_str(message).into();
    vm.invoke_exception(&class, vec![message])
        .unwrap_or_else(|_| vm.new_runtime_error("the host raised an exception that cannot be made"))
}

fn query(
    vm: &VirtualMachine,
    name: &'static str,
    batched: bool,
    optional: &'static [&'static str],
    args: FuncArgs,
) -> PyResult {
    let first = if batched { "prompts" } else { "prompt" };
    if args.args.len() > 1 + optional.len() {
        return Err(vm.new_type_error(format!(
            "{name}() takes from 1 to {} positional arguments but {} were given",
            1 + optional.len(),
            args.args.len()
        )));
    }
    let mut slots: Vec<Option<PyObjectRef>> = vec![None; 1 + optional.len()];
    for (slot, value) in slots.iter_mut().zip(args.args) {
        *slot = Some(value);
    }
    for (key, value) in args.kwargs {
        let key = key.to_string();
        let index = if key == first { Some(0) } else { optional.iter().position(|name| *name == key).map(|i| i + 1) };
        let Some(index) = index else {
            return Err(vm.new_type_error(format!("{name}() got an unexpected keyword argument '{key}'")));
        };
        if slots[index].replace(value).is_some() {
            return Err(vm.new_type_error(format!("{name}() got multiple values for argument '{key}'")));
        }
    }
    let mut slots = slots.into_iter();
    let Some(prompt) = slots.next().flatten() else {
        return Err(vm.new_type_error(format!("{name}() missing 1 required positional argument: '{first}'")));
    };
    let limit = current(vm)?.max_value_bytes;
    let prompt = if batched {
        if prompt.downcast_ref::<PyStr>().is_some() {
            return Err(vm.new_type_error(format!("{name}() expects a list of prompts, not one string")));
        }
        let prompts: Vec<PyObjectRef> = prompt.try_to_value(vm)?;
        let mut values = Vec::with_capacity(prompts.len());
        for prompt in prompts {
            values.push(text(vm, &prompt, limit)?);
        }
        Value::List(values)
    } else {
        text(vm, &prompt, limit)?
    };
    let mut kwargs = Vec::new();
    for (key, value) in optional.iter().zip(slots) {
        if let Some(value) = value.filter(|value| !vm.is_none(value)) {
            let value = if *key == "context_list" {
                let contexts: Vec<PyObjectRef> = value.try_to_value(vm)?;
                vm.ctx.new_list(contexts).into()
            } else {
                value
            };
            kwargs.push(((*key).to_owned(), crossing(vm, &value, limit, &format!("argument `{key}` of `{name}`"))?));
        }
    }
    ask(vm, HostCall { function: name.to_owned(), args: vec![prompt], kwargs })
}

/// A prompt: anything that is not a string goes as its `str`.
fn text(vm: &VirtualMachine, value: &PyObject, limit: usize) -> PyResult<Value> {
    let text = value.str(vm)?;
    if text.as_bytes().len() > limit {
        return Err(vm.new_value_error(format!(
            "a prompt of {} bytes is larger than the limit of {limit} bytes",
            text.as_bytes().len()
        )));
    }
    Ok(Value::Str(text.as_wtf8().to_string_lossy().into_owned()))
}

/// The answer that `value` is.
pub fn answer(vm: &VirtualMachine, repl: &Repl, value: &PyObject) -> PyResult<FinalAnswer> {
    let text = value.str(vm)?;
    let mut text = text.as_wtf8().to_string_lossy().into_owned();
    convert::truncate(&mut text, repl.max_value_bytes);
    Ok(FinalAnswer { text, value: convert::from_python_or_opaque(vm, value, repl.max_value_bytes) })
}

/// The variable that `FINAL_VAR(name)` means, with quotes and blanks around the name taken off.
pub fn final_variable(vm: &VirtualMachine, repl: &Repl, name: &str) -> Result<PyObjectRef, String> {
    let name = name.trim().trim_matches(['"', '\'', '`']).trim();
    let is_function = policy::GUEST_FUNCTIONS.contains(&name) || policy::HOST_FUNCTIONS.contains(&name);
    if !is_function && !name.starts_with("__") {
        if let Some(value) = repl.namespace.get(vm, name) {
            return Ok(value);
        }
    }
    let names: Vec<String> =
        repl.namespace.variables(vm).into_iter().map(|variable| format!("'{}'", variable.name)).take(100).collect();
    let available = if names.is_empty() {
        "No variables have been created yet: assign the answer to a variable in a block first.".to_owned()
    } else {
        format!("Available variables: [{}].", names.join(", "))
    };
    let mut shown = name.to_owned();
    convert::truncate(&mut shown, 200);
    Err(format!("Error: Variable '{shown}' not found. {available} FINAL(value) answers with a value directly."))
}

fn final_var(vm: &VirtualMachine, value: &PyObject) -> PyResult {
    let repl = current(vm)?;
    let value = match value.downcast_ref::<PyStr>() {
        None => value.to_owned(),
        Some(name) => match final_variable(vm, &repl, &name.as_wtf8().to_string_lossy()) {
            Ok(value) => value,
            Err(message) => {
                rustpython_vm::common::espalier::write(1, format!("{message}\n").as_bytes());
                return Ok(vm.ctx.new_str(message).into());
            }
        },
    };
    final_value(vm, &value)
}

fn final_value(vm: &VirtualMachine, value: &PyObject) -> PyResult {
    let repl = current(vm)?;
    let answer = answer(vm, &repl, value)?;
    let text = answer.text.clone();
    repl.answer.replace(Some(answer));
    Ok(vm.ctx.new_str(text).into())
}

fn show_vars(vm: &VirtualMachine) -> String {
    let Ok(repl) = current(vm) else { return String::new() };
    let variables = repl.namespace.variables(vm);
    if variables.is_empty() {
        return "No variables created yet. Use a block to create some.".to_owned();
    }
    let mut listed: Vec<String> =
        variables.iter().take(1000).map(|variable| format!("'{}': '{}'", variable.name, variable.type_name)).collect();
    if variables.len() > listed.len() {
        listed.push(format!("... and {} more", variables.len() - listed.len()));
    }
    format!("Available variables: {{{}}}", listed.join(", "))
}
