//! PCI addresses in scenes, and NVML's structs for PCI addresses.

use std::ffi::{c_char, c_uint};

/// Domain, bus and device. The function of a GPU is always 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Address {
    domain: u32,
    bus: u32,
    device: u32,
}

/// `nvmlPciInfo_t`, for `nvmlDeviceGetPciInfo_v3`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Info {
    short: [c_char; 16],
    domain: c_uint,
    bus: c_uint,
    device: c_uint,
    device_id: c_uint,
    subsystem_id: c_uint,
    long: [c_char; 32],
}

/// PCI ids of a data centre GPU.
const DEVICE_ID: c_uint = 0x2335_10de;
const SUBSYSTEM_ID: c_uint = 0x18be_10de;

impl Info {
    pub(crate) fn address(self) -> Address {
        Address { domain: self.domain, bus: self.bus, device: self.device }
    }
}

impl Address {
    /// Returns the address of a GPU for which the scene specifies none.
    pub(crate) fn of_index(index: u32) -> Self {
        Self { domain: index / 0x80, bus: 0x10 + index % 0x80, device: 0 }
    }

    /// Parses an address such as `00000000:17:00.0`. The numbers can be shorter: sysfs writes the domain with four
    /// digits.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut parts = text.strip_suffix(".0")?.split(':');
        let mut hex = |digits: usize| {
            let part = parts.next().filter(|part| part.len() <= digits)?;
            u32::from_str_radix(part, 16).ok()
        };
        let (domain, bus, device) = (hex(8)?, hex(2)?, hex(2)?);
        parts.next().is_none().then_some(Self { domain, bus, device })
    }

    pub(crate) fn info(self) -> Info {
        let Self { domain, bus, device } = self;
        Info {
            short: padded(&format!("{domain:04X}:{bus:02X}:{device:02X}.0")),
            domain,
            bus,
            device,
            device_id: DEVICE_ID,
            subsystem_id: SUBSYSTEM_ID,
            long: padded(&format!("{domain:08X}:{bus:02X}:{device:02X}.0")),
        }
    }
}

/// Copies text into a C string of fixed size. Long text is truncated.
fn padded<const N: usize>(text: &str) -> [c_char; N] {
    let mut field = [0; N];
    for (character, byte) in field.iter_mut().take(N - 1).zip(text.bytes()) {
        *character = byte as c_char;
    }
    field
}
