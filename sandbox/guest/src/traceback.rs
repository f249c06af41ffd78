//! Exceptions as text, as Python prints them, with the blocks' own lines.
//!
//! Written here and not by Python's `traceback` module: the model may have changed that one.

use std::fmt::Write as _;

use rustpython_vm::builtins::{PyBaseException, PyStr};
use rustpython_vm::{AsObject, Py, PyObjectRef, VirtualMachine};

use crate::repl::source_line;

/// Longest chain of causes that is printed.
const MAX_CHAIN: usize = 16;
/// Half of the frames that are printed of a long traceback.
const MAX_FRAMES: usize = 24;
/// Longest message that is printed, bytes.
const MAX_MESSAGE: usize = 20_000;

/// The text that goes to stderr.
pub fn format(vm: &VirtualMachine, exception: &Py<PyBaseException>) -> String {
    let mut out = String::new();
    let mut chain = Vec::new();
    let mut current = Some((exception.to_owned(), ""));
    while let Some((exception, link)) = current {
        if chain.len() == MAX_CHAIN || chain.iter().any(|(seen, _): &(_, _)| exception.is(seen)) {
            break;
        }
        current = if let Some(cause) = exception.__cause__() {
            Some((cause, "\nThe above exception was the direct cause of the following exception:\n\n"))
        } else if attribute(vm, &exception, "__suppress_context__").is_some_and(|value| value.is(&vm.ctx.true_value)) {
            None
        } else {
            exception
                .__context__()
                .map(|context| (context, "\nDuring handling of the above exception, another exception occurred:\n\n"))
        };
        chain.push((exception, link));
    }
    // A link's text stands behind the exception it leads to, which is printed before.
    while let Some((exception, link)) = chain.pop() {
        one(vm, &exception, &mut out);
        out.push_str(link);
    }
    out
}

/// `str(exception)`, bounded; never fails.
pub fn message(exception: &Py<PyBaseException>, vm: &VirtualMachine) -> String {
    let mut text = match exception.as_object().str(vm) {
        Ok(text) => text.as_wtf8().to_string_lossy().into_owned(),
        Err(_) => "<exception str() failed>".to_owned(),
    };
    crate::convert::truncate(&mut text, MAX_MESSAGE);
    text
}

fn one(vm: &VirtualMachine, exception: &Py<PyBaseException>, out: &mut String) {
    let mut frames = Vec::new();
    let mut next = exception.__traceback__();
    while let Some(entry) = next {
        next = entry.next.lock().clone();
        frames.push(entry);
    }
    if !frames.is_empty() {
        out.push_str("Traceback (most recent call last):\n");
    }
    let mut repeated = 0;
    let mut shown = 0;
    let mut last = None;
    for (index, entry) in frames.iter().enumerate() {
        let code = entry.frame.f_code();
        let place = (code.get_id(), entry.lineno.get());
        repeated = if last == Some(place) { repeated + 1 } else { 0 };
        last = Some(place);
        // As Python: three times, then a count.
        if repeated >= 3 {
            let next = frames.get(index + 1).map(|next| (next.frame.f_code().get_id(), next.lineno.get()));
            if next != last {
                let count = repeated - 2;
                let times = if count == 1 { "time" } else { "times" };
                let _ = writeln!(out, "  [Previous line repeated {count} more {times}]");
            }
            continue;
        }
        if shown == 2 * MAX_FRAMES {
            let _ = writeln!(out, "  [{} frames left out]", frames.len() - index);
            break;
        }
        shown += 1;
        let file = code.source_path().as_str();
        let line = entry.lineno.get();
        let _ = writeln!(out, "  File \"{file}\", line {line}, in {}", code.obj_name);
        if let Some(text) = source_line(file, line) {
            let _ = writeln!(out, "    {}", text.trim());
        }
    }
    let class = exception.class();
    if class.fast_issubclass(vm.ctx.exceptions.syntax_error) {
        syntax_error(vm, exception, out);
    } else {
        let module = class.__module__(vm).ok();
        let name = match module.as_ref().and_then(|module| module.downcast_ref::<PyStr>()?.to_str()) {
            Some("builtins" | "__main__") | None => class.name().to_string(),
            Some(module) => format!("{module}.{}", class.name()),
        };
        let text = message(exception, vm);
        let _ = if text.is_empty() { writeln!(out, "{name}") } else { writeln!(out, "{name}: {text}") };
    }
    notes(vm, exception, out);
}

fn attribute(vm: &VirtualMachine, exception: &Py<PyBaseException>, name: &'static str) -> Option<PyObjectRef> {
    exception.as_object().get_attr(name, vm).ok().filter(|value| !vm.is_none(value))
}

fn syntax_error(vm: &VirtualMachine, exception: &Py<PyBaseException>, out: &mut String) {
    let text = |name| {
        let value = attribute(vm, exception, name)?;
        Some(value.downcast_ref::<PyStr>()?.as_wtf8().to_string_lossy().into_owned())
    };
    let number = |name| attribute(vm, exception, name)?.try_to_value::<usize>(vm).ok();
    if let Some(line) = number("lineno") {
        let file = text("filename").unwrap_or_else(|| "<string>".to_owned());
        let _ = writeln!(out, "  File \"{file}\", line {line}");
        if let Some(source) = text("text").or_else(|| source_line(&file, line)) {
            let source = source.trim_end();
            let stripped = source.trim_start();
            let cut: String = stripped.chars().take(400).collect();
            let _ = writeln!(out, "    {cut}");
            if let Some(offset) = number("offset").filter(|offset| *offset > 0) {
                let indent = source.chars().count() - stripped.chars().count();
                let column = (offset - 1).saturating_sub(indent);
                if column < 400 {
                    let same_line = number("end_lineno").is_none_or(|end| end == line);
                    let end = number("end_offset").filter(|end| same_line && *end > offset).unwrap_or(offset + 1);
                    let width = (end - offset).clamp(1, cut.chars().count().saturating_sub(column).max(1));
                    let _ = writeln!(out, "    {}{}", " ".repeat(column), "^".repeat(width));
                }
            }
        }
    }
    let message = text("msg").unwrap_or_else(|| message(exception, vm));
    let _ = writeln!(out, "{}: {message}", exception.class().name());
}

fn notes(vm: &VirtualMachine, exception: &Py<PyBaseException>, out: &mut String) {
    let Some(notes) = attribute(vm, exception, "__notes__") else { return };
    let Ok(notes) = notes.downcast::<rustpython_vm::builtins::PyList>() else { return };
    let notes = notes.borrow_vec().to_vec();
    for note in notes.iter().take(MAX_CHAIN) {
        if let Some(note) = note.downcast_ref::<PyStr>() {
            let mut note = note.as_wtf8().to_string_lossy().into_owned();
            crate::convert::truncate(&mut note, MAX_MESSAGE);
            let _ = writeln!(out, "{note}");
        }
    }
}
