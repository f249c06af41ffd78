//! The model's names and their restoration after every block.
//!
//! A block may do anything to its namespace: rebind, delete, shadow by a class or an import, put keys there whose
//! `__eq__` lies, change `builtins`. [`Namespace::restore`] runs no code of the model while it puts things back: keys
//! that are not exactly `str` are dropped by walking the entries, never by looking them up, and what is replaced stays
//! alive until everything stands. Only then it is dropped; if a `__del__` interferes, the work is done again, and after
//! [`ROUNDS`] rounds what is still replaced is leaked instead.

use std::cell::RefCell;

use espalier_sandbox_protocol::{VariableInfo, policy};
use rustpython_vm::builtins::{PyBytes, PyDict, PyDictRef, PyFrozenSet, PyList, PySet, PyStr, PyStrInterned, PyTuple};
use rustpython_vm::{AsObject, PyObjectRef, PyResult, VirtualMachine};

const ROUNDS: usize = 4;

type Name = &'static PyStrInterned;

/// What stands in a dictionary that is put back.
#[derive(Default)]
struct Fixture {
    entries: Vec<(Name, PyObjectRef)>,
}

impl Fixture {
    fn of(vm: &VirtualMachine, dict: &PyDictRef) -> Self {
        let entries = dict
            .items_vec()
            .into_iter()
            .filter_map(|(key, value)| Some((vm.ctx.intern_str(key.downcast_ref::<PyStr>()?.to_str()?), value)))
            .collect();
        Self { entries }
    }

    fn holds(&self, vm: &VirtualMachine, dict: &PyDictRef) -> bool {
        self.entries
            .iter()
            .all(|(name, value)| matches!(dict.get_item_opt(*name, vm), Ok(Some(current)) if current.is(value)))
    }
}

/// The model's names.
pub struct Namespace {
    globals: PyDictRef,
    builtins: PyDictRef,
    real_builtins: PyDictRef,
    builtins_fixture: Fixture,
    real_fixture: Fixture,
    /// Scaffold, tools, contexts, `__builtins__`, `__name__`.
    reserved: RefCell<Fixture>,
    /// Of `sys`.
    system: Fixture,
}

impl Namespace {
    /// An empty namespace whose builtins are `builtins`.
    pub fn new(vm: &VirtualMachine, builtins: PyDictRef) -> PyResult<Self> {
        let globals = vm.ctx.new_dict();
        let main = vm.new_module("__main__", globals.clone(), None);
        vm.sys_module.get_attr("modules", vm)?.set_item("__main__", main.into(), vm)?;
        let real_builtins = vm.builtins.dict();
        let mut system = Fixture::default();
        for name in ["stdout", "stderr", "stdin", "__stdout__", "__stderr__", "__stdin__", "modules"] {
            system.entries.push((vm.ctx.intern_str(name), vm.sys_module.get_attr(name, vm)?));
        }
        let namespace = Self {
            builtins_fixture: Fixture::of(vm, &builtins),
            real_fixture: Fixture::of(vm, &real_builtins),
            globals,
            builtins,
            real_builtins,
            reserved: RefCell::default(),
            system,
        };
        namespace.reserve(vm, "__name__", vm.ctx.new_str("__main__").into())?;
        namespace.reserve(vm, "__builtins__", namespace.builtins.clone().into())?;
        Ok(namespace)
    }

    /// The dictionary that blocks run in.
    pub fn globals(&self) -> &PyDictRef {
        &self.globals
    }

    /// A builtin of the interpreter as it was when the REPL began.
    pub fn real_builtin(&self, name: &str) -> Option<PyObjectRef> {
        self.real_fixture.entries.iter().find(|(known, _)| known.as_str() == name).map(|(_, value)| value.clone())
    }

    /// Binds `name` for good: it is put back after every block.
    pub fn reserve(&self, vm: &VirtualMachine, name: &str, value: PyObjectRef) -> PyResult<()> {
        let name = vm.ctx.intern_str(name);
        {
            let mut reserved = self.reserved.borrow_mut();
            match reserved.entries.iter_mut().find(|(known, _)| std::ptr::eq(*known, name)) {
                Some(entry) => entry.1 = value.clone(),
                None => reserved.entries.push((name, value.clone())),
            }
        }
        self.globals.set_item(name, value, vm)
    }

    /// Whether `name` is put back after every block.
    pub fn is_reserved(&self, name: &str) -> bool {
        self.reserved.borrow().entries.iter().any(|(known, _)| known.as_str() == name)
    }

    /// The value of the variable `name`; no code of the model runs.
    pub fn get(&self, vm: &VirtualMachine, name: &str) -> Option<PyObjectRef> {
        self.drop_foreign_keys(vm, &self.globals);
        self.globals.get_item_opt(vm.ctx.intern_str(name), vm).ok().flatten()
    }

    /// Binds an ordinary variable.
    pub fn set(&self, vm: &VirtualMachine, name: &str, value: PyObjectRef) -> PyResult<()> {
        self.drop_foreign_keys(vm, &self.globals);
        self.globals.set_item(vm.ctx.intern_str(name), value, vm)
    }

    /// The model's variables in the order of their first assignment: nothing reserved, nothing with a leading
    /// underscore.
    pub fn variables(&self, _vm: &VirtualMachine) -> Vec<VariableInfo> {
        let mut variables = Vec::new();
        let mut position = 0;
        while let Some((next, key, value)) = self.globals.next_entry(position) {
            position = next;
            let Some(name) = key.downcast_ref::<PyStr>().and_then(|key| key.to_str()) else { continue };
            if name.starts_with('_') || self.is_reserved(name) {
                continue;
            }
            variables.push(VariableInfo {
                name: name.to_owned(),
                type_name: crate::convert::type_name(&value),
                length: length(&value),
            });
        }
        variables
    }

    /// Puts everything back.
    pub fn restore(&self, vm: &VirtualMachine) {
        for round in 0..ROUNDS {
            let mut replaced = Vec::new();
            self.restore_once(vm, &mut replaced);
            if replaced.is_empty() {
                return;
            }
            if round + 1 == ROUNDS {
                std::mem::forget(replaced);
            } else {
                drop(replaced);
            }
        }
    }

    fn restore_once(&self, vm: &VirtualMachine, replaced: &mut Vec<PyObjectRef>) {
        let reserved = std::mem::take(&mut *self.reserved.borrow_mut());
        put_back(vm, &self.globals, &reserved, false, replaced);
        *self.reserved.borrow_mut() = reserved;
        put_back(vm, &self.builtins, &self.builtins_fixture, true, replaced);
        put_back(vm, &self.real_builtins, &self.real_fixture, true, replaced);
        put_back(vm, &vm.sys_module.dict(), &self.system, false, replaced);
    }

    fn drop_foreign_keys(&self, vm: &VirtualMachine, dict: &PyDictRef) {
        let mut replaced = Vec::new();
        put_back(vm, dict, &Fixture::default(), false, &mut replaced);
    }
}

/// Puts `fixture` back into `dict`, which then holds only keys that are exactly `str`, and nothing else at all where
/// `closed`. What was there goes to `replaced`.
fn put_back(vm: &VirtualMachine, dict: &PyDictRef, fixture: &Fixture, closed: bool, replaced: &mut Vec<PyObjectRef>) {
    let str_type = vm.ctx.types.str_type;
    let mut foreign = false;
    let mut position = 0;
    while let Some((next, key, _)) = dict.next_entry(position) {
        position = next;
        if !key.class().is(str_type) {
            foreign = true;
            break;
        }
    }
    if !foreign && fixture.holds(vm, dict) && (!closed || dict.__len__() == fixture.entries.len()) {
        return;
    }
    if foreign || closed {
        // Rebuild from what is kept: clearing and inserting `str` keys into an empty dictionary calls nobody.
        let entries = dict.items_vec();
        let mut kept = Vec::with_capacity(entries.len());
        for (key, value) in entries {
            if !closed && key.class().is(str_type) {
                kept.push((key, value));
            } else {
                replaced.push(key);
                replaced.push(value);
            }
        }
        dict.clear();
        for (key, value) in kept {
            if let Some(key) = key.downcast_ref::<PyStr>() {
                let _ = dict.set_item(key, value, vm);
            }
        }
    }
    for (name, value) in &fixture.entries {
        match dict.get_item_opt(*name, vm) {
            Ok(Some(current)) if current.is(value) => {}
            current => {
                if let Ok(Some(current)) = current {
                    replaced.push(current);
                }
                let _ = dict.set_item(*name, value.clone(), vm);
            }
        }
    }
    if replaced.is_empty() {
        // Something was only missing. The round counts all the same, so that the caller looks again.
        replaced.push(vm.ctx.none());
    }
}

/// `len(value)` of built-in containers and strings.
fn length(value: &PyObjectRef) -> Option<u64> {
    let length = if let Some(text) = value.downcast_ref::<PyStr>() {
        text.char_len()
    } else if let Some(list) = value.downcast_ref::<PyList>() {
        list.borrow_vec().len()
    } else if let Some(tuple) = value.downcast_ref::<PyTuple>() {
        tuple.as_slice().len()
    } else if let Some(dict) = value.downcast_ref::<PyDict>() {
        dict.__len__()
    } else if let Some(set) = value.downcast_ref::<PySet>() {
        set.elements().len()
    } else if let Some(set) = value.downcast_ref::<PyFrozenSet>() {
        set.elements().len()
    } else if let Some(bytes) = value.downcast_ref::<PyBytes>() {
        bytes.as_bytes().len()
    } else {
        return None;
    };
    Some(length as u64)
}

/// The builtins of the model's code under a policy. `refuse` makes the function that a blocked name becomes.
pub fn policy_builtins(
    vm: &VirtualMachine,
    strict: bool,
    import: PyObjectRef,
    refuse: impl Fn(&'static str) -> PyObjectRef,
) -> PyResult<PyDictRef> {
    let builtins = vm.ctx.new_dict();
    for (key, value) in vm.builtins.dict().items_vec() {
        let Some(name) = key.downcast_ref::<PyStr>().and_then(|key| key.to_str()) else { continue };
        let is_exception = value
            .downcast_ref::<rustpython_vm::builtins::PyType>()
            .is_some_and(|class| class.fast_issubclass(vm.ctx.exceptions.base_exception_type));
        let kept = if strict {
            is_exception || policy::STRICT_BUILTINS.binary_search(&name).is_ok()
        } else {
            !name.starts_with("__") || matches!(name, "__build_class__" | "__debug__")
        };
        if kept {
            builtins.set_item(vm.ctx.intern_str(name), value, vm)?;
        }
    }
    for (name, _) in policy::BLOCKED_BUILTINS {
        builtins.set_item(vm.ctx.intern_str(*name), refuse(name), vm)?;
    }
    builtins.set_item(vm.ctx.intern_str("__import__"), import, vm)?;
    builtins.set_item(vm.ctx.intern_str("__name__"), vm.ctx.new_str("builtins").into(), vm)?;
    Ok(builtins)
}
