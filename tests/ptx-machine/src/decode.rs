use std::collections::HashMap;

use crate::code::{
    Binary, Class, Compare, Function, Half, Instruction, Logic, Operation, Order, Parameter, Place, Register, Rounding, Scope, Shuffle,
    Source, Space, Special, Strength, Type, Unary, Update, Vote,
};
use crate::fault::{Answer, Fault, Kind};
use crate::syntax::{self, Operand, Statement, Variable};

pub struct Names<'a> {
    pub functions: HashMap<&'a str, usize>,
    pub variables: HashMap<&'a str, u64>,
}

pub const REGISTER_LIMIT: u64 = 1 << 16;
pub const LOCAL_LIMIT: u64 = 512 << 10;
pub const SHARED_LIMIT: u64 = 227 << 10;
const PARAMETER_LIMIT: u64 = 32 << 10;

pub fn place(used: &mut u64, limit: u64, variable: &Variable<'_>) -> Answer<u64> {
    let at = used.next_multiple_of(variable.align);
    *used = at + variable.bytes;
    if *used > limit {
        return Err(Fault::new(Kind::Syntax, variable.line, format!("`{}` ends past the limit of {limit} bytes", variable.name)));
    }
    Ok(at)
}

#[derive(Default)]
struct Declarations<'a> {
    outer: Option<usize>,
    registers: HashMap<&'a str, (Register, Option<u64>)>,
    labels: HashMap<&'a str, usize>,
    targets: HashMap<&'a str, Vec<&'a str>>,
    variables: HashMap<&'a str, Source>,
    parameters: HashMap<&'a str, Parameter>,
    parameter_bytes: u64,
}

impl Declarations<'_> {
    fn register(&self, name: &str) -> Option<Register> {
        if let Some((register, None)) = self.registers.get(name) {
            return Some(*register);
        }
        let digits = name.bytes().rev().take_while(u8::is_ascii_digit).count();
        (name.len() - digits..name.len()).find_map(|at| {
            let (prefix, number) = name.split_at(at);
            let (first, count) = self.registers.get(prefix)?;
            let number = number.parse::<u64>().ok().filter(|_| number == "0" || !number.starts_with('0'))?;
            (number < (*count)?).then(|| first + number as Register)
        })
    }
}

struct Decoder<'a, 'n> {
    names: &'n Names<'a>,
    scopes: Vec<Declarations<'a>>,
    scope: usize,
    register_count: u64,
    line: u32,
    opcode: &'a str,
}

pub fn function<'a>(text: &syntax::Function<'a>, names: &Names<'a>, shared_bytes: &mut u64, shared_limit: u64) -> Answer<Function> {
    let Some(body) = &text.body else {
        return Err(Fault::new(Kind::Syntax, text.line, format!("`{}` has no body: the machine links nothing", text.name)));
    };
    let mut decoder = Decoder { names, scopes: vec![Declarations::default()], scope: 0, register_count: 0, line: text.line, opcode: "" };
    let (mut local_bytes, mut used, mut parameter_bytes) = (0, 0, 0);
    let mut declare = |scope: &mut Declarations<'a>, used: &mut u64, variable: &Variable<'a>| {
        let parameter = Parameter { offset: place(used, PARAMETER_LIMIT, variable)?, bytes: variable.bytes };
        parameter_bytes = parameter_bytes.max(*used);
        scope.parameters.insert(variable.name, parameter);
        Ok(parameter)
    };
    let mut list = |variables: &[Variable<'a>]| {
        variables.iter().map(|variable| declare(&mut decoder.scopes[0], &mut used, variable)).collect::<Answer<Vec<_>>>()
    };
    let (results, parameters) = (list(&text.returns)?, list(&text.parameters)?);
    decoder.declare_names(body)?;
    let (mut code, mut opened) = (Vec::new(), 0);
    for statement in body {
        match statement {
            Statement::Open => {
                opened += 1;
                decoder.scope = opened;
                decoder.scopes[opened].parameter_bytes = used;
            }
            Statement::Close => used = decoder.close(),
            Statement::Variable(variable) => {
                let source = match variable.space {
                    ".local" => Source::Local(place(&mut local_bytes, LOCAL_LIMIT, variable)?),
                    ".shared" => Source::Value(crate::image::SHARED + place(shared_bytes, shared_limit, variable)?),
                    _ => {
                        declare(&mut decoder.scopes[decoder.scope], &mut used, variable)?;
                        continue;
                    }
                };
                decoder.scopes[decoder.scope].variables.insert(variable.name, source);
            }
            Statement::Instruction(instruction) => {
                decoder.line = instruction.line;
                decoder.opcode = instruction.opcode;
                let guard = match instruction.guard {
                    Some((name, negated)) => Some((decoder.register(name)?, negated)),
                    None => None,
                };
                let operation = decoder.operation(&instruction.operands)?;
                code.push(Instruction { line: instruction.line, guard, operation });
            }
            Statement::Label { .. } | Statement::Targets(_) | Statement::Registers { .. } => {}
        }
    }
    code.push(Instruction { line: decoder.line, guard: None, operation: Operation::Return });
    Ok(Function {
        name: text.name.to_owned(),
        line: text.line,
        is_entry: text.is_entry,
        threads: text.threads,
        parameters,
        results,
        code,
        registers: decoder.register_count as usize,
        local_bytes,
        parameter_bytes,
    })
}

impl<'a> Decoder<'a, '_> {
    fn declare_names(&mut self, body: &[Statement<'a>]) -> Answer {
        let mut at = 0;
        let mut last = "";
        for statement in body {
            let next = self.scopes.len();
            let scope = &mut self.scopes[self.scope];
            match statement {
                Statement::Open => {
                    self.scopes.push(Declarations { outer: Some(self.scope), ..Declarations::default() });
                    self.scope = next;
                }
                Statement::Close => _ = self.close(),
                Statement::Label { name, line } => {
                    if scope.labels.insert(name, at).is_some() {
                        return Err(Fault::new(Kind::Syntax, *line, format!("the label `{name}` is declared twice")));
                    }
                    last = name;
                }
                Statement::Targets(list) => _ = scope.targets.insert(last, list.clone()),
                Statement::Registers { name, count, line } => {
                    let first = self.register_count;
                    self.register_count = first.saturating_add(count.unwrap_or(1));
                    if self.register_count > REGISTER_LIMIT {
                        return Err(Fault::new(Kind::Syntax, *line, format!("more than {REGISTER_LIMIT} registers")));
                    }
                    if scope.registers.insert(name, (first as Register, *count)).is_some() {
                        return Err(Fault::new(Kind::Syntax, *line, format!("the register `{name}` is declared twice")));
                    }
                }
                Statement::Instruction(_) => at += 1,
                Statement::Variable(_) => {}
            }
        }
        Ok(())
    }

    fn close(&mut self) -> u64 {
        let Declarations { outer, parameter_bytes, .. } = self.scopes[self.scope];
        self.scope = outer.unwrap_or(0);
        parameter_bytes
    }

    fn find<T>(&self, get: impl Fn(&Declarations<'a>) -> Option<T>) -> Option<T> {
        let mut next = Some(self.scope);
        while let Some(at) = next {
            let scope = &self.scopes[at];
            if let Some(found) = get(scope) {
                return Some(found);
            }
            next = scope.outer;
        }
        None
    }

    fn wrong(&self, what: &str) -> Fault {
        Fault::new(Kind::Syntax, self.line, format!("`{}`: {what}", self.opcode))
    }

    fn unknown(&self) -> Fault {
        Fault::new(Kind::UnknownOpcode, self.line, format!("the machine does not implement `{}`", self.opcode))
    }

    fn register(&self, name: &str) -> Answer<Register> {
        self.find(|scope| scope.register(name)).ok_or_else(|| self.wrong(&format!("`{name}` is not a register")))
    }

    fn label(&self, operand: &Operand<'a>) -> Answer<usize> {
        let Operand::Name(name) = operand else { return Err(self.wrong("expected a label")) };
        self.find(|scope| scope.labels.get(name).copied()).ok_or_else(|| self.wrong(&format!("`{name}` is not a label")))
    }

    fn source(&self, operand: &Operand<'a>) -> Answer<Source> {
        match operand {
            Operand::Number(number) => Ok(Source::Value(*number)),
            Operand::Real(bits, bytes) => match self.opcode.rsplit('.').next().and_then(type_of) {
                Some(ty) if ty.bytes == *bytes => Ok(Source::Value(*bits)),
                _ => Err(self.wrong("a floating-point constant of another size")),
            },
            Operand::Name(name) => self.named(name),
            _ => Err(self.wrong("expected a register or a number")),
        }
    }

    fn named(&self, name: &str) -> Answer<Source> {
        let declared = |scope: &Declarations<'a>| scope.register(name).map(Source::Register).or_else(|| scope.variables.get(name).copied());
        if let Some(source) = self.find(declared) {
            return Ok(source);
        }
        if let Some(address) = self.names.variables.get(name) {
            return Ok(Source::Value(*address));
        }
        if let Some(function) = self.names.functions.get(name) {
            return Ok(Source::Value(crate::image::CODE + *function as u64));
        }
        special(name).map(Source::Special).ok_or_else(|| self.wrong(&format!("unknown name `{name}`")))
    }

    fn target(&self, operand: &Operand<'a>) -> Answer<Register> {
        match operand {
            Operand::Name(name) => self.register(name),
            _ => Err(self.wrong("expected a register to write")),
        }
    }

    fn target_or_sink(&self, operand: &Operand<'a>) -> Answer<Option<Register>> {
        if matches!(operand, Operand::Name("_")) { Ok(None) } else { self.target(operand).map(Some) }
    }

    fn targets(&self, operand: &Operand<'a>) -> Answer<Vec<Option<Register>>> {
        match operand {
            Operand::Vector(list) => list.iter().map(|element| self.target_or_sink(element)).collect(),
            one => Ok(vec![self.target_or_sink(one)?]),
        }
    }

    fn sources(&self, operand: &Operand<'a>) -> Answer<Vec<Source>> {
        match operand {
            Operand::Vector(list) => list.iter().map(|element| self.source(element)).collect(),
            one => Ok(vec![self.source(one)?]),
        }
    }

    fn predicate(&self, operand: &Operand<'a>) -> Answer<(Source, bool)> {
        match operand {
            Operand::Not(name) => Ok((self.named(name)?, true)),
            other => Ok((self.source(other)?, false)),
        }
    }

    fn place(&self, operand: &Operand<'a>, space: Space) -> Answer<Place> {
        let Operand::Memory(name, offset) = operand else { return Err(self.wrong("expected an address in brackets")) };
        let Some(name) = name else { return Ok(Place { space, base: Source::Value(0), offset: *offset }) };
        if space == Space::Parameter {
            return Ok(Place { space, base: Source::Value(self.offset(name)?), offset: *offset });
        }
        Ok(Place { space, base: self.named(name)?, offset: *offset })
    }

    fn parameter(&self, operand: &Operand<'a>) -> Answer<u64> {
        let Operand::Name(name) = operand else { return Err(self.wrong("expected a parameter")) };
        self.offset(name)
    }

    fn offset(&self, name: &str) -> Answer<u64> {
        let offset = self.find(|scope| scope.parameters.get(name).map(|parameter| parameter.offset));
        offset.ok_or_else(|| self.wrong(&format!("`{name}` is not a parameter")))
    }

    fn operation(&self, operands: &[Operand<'a>]) -> Answer<Operation> {
        let parts: Vec<&str> = self.opcode.split('.').collect();
        let (name, modifiers) = (parts[0], &parts[1..]);
        let ty = modifiers.last().and_then(|name| type_of(name));
        let typed = || ty.ok_or_else(|| self.unknown());
        let has = |modifier: &str| modifiers.contains(&modifier);
        let at = |index: usize| operands.get(index).ok_or_else(|| self.wrong("an operand is missing"));
        let to = || self.target(at(0)?);
        let source = |index: usize| self.source(at(index)?);
        let three = || Ok([source(1)?, source(2)?, source(3)?]);
        // Subnormal flushing, approximations and saturation are not modelled.
        if has("sat") && name != "cvt" || has("ftz") || has("approx") || has("bf16") || has("f16") || has("f16x2") {
            return Err(self.unknown());
        }
        if known(name).is_some_and(|known| !modifiers.iter().all(|modifier| known.contains(modifier) || type_of(modifier).is_some())) {
            return Err(self.unknown());
        }
        if matches!(name, "mul" | "mad") && ["lo", "hi", "wide"].iter().any(|half| has(half)) == ty.is_some_and(Type::is_float) {
            return Err(self.unknown());
        }
        let nearest = !modifiers.iter().any(|modifier| ["rz", "rm", "rp"].contains(modifier));
        let binary = |operation| Ok(Operation::Binary(operation, typed()?, to()?, source(1)?, source(2)?));
        let unary = |operation| Ok(Operation::Unary(operation, typed()?, to()?, source(1)?));
        let half = || match modifiers.first() {
            Some(&"hi") => Half::High,
            Some(&"wide") => Half::Wide,
            _ => Half::Low,
        };
        let fence = |scope| Ok(Operation::Fence { scope, acquires: true, releases: true });
        match name {
            "mov" => self.mov(typed()?, at(0)?, at(1)?),
            "add" | "sub" | "addc" | "subc" if has("cc") || name.len() == 4 => Ok(Operation::Carry {
                subtract: name.starts_with("sub"),
                reads: name.len() == 4,
                writes: has("cc"),
                ty: typed()?,
                to: to()?,
                a: source(1)?,
                b: source(2)?,
            }),
            _ if !nearest && name != "cvt" => Err(self.unknown()),
            "add" => binary(Binary::Add),
            "sub" => binary(Binary::Sub),
            "div" => binary(Binary::Div),
            "rem" => binary(Binary::Rem),
            "min" if !has("NaN") => binary(Binary::Min),
            "max" if !has("NaN") => binary(Binary::Max),
            "and" => binary(Binary::And),
            "or" => binary(Binary::Or),
            "xor" => binary(Binary::Xor),
            "shl" => binary(Binary::ShiftLeft),
            "shr" => binary(Binary::ShiftRight),
            "copysign" => binary(Binary::CopySign),
            "not" => unary(Unary::Not),
            "neg" => unary(Unary::Negate),
            "abs" => unary(Unary::Absolute),
            "popc" => unary(Unary::CountOnes),
            "clz" => unary(Unary::LeadingZeros),
            "brev" => unary(Unary::Reverse),
            "sqrt" => unary(Unary::SquareRoot),
            "rcp" => unary(Unary::Reciprocal),
            "mul" | "mad" if half() == Half::Wide && !ty.is_some_and(|ty| ty.bytes <= 4 && !ty.is_float()) => Err(self.unknown()),
            "mul" => Ok(Operation::Multiply(half(), typed()?, to()?, source(1)?, source(2)?)),
            "mad" if !has("cc") && !typed()?.is_float() => Ok(Operation::MultiplyAdd(half(), typed()?, to()?, three()?)),
            "fma" | "mad" if !has("cc") => Ok(Operation::FusedMultiplyAdd(typed()?, to()?, three()?)),
            "shf" => Ok(Operation::Funnel {
                left: has("l"),
                wraps: has("wrap"),
                to: to()?,
                low: source(1)?,
                high: source(2)?,
                count: source(3)?,
            }),
            "bfe" => Ok(Operation::BitField { ty: typed()?, to: to()?, from: source(1)?, at: source(2)?, length: source(3)? }),
            "bfi" => Ok(Operation::BitInsert {
                ty: typed()?,
                to: to()?,
                field: source(1)?,
                into: source(2)?,
                at: source(3)?,
                length: source(4)?,
            }),
            "prmt" if modifiers == ["b32"] => Ok(Operation::Permute(to()?, three()?)),
            "lop3" => match at(4)? {
                Operand::Number(table) => Ok(Operation::Logic3(to()?, three()?, *table as u8)),
                _ => Err(self.wrong("expected a table")),
            },
            "setp" => self.set_predicate(typed()?, modifiers, operands),
            "selp" => Ok(Operation::Select(to()?, source(1)?, source(2)?, source(3)?)),
            "cvt" => self.convert(modifiers, to()?, source(1)?),
            "cvta" => Ok(Operation::Unary(Unary::Move, typed()?, to()?, source(1)?)),
            "ld" | "ldu" | "st" => self.access(name == "st", modifiers, typed()?, operands),
            "atom" | "red" => self.atomic(name == "red", modifiers, typed()?, operands),
            "fence" => match modifiers {
                [order @ ("acq_rel" | "sc" | "acquire" | "release"), scope] => {
                    Ok(Operation::Fence { scope: self.scope(scope)?, acquires: *order != "release", releases: *order != "acquire" })
                }
                [scope] => fence(self.scope(scope)?),
                _ => Err(self.unknown()),
            },
            "membar" => match modifiers {
                ["cta"] => fence(Scope::Block),
                ["gl"] => fence(Scope::Device),
                ["sys"] => fence(Scope::System),
                _ => Err(self.unknown()),
            },
            "bra" => Ok(Operation::Branch(self.label(at(0)?)?)),
            "brx" => {
                let Operand::Name(table) = at(1)? else { return Err(self.wrong("expected a table")) };
                let table = self.find(|scope| scope.targets.get(table).cloned()).ok_or_else(|| self.wrong("the table is missing"))?;
                let targets = table.iter().map(|name| self.label(&Operand::Name(name))).collect::<Answer<_>>()?;
                Ok(Operation::BranchTable(source(0)?, targets))
            }
            "call" => self.call(operands),
            "ret" => Ok(Operation::Return),
            "exit" => Ok(Operation::Exit),
            "trap" | "brkpt" => Ok(Operation::Trap),
            "bar" if modifiers == ["warp", "sync"] => Ok(Operation::BarrierWarp(source(0)?)),
            "bar" | "barrier" if has("sync") && operands.len() == 1 => {
                Ok(Operation::BarrierBlock { number: source(0)?, is_aligned: name == "bar" || has("aligned") })
            }
            "shfl" if has("sync") => self.shuffle(modifiers, operands),
            "vote" if has("sync") => {
                let mode = match modifiers.get(1) {
                    Some(&"ballot") => Vote::Ballot,
                    Some(&"any") => Vote::Any,
                    Some(&"all") => Vote::All,
                    Some(&"uni") => Vote::Uniform,
                    _ => return Err(self.unknown()),
                };
                let (answer, negated) = self.predicate(at(1)?)?;
                Ok(Operation::Vote { mode, to: to()?, answer, negated, mask: source(2)? })
            }
            "activemask" => Ok(Operation::ActiveMask(to()?)),
            "nanosleep" => Ok(Operation::Sleep(source(0)?)),
            "prefetch" | "prefetchu" | "discard" | "pmevent" => Ok(Operation::Nop),
            _ => Err(self.unknown()),
        }
    }

    fn mov(&self, ty: Type, to: &Operand<'a>, from: &Operand<'a>) -> Answer<Operation> {
        if let (Operand::Vector(list), _) | (_, Operand::Vector(list)) = (to, from)
            && (!matches!(list.len(), 2 | 4) || ty.bits() / (list.len() as u32) < 8)
        {
            return Err(self.wrong("a vector of another length"));
        }
        match (to, from) {
            (Operand::Vector(_), _) => Ok(Operation::Unpack(ty, self.targets(to)?, self.source(from)?)),
            (_, Operand::Vector(_)) => Ok(Operation::Pack(ty, self.target(to)?, self.sources(from)?)),
            _ => {
                let from = match from {
                    Operand::Name(name) if self.find(|scope| scope.parameters.get(name).copied()).is_some() => {
                        return Err(self.wrong("the address of a parameter"));
                    }
                    other => self.source(other)?,
                };
                Ok(Operation::Unary(Unary::Move, ty, self.target(to)?, from))
            }
        }
    }

    fn set_predicate(&self, ty: Type, modifiers: &[&str], operands: &[Operand<'a>]) -> Answer<Operation> {
        let (compare, unordered) = match modifiers[0] {
            "eq" => (Compare::Equal, false),
            "ne" => (Compare::NotEqual, false),
            "lt" | "lo" => (Compare::Less, false),
            "le" | "ls" => (Compare::LessEqual, false),
            "gt" | "hi" => (Compare::Greater, false),
            "ge" | "hs" => (Compare::GreaterEqual, false),
            "equ" => (Compare::Equal, true),
            "neu" => (Compare::NotEqual, true),
            "ltu" => (Compare::Less, true),
            "leu" => (Compare::LessEqual, true),
            "gtu" => (Compare::Greater, true),
            "geu" => (Compare::GreaterEqual, true),
            "num" => (Compare::Numbers, false),
            "nan" => (Compare::NotNumbers, false),
            _ => return Err(self.unknown()),
        };
        let logic = match modifiers.get(1) {
            Some(&"and") => Some(Logic::And),
            Some(&"or") => Some(Logic::Or),
            Some(&"xor") => Some(Logic::Xor),
            _ => None,
        };
        if modifiers.len() != 2 + usize::from(logic.is_some()) {
            return Err(self.unknown());
        }
        let [first, a, b, rest @ ..] = operands else { return Err(self.wrong("an operand is missing")) };
        let with = match (logic, rest) {
            (None, []) => None,
            (Some(logic), [predicate]) => {
                let (source, negated) = self.predicate(predicate)?;
                Some((logic, source, negated))
            }
            _ => return Err(self.wrong("a wrong number of operands")),
        };
        let (to, negated) = match first {
            Operand::Pair(pair) => (self.target(&pair[0])?, self.target_or_sink(&pair[1])?),
            one => (self.target(one)?, None),
        };
        Ok(Operation::SetPredicate { compare, unordered, ty, to, negated, a: self.source(a)?, b: self.source(b)?, with })
    }

    fn convert(&self, modifiers: &[&str], target: Register, source: Source) -> Answer<Operation> {
        let [rest @ .., to, from] = modifiers else { return Err(self.unknown()) };
        let (Some(to), Some(from)) = (type_of(to), type_of(from)) else { return Err(self.unknown()) };
        let (mut rounding, mut saturates) = (None, false);
        for modifier in rest {
            match *modifier {
                "rn" | "rni" => rounding = Some(Rounding::Nearest),
                "rz" | "rzi" => rounding = Some(Rounding::Zero),
                "rm" | "rmi" => rounding = Some(Rounding::Down),
                "rp" | "rpi" => rounding = Some(Rounding::Up),
                "sat" => saturates = true,
                _ => return Err(self.unknown()),
            }
        }
        Ok(Operation::Convert { to, from, rounding, saturates, target, source })
    }

    fn scope(&self, name: &str) -> Answer<Scope> {
        match name {
            "cta" | "cluster" => Ok(Scope::Block),
            "gpu" => Ok(Scope::Device),
            "sys" => Ok(Scope::System),
            _ => Err(self.unknown()),
        }
    }

    fn access(&self, is_store: bool, modifiers: &[&str], ty: Type, operands: &[Operand<'a>]) -> Answer<Operation> {
        let mut space = Space::Generic;
        let mut elements = 1;
        let (mut strong, mut scope, mut acquires, mut releases) = (false, None, false, false);
        for modifier in &modifiers[..modifiers.len() - 1] {
            match *modifier {
                "param" | "param::entry" | "param::func" => space = Space::Parameter,
                "local" => space = Space::Local,
                "shared" | "shared::cta" => space = Space::Shared,
                "global" | "const" | "nc" | "weak" | "L1::no_allocate" | "L1::evict_last" | "ca" | "cg" | "cs" | "lu" | "wb" | "cv"
                | "wt" => {}
                "volatile" | "mmio" => (strong, scope) = (true, Some(Scope::System)),
                "relaxed" => strong = true,
                "acquire" => (strong, acquires) = (true, true),
                "release" => (strong, releases) = (true, true),
                "v2" => elements = 2,
                "v4" => elements = 4,
                other => scope = Some(self.scope(other)?),
            }
        }
        let [first, second] = operands else { return Err(self.wrong("expected two operands")) };
        let strength = match (strong, scope) {
            (false, None) => Strength::Weak,
            (true, Some(scope)) => Strength::Strong(scope),
            _ => return Err(self.unknown()),
        };
        let order = Order { strength, acquires, releases };
        let count = |list: usize| if list == elements { Ok(()) } else { Err(self.wrong("a vector of another length")) };
        if is_store {
            let sources = self.sources(second)?;
            count(sources.len())?;
            Ok(Operation::Store { place: self.place(first, space)?, ty, order, sources })
        } else {
            let targets = self.targets(first)?;
            count(targets.len())?;
            Ok(Operation::Load { place: self.place(second, space)?, ty, order, targets })
        }
    }

    fn atomic(&self, is_reduction: bool, modifiers: &[&str], ty: Type, operands: &[Operand<'a>]) -> Answer<Operation> {
        let mut space = Space::Generic;
        let (mut scope, mut acquires, mut releases, mut update) = (Scope::Device, false, false, None);
        for modifier in &modifiers[..modifiers.len() - 1] {
            match *modifier {
                "shared" | "shared::cta" => space = Space::Shared,
                "global" | "relaxed" => {}
                "acquire" => acquires = true,
                "release" => releases = true,
                "acq_rel" => (acquires, releases) = (true, true),
                "cta" | "gpu" | "sys" => scope = self.scope(modifier)?,
                "add" => update = Some(Update::Add),
                "and" => update = Some(Update::And),
                "or" => update = Some(Update::Or),
                "xor" => update = Some(Update::Xor),
                "min" => update = Some(Update::Min),
                "max" => update = Some(Update::Max),
                "exch" => update = Some(Update::Exchange),
                "cas" => update = Some(Update::CompareExchange),
                "inc" => update = Some(Update::Increment),
                "dec" => update = Some(Update::Decrement),
                _ => return Err(self.unknown()),
            }
        }
        let update = update.ok_or_else(|| self.unknown())?;
        let (target, rest) = match operands {
            rest if is_reduction => (None, rest),
            [first, rest @ ..] => (self.target_or_sink(first)?, rest),
            [] => return Err(self.wrong("an operand is missing")),
        };
        let (place, sources) = match (update, rest) {
            (Update::CompareExchange, [place, b, c]) => (place, [self.source(b)?, self.source(c)?]),
            (Update::CompareExchange, _) => return Err(self.wrong("a wrong number of operands")),
            (_, [place, b]) => (place, [self.source(b)?, Source::Value(0)]),
            _ => return Err(self.wrong("a wrong number of operands")),
        };
        let order = Order { strength: Strength::Strong(scope), acquires, releases };
        Ok(Operation::Atomic { update, place: self.place(place, space)?, ty, order, target, sources })
    }

    fn call(&self, operands: &[Operand<'a>]) -> Answer<Operation> {
        let list = |operand: &Operand<'a>| match operand {
            Operand::List(list) => list.iter().map(|one| self.parameter(one)).collect::<Answer<Vec<u64>>>(),
            _ => Err(self.wrong("expected parameters in parentheses")),
        };
        let (results, rest) = match operands {
            [Operand::List(_), rest @ ..] => (list(&operands[0])?, rest),
            rest => (Vec::new(), rest),
        };
        let (name, arguments) = match rest {
            [Operand::Name(name)] => (name, Vec::new()),
            [Operand::Name(name), arguments] => (name, list(arguments)?),
            _ => return Err(self.wrong("calls through a register are not implemented")),
        };
        let function = *self.names.functions.get(name).ok_or_else(|| self.wrong(&format!("`{name}` is not a function")))?;
        Ok(Operation::Call { function, results, arguments })
    }

    fn shuffle(&self, modifiers: &[&str], operands: &[Operand<'a>]) -> Answer<Operation> {
        let mode = match modifiers.get(1) {
            Some(&"idx") => Shuffle::Index,
            Some(&"bfly") => Shuffle::Butterfly,
            Some(&"up") => Shuffle::Up,
            Some(&"down") => Shuffle::Down,
            _ => return Err(self.unknown()),
        };
        let [to, value, lane, clamp, mask] = operands else { return Err(self.wrong("expected five operands")) };
        let (to, valid) = match to {
            Operand::Pair(pair) => (self.target(&pair[0])?, self.target_or_sink(&pair[1])?),
            one => (self.target(one)?, None),
        };
        let (value, lane, clamp, mask) = (self.source(value)?, self.source(lane)?, self.source(clamp)?, self.source(mask)?);
        Ok(Operation::Shuffle { mode, to, valid, value, lane, clamp, mask })
    }
}

fn type_of(name: &str) -> Option<Type> {
    if name == "pred" {
        return Some(Type { class: Class::Predicate, bytes: 1 });
    }
    let (class, width) = name.split_at_checked(1)?;
    let class = match class {
        "b" => Class::Bits,
        "u" => Class::Unsigned,
        "s" => Class::Signed,
        "f" => Class::Float,
        _ => return None,
    };
    let bytes = match (width, class) {
        ("8", Class::Bits | Class::Unsigned | Class::Signed) => 1,
        ("16", Class::Bits | Class::Unsigned | Class::Signed) => 2,
        ("32", _) => 4,
        ("64", _) => 8,
        _ => return None,
    };
    Some(Type { class, bytes })
}

/// Modifiers beside types; `None` if another function matches all of them.
fn known(name: &str) -> Option<&'static [&'static str]> {
    Some(match name {
        "add" | "sub" | "addc" | "subc" => &["rn", "rz", "rm", "rp", "cc"],
        "mul" | "mad" => &["lo", "hi", "wide", "rn", "rz", "rm", "rp", "cc"],
        "fma" | "div" | "sqrt" | "rcp" => &["rn", "rz", "rm", "rp"],
        "shf" => &["l", "r", "wrap", "clamp"],
        "cvta" => &["to", "global", "shared", "local", "const", "param"],
        "brx" => &["idx", "uni"],
        "bra" | "call" | "ret" => &["uni"],
        "bar" | "barrier" => &["cta", "warp", "sync", "aligned"],
        "vote" => &["sync", "ballot", "any", "all", "uni", "pred"],
        "shfl" => &["sync", "idx", "up", "down", "bfly"],
        "setp" | "cvt" | "ld" | "ldu" | "st" | "atom" | "red" | "fence" | "membar" | "prefetch" | "prefetchu" | "discard" | "pmevent" => {
            return None;
        }
        _ => &[],
    })
}

fn special(name: &str) -> Option<Special> {
    let axis = |rest: &str| match rest {
        ".x" => Some(0),
        ".y" => Some(1),
        ".z" => Some(2),
        _ => None,
    };
    Some(match name {
        "%laneid" => Special::Lane,
        "%warpid" => Special::Warp,
        "%nwarpid" => Special::Warps,
        "%gridid" => Special::Grid,
        "%smid" => Special::Multiprocessor,
        "%globaltimer" | "%globaltimer_lo" | "%clock" | "%clock64" => Special::Time,
        "%globaltimer_hi" | "%clock_hi" => Special::TimeHigh,
        "%lanemask_eq" => Special::MaskEqual,
        "%lanemask_le" => Special::MaskLessEqual,
        "%lanemask_lt" => Special::MaskLess,
        "%lanemask_ge" => Special::MaskGreaterEqual,
        "%lanemask_gt" => Special::MaskGreater,
        _ => {
            let (name, rest) = name.split_at_checked(name.find('.')?)?;
            let axis = axis(rest)?;
            match name {
                "%tid" => Special::Thread(axis),
                "%ntid" => Special::Threads(axis),
                "%ctaid" => Special::Block(axis),
                "%nctaid" => Special::Blocks(axis),
                _ => return None,
            }
        }
    })
}
