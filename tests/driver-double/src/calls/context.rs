//! The primary context.

use crate::call::give;
use crate::code::Code;
use crate::context::Context;

calls! {
    Init fn cuDevicePrimaryCtxRetain(context: *mut usize, device: i32) |driver| {
        if device != 0 {
            return Err(Code::INVALID_DEVICE);
        }
        if context.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: the caller's promise.
        unsafe { give(context, driver.context.retain()) }
    }

    Init fn cuDevicePrimaryCtxRelease_v2(device: i32) |driver| {
        if device != 0 {
            return Err(Code::INVALID_DEVICE);
        }
        if driver.context.retained() == 1 {
            driver.engine.idle(driver.settings.deadline);
        }
        if driver.context.release()? {
            driver.destroy_context();
        }
        Ok(())
    }

    Init fn cuCtxGetCurrent(context: *mut usize) |_| {
        // SAFETY: the caller's promise.
        unsafe { give(context, Context::bound()) }
    }

    Init fn cuCtxSetCurrent(context: usize) |driver| {
        driver.context.bind(context)
    }

    Context fn cuCtxSynchronize() |driver| {
        driver.engine.idle(driver.settings.deadline);
        driver.context.check()
    }
}
