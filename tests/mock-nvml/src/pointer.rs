//! The pointers of C callers. Only this module dereferences them.

use std::ffi::{CStr, c_char, c_uint};

use crate::answer::{Answer, Code};

/// An argument through which a C caller passes or receives values.
///
/// It can only be created by a call through the ABI. NVML's header requires that it is null, or points to as much
/// memory as the call says. The methods below are sound if the caller meets this requirement.
#[repr(transparent)]
pub(crate) struct Pointer<T>(*mut T);

// Not derived, because that would require `T: Copy`.
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
        // SAFETY: the pointer is not null, so it points to memory for a T. The write is unaligned, because a foreign
        // caller's buffer need not be aligned for our record.
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
        // SAFETY: the pointer is not null, so it points to a T, which is plain data.
        Ok(unsafe { self.0.read_unaligned() })
    }

    /// Writes `values`, at most `room` of them.
    pub(crate) fn put_all(self, values: impl ExactSizeIterator<Item = T>, room: usize) -> Answer {
        if self.is_null() {
            return Err(Code::INVALID_ARGUMENT);
        }
        if values.len() > room {
            return Err(Code::INSUFFICIENT_SIZE);
        }
        for (index, value) in values.take(room).enumerate() {
            // SAFETY: `index` is below the number of records that the caller has memory for.
            unsafe { self.0.add(index).write_unaligned(value) };
        }
        Ok(())
    }

    /// The same buffer as records of another layout, according to the symbol version that was called.
    pub(crate) fn cast<U>(self) -> Pointer<U> {
        Pointer(self.0.cast())
    }
}

impl Pointer<c_char> {
    pub(crate) fn text(self) -> Result<String, Code> {
        if self.is_null() {
            return Err(Code::INVALID_ARGUMENT);
        }
        // SAFETY: the pointer is not null, so it points to text that ends with a NUL.
        let text = unsafe { CStr::from_ptr(self.0) };
        Ok(text.to_string_lossy().into_owned())
    }

    /// Writes text that ends with a NUL into a buffer of `length` bytes.
    pub(crate) fn put_text(self, text: impl AsRef<[u8]>, length: c_uint) -> Answer {
        let bytes = text.as_ref().iter().copied().chain([0]);
        let bytes = bytes.map(|byte| byte as c_char);
        let bytes: Vec<c_char> = bytes.collect();
        self.put_all(bytes.into_iter(), length as usize)
    }
}
