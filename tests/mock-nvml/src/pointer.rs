//! A C caller's pointers: the only place that follows one.

use std::ffi::{CStr, c_char, c_uint};

use crate::answer::{Answer, Code};

/// An argument through which a C caller gives or takes values.
///
/// There is no way to make one but to be called through the ABI, where the caller promises what
/// NVML's header asks for: that it is null or points to as much room as the call says. The methods
/// below are sound under that promise and no other.
#[repr(transparent)]
pub(crate) struct Pointer<T>(*mut T);

// Not derived, which would ask for T: Copy.
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
        // SAFETY: not null, so that the caller promised room for a T. Unaligned, because nothing
        // obliges a foreign caller's buffer to be aligned for our record.
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
        // SAFETY: not null, so that the caller promised a T, which is plain data.
        Ok(unsafe { self.0.read_unaligned() })
    }

    /// Gives the caller `values`, for which it has said that it has room.
    pub(crate) fn put_all(self, values: impl ExactSizeIterator<Item = T>, room: usize) -> Answer {
        if self.is_null() {
            return Err(Code::INVALID_ARGUMENT);
        }
        if values.len() > room {
            return Err(Code::INSUFFICIENT_SIZE);
        }
        for (index, value) in values.take(room).enumerate() {
            // SAFETY: index is below the number of records that the caller promised room for.
            unsafe { self.0.add(index).write_unaligned(value) };
        }
        Ok(())
    }

    /// The same buffer seen as records of another layout, as the caller's symbol version has it.
    pub(crate) fn cast<U>(self) -> Pointer<U> {
        Pointer(self.0.cast())
    }
}

impl Pointer<c_char> {
    pub(crate) fn text(self) -> Result<String, Code> {
        if self.is_null() {
            return Err(Code::INVALID_ARGUMENT);
        }
        // SAFETY: not null, so that the caller promised text that ends with a NUL.
        let text = unsafe { CStr::from_ptr(self.0) };
        Ok(text.to_string_lossy().into_owned())
    }

    /// Gives the caller text that ends with a NUL, for which it has room in `length` bytes.
    pub(crate) fn put_text(self, text: impl AsRef<[u8]>, length: c_uint) -> Answer {
        let bytes = text.as_ref().iter().copied().chain([0]);
        let bytes = bytes.map(|byte| byte as c_char);
        let bytes: Vec<c_char> = bytes.collect();
        self.put_all(bytes.into_iter(), length as usize)
    }
}
