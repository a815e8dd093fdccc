use std::ptr;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::AcqRel;
use std::sync::{Arc, Mutex, PoisonError};

use ringmem_kernels::{ABI, IMAGE};
use ringmem_layouts::image::Entry;
use ringmem_ptx_machine::Image;

use crate::NAME;
use crate::block::{Block, Kind};
use crate::code::{Answer, Code};
use crate::device::Device;
use crate::driver::Driver;

pub const ABI_SYMBOL: &str = "RINGMEM_ABI";

pub struct Module {
    pub device: u32,
    kernels: Vec<Arc<Kernel>>,
    pub abi: Option<u64>,
}

#[derive(Clone)]
pub enum Program {
    Host {
        entry: Entry,
        /// In bytes.
        parameters: Vec<u64>,
        /// Any number of threads runs it: it reads their number.
        is_elementwise: bool,
    },
    Ptx {
        image: Arc<Image>,
        name: &'static str,
        /// In bytes.
        parameters: Vec<u64>,
    },
}

impl Program {
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Host { entry, .. } => entry.name,
            Self::Ptx { name, .. } => name,
        }
    }

    fn local(&self) -> u64 {
        match self {
            Self::Host { .. } => 0,
            Self::Ptx { image, name, .. } => image.local_bytes(name),
        }
    }

    pub fn parameters(&self) -> Vec<u64> {
        match self {
            Self::Host { parameters, .. } | Self::Ptx { parameters, .. } => parameters.clone(),
        }
    }

    pub const fn takes_threads(&self, [x, _]: [u32; 2]) -> bool {
        matches!(self, Self::Ptx { .. } | Self::Host { is_elementwise: true, .. }) || x == 32
    }
}

pub struct Kernel {
    pub program: Program,
    pub device: u32,
    pub local: u64,
    /// Of a block: as the registers of a kernel allow.
    pub most_threads: u32,
    loaded: AtomicBool,
}

impl Module {
    pub fn load(driver: &Driver, device: &Device, text: &str, log: &mut String) -> Answer<Self> {
        let mut refuse = |why: &str| {
            eprintln!("{NAME}: PTX refused: {why}");
            log.push_str(why);
            Err(Code::INVALID_PTX)
        };
        let image = match driver.settings.executes_ptx.then(|| Image::parse(text)) {
            Some(Err(fault)) => return refuse(&fault.to_string()),
            Some(Ok(image)) => Some(Arc::new(image)),
            None => None,
        };
        let outline = Outline::of(text);
        if !outline.has_version {
            return refuse("it does not begin with .version");
        }
        let abi = match outline.abi {
            abi if image.is_some() => abi,
            Some(hash) if hash == ABI.hash => Some(hash),
            Some(hash) => return refuse(&format!("its ABI is {hash:#018x}, the host builds' {:#018x}", ABI.hash)),
            None => return refuse(&format!("it has no {ABI_SYMBOL}")),
        };
        let mut kernels = Vec::new();
        let kernel = |program: Program| {
            let stated =
                |of_kernels: &[(String, u32)]| of_kernels.iter().find(|(kernel, _)| kernel == program.name()).map(|(_, number)| *number);
            let local = stated(&driver.settings.local).map_or(0, u64::from).max(program.local());
            let is_elementwise = outline.entries.iter().any(|entry| entry.name == program.name() && entry.is_elementwise);
            let most_threads = stated(&driver.settings.threads).unwrap_or(if is_elementwise { 1024 } else { 512 });
            Arc::new(Kernel { program, device: device.ordinal, local, most_threads, loaded: AtomicBool::new(driver.settings.eager) })
        };
        if let Some(image) = image {
            for (name, parameters) in image.entries() {
                let name = String::leak(name.to_owned());
                kernels.push(kernel(Program::Ptx { image: Arc::clone(&image), name, parameters }));
            }
        } else {
            for Header { name, parameters, is_elementwise } in &outline.entries {
                let words: u64 = parameters.iter().map(|bytes| bytes.div_ceil(8)).sum();
                match IMAGE.host.iter().find(|entry| entry.name == name) {
                    Some(entry) if entry.arguments as u64 == words => {
                        kernels.push(kernel(Program::Host {
                            entry: *entry,
                            parameters: parameters.clone(),
                            is_elementwise: *is_elementwise,
                        }));
                    }
                    Some(entry) => {
                        return refuse(&format!("`{name}` has {words} words of parameters, its host build {} arguments", entry.arguments));
                    }
                    None => return refuse(&format!("`{name}` has no host build")),
                }
            }
        }
        if driver.settings.eager {
            driver.engine.idle(Some(device.ordinal), driver.settings.deadline);
        }
        let abi = match abi {
            Some(hash) => {
                device.take(8)?;
                let global = Arc::new(Block::new(Kind::Global, device.ordinal, 8).inspect_err(|_| device.give_back(8))?);
                let address = driver.space.place(&global);
                driver.space.resolve(address, 8)?.write(hash, true);
                Some(address)
            }
            None => None,
        };
        Ok(Self { device: device.ordinal, kernels, abi })
    }

    pub fn kernel(&self, name: &str) -> Answer<&Arc<Kernel>> {
        self.kernels.iter().find(|kernel| kernel.program.name() == name).ok_or(Code::NOT_FOUND)
    }

    pub fn has(&self, kernel: &Kernel) -> bool {
        self.kernels.iter().any(|own| ptr::eq(&**own, kernel))
    }

    pub fn unload(&self, driver: &Driver) {
        if self.abi.is_some_and(|abi| driver.space.remove(abi).is_some()) {
            driver.devices[self.device as usize].give_back(8);
        }
    }
}

impl Kernel {
    /// The first use waits for every running kernel.
    pub fn load(&self, driver: &Driver) {
        if !self.loaded.swap(true, AcqRel) {
            driver.engine.idle(Some(self.device), driver.settings.deadline);
        }
    }
}

/// The parts of a text that a module without an interpreter needs.
struct Outline {
    has_version: bool,
    abi: Option<u64>,
    entries: Vec<Header>,
}

struct Header {
    name: String,
    /// In bytes.
    parameters: Vec<u64>,
    /// It reads the number of its thread in a block of any size. Other kernels number the lanes of their one warp.
    is_elementwise: bool,
}

impl Outline {
    /// Parses only another text than the last: tests load one image hundreds of times.
    fn of(text: &str) -> Arc<Self> {
        static LAST: Mutex<Option<(String, Arc<Outline>)>> = Mutex::new(None);
        let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, outline)) = last.as_ref().filter(|(known, _)| known == text) {
            return Arc::clone(outline);
        }
        let code = without_comments(text);
        let outline = Arc::new(Self { has_version: code.trim_start().starts_with(".version"), abi: abi(&code), entries: entries(&code) });
        *last = Some((text.to_owned(), Arc::clone(&outline)));
        outline
    }
}

fn without_comments(text: &str) -> String {
    text.lines().map(|line| line.split_once("//").map_or(line, |(code, _)| code)).collect::<Vec<_>>().join("\n")
}

fn entries(text: &str) -> Vec<Header> {
    let kernel = |code: &str| {
        let (name, rest) = code.split_once('(')?;
        let (parameters, body) = rest.split_once(')')?;
        let parameters = parameters.split(',').filter(|parameter| parameter.contains(".param")).map(bytes).collect();
        Some(Header { name: name.trim().to_owned(), parameters, is_elementwise: body.contains("%tid.x") })
    };
    text.split(".visible .entry").skip(1).filter_map(kernel).collect()
}

/// Returns the size of a parameter: that of its number, or of so many bytes.
fn bytes(parameter: &str) -> u64 {
    if let Some((_, count)) = parameter.split_once('[') {
        return count.trim_end_matches([']', ' ', '\n']).parse().unwrap_or(0);
    }
    let bits =
        parameter.split_whitespace().find_map(|word| word.strip_prefix(['.'])?.strip_prefix(['u', 's', 'b', 'f'])?.parse::<u64>().ok());
    bits.map_or(8, |bits| bits / 8)
}

fn abi(text: &str) -> Option<u64> {
    let statement = text.split(';').find(|statement| statement.contains(".visible .global") && statement.contains(ABI_SYMBOL))?;
    let (_, bytes) = statement.split_once('=')?;
    let bytes = bytes.trim().strip_prefix('{')?.strip_suffix('}')?;
    let mut value = [0; 8];
    for (i, byte) in bytes.split(',').enumerate() {
        *value.get_mut(i)? = byte.trim().parse().ok()?;
    }
    Some(u64::from_le_bytes(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_image_text_names_its_kernels_and_abi() {
        let text = without_comments(std::str::from_utf8(IMAGE.ptx).unwrap());
        assert!(abi(&text).is_some());
        let headers = entries(&text);
        let header = |name| headers.iter().find(|header| header.name == name).map(|header| (&*header.parameters, header.is_elementwise));
        assert_eq!(header("echo"), Some((&[8; 4][..], false)));
        assert_eq!(header("saxpy"), Some((&[8, 8, 8, 4][..], true)));
    }

    #[test]
    fn comments_are_ignored() {
        let text = without_comments(
            "// .visible .entry a()\n.visible .entry b(\n.param .u64 .ptr .align 1 x, // .param\n.param .align 8 .b8 y[20]\n) { %tid.y }",
        );
        let headers: Vec<_> = entries(&text).into_iter().map(|header| (header.name, header.parameters, header.is_elementwise)).collect();
        assert_eq!(headers, [("b".to_owned(), vec![8, 20], false)]);
        assert_eq!(abi(".visible .global .align 8 .b8 RINGMEM_ABI[8] = {1, 2}; "), Some(0x201));
    }
}
