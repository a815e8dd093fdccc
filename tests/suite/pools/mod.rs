mod config;
mod pinned;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
