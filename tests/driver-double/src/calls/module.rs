use std::ffi::{CStr, c_char, c_void};

use crate::attributes::COOPERATIVE_LAUNCH;
use crate::code::{Answer, Code};
use crate::driver::Driver;
use crate::entry::{Name, give};
use crate::jit::{ERROR_LOG, INFO_LOG, Log};
use crate::kernel::{BLOCKS_EACH, Launch, MULTIPROCESSORS};
use crate::module::{ABI_SYMBOL, Kernel, Module};
use crate::operation::Operation;

const MOST_THREADS: i32 = 0;
const LOCAL_SIZE: i32 = 3;

const WARP: u32 = 32;

/// # Safety
///
/// `parameters` is null, or one pointer per size, each null or valid for reads of that length.
unsafe fn arguments(parameters: *mut *mut c_void, sizes: &[u64]) -> Answer<Vec<u64>> {
    if parameters.is_null() && !sizes.is_empty() {
        return Err(Code::INVALID_VALUE);
    }
    let mut words = Vec::new();
    for (i, &bytes) in sizes.iter().enumerate() {
        // SAFETY: the caller promises one pointer per size at `parameters`, and `i` is below the number of sizes.
        let pointer = unsafe { parameters.add(i).read() };
        if pointer.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        for at in (0..bytes).step_by(8) {
            let mut value = [0; 8];
            // SAFETY: not null, and the caller promises that the pointer is valid for reads of the parameter's size; at most 8 of its bytes from `at` on fit
            // the value.
            unsafe { value.as_mut_ptr().copy_from_nonoverlapping(pointer.cast::<u8>().add(at as usize), (bytes - at).min(8) as usize) };
            words.push(u64::from_le_bytes(value));
        }
    }
    Ok(words)
}

/// Loads a module; writes the error to `log`.
///
/// # Safety
///
/// `module` is null, which is rejected, or valid for a write; `image` is null, which is rejected, a C string, or a binary with a zero.
unsafe fn load(driver: &Driver, module: *mut usize, image: *const c_void, log: &mut String) -> Answer {
    if module.is_null() || image.is_null() {
        return Err(Code::INVALID_VALUE);
    }
    // SAFETY: the caller promises a C string or a binary that has a zero, which ends it; it is not null.
    let text = unsafe { CStr::from_ptr(image.cast::<c_char>()) };
    let text = text.to_str().map_err(|_| Code::INVALID_IMAGE)?;
    if text.starts_with("\x7fELF") {
        return Err(Code::NO_BINARY_FOR_GPU);
    }
    let loaded = Module::load(driver, driver.current()?, text, log)?;
    // SAFETY: not null; the caller promises that `module` is valid for a write.
    unsafe { give(module, driver.modules.insert(loaded)) }
}

/// Returns how many blocks of so many threads fit on a multiprocessor, which has the registers for one of the most threads.
fn blocks_each(kernel: &Kernel, threads: u32) -> u32 {
    (kernel.most_threads / (threads.div_ceil(WARP) * WARP)).min(BLOCKS_EACH as u32)
}

struct Shape {
    grid: [u32; 3],
    block: [u32; 3],
}

/// # Safety
///
/// As [`arguments`]; the arguments satisfy `Entry::run`.
unsafe fn launch(driver: &Driver, function: usize, shape: &Shape, stream: usize, parameters: *mut *mut c_void) -> Answer {
    let function = driver.functions.find(function)?;
    if driver.engine.stream(stream)?.device != function.device {
        return Err(Code::INVALID_HANDLE);
    }
    let [groups, 1, 1] = shape.grid else { return Err(Code::INVALID_VALUE) };
    let [x, y, 1] = shape.block else { return Err(Code::INVALID_VALUE) };
    let threads = [x, y];
    if groups == 0 || !(1..=1024).contains(&x.saturating_mul(y)) || !function.program.takes_threads(threads) {
        return Err(Code::INVALID_VALUE);
    }
    if x * y > function.most_threads {
        return Err(Code::LAUNCH_OUT_OF_RESOURCES);
    }
    // SAFETY: the caller promises that `parameters` is null, or one pointer per parameter of the kernel, each null or valid for reads of its size.
    let arguments = unsafe { arguments(parameters, &function.program.parameters())? };
    function.load(driver);
    if driver.devices[function.device as usize].grows_local(function.local) {
        // A driver allocates local memory for all threads.
        driver.engine.idle(Some(function.device), driver.settings.deadline);
    }
    let launch = Launch { program: function.program.clone(), arguments, groups: groups.into(), threads };
    let ticket = driver.engine.queue(stream, Operation::Launch(launch), None)?;
    if driver.settings.blocks_launches {
        driver.engine.wait(&ticket, driver.settings.patience());
    }
    Ok(())
}

calls! {
    Context fn cuModuleLoadData(module: *mut usize, image: *const c_void) |driver| {
        // SAFETY: the driver's documentation obliges the caller to pass a `module` that is valid for a write and an image that is text or a
        // binary.
        unsafe { load(driver, module, image, &mut String::new()) }
    }

    Context fn cuModuleLoadDataEx(module: *mut usize, image: *const c_void, count: u32, options: *mut u32, values: *mut *mut c_void) |driver| {
        // SAFETY: the driver's documentation obliges the caller to pass lists of `count` options and values.
        let info = unsafe { Log::find(count, options, values, INFO_LOG)? };
        // SAFETY: the driver's documentation obliges the caller to pass lists of `count` options and values.
        let error = unsafe { Log::find(count, options, values, ERROR_LOG)? };
        let mut why = String::new();
        // SAFETY: the driver's documentation obliges the caller to pass a `module` that is valid for a write and an image that is text or a
        // binary.
        let loaded = unsafe { load(driver, module, image, &mut why) };
        for (log, text) in [(info, ""), (error, why.as_str())] {
            if let Some(log) = log {
                log.write(text);
            }
        }
        loaded
    }

    Context fn cuModuleUnload(module: usize) |driver| {
        let device = driver.modules.find(module)?.device;
        driver.engine.idle(Some(device), driver.settings.deadline);
        let module = driver.modules.remove(module)?;
        driver.functions.retain(|kernel| !module.has(kernel));
        module.unload(driver);
        Ok(())
    }

    Context fn cuModuleGetFunction(function: *mut usize, module: usize, name: Name) |driver| {
        if function.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        let module = driver.modules.find(module)?;
        let kernel = module.kernel(name.text()?)?;
        // SAFETY: not null; the driver's documentation obliges the caller to pass a `function` that is valid for a write.
        unsafe { give(function, driver.functions.insert_arc(kernel.clone())) }
    }

    Context fn cuModuleGetGlobal_v2(address: *mut u64, bytes: *mut usize, module: usize, name: Name) |driver| {
        let module = driver.modules.find(module)?;
        if name.text()? != ABI_SYMBOL {
            return Err(Code::NOT_FOUND);
        }
        if !bytes.is_null() {
            // SAFETY: not null; the driver's documentation obliges the caller to pass `bytes` that are null or valid for a write.
            unsafe { give(bytes, 8)? };
        }
        if !address.is_null() {
            // SAFETY: not null; the driver's documentation obliges the caller to pass an `address` that is null or valid for a write.
            unsafe { give(address, module.abi.ok_or(Code::NOT_FOUND)?)? };
        }
        Ok(())
    }

    Context fn cuFuncLoad(function: usize) |driver| {
        driver.functions.find(function)?.load(driver);
        Ok(())
    }

    Context fn cuFuncGetAttribute(value: *mut i32, attribute: i32, function: usize) |driver| {
        let function = driver.functions.find(function)?;
        let known = match attribute {
            LOCAL_SIZE => i32::try_from(function.local).unwrap_or(i32::MAX),
            MOST_THREADS => function.most_threads.cast_signed(),
            _ => return Err(Code::INVALID_VALUE),
        };
        // SAFETY: the driver's documentation obliges the caller to pass a `value` that is valid for a write; null is rejected.
        unsafe { give(value, known) }
    }

    Context fn cuOccupancyMaxActiveBlocksPerMultiprocessor(blocks: *mut i32, function: usize, block_size: i32, _shared: usize) |driver| {
        let function = driver.functions.find(function)?;
        if !(1..=1024).contains(&block_size) {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: the driver's documentation obliges the caller to pass `blocks` that are valid for a write; null is rejected.
        unsafe { give(blocks, blocks_each(&function, block_size.cast_unsigned()).cast_signed()) }
    }

    Context fn cuOccupancyMaxPotentialBlockSize(
        blocks: *mut i32,
        threads: *mut i32,
        function: usize,
        shared_of: *mut c_void,
        _shared: usize,
        most: i32,
    ) |driver| {
        let function = driver.functions.find(function)?;
        if !shared_of.is_null() || !(0..=1024).contains(&most) {
            return Err(Code::INVALID_VALUE);
        }
        let size = function.most_threads.min(if most == 0 { 1024 } else { most.cast_unsigned() });
        // SAFETY: the driver's documentation obliges the caller to pass `threads` that are valid for a write; null is rejected.
        unsafe { give(threads, size.cast_signed()) }?;
        // SAFETY: the driver's documentation obliges the caller to pass `blocks` that are valid for a write; null is rejected.
        unsafe { give(blocks, (MULTIPROCESSORS as u32 * blocks_each(&function, size)).cast_signed()) }
    }

    Context fn cuLaunchKernel(
        function: usize,
        grid_x: u32,
        grid_y: u32,
        grid_z: u32,
        block_x: u32,
        block_y: u32,
        block_z: u32,
        _shared_bytes: u32,
        stream: usize,
        parameters: *mut *mut c_void,
        extra: *mut *mut c_void,
    ) |driver| {
        driver.functions.find(function)?;
        if !extra.is_null() {
            return Err(Code::NOT_SUPPORTED);
        }
        let shape = Shape { grid: [grid_x, grid_y, grid_z], block: [block_x, block_y, block_z] };
        // SAFETY: the driver's documentation obliges the caller to pass one pointer per parameter of the kernel, to the arguments that it
        // takes.
        unsafe { launch(driver, function, &shape, stream, parameters) }
    }

    Context fn cuLaunchCooperativeKernel(
        function: usize,
        grid_x: u32,
        grid_y: u32,
        grid_z: u32,
        block_x: u32,
        block_y: u32,
        block_z: u32,
        _shared_bytes: u32,
        stream: usize,
        parameters: *mut *mut c_void,
    ) |driver| {
        driver.demand(COOPERATIVE_LAUNCH)?;
        let shape = Shape { grid: [grid_x, grid_y, grid_z], block: [block_x, block_y, block_z] };
        // Blocks may wait for each other.
        let known = driver.functions.find(function)?;
        let threads = block_x.saturating_mul(block_y).saturating_mul(block_z).max(1);
        if u64::from(grid_x) > MULTIPROCESSORS * u64::from(blocks_each(&known, threads)) {
            return Err(Code::COOPERATIVE_LAUNCH_TOO_LARGE);
        }
        // SAFETY: the driver's documentation obliges the caller to pass one pointer per parameter of the kernel, to the arguments that it
        // takes.
        unsafe { launch(driver, function, &shape, stream, parameters) }
    }
}
