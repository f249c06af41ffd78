//! Python objects <-> protocol values.
//!
//! No Python code runs in [`from_python`] but the `repr` of what has no form of its own.

use espalier_sandbox_protocol::{Value, codec::MAX_DEPTH};
use malachite_bigint::BigInt;
use rustpython_vm::builtins::{
    PyByteArray, PyBytes, PyDict, PyFloat, PyFrozenSet, PyInt, PyList, PySet, PyStr, PyTuple,
};
use rustpython_vm::{AsObject, PyObject, PyObjectRef, PyResult, VirtualMachine};

/// Why a value does not cross.
pub enum Refusal {
    /// Nested beyond the protocol's depth (cycles included).
    Depth,
    /// More bytes than the bound.
    Size,
}

impl Refusal {
    /// What is wrong with `what`, for people.
    pub fn message(&self, what: &str, max_bytes: usize) -> String {
        match self {
            Self::Depth => format!("{what} nests deeper than {MAX_DEPTH} levels"),
            Self::Size => format!("{what} is larger than {max_bytes} bytes"),
        }
    }
}

/// A Python object for `value`.
pub fn to_python(vm: &VirtualMachine, value: Value) -> PyResult {
    let ctx = &vm.ctx;
    let list = |items: Vec<Value>| items.into_iter().map(|item| to_python(vm, item)).collect::<PyResult<Vec<_>>>();
    Ok(match value {
        Value::None => ctx.none(),
        Value::Bool(truth) => ctx.new_bool(truth).into(),
        Value::Int(number) => ctx.new_int(number).into(),
        Value::BigInt(digits) => match digits.parse::<BigInt>() {
            Ok(number) => ctx.new_bigint(&number).into(),
            Err(_) => return Err(vm.new_value_error("the host sent digits that are no integer")),
        },
        Value::Float(number) => ctx.new_float(number).into(),
        Value::Str(text) => ctx.new_str(text).into(),
        Value::Bytes(bytes) => ctx.new_bytes(bytes).into(),
        Value::List(items) => ctx.new_list(list(items)?).into(),
        Value::Tuple(items) => ctx.new_tuple(list(items)?).into(),
        Value::Dict(entries) => {
            let dict = ctx.new_dict();
            for (key, item) in entries {
                let (key, item) = (to_python(vm, key)?, to_python(vm, item)?);
                dict.set_item(&*key, item, vm)?;
            }
            dict.into()
        }
        Value::Set(items) => {
            let set = PySet::new_ref(ctx);
            for item in items {
                set.add(to_python(vm, item)?, vm)?;
            }
            set.into()
        }
        Value::Opaque { repr, .. } => ctx.new_str(repr).into(),
    })
}

/// The value of `object`, within the protocol's depth and about `max_bytes` bytes.
pub fn from_python(vm: &VirtualMachine, object: &PyObject, max_bytes: usize) -> Result<Value, Refusal> {
    let mut budget = max_bytes;
    convert(vm, object, 0, &mut budget)
}

/// As [`from_python`]; what does not cross becomes [`Value::Opaque`].
pub fn from_python_or_opaque(vm: &VirtualMachine, object: &PyObject, max_bytes: usize) -> Value {
    from_python(vm, object, max_bytes).unwrap_or_else(|_| opaque(vm, object, max_bytes.min(OPAQUE_REPR)))
}

/// Longest `repr` of an opaque value.
const OPAQUE_REPR: usize = 1000;

/// Cuts at a character boundary, in place.
pub fn truncate(text: &mut String, max_bytes: usize) {
    if text.len() > max_bytes {
        let mut end = max_bytes;
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
    }
}

/// `type(object).__name__`
pub fn type_name(object: &PyObject) -> String {
    object.class().name().to_string()
}

fn opaque(vm: &VirtualMachine, object: &PyObject, max_bytes: usize) -> Value {
    let mut repr = match object.repr(vm) {
        Ok(repr) => repr.as_wtf8().to_string_lossy().into_owned(),
        Err(_) => format!("<{} object>", type_name(object)),
    };
    truncate(&mut repr, max_bytes);
    Value::Opaque { type_name: type_name(object), repr }
}

fn spend(budget: &mut usize, bytes: usize) -> Result<(), Refusal> {
    *budget = budget.checked_sub(bytes).ok_or(Refusal::Size)?;
    Ok(())
}

fn text_of(text: &PyStr, budget: &mut usize) -> Result<Value, Refusal> {
    spend(budget, text.as_bytes().len())?;
    Ok(Value::Str(text.as_wtf8().to_string_lossy().into_owned()))
}

fn convert(vm: &VirtualMachine, object: &PyObject, depth: usize, budget: &mut usize) -> Result<Value, Refusal> {
    spend(budget, 5)?;
    let items = |items: &[PyObjectRef], budget: &mut usize| {
        if depth == MAX_DEPTH {
            return Err(Refusal::Depth);
        }
        items.iter().map(|item| convert(vm, item, depth + 1, budget)).collect::<Result<Vec<_>, _>>()
    };
    if vm.is_none(object) {
        return Ok(Value::None);
    }
    if let Some(text) = object.downcast_ref::<PyStr>() {
        return text_of(text, budget);
    }
    if let Some(int) = object.downcast_ref::<PyInt>() {
        if object.class().is(vm.ctx.types.bool_type) {
            return Ok(Value::Bool(int.as_bigint() != &BigInt::from(0)));
        }
        spend(budget, 4)?;
        return Ok(match i64::try_from(int.as_bigint()) {
            Ok(number) => Value::Int(number),
            Err(_) => {
                // Three bits a digit is an upper bound; digits cost quadratic time, so the bound is low.
                let digits = (int.as_bigint().bits() / 3 + 2) as usize;
                spend(budget, digits)?;
                if digits > 1_000_000 {
                    return Err(Refusal::Size);
                }
                Value::BigInt(int.as_bigint().to_string())
            }
        });
    }
    if let Some(float) = object.downcast_ref::<PyFloat>() {
        spend(budget, 4)?;
        return Ok(Value::Float(float.to_f64()));
    }
    if let Some(list) = object.downcast_ref::<PyList>() {
        let copy = list.borrow_vec().to_vec();
        return Ok(Value::List(items(&copy, budget)?));
    }
    if let Some(tuple) = object.downcast_ref::<PyTuple>() {
        return Ok(Value::Tuple(items(tuple.as_slice(), budget)?));
    }
    if let Some(dict) = object.downcast_ref::<PyDict>() {
        if depth == MAX_DEPTH {
            return Err(Refusal::Depth);
        }
        let mut entries = Vec::new();
        for (key, item) in dict.items_vec() {
            entries.push((convert(vm, &key, depth + 1, budget)?, convert(vm, &item, depth + 1, budget)?));
        }
        return Ok(Value::Dict(entries));
    }
    if let Some(set) = object.downcast_ref::<PySet>() {
        return Ok(Value::Set(items(&set.elements(), budget)?));
    }
    if let Some(set) = object.downcast_ref::<PyFrozenSet>() {
        return Ok(Value::Set(items(&set.elements(), budget)?));
    }
    if let Some(bytes) = object.downcast_ref::<PyBytes>() {
        spend(budget, bytes.as_bytes().len())?;
        return Ok(Value::Bytes(bytes.as_bytes().to_vec()));
    }
    if let Some(bytes) = object.downcast_ref::<PyByteArray>() {
        let bytes = bytes.borrow_buf().to_vec();
        spend(budget, bytes.len())?;
        return Ok(Value::Bytes(bytes));
    }
    let opaque = opaque(vm, object, (*budget).min(OPAQUE_REPR));
    if let Value::Opaque { type_name, repr } = &opaque {
        spend(budget, type_name.len() + repr.len())?;
    }
    Ok(opaque)
}
