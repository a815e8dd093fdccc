#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    Predicate,
    Bits,
    Unsigned,
    Signed,
    Float,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Type {
    pub class: Class,
    pub bytes: u8,
}

impl Type {
    pub const fn bits(self) -> u32 {
        if matches!(self.class, Class::Predicate) { 1 } else { self.bytes as u32 * 8 }
    }

    pub const fn cut(self, value: u64) -> u64 {
        if self.bits() == 64 { value } else { value & ((1 << self.bits()) - 1) }
    }

    pub const fn signed(self, value: u64) -> i64 {
        let unused = 64 - self.bits();
        (value << unused).cast_signed() >> unused
    }

    pub const fn extend(self, value: u64) -> u64 {
        if self.is_signed() { self.signed(value).cast_unsigned() } else { self.cut(value) }
    }

    pub const fn is_signed(self) -> bool {
        matches!(self.class, Class::Signed)
    }

    pub const fn is_float(self) -> bool {
        matches!(self.class, Class::Float)
    }
}

pub type Register = u32;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    Register(Register),
    Value(u64),
    Local(u64),
    Special(Special),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Special {
    Lane,
    Warp,
    Warps,
    Thread(u8),
    Threads(u8),
    Block(u8),
    Blocks(u8),
    Multiprocessor,
    Grid,
    Time,
    TimeHigh,
    MaskEqual,
    MaskLessEqual,
    MaskLess,
    MaskGreaterEqual,
    MaskGreater,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    Generic,
    Local,
    Shared,
    Parameter,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    Block,
    Device,
    System,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strength {
    Weak,
    Strong(Scope),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    pub strength: Strength,
    pub acquires: bool,
    pub releases: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Binary {
    Add,
    Sub,
    Div,
    Rem,
    Min,
    Max,
    And,
    Or,
    Xor,
    ShiftLeft,
    ShiftRight,
    CopySign,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unary {
    Move,
    Not,
    Negate,
    Absolute,
    CountOnes,
    LeadingZeros,
    Reverse,
    SquareRoot,
    Reciprocal,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Half {
    Low,
    High,
    Wide,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compare {
    Equal,
    NotEqual,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
    Numbers,
    NotNumbers,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounding {
    Nearest,
    Zero,
    Down,
    Up,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Logic {
    And,
    Or,
    Xor,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Update {
    Add,
    And,
    Or,
    Xor,
    Min,
    Max,
    Exchange,
    CompareExchange,
    Increment,
    Decrement,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shuffle {
    Index,
    Butterfly,
    Up,
    Down,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vote {
    Ballot,
    Any,
    All,
    Uniform,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub space: Space,
    pub base: Source,
    pub offset: u64,
}

pub type Guard = (Register, bool);

#[derive(Clone, Debug)]
pub enum Operation {
    Nop,
    Unary(Unary, Type, Register, Source),
    Binary(Binary, Type, Register, Source, Source),
    Carry {
        subtract: bool,
        reads: bool,
        writes: bool,
        ty: Type,
        to: Register,
        a: Source,
        b: Source,
    },
    Multiply(Half, Type, Register, Source, Source),
    MultiplyAdd(Half, Type, Register, [Source; 3]),
    FusedMultiplyAdd(Type, Register, [Source; 3]),
    Funnel {
        left: bool,
        wraps: bool,
        to: Register,
        low: Source,
        high: Source,
        count: Source,
    },
    BitField {
        ty: Type,
        to: Register,
        from: Source,
        at: Source,
        length: Source,
    },
    BitInsert {
        ty: Type,
        to: Register,
        field: Source,
        into: Source,
        at: Source,
        length: Source,
    },
    Permute(Register, [Source; 3]),
    Logic3(Register, [Source; 3], u8),
    Pack(Type, Register, Vec<Source>),
    Unpack(Type, Vec<Option<Register>>, Source),
    SetPredicate {
        compare: Compare,
        unordered: bool,
        ty: Type,
        to: Register,
        negated: Option<Register>,
        a: Source,
        b: Source,
        with: Option<(Logic, Source, bool)>,
    },
    Select(Register, Source, Source, Source),
    Convert {
        to: Type,
        from: Type,
        rounding: Option<Rounding>,
        saturates: bool,
        target: Register,
        source: Source,
    },
    Load {
        place: Place,
        ty: Type,
        order: Order,
        targets: Vec<Option<Register>>,
    },
    Store {
        place: Place,
        ty: Type,
        order: Order,
        sources: Vec<Source>,
    },
    Atomic {
        update: Update,
        place: Place,
        ty: Type,
        order: Order,
        target: Option<Register>,
        sources: [Source; 2],
    },
    Fence {
        scope: Scope,
        acquires: bool,
        releases: bool,
    },
    Branch(usize),
    BranchTable(Source, Vec<usize>),
    Call {
        function: usize,
        results: Vec<u64>,
        arguments: Vec<u64>,
    },
    Return,
    Exit,
    Trap,
    BarrierWarp(Source),
    BarrierBlock {
        number: Source,
        is_aligned: bool,
    },
    Shuffle {
        mode: Shuffle,
        to: Register,
        valid: Option<Register>,
        value: Source,
        lane: Source,
        clamp: Source,
        mask: Source,
    },
    Vote {
        mode: Vote,
        to: Register,
        answer: Source,
        negated: bool,
        mask: Source,
    },
    ActiveMask(Register),
    Sleep(Source),
}

#[derive(Clone, Debug)]
pub struct Instruction {
    pub line: u32,
    pub guard: Option<Guard>,
    pub operation: Operation,
}

#[derive(Clone, Copy, Debug)]
pub struct Parameter {
    pub offset: u64,
    pub bytes: u64,
}

#[derive(Clone, Debug)]
pub struct Function {
    pub name: String,
    pub line: u32,
    pub is_entry: bool,
    pub threads: crate::syntax::Threads,
    pub parameters: Vec<Parameter>,
    pub results: Vec<Parameter>,
    pub code: Vec<Instruction>,
    pub registers: usize,
    pub local_bytes: u64,
    pub parameter_bytes: u64,
}
