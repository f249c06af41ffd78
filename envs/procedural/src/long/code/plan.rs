//! What the modules of a repository hold.

use std::collections::{BTreeMap, BTreeSet};

use crate::draw::Draw;

pub(super) const PACKAGES: [&str; 32] = [
    "accounts", "archive", "billing", "bridge", "cargo", "census", "depot", "dispatch", "escrow", "ferry", "garden",
    "harbour", "intake", "journal", "kiosk", "ledger", "market", "museum", "notary", "orchard", "payroll", "quarry",
    "registry", "schedule", "survey", "tariff", "theatre", "transit", "vault", "voyage", "weather", "workshop",
];

const THINGS: [&str; 40] = [
    "anchor", "badge", "barrel", "basket", "beacon", "bottle", "bucket", "candle", "carpet", "chart", "coin", "crate",
    "drum", "engine", "fabric", "fence", "folder", "gate", "hammer", "kettle", "ladder", "lantern", "letter", "mirror",
    "needle", "paddle", "parcel", "pillar", "pocket", "ribbon", "saddle", "shelf", "signal", "stamp", "ticket",
    "token", "tunnel", "valve", "wagon", "wheel",
];

const ROLES: [&str; 24] = [
    "adapter", "batch", "cache", "checks", "core", "costs", "counts", "data", "filters", "format", "index", "limits",
    "loader", "model", "parser", "plan", "queue", "rates", "report", "rules", "store", "sums", "table", "views",
];

const VERBS: [&str; 24] = [
    "adjust", "apply", "balance", "blend", "bound", "charge", "collect", "convert", "derive", "estimate", "expand",
    "fold", "grade", "level", "measure", "merge", "offset", "rank", "scale", "score", "settle", "shift", "tally",
    "weigh",
];

const MEASURES: [&str; 12] =
    ["BASE", "BONUS", "COST", "COUNT", "DELTA", "FACTOR", "LIMIT", "MARGIN", "OFFSET", "RATE", "SHARE", "WEIGHT"];

/// How a module takes in another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// `from a.b import name`, perhaps `as another`.
    Names,
    /// `import a.b`
    Dotted,
    /// `from a import b`
    Module,
}

/// A module.
#[derive(Clone, Debug)]
pub(super) struct Module {
    pub(super) package: &'static str,
    pub(super) name: String,
    pub(super) dotted: String,
    /// What is imported, in which form.
    pub(super) imports: BTreeMap<usize, Form>,
    /// Names imported one by one: their local names with the module and the name there.
    pub(super) names: BTreeMap<String, (usize, String)>,
    /// New constants, by their place in [`Plan::constants`] once the module is added.
    pub(super) constants: Vec<Constant>,
    /// New functions.
    pub(super) functions: Vec<Function>,
}

/// A constant or a re-exported one.
#[derive(Clone, Debug)]
pub(super) struct Constant {
    pub(super) module: usize,
    pub(super) name: String,
    pub(super) value: i64,
    /// Re-exports between here and the number; 0 where the number stands here.
    pub(super) hops: usize,
    /// How the module writes it, where it is a re-export by assignment: the expression.
    pub(super) alias: Option<String>,
}

/// A function `(x * factor + addend) % modulus`, where `x` may go through a call first.
#[derive(Clone, Debug)]
pub(super) struct Function {
    pub(super) module: usize,
    pub(super) name: String,
    pub(super) call: Option<Call>,
    pub(super) factor: i64,
    /// A number, or a constant by its local expression and its value.
    pub(super) addend: (Option<String>, i64),
    pub(super) modulus: i64,
    /// Calls on the way to the last one.
    pub(super) depth: usize,
}

/// A call `expression(x + shift)`.
#[derive(Clone, Debug)]
pub(super) struct Call {
    pub(super) function: usize,
    pub(super) expression: String,
    pub(super) shift: i64,
}

/// A repository under construction: a module imports only modules that were added before it.
pub(super) struct Plan {
    small: bool,
    unused: Vec<usize>,
    pub(super) modules: Vec<Module>,
    pub(super) constants: Vec<Constant>,
    pub(super) functions: Vec<Function>,
    /// Constants and functions of each module.
    held: Vec<(Vec<usize>, Vec<usize>)>,
}

const NAMES: usize = PACKAGES.len() * THINGS.len() * ROLES.len();

impl Plan {
    pub(super) fn new(size: usize, draw: &mut Draw) -> Self {
        // A module has a kilobyte or more, so these are enough; a small repository stays within a few packages.
        let packages = (size / 8192).clamp(2, PACKAGES.len());
        let within = NAMES / PACKAGES.len() * packages;
        let mut unused = draw.distinct((size / 256).clamp(8, within), within);
        draw.shuffle(&mut unused);
        Self {
            small: size < 8192,
            unused,
            modules: Vec::new(),
            constants: Vec::new(),
            functions: Vec::new(),
            held: Vec::new(),
        }
    }

    /// The dotted name of a function.
    pub(super) fn function_name(&self, function: usize) -> String {
        let function = &self.functions[function];
        format!("{}.{}", self.modules[function.module].dotted, function.name)
    }

    /// What a function returns.
    pub(super) fn value(&self, function: usize, argument: i64) -> i64 {
        // The chain of calls from the outermost function on, then back from the innermost.
        let (mut chain, mut x) = (vec![function], argument);
        while let Some(call) = chain.last().and_then(|last| self.functions[*last].call.as_ref()) {
            x += call.shift;
            chain.push(call.function);
        }
        for function in chain.into_iter().rev() {
            let Function { factor, addend, modulus, .. } = &self.functions[function];
            x = (x * factor + addend.1) % modulus;
        }
        x
    }

    /// A new module; none where names run out.
    pub(super) fn next_module(&mut self, draw: &mut Draw) -> Option<Module> {
        let number = self.unused.pop()?;
        let package = PACKAGES[number / (THINGS.len() * ROLES.len())];
        let name = format!("{}_{}", THINGS[number % THINGS.len()], ROLES[number / THINGS.len() % ROLES.len()]);
        let mut module = Module {
            package,
            dotted: format!("{package}.{name}"),
            name,
            imports: BTreeMap::new(),
            names: BTreeMap::new(),
            constants: Vec::new(),
            functions: Vec::new(),
        };
        let mut taken: BTreeSet<String> = BTreeSet::new();
        let wanted = if self.small { 1 } else { 1 + draw.below(4) };
        // Recent modules are imported more often, so that chains of imports grow.
        let recent = self.modules.len().saturating_sub(if draw.below(2) == 0 { 12 } else { self.modules.len() });
        let others = draw.distinct(wanted, self.modules.len() - recent);
        for other in others.into_iter().map(|other| recent + other) {
            let mut form = *draw.pick(&[Form::Names, Form::Names, Form::Names, Form::Dotted, Form::Module]);
            let short = self.modules[other].name.clone();
            if form == Form::Module && !taken.insert(short) {
                form = Form::Dotted;
            }
            module.imports.insert(other, form);
        }
        self.constants_of(&mut module, &mut taken, draw);
        self.functions_of(&mut module, &mut taken, draw);
        // `from a.b import` needs a name: what nothing was taken from is imported as a whole.
        let named: BTreeSet<usize> = module.names.values().map(|(from, _)| *from).collect();
        for (other, form) in &mut module.imports {
            if *form == Form::Names && !named.contains(other) {
                *form = Form::Dotted;
            }
        }
        Some(module)
    }

    /// Adds a module that [`Self::next_module`] made.
    pub(super) fn add(&mut self, mut module: Module) {
        let constants = self.constants.len()..self.constants.len() + module.constants.len();
        let functions = self.functions.len()..self.functions.len() + module.functions.len();
        self.constants.append(&mut module.constants);
        self.functions.append(&mut module.functions);
        self.held.push((constants.collect(), functions.collect()));
        self.modules.push(module);
    }

    /// How the module writes a name of another one; imports it, where the form asks for that.
    fn reference(
        &self,
        module: &mut Module,
        taken: &mut BTreeSet<String>,
        other: usize,
        name: &str,
        draw: &mut Draw,
    ) -> String {
        match module.imports.get(&other) {
            Some(Form::Dotted) => format!("{}.{name}", self.modules[other].dotted),
            Some(Form::Module) => format!("{}.{name}", self.modules[other].name),
            _ => {
                let known = module.names.iter().find(|(_, target)| target.0 == other && target.1 == name);
                if let Some((local, _)) = known {
                    return local.clone();
                }
                // Another name where this one is taken, and sometimes where it is not.
                let mut local = name.to_owned();
                if draw.below(6) == 0 || taken.contains(&local) {
                    local = unused_name(name, taken);
                }
                taken.insert(local.clone());
                module.names.insert(local.clone(), (other, name.to_owned()));
                local
            }
        }
    }

    fn constants_of(&self, module: &mut Module, taken: &mut BTreeSet<String>, draw: &mut Draw) {
        let place = self.modules.len();
        for _ in 0..if self.small { 1 } else { 1 + draw.below(4) } {
            let name = format!("{}_{}", draw.pick(&THINGS).to_ascii_uppercase(), draw.pick(&MEASURES));
            if taken.insert(name.clone()) {
                let value = draw.between(2, 97);
                module.constants.push(Constant { module: place, name, value, hops: 0, alias: None });
            }
        }
        let others: Vec<usize> = module.imports.keys().copied().collect();
        for other in others {
            let constants = &self.held[other].0;
            if constants.is_empty() || draw.below(2) == 0 {
                continue;
            }
            // What is itself a re-export is passed on rather than a number.
            let mut passed = *draw.pick(constants);
            if let Some(longest) = constants.iter().copied().max_by_key(|constant| self.constants[*constant].hops)
                && draw.below(4) > 0
            {
                passed = longest;
            }
            let Constant { name, value, hops, .. } = self.constants[passed].clone();
            let local = self.reference(module, taken, other, &name, draw);
            let named = module.imports.get(&other) == Some(&Form::Names);
            if named && draw.below(2) == 0 {
                // The import alone makes it a name of this module.
                let constant = Constant { module: place, name: local, value, hops: hops + 1, alias: None };
                if !module.constants.iter().any(|known| known.name == constant.name) {
                    module.constants.push(constant);
                }
            } else {
                let name = format!("{}_{}", draw.pick(&THINGS).to_ascii_uppercase(), draw.pick(&MEASURES));
                if taken.insert(name.clone()) {
                    module.constants.push(Constant { module: place, name, value, hops: hops + 1, alias: Some(local) });
                }
            }
        }
    }

    fn functions_of(&self, module: &mut Module, taken: &mut BTreeSet<String>, draw: &mut Draw) {
        let place = self.modules.len();
        let others: Vec<usize> = module.imports.keys().copied().collect();
        for _ in 0..if self.small { 1 } else { 2 + draw.below(5) } {
            let name = format!("{}_{}", draw.pick(&VERBS), draw.pick(&THINGS));
            if !taken.insert(name.clone()) {
                continue;
            }
            let mut function = Function {
                module: place,
                name,
                call: None,
                factor: draw.between(2, 19),
                addend: (None, draw.between(1, 99)),
                modulus: draw.between(101, 997),
                depth: 0,
            };
            let local = draw.below(5) == 0 && !module.functions.is_empty();
            if local {
                let index = draw.below(module.functions.len());
                let callee = &module.functions[index];
                function.depth = callee.depth + 1;
                function.call = Some(Call {
                    function: self.functions.len() + index,
                    expression: callee.name.clone(),
                    shift: draw.between(0, 9),
                });
            } else if !others.is_empty() && draw.below(4) > 0 {
                let other = *draw.pick(&others);
                if !self.held[other].1.is_empty() {
                    let callee = *draw.pick(&self.held[other].1);
                    let name = self.functions[callee].name.clone();
                    function.depth = self.functions[callee].depth + 1;
                    function.call = Some(Call {
                        function: callee,
                        expression: self.reference(module, taken, other, &name, draw),
                        shift: draw.between(0, 9),
                    });
                }
            }
            if draw.below(2) == 0 && !module.constants.is_empty() {
                let constant = draw.pick(&module.constants);
                function.addend = (Some(constant.name.clone()), constant.value);
            }
            module.functions.push(function);
        }
    }
}

/// A name like this one that is not taken.
fn unused_name(name: &str, taken: &BTreeSet<String>) -> String {
    let upper = name.bytes().next().is_some_and(|letter| letter.is_ascii_uppercase());
    let stem = if upper { format!("OTHER_{name}") } else { format!("other_{name}") };
    let mut candidate = stem.clone();
    // One more candidate than there are names.
    for number in 2..=taken.len() + 2 {
        if !taken.contains(&candidate) {
            break;
        }
        candidate = format!("{stem}_{number}");
    }
    candidate
}
