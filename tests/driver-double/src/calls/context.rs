use crate::code::Code;
use crate::context;
use crate::entry::give;

calls! {
    Init fn cuDevicePrimaryCtxRetain(context: *mut usize, device: i32) |driver| {
        let device = driver.device(device)?;
        if context.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        device.context.retain();
        // SAFETY: the driver's documentation obliges the caller to pass a `context` that is valid for a write.
        unsafe { give(context, context::handle(device.ordinal)) }
    }

    Init fn cuDevicePrimaryCtxRelease_v2(device: i32) |driver| {
        let device = driver.device(device)?;
        if device.context.retained() == 1 {
            driver.engine.idle(Some(device.ordinal), driver.settings.deadline);
        }
        if device.context.release()? {
            driver.destroy_context(device);
        }
        Ok(())
    }

    // A stream's own thread has no context bound.
    Init fn cuCtxGetCurrent(context: *mut usize) at_once {
        let bound = context::bound().filter(|_| !context.is_null());
        if let Some(device) = bound {
            // SAFETY: not null; the driver's documentation obliges the caller to pass a `context` that is valid for a write.
            unsafe { context.write(context::handle(device)) };
        }
        bound.is_some()
    } |_| {
        // SAFETY: the driver's documentation obliges the caller to pass a `context` that is valid for a write; null is rejected.
        unsafe { give(context, context::bound().map_or(0, context::handle)) }
    }

    Init fn cuCtxSetCurrent(context: usize) |driver| {
        let device = if context == 0 { None } else { Some(driver.device_of(context)?.ordinal) };
        context::bind(device);
        Ok(())
    }

    // The range of a GPU's; a stream's priority has no effect.
    Context fn cuCtxGetStreamPriorityRange(least: *mut i32, greatest: *mut i32) |driver| {
        driver.current()?;
        for (place, priority) in [(least, 0), (greatest, -5)] {
            if !place.is_null() {
                // SAFETY: not null; the driver's documentation obliges the caller to pass places that are null or valid for a write.
                unsafe { give(place, priority) }?;
            }
        }
        Ok(())
    }

    Context fn cuCtxSynchronize() |driver| {
        let device = driver.current()?;
        driver.engine.idle(Some(device.ordinal), driver.settings.deadline);
        driver.settle();
        device.context.check()
    }
}
