//! [`Faults`]: calls that fail because a test wants them to.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use crate::calls;
use crate::code::Code;
use crate::record::give_up;

/// Which call of which symbol fails, and how.
pub struct Faults {
    planned: Vec<(String, u64, Code)>,
    /// Calls so far, of the symbols that are planned for.
    seen: Mutex<HashMap<&'static str, u64>>,
}

impl Faults {
    /// Reads `SYMBOL:N:CODE,...`. A plan that could never come true ends the process.
    pub fn parse(text: &str) -> Self {
        let entries = text.split(',').filter(|entry| !entry.is_empty());
        let planned = entries.map(|entry| planned(entry).unwrap_or_else(|why| give_up(&format!("RINGMEM_DOUBLE_FAIL={text}: {why}"))));
        Self { planned: planned.collect(), seen: Mutex::default() }
    }

    /// Counts a call; the code if it is one that fails.
    pub fn due(&self, symbol: &'static str) -> Option<Code> {
        let mut of_symbol = self.planned.iter().filter(|plan| plan.0 == symbol).peekable();
        of_symbol.peek()?;
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let count = seen.entry(symbol).or_default();
        *count += 1;
        of_symbol.find(|plan| plan.1 == *count).map(|plan| plan.2)
    }
}

fn planned(entry: &str) -> Result<(String, u64, Code), String> {
    let parts: Vec<&str> = entry.split(':').collect();
    let [symbol, count, code] = parts[..] else { return Err(format!("`{entry}` is not SYMBOL:N:CODE")) };
    if !calls::symbols().any(|known| known == symbol) {
        return Err(format!("no symbol {symbol}"));
    }
    let count = count.parse().ok().filter(|&count| count > 0).ok_or_else(|| format!("`{count}` is no number from 1"))?;
    let code = code.parse().ok().and_then(Code::known).ok_or_else(|| format!("`{code}` is no CUresult with a name here"))?;
    Ok((symbol.to_owned(), count, code))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_nth_call_fails() {
        let faults = Faults::parse("cuMemAlloc_v2:2:2,cuMemFree_v2:1:1,cuMemAlloc_v2:3:999");
        let of = |symbol| faults.due(symbol).map(Code::number);
        assert_eq!([of("cuMemAlloc_v2"), of("cuMemAlloc_v2"), of("cuMemAlloc_v2"), of("cuMemAlloc_v2")], [None, Some(2), Some(999), None]);
        assert_eq!([of("cuMemFree_v2"), of("cuMemFree_v2"), of("cuInit")], [Some(1), None, None]);
    }

    #[test]
    fn a_plan_that_cannot_come_true_is_refused() {
        for entry in ["cuMemAlloc:1:2", "cuMemAlloc_v2:0:2", "cuMemAlloc_v2:1:12345", "cuMemAlloc_v2:1", "cuMemAlloc_v2:one:2"] {
            assert!(planned(entry).is_err(), "{entry}");
        }
    }
}
