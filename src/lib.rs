//! x
#![no_std]