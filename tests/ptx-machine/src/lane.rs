use crate::code::{Function, Parameter, Register, Source, Type};
use crate::decode::{LOCAL_LIMIT, REGISTER_LIMIT};
use crate::fault::{Answer, Fault, Kind};
use crate::image::LOCAL;
use crate::memory::View;

const DEPTH: usize = 256;

#[derive(Clone, Debug)]
pub enum State {
    Ready,
    Sleeping(u64),
    Waiting(Wait),
    Exited,
}

#[derive(Clone, Copy, Debug)]
pub enum Wait {
    BarrierWarp { mask: u32 },
    BarrierBlock { number: u64, is_aligned: bool },
    Shuffle { mode: crate::code::Shuffle, to: Register, valid: Option<Register>, value: Option<u64>, lane: u32, clamp: u32, mask: u32 },
    Vote { mode: crate::code::Vote, to: Register, answer: bool, mask: u32 },
}

struct Frame {
    function: usize,
    at: usize,
    registers: usize,
    parameters: usize,
    local: usize,
    results: Vec<u64>,
}

pub struct Lane {
    pub view: View,
    pub state: State,
    pub function: usize,
    pub at: usize,
    /// `None` if it depends on a register that was never written, or was never written itself.
    pub carry: Option<bool>,
    registers: Vec<u64>,
    known: Vec<bool>,
    first_register: usize,
    parameters: Vec<u8>,
    parameters_known: Vec<bool>,
    first_parameter: usize,
    local: Vec<u8>,
    local_known: Vec<bool>,
    first_local: usize,
    frames: Vec<Frame>,
}

impl Lane {
    pub fn new(view: View, index: usize, function: &Function, arguments: &[u64]) -> Self {
        let mut lane = Self {
            view,
            state: State::Ready,
            function: index,
            at: 0,
            carry: None,
            registers: Vec::new(),
            known: Vec::new(),
            first_register: 0,
            parameters: Vec::new(),
            parameters_known: Vec::new(),
            first_parameter: 0,
            local: Vec::new(),
            local_known: Vec::new(),
            first_local: 0,
            frames: Vec::new(),
        };
        lane.grow(function);
        let mut words = arguments.iter();
        for parameter in &function.parameters {
            let range = parameter.offset as usize..(parameter.offset + parameter.bytes) as usize;
            lane.parameters_known[range.clone()].fill(true);
            for (bytes, word) in lane.parameters[range].chunks_mut(8).zip(&mut words) {
                bytes.copy_from_slice(&word.to_le_bytes()[..bytes.len()]);
            }
        }
        lane
    }

    fn grow(&mut self, function: &Function) {
        self.registers.resize(self.first_register + function.registers, 0);
        self.known.resize(self.registers.len(), false);
        self.parameters.resize(self.first_parameter + function.parameter_bytes as usize, 0);
        self.parameters_known.resize(self.parameters.len(), false);
        self.local.resize(self.first_local + function.local_bytes as usize, 0);
        self.local_known.resize(self.local.len(), false);
    }

    pub fn read(&self, source: Source, known: &mut bool, special: impl FnOnce(crate::code::Special) -> u64) -> u64 {
        match source {
            Source::Register(register) => {
                let at = self.first_register + register as usize;
                *known &= self.known[at];
                self.registers[at]
            }
            Source::Value(value) => value,
            Source::Local(offset) => LOCAL + self.first_local as u64 + offset,
            Source::Special(name) => special(name),
        }
    }

    pub fn write(&mut self, register: Register, value: u64, known: bool) {
        let at = self.first_register + register as usize;
        self.registers[at] = value;
        self.known[at] = known;
    }

    fn parameter_range(&self, offset: u64, bytes: u64) -> Option<std::ops::Range<usize>> {
        let end = offset.checked_add(bytes)?;
        let first = self.first_parameter;
        (end <= (self.parameters.len() - first) as u64).then(|| first + offset as usize..first + end as usize)
    }

    pub fn load_parameter(&self, offset: u64, ty: Type) -> Option<(u64, bool)> {
        let range = self.parameter_range(offset, ty.bytes.into())?;
        Some((value_of(&self.parameters[range.clone()]), self.parameters_known[range].iter().all(|known| *known)))
    }

    pub fn store_parameter(&mut self, offset: u64, ty: Type, value: u64, known: bool) -> Option<()> {
        let range = self.parameter_range(offset, ty.bytes.into())?;
        self.parameters[range.clone()].copy_from_slice(&value.to_le_bytes()[..ty.bytes.into()]);
        self.parameters_known[range].fill(known);
        Some(())
    }

    pub fn load_local(&self, offset: u64, ty: Type) -> Option<(u64, bool)> {
        let range = usize::try_from(offset).ok()?..usize::try_from(offset.checked_add(ty.bytes.into())?).ok()?;
        let bytes = self.local.get(range.clone())?;
        Some((value_of(bytes), self.local_known[range].iter().all(|known| *known)))
    }

    pub fn store_local(&mut self, offset: u64, ty: Type, value: u64, known: bool) -> Option<()> {
        let range = usize::try_from(offset).ok()?..usize::try_from(offset.checked_add(ty.bytes.into())?).ok()?;
        self.local.get_mut(range.clone())?.copy_from_slice(&value.to_le_bytes()[..ty.bytes.into()]);
        self.local_known[range].fill(known);
        Some(())
    }

    pub fn call(&mut self, index: usize, function: &Function, results: &[u64], arguments: &[u64], line: u32) -> Answer {
        let local = self.local.len().next_multiple_of(16);
        if self.frames.len() == DEPTH
            || self.registers.len() + function.registers > REGISTER_LIMIT as usize
            || (local.max(self.parameters.len()) as u64 + function.local_bytes.max(function.parameter_bytes)) > LOCAL_LIMIT
        {
            return Err(Fault::new(Kind::OutOfBounds, line, format!("the stack of lane {} is full", self.view.lane.index)));
        }
        if arguments.len() != function.parameters.len() || results.len() != function.results.len() {
            return Err(Fault::new(Kind::Syntax, line, format!("`{}` has other parameters than this call", function.name)));
        }
        let caller = self.first_parameter;
        self.frames.push(Frame {
            function: self.function,
            at: self.at,
            registers: self.first_register,
            parameters: caller,
            local: self.first_local,
            results: results.to_vec(),
        });
        self.first_register = self.registers.len();
        self.first_parameter = self.parameters.len();
        self.first_local = local;
        self.grow(function);
        for (argument, parameter) in arguments.iter().zip(&function.parameters) {
            self.copy_parameter(caller as u64 + argument, self.first_parameter as u64 + parameter.offset, parameter.bytes);
        }
        (self.function, self.at) = (index, 0);
        Ok(())
    }

    fn copy_parameter(&mut self, from: u64, to: u64, bytes: u64) {
        let (from, to, bytes) = (from as usize, to as usize, bytes as usize);
        if from.max(to) + bytes <= self.parameters.len() {
            self.parameters.copy_within(from..from + bytes, to);
            self.parameters_known.copy_within(from..from + bytes, to);
        }
    }

    pub fn leave(&mut self, results: &[Parameter]) -> bool {
        let Some(frame) = self.frames.pop() else { return false };
        for (parameter, to) in results.iter().zip(&frame.results) {
            self.copy_parameter(self.first_parameter as u64 + parameter.offset, frame.parameters as u64 + to, parameter.bytes);
        }
        self.registers.truncate(self.first_register);
        self.known.truncate(self.first_register);
        self.parameters.truncate(self.first_parameter);
        self.parameters_known.truncate(self.first_parameter);
        self.local.truncate(self.first_local);
        self.local_known.truncate(self.first_local);
        (self.function, self.at) = (frame.function, frame.at);
        (self.first_register, self.first_parameter, self.first_local) = (frame.registers, frame.parameters, frame.local);
        true
    }
}

fn value_of(bytes: &[u8]) -> u64 {
    let mut value = [0; 8];
    value[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(value)
}
