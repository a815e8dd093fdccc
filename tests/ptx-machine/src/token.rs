use crate::fault::{Answer, Fault, Kind};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Token<'a> {
    Word(&'a str),
    Number(u64),
    Real(u64, u8),
    Quoted,
    Mark(u8),
}

pub struct Tokens<'a> {
    list: Vec<(Token<'a>, u32)>,
    at: usize,
}

const fn begins_word(byte: u8) -> bool {
    byte.is_ascii_alphabetic() || matches!(byte, b'_' | b'$' | b'%' | b'.')
}

impl<'a> Tokens<'a> {
    pub fn of(text: &'a str) -> Answer<Self> {
        let mut list = Vec::new();
        let mut in_comment = false;
        for (line, code) in (1..).zip(text.lines()) {
            let mut rest = code;
            if matches!(rest.split_whitespace().next(), Some(".loc" | ".file")) {
                continue;
            }
            loop {
                if in_comment {
                    let Some((_, after)) = rest.split_once("*/") else { break };
                    (rest, in_comment) = (after, false);
                }
                rest = rest.trim_start();
                let Some(&first) = rest.as_bytes().first() else { break };
                if rest.starts_with("//") {
                    break;
                }
                if let Some(after) = rest.strip_prefix("/*") {
                    (rest, in_comment) = (after, true);
                    continue;
                }
                let (token, length) = match first {
                    b'"' => match rest[1..].find('"') {
                        Some(end) => (Token::Quoted, end + 2),
                        None => return Err(Fault::new(Kind::Syntax, line, "a string without an end")),
                    },
                    b'0'..=b'9' => {
                        let length = rest.bytes().take_while(u8::is_ascii_alphanumeric).count();
                        (number(&rest[..length], line)?, length)
                    }
                    _ if begins_word(first) => {
                        let length = word_length(rest.as_bytes());
                        (Token::Word(&rest[..length]), length)
                    }
                    _ if first.is_ascii_punctuation() => (Token::Mark(first), 1),
                    _ => return Err(Fault::new(Kind::Syntax, line, format!("unknown character in `{rest}`"))),
                };
                list.push((token, line));
                rest = &rest[length..];
            }
        }
        if in_comment {
            return Err(Fault::new(Kind::Syntax, list.last().map_or(1, |(_, line)| *line), "a comment without an end"));
        }
        Ok(Self { list, at: 0 })
    }

    pub fn line(&self) -> u32 {
        self.list.get(self.at).or(self.list.last()).map_or(1, |(_, line)| *line)
    }

    pub fn peek(&self) -> Option<Token<'a>> {
        self.list.get(self.at).map(|(token, _)| *token)
    }

    pub fn next(&mut self) -> Option<Token<'a>> {
        let token = self.peek();
        self.at += 1;
        token
    }

    pub fn take(&mut self, mark: u8) -> bool {
        let is_next = self.peek() == Some(Token::Mark(mark));
        self.at += usize::from(is_next);
        is_next
    }

    pub fn expect(&mut self, mark: u8) -> Answer {
        if self.take(mark) { Ok(()) } else { Err(self.wrong(&format!("`{}`", char::from(mark)))) }
    }

    pub fn word(&mut self) -> Answer<&'a str> {
        match self.peek() {
            Some(Token::Word(word)) => {
                self.at += 1;
                Ok(word)
            }
            _ => Err(self.wrong("a name")),
        }
    }

    pub fn number(&mut self) -> Answer<u64> {
        match self.peek() {
            Some(Token::Number(number)) => {
                self.at += 1;
                Ok(number)
            }
            _ => Err(self.wrong("a number")),
        }
    }

    pub fn wrong(&self, expected: &str) -> Fault {
        let found = self.peek().map_or_else(|| "the end".to_owned(), |token| format!("{token:?}"));
        Fault::new(Kind::Syntax, self.line(), format!("expected {expected}, found {found}"))
    }
}

fn word_length(bytes: &[u8]) -> usize {
    let mut length = 1;
    while let Some(&byte) = bytes.get(length) {
        match byte {
            b':' if bytes.get(length + 1) == Some(&b':') => length += 2,
            _ if begins_word(byte) || byte.is_ascii_digit() => length += 1,
            _ => break,
        }
    }
    length
}

fn number<'a>(text: &str, line: u32) -> Answer<Token<'a>> {
    let digits = text.trim_end_matches('U');
    let parsed = match digits.get(..2) {
        Some("0x" | "0X") => u64::from_str_radix(&digits[2..], 16),
        Some("0b" | "0B") => u64::from_str_radix(&digits[2..], 2),
        Some("0f" | "0F" | "0d" | "0D") => u64::from_str_radix(&digits[2..], 16),
        Some(_) if digits.starts_with('0') => u64::from_str_radix(digits, 8),
        _ => digits.parse(),
    };
    let bits = parsed.map_err(|error| Fault::new(Kind::Syntax, line, format!("`{text}` is not a number: {error}")))?;
    Ok(match digits.get(..2) {
        Some("0f" | "0F") => Token::Real(bits, 4),
        Some("0d" | "0D") => Token::Real(bits, 8),
        _ => Token::Number(bits),
    })
}
