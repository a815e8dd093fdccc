//! Allocations and frees in order: recorded by a `Logged` memory, or generated like those of typical programs.

use std::path::Path;

use ringmem_benches::Random;
use ringmem_recordings::{Kind, Recording};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

#[derive(Clone, Copy)]
pub enum Operation {
    Take { block: usize, bytes: u64 },
    Give { block: usize },
}

/// Blocks are numbered from 0, without gaps; each is taken once and given at most once, afterwards.
#[derive(Default)]
pub struct Operations {
    pub name: String,
    pub all: Vec<Operation>,
    /// By block.
    bytes: Vec<u64>,
    live: u64,
    /// The most live bytes, as requested.
    pub peak: u64,
}

impl Operations {
    fn new(name: &str) -> Self {
        Self { name: name.to_owned(), ..Self::default() }
    }

    pub fn blocks(&self) -> usize {
        self.bytes.len()
    }

    fn take(&mut self, bytes: u64) -> usize {
        let block = self.bytes.len();
        self.all.push(Operation::Take { block, bytes });
        self.bytes.push(bytes);
        self.live += bytes;
        self.peak = self.peak.max(self.live);
        block
    }

    fn give(&mut self, block: usize) {
        self.all.push(Operation::Give { block });
        self.live -= self.bytes[block];
    }

    fn give_all(&mut self, blocks: Vec<usize>) {
        blocks.into_iter().for_each(|block| self.give(block));
    }
}

/// The events of a recording's devices, without streams and alignments. Requests that it refused, and frees of blocks that are not live, are left out.
pub fn recorded(path: &Path) -> Result<Operations, String> {
    let fact = |fact: &dyn std::fmt::Display| format!("{}: {fact}", path.display());
    let recording = Recording::parse(std::fs::read(path).map_err(|error| fact(&error))?).map_err(|error| fact(&error))?;
    let name = path.file_stem().ok_or_else(|| fact(&"no name"))?;
    let mut operations = Operations::new(&name.to_string_lossy());
    for device in &recording.devices {
        // By the device's numbers.
        let mut blocks = Vec::new();
        for event in &device.events {
            match event.kind {
                Kind::Alloc => blocks.push(operations.take(event.size)),
                Kind::Free => blocks.get(event.block as usize).into_iter().for_each(|&block| operations.give(block)),
                Kind::Refused => {}
            }
        }
    }
    Ok(operations)
}

pub fn generated() -> Vec<Operations> {
    vec![
        transformer("training", &Steps { keeps_activations: true }),
        transformer("training-checkpointed", &Steps { keeps_activations: false }),
        inference(),
        resizing(),
        staging(),
        random(),
        hostile(),
    ]
}

struct Steps {
    /// For the backward pass; otherwise only each layer's input is kept, and the rest is computed again.
    keeps_activations: bool,
}

/// Training of a decoder in mixed precision: 24 layers, 1024 features, 16 heads, 8 sequences of 512 to 1024 tokens, a step each, Adam.
fn transformer(name: &str, steps: &Steps) -> Operations {
    const LAYERS: usize = 24;
    const FEATURES: u64 = 1024;
    const HEADS: u64 = 16;
    const BATCH: u64 = 8;
    const WORDS: u64 = 50_257;
    let (mut to, mut random) = (Operations::new(name), Random(1));
    let layer = [3 * FEATURES * FEATURES, FEATURES * FEATURES, 4 * FEATURES * FEATURES, 4 * FEATURES * FEATURES, 4 * FEATURES, FEATURES];
    let weights: Vec<u64> = [WORDS * FEATURES, 1024 * FEATURES].into_iter().chain(layer.repeat(LAYERS)).collect();
    weights.iter().for_each(|&count| {
        to.take(4 * count);
    });
    let forward = |to: &mut Operations, tokens: u64, length: u64| {
        let row = 2 * tokens * FEATURES;
        // Norm, queries with keys and values, scores, their mask, context, projection, norm, up, activation, down.
        let kept =
            [row, 3 * row, 2 * BATCH * HEADS * length * length, BATCH * HEADS * length * length, row, row, row, 4 * row, 4 * row, row];
        let kept = kept.map(|bytes| {
            let workspace = to.take(bytes / 3 + 8 * KIB);
            let block = to.take(bytes);
            to.give(workspace);
            block
        });
        kept.to_vec()
    };
    for step in 0..8 {
        let length = 512 + 64 * random.below(9);
        let tokens = BATCH * length;
        let row = 2 * tokens * FEATURES;
        let mut kept = Vec::new();
        for _ in 0..LAYERS {
            let input = to.take(row);
            let mut activations = forward(&mut to, tokens, length);
            if !steps.keeps_activations {
                to.give_all(std::mem::take(&mut activations));
            }
            kept.push((input, activations));
        }
        let logits = to.take(2 * tokens * WORDS);
        let loss = to.take(4 * tokens * WORDS);
        let mut gradients = vec![to.take(4 * weights[0]), to.take(4 * weights[1])];
        to.give(loss);
        let mut incoming = to.take(row);
        to.give(logits);
        for (input, mut activations) in kept.into_iter().rev() {
            if activations.is_empty() {
                activations = forward(&mut to, tokens, length);
            }
            for activation in activations.into_iter().rev() {
                let outgoing = to.take(to.bytes[activation]);
                to.give(incoming);
                to.give(activation);
                incoming = outgoing;
            }
            gradients.extend(layer.map(|count| to.take(4 * count)));
            let outgoing = to.take(row);
            to.give(incoming);
            to.give(input);
            incoming = outgoing;
        }
        to.give(incoming);
        for &count in &weights {
            if step == 0 {
                to.take(4 * count);
                to.take(4 * count);
            }
            let update = to.take(4 * count);
            to.give(update);
        }
        to.give_all(gradients);
    }
    to
}

/// A server of a language model: some ten requests at a time, and two caches a layer for each, which grow by 16 tokens at a time.
fn inference() -> Operations {
    const LAYERS: u64 = 16;
    const TOKEN: u64 = 2 * 1024;
    let (mut to, mut random) = (Operations::new("inference"), Random(2));
    for _ in 0..4 * LAYERS {
        to.take(32 * MIB);
    }
    // Tokens, tokens at the end, blocks.
    let mut requests: Vec<(u64, u64, Vec<usize>)> = Vec::new();
    for _ in 0..400 {
        if random.below(4) == 0 {
            let prompt = 64 + random.below(1500);
            let workspace = to.take(prompt * TOKEN * 4);
            let caches = (0..2 * LAYERS).map(|_| to.take(prompt * TOKEN)).collect();
            to.give(workspace);
            requests.push((prompt, prompt + 32 + random.below(500), caches));
        }
        for (tokens, _, caches) in &mut requests {
            *tokens += 16;
            for cache in caches {
                let longer = to.take(*tokens * TOKEN);
                to.give(std::mem::replace(cache, longer));
            }
        }
        for (_, _, caches) in requests.extract_if(.., |(tokens, last, _)| tokens >= last) {
            to.give_all(caches);
        }
    }
    to
}

/// A simulation of 10^6 nodes at first, whose number varies up to 4 * 10^6: each change copies 14 arrays to new ones.
fn resizing() -> Operations {
    const BYTES_PER_NODE: [u64; 14] = [4, 4, 8, 12, 12, 12, 16, 16, 32, 48, 64, 96, 128, 1];
    let (mut to, mut random) = (Operations::new("resizing"), Random(3));
    let mut nodes = 1_000_000;
    let mut arrays = BYTES_PER_NODE.map(|bytes| to.take(bytes * nodes));
    for _ in 0..400 {
        nodes = (nodes * (80 + random.below(45)) / 100).clamp(200_000, 4_000_000);
        for (array, bytes) in arrays.iter_mut().zip(BYTES_PER_NODE) {
            let resized = to.take(bytes * nodes);
            to.give(std::mem::replace(array, resized));
        }
        // Sorting into cells.
        let keys = to.take(8 * nodes);
        let order = to.take(4 * nodes);
        to.give_all(vec![keys, order]);
    }
    to
}

/// A size from `least` on, as probable in each octave.
fn logarithmic(random: &mut Random, least: u64, octaves: u64) -> u64 {
    let octave = least << random.below(octaves);
    octave + random.below(octave)
}

/// A renderer: uploads that live for three frames, and textures that come and go.
fn staging() -> Operations {
    let (mut to, mut random) = (Operations::new("staging"), Random(4));
    let (mut frames, mut textures) = (std::collections::VecDeque::new(), Vec::new());
    for _ in 0..1000 {
        let uploads = 4 + random.below(24);
        frames.push_back((0..uploads).map(|_| to.take(logarithmic(&mut random, KIB, 13))).collect::<Vec<_>>());
        if frames.len() > 3
            && let Some(oldest) = frames.pop_front()
        {
            to.give_all(oldest);
        }
        if random.below(2) == 0 {
            textures.push(to.take(logarithmic(&mut random, 64 * KIB, 9)));
            if textures.len() > 150 {
                let index = random.index(&textures);
                to.give(textures.swap_remove(index));
            }
        }
    }
    to
}

/// Sizes from 512 bytes to 64 MiB, as many in each octave, which come and go at random: small blocks lie between large ones.
fn random() -> Operations {
    let (mut to, mut random) = (Operations::new("random"), Random(5));
    let mut live = Vec::new();
    for _ in 0..100_000 {
        if !live.is_empty() && random.below(100) < 49 {
            let index = random.index(&live);
            to.give(live.swap_remove(index));
        } else {
            live.push(to.take(logarithmic(&mut random, 512, 17)));
        }
    }
    to
}

/// After Robson's bound for first and best fit: rounds fill 2 GiB with blocks of twice the last size, too large for the gaps that every second block left.
fn hostile() -> Operations {
    let mut to = Operations::new("hostile");
    let mut held: Vec<usize> = Vec::new();
    for octave in 0..10 {
        let bytes = ((128 * KIB) << octave) + 512;
        while to.live + bytes <= 2048 * MIB {
            held.push(to.take(bytes));
        }
        let blocks = std::mem::take(&mut held);
        for (place, block) in blocks.into_iter().enumerate() {
            if place % 2 == 0 { to.give(block) } else { held.push(block) }
        }
    }
    to
}
