//! The columns of the process table: what each is called, how it is sorted, which give way first.
//!
//! One table; the table's heading, the sort keys and the help are read from it. What a cell says is
//! in `view/table.rs`; what it is sorted by in `picture.rs`.

/// A column of the process table, in the order in which they are shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Column {
    /// NVML's index of the GPU.
    Gpu,
    /// The process id.
    Pid,
    /// The owner.
    User,
    /// Memory held on this GPU, in bytes.
    Memory,
    /// The same as a share of the GPU's memory.
    MemoryPercent,
    /// How that memory moved; sorted by how much it grew.
    History,
    /// Use of the GPU's multiprocessors.
    SmPercent,
    /// Use of the CPU; one core is 100.
    CpuPercent,
    /// Resident host memory.
    HostMemory,
    /// What the scheduler says.
    State,
    /// How long it has not used this GPU.
    Idle,
    /// How long it has run.
    Runtime,
    /// What it computes with.
    Framework,
    /// The container, pod, job or unit that it runs in.
    Place,
    /// What the rules say of it.
    Finding,
    /// The notebook, or the command line.
    Command,
}

/// How a column is named, sorted and laid out.
#[derive(Clone, Copy, Debug)]
pub struct Spec {
    /// The heading.
    pub title: &'static str,
    /// After `o`, the key that sorts by it.
    pub letter: char,
    /// Whether the most comes first.
    pub descending: bool,
    /// Whether it stands at the right edge of its column.
    pub right: bool,
    /// Its width in terminal columns; the widest text decides where this is 0.
    pub width: u16,
}

impl Column {
    /// All of them, as shown from left to right.
    pub const ALL: [Self; 16] = [
        Self::Gpu,
        Self::Pid,
        Self::User,
        Self::Memory,
        Self::MemoryPercent,
        Self::History,
        Self::SmPercent,
        Self::CpuPercent,
        Self::HostMemory,
        Self::State,
        Self::Idle,
        Self::Runtime,
        Self::Framework,
        Self::Place,
        Self::Finding,
        Self::Command,
    ];

    /// From the one that stays longest on a narrow screen to the one that goes first.
    pub const BY_NEED: [Self; 16] = [
        Self::Command,
        Self::Pid,
        Self::Memory,
        Self::Finding,
        Self::Gpu,
        Self::User,
        Self::SmPercent,
        Self::Idle,
        Self::Place,
        Self::History,
        Self::CpuPercent,
        Self::MemoryPercent,
        Self::State,
        Self::Runtime,
        Self::HostMemory,
        Self::Framework,
    ];

    /// Its line in the table of columns.
    pub const fn spec(self) -> Spec {
        // Widths leave room for the sort mark behind the heading.
        let (title, letter, descending, right, width) = match self {
            Self::Gpu => ("GPU", 'g', false, true, 0),
            Self::Pid => ("PID", 'p', false, true, 0),
            Self::User => ("USER", 'u', false, false, 0),
            Self::Memory => ("MEM", 'm', true, true, 10),
            Self::MemoryPercent => ("MEM%", 'n', true, true, 5),
            Self::History => ("HISTORY", 'y', true, false, 10),
            Self::SmPercent => ("SM%", 's', true, true, 4),
            Self::CpuPercent => ("CPU%", 'c', true, true, 6),
            Self::HostMemory => ("HOST MEM", 'h', true, true, 10),
            Self::State => ("STATE", 't', false, false, 6),
            Self::Idle => ("IDLE", 'i', true, true, 8),
            Self::Runtime => ("RUNTIME", 'r', true, true, 8),
            Self::Framework => ("FRAMEWORK", 'f', false, false, 0),
            Self::Place => ("WHERE", 'w', false, false, 0),
            Self::Finding => ("FINDING", 'x', true, false, 0),
            Self::Command => ("COMMAND", 'd', false, false, 0),
        };
        Spec {
            title,
            letter,
            descending,
            right,
            width,
        }
    }

    /// The column that `letter` sorts by.
    pub fn by_letter(letter: char) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|column| column.spec().letter == letter)
    }

    /// The column `steps` to the right (or left, where negative); the table's ends meet.
    pub fn step(self, steps: isize) -> Self {
        let count = Self::ALL.len() as isize;
        let at = Self::ALL.iter().position(|&column| column == self);
        let to = (at.unwrap_or(0) as isize + steps).rem_euclid(count);
        Self::ALL[to as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_column_has_a_letter_of_its_own_and_a_place() {
        for column in Column::ALL {
            assert_eq!(Column::by_letter(column.spec().letter), Some(column));
            assert!(Column::BY_NEED.contains(&column), "{column:?}");
            assert_eq!(column.step(1).step(-1), column);
        }
        assert_eq!(Column::by_letter('z'), None);
        assert_eq!(Column::Command.step(1), Column::Gpu);
    }
}
