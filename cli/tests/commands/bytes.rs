//! Files, and an independent count of their bytes.

use std::path::Path;

use tempfile::NamedTempFile;

#[derive(Debug, PartialEq)]
pub struct Counted {
    pub histogram: Vec<u64>,
    pub checksum: u64,
}

fn scatter(x: u64) -> u64 {
    let mut z = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

pub fn count(data: &[u8]) -> Counted {
    let mut counted = Counted { histogram: vec![0; 256], checksum: 0 };
    data.iter().for_each(|&byte| counted.histogram[usize::from(byte)] += 1);
    for (index, run) in data.chunks(8).enumerate() {
        let mut word = [0; 8];
        word[..run.len()].copy_from_slice(run);
        counted.checksum = counted.checksum.wrapping_add(scatter(u64::from_le_bytes(word) ^ scatter(index as u64)));
    }
    counted
}

impl Counted {
    pub fn total(&self) -> u64 {
        self.histogram.iter().sum()
    }

    pub fn entropy(&self) -> f64 {
        let total = self.total() as f64;
        let sum: f64 = self.histogram.iter().filter(|&&count| count > 0).map(|&count| count as f64 * (count as f64).log2()).sum();
        if total == 0.0 { 0.0 } else { total.log2() - sum / total }
    }
}

pub fn noise(len: usize) -> Vec<u8> {
    (0..len as u64)
        .map(|i| {
            let word = scatter(i ^ len as u64);
            if word.is_multiple_of(3) { (word >> 60) as u8 } else { (word >> 48) as u8 }
        })
        .collect()
}

pub fn file(bytes: &[u8]) -> NamedTempFile {
    let file = NamedTempFile::new().expect("a temporary file");
    std::fs::write(file.path(), bytes).expect("room for it");
    file
}

pub fn text(path: &Path) -> &str {
    path.to_str().expect("a path in UTF-8")
}
