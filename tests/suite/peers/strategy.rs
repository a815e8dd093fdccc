use super::*;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

#[test]
fn choose_selects_the_strategy_by_size_and_link() {
    use Strategy::{Chunked, Direct, Pipelined, Staged};
    let mib = |chunk: u64| chunk * MIB;
    for (bytes, rate, direct, staged) in [
        (0, None, Direct, Staged { chunk: mib(4), depth: 1 }),
        (1, Some(25.0), Direct, Staged { chunk: mib(16), depth: 1 }),
        (MIB - 1, None, Direct, Staged { chunk: mib(4), depth: 1 }),
        (MIB, None, Chunked { chunk: mib(4) }, Staged { chunk: mib(4), depth: 1 }),
        (4 * MIB + 1, None, Chunked { chunk: mib(4) }, Staged { chunk: mib(4), depth: 2 }),
        (12 * MIB, Some(7.9), Chunked { chunk: mib(4) }, Staged { chunk: mib(4), depth: 3 }),
        (64 * MIB, Some(8.0), Chunked { chunk: mib(8) }, Staged { chunk: mib(8), depth: 4 }),
        (64 * MIB + 1, Some(15.9), Pipelined { chunk: mib(8), depth: 4 }, Staged { chunk: mib(8), depth: 4 }),
        (65 * MIB, Some(16.0), Pipelined { chunk: mib(16), depth: 4 }, Staged { chunk: mib(16), depth: 4 }),
        (65 * MIB, Some(31.9), Pipelined { chunk: mib(16), depth: 4 }, Staged { chunk: mib(16), depth: 4 }),
        (65 * MIB, Some(32.0), Pipelined { chunk: mib(32), depth: 3 }, Staged { chunk: mib(32), depth: 3 }),
        (u64::MAX, Some(900.0), Pipelined { chunk: mib(32), depth: 4 }, Staged { chunk: mib(32), depth: 4 }),
        (65 * MIB, Some(0.0), Pipelined { chunk: mib(4), depth: 4 }, Staged { chunk: mib(4), depth: 4 }),
        (65 * MIB, Some(-1.0), Pipelined { chunk: mib(4), depth: 4 }, Staged { chunk: mib(4), depth: 4 }),
        (65 * MIB, Some(f64::NAN), Pipelined { chunk: mib(4), depth: 4 }, Staged { chunk: mib(4), depth: 4 }),
    ] {
        assert_eq!(Strategy::choose(bytes, true, rate), direct, "{bytes} bytes at {rate:?}");
        assert_eq!(Strategy::choose(bytes, false, rate), staged, "{bytes} bytes at {rate:?} over the host");
    }
}

#[test]
fn the_strategy_depends_on_enabled_peers_and_the_rate() {
    let backend = build(HostBackend::builder().devices(3).device_memory(64 * KIB).peer(0, 1));
    let mut peers = peers(&backend).rated(20.0);
    let (staged, chunked) = (Strategy::Staged { chunk: 16 * MIB, depth: 1 }, Strategy::Chunked { chunk: 16 * MIB });
    assert_eq!(peers.strategy(0, 1, 2 * MIB), staged, "it can be, and is not");
    peers.enable(0, 1).expect("it can");
    for (from, to, expected) in [(0, 1, chunked), (1, 0, chunked), (0, 2, staged), (2, 1, staged), (2, 2, chunked)] {
        assert_eq!(peers.strategy(from, to, 2 * MIB), expected, "{from} to {to}");
    }
}
