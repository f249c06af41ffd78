//! A module as Python source.

use super::super::filler;
use super::plan::{Form, Function, Module, Plan};
use crate::draw::Draw;

/// The path and the source of a module.
pub(super) fn module(plan: &Plan, module: &Module, draw: &mut Draw) -> (String, String) {
    let mut out = String::new();
    docstring(&mut out, "", draw);
    out.push('\n');
    for (other, form) in &module.imports {
        let target = &plan.modules[*other];
        match form {
            Form::Dotted => out.push_str(&format!("import {}\n", target.dotted)),
            Form::Module => out.push_str(&format!("from {} import {}\n", target.package, target.name)),
            Form::Names => {
                let names: Vec<String> = module
                    .names
                    .iter()
                    .filter(|(_, (from, _))| from == other)
                    .map(|(local, (_, name))| if local == name { name.clone() } else { format!("{name} as {local}") })
                    .collect();
                out.push_str(&format!("from {} import {}\n", target.dotted, names.join(", ")));
            }
        }
    }
    if !module.imports.is_empty() {
        out.push('\n');
    }
    for constant in &module.constants {
        match &constant.alias {
            Some(alias) => out.push_str(&format!("{} = {alias}\n", constant.name)),
            None if constant.hops == 0 => out.push_str(&format!("{} = {}\n", constant.name, constant.value)),
            // An import made it a name already.
            None => {}
        }
    }
    for function in &module.functions {
        out.push_str("\n\n");
        write_function(&mut out, function, draw);
    }
    out.push('\n');
    (format!("{}/{}.py", module.package, module.name), out)
}

fn docstring(out: &mut String, indent: &str, draw: &mut Draw) {
    out.push_str(indent);
    out.push_str("\"\"\"");
    filler::sentence(out, draw);
    out.push_str("\"\"\"\n");
}

fn write_function(out: &mut String, function: &Function, draw: &mut Draw) {
    out.push_str(&format!("def {}(x):\n", function.name));
    if draw.below(3) > 0 {
        docstring(out, "    ", draw);
    }
    let Function { factor, addend, modulus, .. } = function;
    let addend = addend.0.clone().unwrap_or_else(|| addend.1.to_string());
    let inner = match &function.call {
        None => "x".to_owned(),
        Some(call) => {
            let argument = if call.shift == 0 { "x".to_owned() } else { format!("x + {}", call.shift) };
            format!("{}({argument})", call.expression)
        }
    };
    if draw.below(2) == 0 {
        out.push_str(&format!("    total = {inner}\n"));
        if draw.below(3) == 0 {
            out.push_str("    # ");
            filler::sentence(out, draw);
            out.push('\n');
        }
        out.push_str(&format!("    return (total * {factor} + {addend}) % {modulus}\n"));
    } else {
        out.push_str(&format!("    return ({inner} * {factor} + {addend}) % {modulus}\n"));
    }
}
