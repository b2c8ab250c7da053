//! Pointers of C callers. No other module dereferences them.

use std::ffi::{CStr, c_char, c_uint};

use crate::answer::{Answer, Code};

/// A pointer argument of a C caller.
///
/// Only a call through the ABI can create a value of this type. According to nvml.h, the pointer is null or points to
/// as much memory as the function requires. The methods are sound if the caller meets this requirement.
#[repr(transparent)]
pub(crate) struct Pointer<T>(*mut T);

// A derived implementation would require `T: Clone`.
impl<T> Clone for Pointer<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Pointer<T> {}

impl<T> Pointer<T> {
    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    pub(crate) fn put(self, value: T) -> Answer {
        if self.is_null() {
            return Err(Code::INVALID_ARGUMENT);
        }
        // SAFETY: the pointer is not null, so it points to memory for a `T`. The write is unaligned, because a C
        // caller's buffer need not be aligned for this struct.
        unsafe { self.0.write_unaligned(value) };
        Ok(())
    }

    pub(crate) fn get(self) -> Result<T, Code>
    where
        T: Copy,
    {
        if self.is_null() {
            return Err(Code::INVALID_ARGUMENT);
        }
        // SAFETY: the pointer is not null, so it points to a `T`, which is valid for all bit patterns.
        Ok(unsafe { self.0.read_unaligned() })
    }

    /// Writes all values, or returns `INSUFFICIENT_SIZE` if there are more than `room`.
    pub(crate) fn put_all(self, values: impl ExactSizeIterator<Item = T>, room: usize) -> Answer {
        if self.is_null() {
            return Err(Code::INVALID_ARGUMENT);
        }
        if values.len() > room {
            return Err(Code::INSUFFICIENT_SIZE);
        }
        for (index, value) in values.take(room).enumerate() {
            // SAFETY: `index` is less than the number of records for which the caller has memory.
            unsafe { self.0.add(index).write_unaligned(value) };
        }
        Ok(())
    }

    /// Converts the pointer to another record layout, which depends on the version of the called function.
    pub(crate) fn cast<U>(self) -> Pointer<U> {
        Pointer(self.0.cast())
    }
}

impl Pointer<c_char> {
    pub(crate) fn text(self) -> Result<String, Code> {
        if self.is_null() {
            return Err(Code::INVALID_ARGUMENT);
        }
        // SAFETY: the pointer is not null, so it points to a NUL-terminated string.
        let text = unsafe { CStr::from_ptr(self.0) };
        Ok(text.to_string_lossy().into_owned())
    }

    /// Writes a NUL-terminated string into a buffer of `length` bytes.
    pub(crate) fn put_text(self, text: impl AsRef<[u8]>, length: c_uint) -> Answer {
        let bytes = text.as_ref().iter().copied().chain([0]);
        let bytes = bytes.map(|byte| byte as c_char);
        let bytes: Vec<c_char> = bytes.collect();
        self.put_all(bytes.into_iter(), length as usize)
    }
}
