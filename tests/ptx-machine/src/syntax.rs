use crate::fault::{Answer, Fault, Kind};
use crate::token::{Token, Tokens};

const VARIABLE_LIMIT: u64 = 1 << 28;
const ALIGN_LIMIT: u64 = 4096;
const NESTING_LIMIT: u32 = 8;

#[derive(Debug)]
pub struct Module<'a> {
    pub functions: Vec<Function<'a>>,
    pub variables: Vec<Variable<'a>>,
}

#[derive(Debug)]
pub struct Function<'a> {
    pub name: &'a str,
    pub line: u32,
    pub is_entry: bool,
    pub threads: Threads,
    pub returns: Vec<Variable<'a>>,
    pub parameters: Vec<Variable<'a>>,
    pub body: Option<Vec<Statement<'a>>>,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Threads {
    /// In each dimension.
    pub exactly: Option<[u64; 3]>,
    /// In all dimensions together: PTX limits the product of the extents alone.
    pub most: Option<u64>,
}

#[derive(Clone, Debug)]
pub struct Variable<'a> {
    pub line: u32,
    pub name: &'a str,
    pub space: &'a str,
    pub align: u64,
    pub bytes: u64,
    pub values: Vec<Value<'a>>,
    pub element: u64,
}

#[derive(Clone, Copy, Debug)]
pub enum Value<'a> {
    Number(u64),
    AddressOf(&'a str),
}

#[derive(Debug)]
pub enum Statement<'a> {
    Open,
    Close,
    Label { name: &'a str, line: u32 },
    Targets(Vec<&'a str>),
    Registers { name: &'a str, count: Option<u64>, line: u32 },
    Variable(Variable<'a>),
    Instruction(Instruction<'a>),
}

#[derive(Debug)]
pub struct Instruction<'a> {
    pub line: u32,
    pub guard: Option<(&'a str, bool)>,
    pub opcode: &'a str,
    pub operands: Vec<Operand<'a>>,
}

#[derive(Clone, Debug)]
pub enum Operand<'a> {
    Name(&'a str),
    Number(u64),
    Real(u64, u8),
    Not(&'a str),
    Memory(Option<&'a str>, u64),
    Vector(Vec<Operand<'a>>),
    List(Vec<Operand<'a>>),
    Pair(Box<[Operand<'a>; 2]>),
}

pub fn size_of_type(ty: &str) -> Option<u64> {
    Some(match ty {
        ".pred" | ".b8" | ".u8" | ".s8" => 1,
        ".b16" | ".u16" | ".s16" | ".f16" => 2,
        ".b32" | ".u32" | ".s32" | ".f32" => 4,
        ".b64" | ".u64" | ".s64" | ".f64" => 8,
        ".b128" => 16,
        _ => return None,
    })
}

pub fn module(text: &str) -> Answer<Module<'_>> {
    let mut tokens = Tokens::of(text)?;
    let mut module = Module { functions: Vec::new(), variables: Vec::new() };
    if tokens.peek() != Some(Token::Word(".version")) {
        return Err(tokens.wrong(".version"));
    }
    while let Some(token) = tokens.peek() {
        match token {
            Token::Word(".version") => {
                tokens.next();
                tokens.next();
                tokens.next();
            }
            Token::Word(".target") => {
                tokens.next();
                tokens.word()?;
                while tokens.take(b',') {
                    tokens.word()?;
                }
            }
            Token::Word(".address_size") => {
                tokens.next();
                if tokens.number()? != 64 {
                    return Err(tokens.wrong("addresses of 64 bits"));
                }
            }
            Token::Word(".visible" | ".extern" | ".weak" | ".common") => {
                tokens.next();
                if tokens.peek().is_none() {
                    return Err(tokens.wrong("a declaration"));
                }
            }
            Token::Word(".entry" | ".func") => module.functions.push(function(&mut tokens)?),
            Token::Word(".global" | ".const" | ".shared") => {
                module.variables.push(variable(&mut tokens)?);
                tokens.expect(b';')?;
            }
            Token::Word(".section") => skip(&mut tokens, b'}')?,
            _ => return Err(tokens.wrong("a directive of a module")),
        }
    }
    Ok(module)
}

fn skip(tokens: &mut Tokens<'_>, end: u8) -> Answer {
    while !tokens.take(end) {
        if tokens.next().is_none() {
            return tokens.expect(end);
        }
    }
    Ok(())
}

fn function<'a>(tokens: &mut Tokens<'a>) -> Answer<Function<'a>> {
    let line = tokens.line();
    let is_entry = tokens.word()? == ".entry";
    let returns = if tokens.peek() == Some(Token::Mark(b'(')) { parameters(tokens)? } else { Vec::new() };
    let name = tokens.word()?;
    let parameters = if tokens.peek() == Some(Token::Mark(b'(')) { parameters(tokens)? } else { Vec::new() };
    let mut threads = Threads::default();
    while let Some(Token::Word(_) | Token::Number(_) | Token::Mark(b',')) = tokens.peek() {
        match tokens.next() {
            Some(Token::Word(".reqntid")) => threads.exactly = Some(extents(tokens)?),
            Some(Token::Word(".maxntid")) => threads.most = Some(extents(tokens)?.into_iter().fold(1, u64::saturating_mul)),
            _ => {}
        }
    }
    let body = if tokens.take(b';') { None } else { Some(body(tokens)?) };
    Ok(Function { name, line, is_entry, threads, returns, parameters, body })
}

fn extents(tokens: &mut Tokens<'_>) -> Answer<[u64; 3]> {
    let mut extents = [tokens.number()?, 1, 1];
    for extent in &mut extents[1..] {
        if !tokens.take(b',') {
            break;
        }
        *extent = tokens.number()?;
    }
    Ok(extents)
}

fn parameters<'a>(tokens: &mut Tokens<'a>) -> Answer<Vec<Variable<'a>>> {
    tokens.expect(b'(')?;
    let mut list = Vec::new();
    while !tokens.take(b')') {
        list.push(variable(tokens)?);
        tokens.take(b',');
    }
    Ok(list)
}

fn variable<'a>(tokens: &mut Tokens<'a>) -> Answer<Variable<'a>> {
    let line = tokens.line();
    let space = tokens.word()?;
    let (mut align, mut element) = (1, 0);
    let name = loop {
        match tokens.word()? {
            ".align" => align = tokens.number()?,
            ".ptr" | ".global" | ".shared" | ".const" | ".local" | ".noreturn" => {}
            directive if directive.starts_with('.') => {
                element = size_of_type(directive).ok_or_else(|| tokens.wrong("a type"))?;
            }
            name => break name,
        }
    };
    let mut count = 1_u64;
    while tokens.take(b'[') {
        if !tokens.take(b']') {
            count = count.saturating_mul(tokens.number()?);
            tokens.expect(b']')?;
        } else {
            count = 0;
        }
    }
    let mut values = Vec::new();
    if tokens.take(b'=') {
        let is_list = tokens.take(b'{');
        loop {
            let negative = tokens.take(b'-');
            values.push(match tokens.next() {
                Some(Token::Number(number)) => Value::Number(if negative { number.wrapping_neg() } else { number }),
                Some(Token::Real(bits, bytes)) if u64::from(bytes) == element && !negative => Value::Number(bits),
                Some(Token::Word("generic")) => {
                    tokens.expect(b'(')?;
                    let name = tokens.word()?;
                    tokens.expect(b')')?;
                    Value::AddressOf(name)
                }
                Some(Token::Word(name)) => Value::AddressOf(name),
                _ => return Err(tokens.wrong("an initial value")),
            });
            if !is_list || !tokens.take(b',') {
                break;
            }
        }
        if is_list {
            tokens.expect(b'}')?;
        }
        count = count.max(values.len() as u64);
    }
    let bytes = element.saturating_mul(count);
    let wrong = |what: &str| Err(Fault::new(Kind::Syntax, line, format!("`{name}`: {what}")));
    if bytes > VARIABLE_LIMIT || bytes == 0 {
        return wrong("the machine does not implement this size");
    }
    if !align.is_power_of_two() || align > ALIGN_LIMIT {
        return wrong("the alignment is not a power of two up to 4096");
    }
    Ok(Variable { line, name, space, align: align.max(element), bytes, values, element })
}

fn body<'a>(tokens: &mut Tokens<'a>) -> Answer<Vec<Statement<'a>>> {
    tokens.expect(b'{')?;
    let mut depth = 1;
    let mut list = Vec::new();
    loop {
        let line = tokens.line();
        match tokens.peek() {
            Some(Token::Mark(b'{')) => {
                tokens.next();
                depth += 1;
                list.push(Statement::Open);
            }
            Some(Token::Mark(b'}')) => {
                tokens.next();
                depth -= 1;
                if depth == 0 {
                    return Ok(list);
                }
                list.push(Statement::Close);
            }
            Some(Token::Mark(b';')) => {
                tokens.next();
            }
            Some(Token::Mark(b'@')) => {
                tokens.next();
                let negated = tokens.take(b'!');
                let guard = Some((tokens.word()?, negated));
                let opcode = tokens.word()?;
                list.push(Statement::Instruction(instruction(tokens, line, guard, opcode)?));
            }
            Some(Token::Word(".reg")) => {
                tokens.next();
                tokens.word()?;
                loop {
                    let name = tokens.word()?;
                    let mut count = None;
                    if tokens.take(b'<') {
                        count = Some(tokens.number()?);
                        tokens.expect(b'>')?;
                    }
                    list.push(Statement::Registers { name, count, line });
                    if !tokens.take(b',') {
                        break;
                    }
                }
                tokens.expect(b';')?;
            }
            Some(Token::Word(".local" | ".shared" | ".param")) => {
                list.push(Statement::Variable(variable(tokens)?));
                tokens.expect(b';')?;
            }
            Some(Token::Word(".branchtargets")) => {
                tokens.next();
                let mut targets = vec![tokens.word()?];
                while tokens.take(b',') {
                    targets.push(tokens.word()?);
                }
                tokens.expect(b';')?;
                list.push(Statement::Targets(targets));
            }
            Some(Token::Word(".pragma")) => skip(tokens, b';')?,
            Some(Token::Word(word)) => {
                tokens.next();
                if tokens.take(b':') {
                    list.push(Statement::Label { name: word, line });
                } else {
                    list.push(Statement::Instruction(instruction(tokens, line, None, word)?));
                }
            }
            _ => return Err(tokens.wrong("an instruction")),
        }
    }
}

fn instruction<'a>(tokens: &mut Tokens<'a>, line: u32, guard: Option<(&'a str, bool)>, opcode: &'a str) -> Answer<Instruction<'a>> {
    let mut operands = Vec::new();
    while !tokens.take(b';') {
        operands.push(operand(tokens, NESTING_LIMIT)?);
        if !tokens.take(b',') && tokens.peek() != Some(Token::Mark(b';')) {
            return Err(tokens.wrong("`,` or `;`"));
        }
    }
    Ok(Instruction { line, guard, opcode, operands })
}

fn operand<'a>(tokens: &mut Tokens<'a>, depth: u32) -> Answer<Operand<'a>> {
    let Some(depth) = depth.checked_sub(1) else { return Err(tokens.wrong("less nesting")) };
    let first = match tokens.next() {
        Some(Token::Word(name)) => Operand::Name(name),
        Some(Token::Number(number)) => Operand::Number(number),
        Some(Token::Real(bits, bytes)) => Operand::Real(bits, bytes),
        Some(Token::Mark(b'-')) => Operand::Number(tokens.number()?.wrapping_neg()),
        Some(Token::Mark(b'!')) => Operand::Not(tokens.word()?),
        Some(Token::Mark(b'[')) => memory(tokens)?,
        Some(Token::Mark(b'{')) => Operand::Vector(operands_until(tokens, b'}', depth)?),
        Some(Token::Mark(b'(')) => Operand::List(operands_until(tokens, b')', depth)?),
        _ => return Err(tokens.wrong("an operand")),
    };
    if tokens.take(b'|') {
        return Ok(Operand::Pair(Box::new([first, operand(tokens, depth)?])));
    }
    Ok(first)
}

fn memory<'a>(tokens: &mut Tokens<'a>) -> Answer<Operand<'a>> {
    let name = match tokens.peek() {
        Some(Token::Word(name)) => {
            tokens.next();
            Some(name)
        }
        _ => None,
    };
    if tokens.take(b',') {
        while !tokens.take(b']') {
            if tokens.next().is_none() {
                return Err(tokens.wrong("`]`"));
            }
        }
        return Ok(Operand::List(Vec::new()));
    }
    let mut offset = 0_u64;
    while !tokens.take(b']') {
        let negative = tokens.take(b'-');
        if !negative {
            tokens.take(b'+');
        }
        let negative = tokens.take(b'-') || negative;
        let number = tokens.number()?;
        offset = if negative { offset.wrapping_sub(number) } else { offset.wrapping_add(number) };
    }
    Ok(Operand::Memory(name, offset))
}

fn operands_until<'a>(tokens: &mut Tokens<'a>, end: u8, depth: u32) -> Answer<Vec<Operand<'a>>> {
    let mut list = Vec::new();
    while !tokens.take(end) {
        list.push(operand(tokens, depth)?);
        if !tokens.take(b',') && tokens.peek() != Some(Token::Mark(end)) {
            return Err(Fault::new(Kind::Syntax, tokens.line(), "an operand list without an end"));
        }
    }
    Ok(list)
}
