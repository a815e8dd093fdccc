use crate::kernel::{BLOCKS_EACH, MULTIPROCESSORS};

pub const CAN_MAP_HOST_MEMORY: i32 = 19;
pub const MANAGED_MEMORY: i32 = 83;
pub const PAGEABLE_MEMORY_ACCESS: i32 = 88;
pub const CONCURRENT_MANAGED_ACCESS: i32 = 89;
pub const COOPERATIVE_LAUNCH: i32 = 95;
pub const HOST_REGISTER_SUPPORTED: i32 = 99;
pub const VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED: i32 = 102;
pub const MEMORY_POOLS_SUPPORTED: i32 = 115;
pub const CAN_USE_STREAM_WORDS: i32 = 122;
pub const CAN_FLUSH_REMOTE_WRITES: i32 = 98;

const TABLE: &[(i32, i32)] = &[
    (1, 1024),                    // MAX_THREADS_PER_BLOCK
    (2, 1024),                    // MAX_BLOCK_DIM_X
    (5, i32::MAX),                // MAX_GRID_DIM_X
    (10, 32),                     // WARP_SIZE
    (13, 1_000_000),              // CLOCK_RATE, kHz
    (16, MULTIPROCESSORS as i32), // MULTIPROCESSOR_COUNT
    (17, 0),                      // KERNEL_EXEC_TIMEOUT
    (CAN_MAP_HOST_MEMORY, 1),
    (31, 1),         // CONCURRENT_KERNELS
    (36, 1_000_000), // MEMORY_CLOCK_RATE, kHz
    (37, 64),        // GLOBAL_MEMORY_BUS_WIDTH, bits
    (39, 1024),      // MAX_THREADS_PER_MULTIPROCESSOR
    (40, 2),         // ASYNC_ENGINE_COUNT
    (41, 1),         // UNIFIED_ADDRESSING
    (75, 9),         // COMPUTE_CAPABILITY_MAJOR
    (76, 0),         // COMPUTE_CAPABILITY_MINOR
    (78, 1),         // STREAM_PRIORITIES_SUPPORTED
    (MANAGED_MEMORY, 1),
    (86, 0), // HOST_NATIVE_ATOMIC_SUPPORTED
    (CONCURRENT_MANAGED_ACCESS, 1),
    (91, 1), // CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM
    (92, 1), // CAN_USE_STREAM_MEM_OPS_V1
    (93, 1), // CAN_USE_64_BIT_STREAM_MEM_OPS_V1
    (94, 1), // CAN_USE_STREAM_WAIT_VALUE_NOR_V1
    (COOPERATIVE_LAUNCH, 1),
    (CAN_FLUSH_REMOTE_WRITES, 1),
    (HOST_REGISTER_SUPPORTED, 1),
    (VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, cfg!(target_os = "linux") as i32),
    (106, BLOCKS_EACH as i32), // MAX_BLOCKS_PER_MULTIPROCESSOR
    (MEMORY_POOLS_SUPPORTED, 1),
    (CAN_USE_STREAM_WORDS, 1), // CAN_USE_64_BIT_STREAM_MEM_OPS
    (123, 1),                  // CAN_USE_STREAM_WAIT_VALUE_NOR
];

const COUNT: usize = 256;

pub struct Attributes {
    values: [Option<i32>; COUNT],
}

impl Attributes {
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut values = [Some(0); COUNT];
        for &(number, value) in TABLE {
            values[number as usize] = Some(value);
        }
        let value = |value: &str| if value == "-" { Some(None) } else { value.parse().ok().map(Some) };
        for entry in text.split(',').filter(|entry| !entry.is_empty()) {
            let parsed = entry.split_once('=').and_then(|(number, text)| Some((number.parse::<usize>().ok()?, value(text)?)));
            match parsed {
                Some((number, value)) if number < COUNT => values[number] = value,
                _ => return Err(format!("`{entry}` is not NUMBER=VALUE")),
            }
        }
        Ok(Self { values })
    }

    pub fn value(&self, number: i32) -> Option<i32> {
        usize::try_from(number).ok().and_then(|number| self.values.get(number)).copied().unwrap_or(Some(0))
    }

    pub fn has(&self, number: i32) -> bool {
        self.value(number).is_some_and(|value| value != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parsed_attributes_replace_the_table() {
        let attributes = Attributes::parse("89=0,86=1,115=-").unwrap();
        assert_eq!([89, 86, 10, 0, 255, 256, -1].map(|number| attributes.value(number)), [0, 1, 32, 0, 0, 0, 0].map(Some));
        assert_eq!((attributes.value(115), attributes.has(115)), (None, false));
        for text in ["89", "x=1", "89=y", "256=1", "-1=1"] {
            assert!(Attributes::parse(text).is_err(), "{text}");
        }
    }
}
