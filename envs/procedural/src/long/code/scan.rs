//! The answers found again from the text alone: files are split, imports resolved and functions evaluated, as Python
//! would for the few forms of statements that stand in them.

use std::collections::BTreeMap;

use serde_json::{Value, json};

/// A file.
#[derive(Default)]
struct Module<'a> {
    /// Modules that are named in imports, whole or by part.
    imports: Vec<String>,
    /// Local names that an import binds to a name of another module.
    names: BTreeMap<&'a str, (&'a str, &'a str)>,
    /// Local names that an import binds to a module.
    modules: BTreeMap<&'a str, String>,
    constants: BTreeMap<&'a str, &'a str>,
    /// Functions with the lines of their bodies that are statements.
    functions: BTreeMap<&'a str, Vec<&'a str>>,
}

type Repository<'a> = BTreeMap<String, Module<'a>>;

const MAX_DEPTH: usize = 200;

/// The answer to a question about a repository, or why the text has none.
pub fn answer(question: &str, text: &str) -> Result<Value, String> {
    let repository = read(text)?;
    let quoted: Vec<&str> = question.split('`').skip(1).step_by(2).collect();
    let split = |dotted: &str| dotted.rsplit_once('.').map(|(module, name)| (module.to_owned(), name.to_owned()));
    match quoted[..] {
        [function] if question.contains("Which functions call") => {
            let (module, name) = split(function).ok_or("no dotted name")?;
            if !repository.get(&module).is_some_and(|found| found.functions.contains_key(name.as_str())) {
                return Err(format!("no function `{function}`"));
            }
            Ok(callers(&repository, &module, &name))
        }
        [module] if question.contains("How many other modules import") => {
            Ok(json!(repository.values().filter(|found| found.imports.iter().any(|other| other == module)).count()))
        }
        [name, module] => constant(&repository, module, name, 0).map(|value| json!(value)),
        [call] if question.contains("return") => {
            let (function, argument) = call.strip_suffix(')').and_then(|call| call.split_once('(')).ok_or("no call")?;
            let (module, name) = split(function).ok_or("no dotted name")?;
            let argument = argument.parse().map_err(|error| format!("`{argument}`: {error}"))?;
            run(&repository, &module, &name, argument, 0).map(|value| json!(value))
        }
        _ => Err(format!("no question about a repository: `{question}`")),
    }
}

fn read(text: &str) -> Result<Repository<'_>, String> {
    let mut paths: Vec<(String, &str)> = Vec::new();
    for file in text.strip_prefix("=== ").ok_or("the text does not start with a path")?.split("\n=== ") {
        let (path, source) = file.split_once(" ===\n").ok_or_else(|| format!("no path: `{file:.40}`"))?;
        let dotted = path.strip_suffix(".py").ok_or_else(|| format!("no module: `{path}`"))?.replace('/', ".");
        paths.push((dotted, source));
    }
    let mut repository = Repository::new();
    for (dotted, source) in paths {
        let module = parse(source)?;
        if repository.insert(dotted.clone(), module).is_some() {
            return Err(format!("`{dotted}` is there twice"));
        }
    }
    // `from a import b` names the module a.b where there is one.
    let known: Vec<String> = repository.keys().cloned().collect();
    for module in repository.values_mut() {
        let names = std::mem::take(&mut module.names);
        for (local, (from, name)) in names {
            let whole = format!("{from}.{name}");
            if known.binary_search(&whole).is_ok() {
                module.imports.push(whole.clone());
                module.modules.insert(local, whole);
            } else {
                module.imports.push(from.to_owned());
                module.names.insert(local, (from, name));
            }
        }
    }
    Ok(repository)
}

fn parse(source: &str) -> Result<Module<'_>, String> {
    let mut module = Module::default();
    let mut function = None;
    for line in source.lines() {
        let statement = line.trim();
        if statement.is_empty() || statement.starts_with('#') || statement.starts_with("\"\"\"") {
            continue;
        }
        if line.starts_with(' ') {
            let name = function.ok_or_else(|| format!("indented outside of a function: `{line}`"))?;
            module.functions.entry(name).or_default().push(statement);
        } else if let Some(rest) = statement.strip_prefix("def ") {
            let name = rest.split('(').next().unwrap_or_default();
            module.functions.entry(name).or_default();
            function = Some(name);
        } else if let Some(rest) = statement.strip_prefix("import ") {
            module.imports.push(rest.to_owned());
            module.modules.insert(rest, rest.to_owned());
        } else if let Some(rest) = statement.strip_prefix("from ") {
            let (from, names) = rest.split_once(" import ").ok_or_else(|| format!("no import: `{line}`"))?;
            for name in names.split(", ") {
                let (name, local) = name.split_once(" as ").unwrap_or((name, name));
                module.names.insert(local, (from, name));
            }
        } else if let Some((name, value)) = statement.split_once(" = ") {
            module.constants.insert(name, value);
        } else {
            return Err(format!("no statement that is known: `{line}`"));
        }
    }
    Ok(module)
}

/// The module and the name that a dotted expression means in a module.
fn resolve(module: &str, found: &Module<'_>, expression: &str) -> (String, String) {
    match expression.rsplit_once('.') {
        Some((path, name)) => (found.modules.get(path).cloned().unwrap_or_default(), name.to_owned()),
        None => match found.names.get(expression) {
            Some((from, name)) => ((*from).to_owned(), (*name).to_owned()),
            None => (module.to_owned(), expression.to_owned()),
        },
    }
}

fn constant(repository: &Repository<'_>, module: &str, name: &str, depth: usize) -> Result<i64, String> {
    let found = repository.get(module).ok_or_else(|| format!("no module `{module}`"))?;
    if depth > MAX_DEPTH {
        return Err(format!("`{module}.{name}` goes round in circles"));
    }
    if let Some(value) = found.constants.get(name) {
        if let Ok(number) = value.parse() {
            return Ok(number);
        }
        let (module, name) = resolve(module, found, value);
        constant(repository, &module, &name, depth + 1)
    } else {
        let (from, name) = found.names.get(name).ok_or_else(|| format!("no `{name}` in the module `{module}`"))?;
        constant(repository, from, name, depth + 1)
    }
}

/// The expression before `(` in a statement, where a call stands there: `return (f(x) * 2 + 1) % 7` calls `f`.
fn called(statement: &str) -> Option<&str> {
    let name = |letter: char| letter.is_ascii_alphanumeric() || letter == '_' || letter == '.';
    statement.match_indices('(').find_map(|(at, _)| {
        let before = &statement[..at];
        let start = before.rfind(|letter| !name(letter)).map_or(0, |at| at + 1);
        (start < at).then(|| &before[start..])
    })
}

fn callers(repository: &Repository<'_>, module: &str, name: &str) -> Value {
    let mut callers = Vec::new();
    for (dotted, found) in repository {
        for (function, body) in &found.functions {
            let calls = body.iter().filter_map(|statement| called(statement));
            if calls.map(|call| resolve(dotted, found, call)).any(|(from, callee)| from == module && callee == name) {
                callers.push(format!("{dotted}.{function}"));
            }
        }
    }
    callers.sort_unstable();
    json!(callers)
}

fn run(repository: &Repository<'_>, module: &str, name: &str, argument: i64, depth: usize) -> Result<i64, String> {
    let found = repository.get(module).ok_or_else(|| format!("no module `{module}`"))?;
    if depth > MAX_DEPTH {
        return Err(format!("`{module}.{name}` calls too deep"));
    }
    let Some(body) = found.functions.get(name) else {
        // A function that was imported to be called from elsewhere.
        let (from, name) = found.names.get(name).ok_or_else(|| format!("no function `{module}.{name}`"))?;
        return run(repository, from, name, argument, depth + 1);
    };
    let mut variables = BTreeMap::from([("x", argument)]);
    for statement in body {
        let (target, expression) = if let Some(expression) = statement.strip_prefix("return ") {
            (None, expression)
        } else {
            let (target, expression) =
                statement.split_once(" = ").ok_or_else(|| format!("no statement: `{statement}`"))?;
            (Some(target), expression)
        };
        let mut evaluation = Evaluation { repository, module, found, variables: &variables, rest: expression, depth };
        let value = evaluation.sum()?;
        match target {
            None => return Ok(value),
            Some(target) => variables.insert(target, value),
        };
    }
    Err(format!("`{module}.{name}` returns nothing"))
}

/// An expression of `+ * %`, parentheses, names, numbers and calls.
struct Evaluation<'a, 'b> {
    repository: &'a Repository<'b>,
    module: &'a str,
    found: &'a Module<'b>,
    variables: &'a BTreeMap<&'b str, i64>,
    rest: &'b str,
    depth: usize,
}

impl Evaluation<'_, '_> {
    fn take(&mut self, sign: char) -> bool {
        self.rest = self.rest.trim_start();
        match self.rest.strip_prefix(sign) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn sum(&mut self) -> Result<i64, String> {
        let mut value = self.product()?;
        while self.take('+') {
            value += self.product()?;
        }
        Ok(value)
    }

    fn product(&mut self) -> Result<i64, String> {
        let mut value = self.factor()?;
        loop {
            if self.take('*') {
                value *= self.factor()?;
            } else if self.take('%') {
                let divisor = self.factor()?;
                value = value.checked_rem_euclid(divisor).ok_or("a remainder of a division by 0")?;
            } else {
                return Ok(value);
            }
        }
    }

    fn factor(&mut self) -> Result<i64, String> {
        if self.take('(') {
            let value = self.sum()?;
            return if self.take(')') { Ok(value) } else { Err("a parenthesis is open".to_owned()) };
        }
        let end = self
            .rest
            .find(|letter: char| !(letter.is_ascii_alphanumeric() || letter == '_' || letter == '.'))
            .unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        if let Ok(number) = word.parse() {
            return Ok(number);
        }
        let (from, name) = resolve(self.module, self.found, word);
        if self.take('(') {
            let argument = self.sum()?;
            if !self.take(')') {
                return Err("a call is open".to_owned());
            }
            return run(self.repository, &from, &name, argument, self.depth + 1);
        }
        match self.variables.get(word) {
            Some(value) => Ok(*value),
            None => constant(self.repository, &from, &name, 0),
        }
    }
}
