//! The suites of `persistent` over PTX, on a machine that checks it. Tests of the host's handlers and lanes are not here, unless they share a file
//! with others.

#[path = "../persistent/burst.rs"]
mod burst;
mod conversations;
#[path = "../persistent/echo.rs"]
mod echo;
#[path = "../persistent/faults.rs"]
mod faults;
#[path = "../persistent/flag_suite.rs"]
mod flag_suite;
#[path = "../persistent/flagged.rs"]
mod flagged;
#[path = "../persistent/grid.rs"]
mod grid;
#[path = "../persistent/grouped.rs"]
mod grouped;
#[path = "../persistent/histogram.rs"]
mod histogram;
#[path = "../persistent/lifecycle.rs"]
mod lifecycle;
mod machine;
#[path = "../persistent/memory.rs"]
mod memory;
#[path = "../persistent/paired.rs"]
mod paired;
#[path = "../persistent/patience.rs"]
mod patience;
mod probes;
mod reader;
#[path = "../persistent/reduce.rs"]
mod reduce;
#[path = "../persistent/rig.rs"]
mod rig;
#[path = "../persistent/second_headers.rs"]
mod second_headers;
#[path = "../persistent/simulated_warp.rs"]
mod simulated_warp;
mod stores;
#[path = "../persistent/telemetry.rs"]
mod telemetry;
mod traced;
#[path = "../persistent/transform.rs"]
mod transform;
mod twins;
